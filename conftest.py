"""What pytest leaves out of the package: modules whose optional parts are not installed have no doctests to run.

Not left to `--doctest-ignore-import-errors`, which would also skip a test file whose imports fail.
"""

from importlib.util import find_spec

_FLOWER = ["src/fedstill/deploy/*.py", "src/fedstill/engines/flower/*.py"]

collect_ignore_glob = [] if find_spec("flwr") and find_spec("ray") and find_spec("cryptography") else _FLOWER
