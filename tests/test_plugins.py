"""Parts of one's own, in a file or in an installed package, through every door."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .pages import blocks
from .warm import Warm

Call = Callable[..., subprocess.CompletedProcess[str]]

# One file with a method, a model and a data set, of the pages that show them.
PAGES = ("docs/guides/add-a-method.md", "docs/extending.md")
PARTS = [body for page in PAGES for name, body in blocks(page, "python") if name]
RUN = ["run", "part-way", "--data", "stripes", "--model", "flat", "--rounds", "2", "--clients", "3", "--json"]


@pytest.fixture
def fedstill(warm: Warm) -> Call:
    """A command in a folder, and in a process of its own: what a plugin registers, nobody else has."""

    def call(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
        return warm.fedstill([*words], folder, environment={**os.environ, "PYTHONPATH": path})

    return call


@pytest.fixture
def example(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("\n\n".join(PARTS))
    return tmp_path


def test_a_plugin_file_works_in_this_process_and_in_workers(example: Path, fedstill: Call) -> None:
    hashes = set()
    for engine in ("in-process", "processes"):
        words = ["--plugin", "mine.py", "--engine", engine, "--workers", "1", "--out", engine]
        done = fedstill(example, *RUN, *words)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert (result["method"], result["data"], result["model"]) == ("part-way", "stripes", "flat")
        assert result["accuracy"]["last"] > 0.9
        hashes.add(result["sha256"])
    assert len(hashes) == 1


def test_an_edited_plugin_is_another_run_and_a_comment_is_no_edit(example: Path, fedstill: Call) -> None:
    text = (example / "mine.py").read_text()
    made = []
    for edited in (text, text + "# edited\n", text.replace("nn.ReLU()", "nn.Tanh()"), text):
        (example / "mine.py").write_text(edited)
        made.append(json.loads(fedstill(example, *RUN, "--plugin", "mine.py").stdout))
    runs, bits = [one["run"] for one in made], [one["sha256"] for one in made]
    assert runs[0] == runs[1] == runs[3] != runs[2]
    assert bits[0] == bits[1] == bits[3] != bits[2]


def test_an_installed_package_needs_no_flag(example: Path, fedstill: Call) -> None:
    """An entry point, as pip would have written it."""
    site = example / "site"
    info = site / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (example / "mine.py").rename(site / "my_parts.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedstill.plugins]\nmine = my_parts\n")
    done = fedstill(example, *RUN, "--engine", "processes", "--workers", "1", path=str(site))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "part-way"
    assert "part-way" in fedstill(example, "list", "methods", path=str(site)).stdout


def test_a_broken_plugin_gets_one_sentence(tmp_path: Path, fedstill: Call) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    done = fedstill(tmp_path, "run", "fedavg", "--plugin", "broken.py")
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "broken.py cannot be loaded" in done.stderr
