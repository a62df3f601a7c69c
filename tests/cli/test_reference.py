"""The reference is written from the code: what lies in the repository is what would be written today."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

from fedstill.cli.options import FILE
from fedstill.cli.reference import completed_names
from fedstill.cli.reference_page import ENVIRONMENT, anchors, reference_page
from fedstill.methods import methods

from ..warm import Warm

ROOT = Path(__file__).parents[2]
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)

Call = Callable[..., tuple[int, str, str]]
DOCS = Path(__file__).parents[2] / "docs"
AGAIN = (
    "write it anew: fedstill reference --out docs/reference.md --names src/fedstill/cli/names.json"
    " --records docs/records.schema.json"
)


@pytest.fixture(scope="module")
def page() -> str:
    return reference_page()


def test_what_lies_in_the_repository_is_what_would_be_written(tmp_path: Path, warm: Warm) -> None:
    """Written by a process of its own: other tests register parts in this one."""
    words = ["reference", "--out", str(tmp_path / "page.md"), "--names", str(tmp_path / FILE)]
    words += ["--records", str(tmp_path / "schema.json")]
    done = warm.fedstill(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.md").read_text() == (DOCS / "reference.md").read_text(encoding="utf-8"), AGAIN
    names = json.loads(files("fedstill.cli").joinpath(FILE).read_text(encoding="utf-8"))
    written = json.loads((tmp_path / FILE).read_text())
    helps = names.pop("help"), written.pop("help")  # releases of typer differ in it
    assert written == names, AGAIN
    listed = [re.findall(r"^  ([a-z]+)  .*$", text, re.MULTILINE) for text in helps]
    assert listed[0] == listed[1], AGAIN
    assert {"run", "study", "data", "deploy", "detect", "query"} <= set(listed[0])
    if version("typer") == PINNED["typer"] and version("click") == PINNED["click"]:
        assert helps[0] == helps[1], AGAIN
    if version("pydantic") == PINNED["pydantic"]:  # releases of pydantic write schemas differently
        assert (tmp_path / "schema.json").read_text() == (DOCS / "records.schema.json").read_text(), AGAIN


def test_every_link_leads_somewhere(page: str) -> None:
    within = set(re.findall(r"\]\(#([^)]*)\)", page))
    assert len(within) > 100
    assert sorted(within - anchors(page)) == []
    elsewhere = set(re.findall(r"\]\(([^#)]+)\)", page))
    assert [name for name in elsewhere if not (DOCS / name).is_file()] == []


def test_no_two_headings_share_an_anchor(page: str) -> None:
    """A second one would be numbered by code hosts, and links to it would lead to the first."""
    assert len(anchors(page)) == sum(line.startswith("#") for line in page.splitlines())


def test_tables_have_as_many_cells_as_heads(page: str) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        lines = [re.sub(r"\\\|", "", line).count("|") for line in table.splitlines()]
        assert len(set(lines)) == 1, table.splitlines()[0]


def test_everything_that_is_said_is_there(page: str) -> None:
    for name in methods:
        assert f"`{name}`" in page
    for variable in ENVIRONMENT:
        assert f"| `{variable}` |" in page
    assert "what it is | \n" not in page
    assert set(completed_names()["methods"]) == set(methods)


def test_every_setting_is_described(page: str) -> None:
    """A table of settings whose last column is empty says nothing."""
    tables = re.findall(
        r"\| setting \| type \| default \| what it is \|\n\|[-|]+\|\n((?:^\|.*\n)+)", page, re.MULTILINE
    )
    assert len(tables) > 20
    assert [line for table in tables for line in table.splitlines() if line.endswith("|  |")] == []


def test_the_command_writes_its_files_or_prints_the_page(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstill.cli.reference_page.reference_page", lambda: "# Reference\n")
    assert call("reference") == (0, "# Reference\n", "")
    written = ["--out", "new/page.md", "--names", "new/names.json", "--records", "new/schema.json"]
    assert call("reference", *written) == (0, "", "")
    assert "RoundRecord" in json.loads(Path("new/schema.json").read_text(encoding="utf-8"))["$defs"]
    assert Path("new/page.md").read_text(encoding="utf-8") == "# Reference\n"
    assert json.loads(Path("new/names.json").read_text(encoding="utf-8")) == completed_names()


def test_every_field_of_a_record_is_described(page: str) -> None:
    tables = re.findall(r"\| field \| present \| what it is \|\n\|[-|]+\|\n((?:^\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) > 10
    assert [line for table in tables for line in table.splitlines() if line.endswith("|  |")] == []
