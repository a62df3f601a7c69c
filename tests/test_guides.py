"""Every guide is walked in an empty folder, as it is written, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import ROOT, commands, walk
from .warm import Warm

GUIDES = ROOT / "docs" / "guides"
QUICK = ("add-a-method", "audit-a-table", "images", "own-data", "tables-and-sites")
SLOW = (
    "add-an-objective",
    "ask-a-query",
    "audit-a-teacher",
    "compare-runs",
    "flat-batteries",
    "hospitals",
    "one-image",
    "own-scan",
    "ray",
    "three-machines",
)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_guide_can_be_walked(name: str, tmp_path: Path, warm: Warm) -> None:
    walk(f"docs/guides/{name}.md", tmp_path, warm if name in QUICK else None)


def test_every_guide_is_in_the_index_and_is_walked() -> None:
    names = {page.stem for page in GUIDES.glob("*.md")} - {"README"}
    assert names == {*QUICK, *SLOW}
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", (GUIDES / "README.md").read_text()))
    assert linked == names
    assert all(commands(f"docs/guides/{name}.md") for name in names)
