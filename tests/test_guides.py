"""Every guide is walked in an empty folder, as it is written, and prints what it says."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from .pages import ROOT, commands, walk

GUIDES = ROOT / "docs" / "guides"
QUICK = ("add-a-method", "audit-a-table", "own-data")
SLOW = ("add-an-objective", "ask-a-query", "audit-a-teacher", "flat-batteries", "one-image", "own-scan")
OPTIONAL = {"ray": "ray", "three-machines": "flwr"}  # guides that need a package of the extras


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_guide_can_be_walked(name: str, tmp_path: Path) -> None:
    walk(f"docs/guides/{name}.md", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONAL)
def test_a_guide_to_several_machines_can_be_walked_on_one(name: str, tmp_path: Path) -> None:
    if find_spec(OPTIONAL[name]) is None and "FEDSTILL_ALL_TESTS" not in os.environ:
        pytest.skip(f"{OPTIONAL[name]} is not installed")
    walk(f"docs/guides/{name}.md", tmp_path)


def test_every_guide_is_in_the_index_and_is_walked() -> None:
    names = {page.stem for page in GUIDES.glob("*.md")} - {"README"}
    assert names == {*QUICK, *SLOW, *OPTIONAL}
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", (GUIDES / "README.md").read_text()))
    assert linked == names
    assert all(commands(f"docs/guides/{name}.md") for name in names)
