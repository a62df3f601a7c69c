"""Print constraints.txt: every package that `make` installs, each at one version. `make lock` calls this.

Usage: tools/lock.py PYTHON, where PYTHON is the interpreter of an empty environment. The project is installed there
with all its extras, at the newest versions that its ranges allow, and what pip then finds is printed. torch keeps the
release that is pinned already: a new one is chosen by hand, with `--torch VERSION`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
HEAD = """\
# Exact versions of everything that `make` installs. Written by `make lock`; do not edit.
# pyproject.toml has the ranges that the package itself asks for.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the versions of an environment with all extras.")
    parser.add_argument("python", help="the interpreter of an empty environment")
    parser.add_argument("--torch", default=None, help="torch's release, in place of the one pinned now")
    given = parser.parse_args()
    torch = given.torch or pinned("torch", CONSTRAINTS.read_text().splitlines())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.write(f"torch=={torch}\n")
        chosen.flush()
        install = ["install", "--quiet", "--constraint", chosen.name, f"{ROOT}[dev]"]
        subprocess.run([given.python, "-m", "pip", *install], check=True)
    # torch asks for setuptools, which `freeze` leaves out without `--all`.
    freeze = [given.python, "-m", "pip", "freeze", "--all", "--exclude", "pip", "--exclude", "fedstill"]
    found = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines()
    sys.stdout.write(HEAD + "".join(f"{line}\n" for line in public(found)))


def pinned(name: str, lines: Iterable[str]) -> str:
    """The version of one package in a constraints file.

    >>> pinned("torch", ["# made by hand", "numpy==2.4.6", "torch==2.13.0"])
    '2.13.0'
    """
    return next(version for line in lines for package, _, version in [line.partition("==")] if package == name)


def public(lines: Iterable[str]) -> list[str]:
    """Without local versions (`2.13.0+cpu`), which other package indexes do not have.

    >>> public(["torch==2.13.0+cpu", "numpy==2.4.6"])
    ['torch==2.13.0', 'numpy==2.4.6']
    """
    return [re.sub(r"\+.*", "", line) for line in lines]


if __name__ == "__main__":
    main()
