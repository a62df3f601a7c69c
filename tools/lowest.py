"""Print the lowest version of every package that pyproject.toml asks for, extras included, as constraints.

`make test-lowest` calls this. torch is the exception: its floor is declared, but the tests run with the release that
constraints.txt pins, since older ones exist only as builds of several gigabytes on many indexes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BOUND = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    print("\n".join([*pins, *lowest(asked)]))


def lowest(requirements: Iterable[str]) -> Iterator[str]:
    """Each lower bound as a pin; a requirement without one is an error.

    >>> list(lowest(["numpy>=1.26", "flwr[app]>=1.41,<1.42", "torch>=2.6", "fedstill[ray]"]))
    ['numpy==1.26', 'flwr==1.41']
    """
    for one in requirements:
        bound = _BOUND.match(one)
        if bound is None and not one.startswith("fedstill["):
            raise SystemExit(f"pyproject.toml has no lower bound for {one}")
        if bound is not None and bound[1] != "torch":
            yield f"{bound[1]}=={bound[2]}"


if __name__ == "__main__":
    main()
