"""Which tests a worker of pytest-xdist runs together, and which it begins with.

A file is given to one worker as a whole, so that what its tests share is made once. `--dist loadgroup` would do the
same for marked tests, but from pytest 9.2 on it ignores the marks (https://github.com/pytest-dev/pytest-xdist/issues/1386).
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

# Work that is begun first, in this order: what takes longest, since a long unit that begins last leaves the other
# workers idle. Each line is one unit: its files share an import or a start of many seconds.
FIRST: tuple[tuple[str, ...], ...] = (
    (  # Flower and Ray, and processes that have imported nothing of this package
        *("tests/engines/flower/", "tests/engines/test_ray_connection.py", "tests/studies/test_ray_executor.py"),
        *("tests/deploy/", "tests/cli/test_deploy", "tests/test_flower.py", "tests/methods/test_against_flower.py"),
        *("tests/test_architecture.py", "tests/models/test_pointnet2_fast.py", "tests/models/test_cost.py"),
        *("tests/core/test_optimisers.py", "tests/shared_image/test_patches.py"),
    ),
    ("tests/test_conformance.py",),
    (  # ONNX
        *("tests/export/", "tests/models/portable/", "tests/detection/test_detector_file.py"),
        "tests/cli/test_export.py",
    ),
    ("tests/test_docs.py",),
    ("tests/report/study/", "tests/cli/test_report.py"),  # the large page of an audit
    ("tests/studies/test_recipes.py",),
    ("tests/detection/test_fed3d_by_hand.py",),
    ("tests/test_guides.py",),
    ("tests/methods/wrappers/test_attacks.py",),
    ("tests/report/test_browser.py",),
    ("tests/test_benchmarks.py",),
)


def place(nodeid: str) -> int:
    """The place of a test's unit in the order in which units are begun."""
    return next((at for at, names in enumerate(FIRST) if nodeid.startswith(names)), len(FIRST))


class WholeFiles(LoadScopeScheduling):
    """Gives each worker whole files, in the order of collection."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # which would begin with the files that have most tests

    def _split_scope(self, nodeid: str) -> str:
        at = place(nodeid)
        return nodeid.partition("::")[0] if at == len(FIRST) else FIRST[at][0]
