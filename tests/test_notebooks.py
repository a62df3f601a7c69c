"""The notebooks in `examples/` run as they are, and keep what they printed."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def test_there_are_five_and_they_are_small() -> None:
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        assert path.stat().st_size < 20_000
        code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
        assert all(cell["outputs"] for cell in code), f"{path.name} keeps its outputs"
        assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell in this process, which spares the start of a kernel."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    assert (tmp_path / "runs").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(path: Path, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "runs").is_dir()


def test_pages_of_the_site_show_code_and_what_it_printed() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "notebook_pages.py"))["page_of"](NOTEBOOKS[0])
    assert page.startswith("# Quick start\n")
    assert "```python\nimport fedstill" in page
    assert "``` {.text .printed}\naccuracy on test data: " in page
    assert "``` {.text .printed}\nfedavg: 93.0%\nfedprox: 92.5%\n```" in page, "what one cell printed is one block"
