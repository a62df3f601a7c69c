"""The versions that `make` installs: all of them pinned, and every range with a lower end to test."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ASKED = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
OWN = [Requirement(one) for one in ASKED if not one.startswith("fedstill[")]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.partition("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, _, version in pairs}


def needed() -> set[str]:
    """Every package that the project with all its extras needs, directly or not, as what is installed says."""
    todo = [*OWN]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        one = todo.pop()
        key = canonicalize_name(one.name), frozenset(one.extras)
        if key not in seen:
            seen.add(key)
            below = map(Requirement, distribution(one.name).requires or ())
            extras = [{"extra": extra} for extra in one.extras or {""}]
            todo += [each for each in below if each.marker is None or any(map(each.marker.evaluate, extras))]
    return {name for name, _ in seen}


def test_everything_that_make_installs_is_pinned_and_nothing_else() -> None:
    """Other versions need other packages: `make test-lowest` finds the form of the file right, and no more."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    pins = pinned()
    assert len(pins) == len(lines)
    if all(distribution(one.name).version.partition("+")[0] == pins[canonicalize_name(one.name)] for one in OWN):
        assert {*pins} == needed()


def test_every_range_has_a_lower_end_and_allows_what_is_pinned() -> None:
    lowest = runpy.run_path(str(ROOT / "tools" / "lowest.py"))["lowest"]
    assert len([*lowest(ASKED)]) == len(OWN) - 1  # torch's floor is declared, not tested
    pins = pinned()
    assert [str(one) for one in OWN if pins[canonicalize_name(one.name)] not in one.specifier] == []


def test_the_documents_list_every_extra() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert {*EXTRAS} - {"dev", "docs"} <= {*listed}
