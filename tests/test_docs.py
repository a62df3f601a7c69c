"""Commands and code in the documents are executed, at a tiny scale, as a reader would."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fedstill
from fedstill.cli import main
from fedstill.cli.screen import CANNOT_RUN
from fedstill.detection.rooms import unlabelled_rooms
from fedstill.studies.results import load_results

from .pages import FEDSTILL, ROOT, blocks, commands, walk, write_files
from .warm import Warm

COLD = ("docs/fleet.md",)  # commands in a new interpreter each; of the other pages, in a copy of one that is warm


def tiny(command: str) -> list[str]:
    """The same command with one round, one epoch of a few scenes, or one worker; later options win."""
    program, *words = shlex.split(command)
    assert program == "fedstill"
    less = {"run": ["--rounds", "1"], "pretrain": ["--epochs", "1", "--rows", "8"], "study": ["--workers", "1"]}
    return [*words, *less.get(words[0], [])]


def started(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*FEDSTILL, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def follow(page: str, folder: Path, warm: Warm) -> None:
    """Write the files a page shows, then type its commands."""
    write_files(page, folder)
    typed = commands(page)
    assert typed, f"{page} has no commands"
    for command in typed:
        done = started(tiny(command), folder) if page in COLD else warm.fedstill(tiny(command), folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(
    "page", ["README.md", "docs/extending.md", "docs/own-training.md", "docs/tracking.md", "docs/verifying.md"]
)
def test_commands_of_a_page_work_in_an_empty_folder(page: str, tmp_path: Path, warm: Warm) -> None:
    follow(page, tmp_path, warm)
    assert (tmp_path / "runs").is_dir()


@pytest.mark.parametrize("number", range(3))
def test_the_code_of_the_page_about_own_training_works_in_a_script(number: int, tmp_path: Path, warm: Warm) -> None:
    code = [body for file, body in blocks("docs/own-training.md", "python") if not file]
    assert len(code) == 3
    done = warm.python(code[number], tmp_path)
    assert done.returncode == 0, done.stderr
    assert 0.3 < float(done.stdout) <= 1


@pytest.mark.parametrize(
    "page", ["docs/data.md", "docs/fleet.md", "docs/secure-aggregation.md", "docs/privacy.md", "docs/flower-app.md"]
)
def test_commands_of_a_page_that_only_looks_work_in_an_empty_folder(page: str, tmp_path: Path, warm: Warm) -> None:
    follow(page, tmp_path, warm)


@pytest.mark.slow
def test_commands_of_the_detection_page_work_in_an_empty_folder(tmp_path: Path, warm: Warm) -> None:
    follow("docs/detection.md", tmp_path, warm)


def test_the_five_lines_of_the_readme_and_the_accuracy_of_their_method(tmp_path: Path, warm: Warm) -> None:
    """Labels there are skewed, which costs FedAvg accuracy."""
    ((_, code),) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 5
    done = warm.python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    accuracy, digest = done.stdout.split()
    assert 0.5 < float(accuracy) <= 1
    assert len(digest) == 64
    even = fedstill.run("fedavg", data="digits", partition="iid", seed=7, out=tmp_path)
    assert even.accuracy >= 0.95
    assert float(accuracy) < even.accuracy - 0.01


def test_the_page_about_python_can_be_run_block_by_block(tmp_path: Path, warm: Warm) -> None:
    assert len(blocks("docs/python.md", "python")) == 5
    walk("docs/python.md", tmp_path, warm)
    assert (tmp_path / "rounds.png").stat().st_size > 10_000
    assert (tmp_path / "comparison.png").stat().st_size > 10_000


def test_the_code_of_the_page_about_trackers_works(tmp_path: Path, warm: Warm) -> None:
    ((_, code),) = blocks("docs/tracking.md", "python")
    done = warm.python(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


@pytest.mark.parametrize("block", range(5))
def test_the_pieces_to_use_alone_run_as_they_are_written(block: int, tmp_path: Path, warm: Warm) -> None:
    codes = [code for _, code in blocks("docs/pieces.md", "python")]
    assert len(codes) == 5
    done = warm.python(codes[block], tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


SHEET = [code for _, code in blocks("docs/cheat-sheet.md", "python")]


@pytest.mark.parametrize("block", range(1, 15))
def test_every_block_of_the_cheat_sheet_works_in_at_most_eight_lines(block: int, tmp_path: Path, warm: Warm) -> None:
    assert len(SHEET) == 15
    assert len([line for line in SHEET[block].splitlines() if line.strip()]) <= 8
    done = warm.python(f"{SHEET[0]}\n\n{SHEET[block]}", tmp_path)
    assert done.returncode == 0, done.stderr


FILES = runpy.run_path(str(ROOT / "tools" / "results_files.py"))
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
MEASURED = [
    command
    for page in ("docs/results.md", "docs/findings.md", *(str(path.relative_to(ROOT)) for path in RESULTS))
    for command in commands(page)
]
# Files whose runs have not been computed again since the kernel changed. Take names out; put none in.
KNOWN_STALE = {
    "batteries-lite",
    "beta-weights-lite",
    "detection-ablation-lite",
    "detection-lite",
    "dropout-methods-fedprox-lite",
    "dropout-methods-lite",
    "kd-objectives-lite",
}


@pytest.mark.parametrize("command", dict.fromkeys(MEASURED))
def test_measured_commands_are_valid(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands beside measured numbers take long: they are parsed and dry-run, which says what data is not here."""
    words = shlex.split(command)
    words = words[1:] if words[0].startswith("FEDSTILL_DATA=") else words
    assert words[0] == "fedstill"
    monkeypatch.chdir(tmp_path)
    for name in ("ROOMS", "HELD_OUT"):  # these are made; how many does not matter to a command
        monkeypatch.setattr(unlabelled_rooms, name, 8)
    monkeypatch.setattr(sys, "argv", [*words, "--dry-run"])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    assert not left.value.code or (left.value.code == 2 and CANNOT_RUN in printed.out), printed.err


def test_every_results_file_is_listed_as_what_it_is_today() -> None:
    """`python tools/results_files.py` writes the list."""
    page = FILES["PAGE"].read_text()
    assert page == FILES["updated"](page)


def test_no_results_file_becomes_stale() -> None:
    files = sorted(FILES["FOLDER"].glob("*.json"))
    stale = {path.stem for path in files if FILES["is_stale"](load_results(path))}
    assert stale == KNOWN_STALE, "compute again what is stale, or take out of the list what no longer is"


def test_every_results_file_stands_beside_its_table() -> None:
    shown = "".join(path.read_text() for path in [*RESULTS, ROOT / "docs" / "findings.md"])
    assert [path.stem for path in FILES["FOLDER"].glob("*.json") if path.stem not in shown] == []


def test_pages_with_measured_numbers_have_their_commands() -> None:
    """Each section with a table of figures has a command, or belongs to one that has."""
    for path in RESULTS:
        for section in re.split(r"^## ", path.read_text(), flags=re.M)[1:]:
            if not section.startswith("Verdicts") and re.search(r"^\|.*\d", section, re.M):
                assert "```console\n$ " in section, f"{path.name}: {section.splitlines()[0]}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        assert len(page.read_text()) > 200, f"{page.name} is empty"
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_fence_is_one_that_the_site_can_render() -> None:
    """The site shows a block with any other option as running text."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    fences = [line for page in pages for line in page.read_text().splitlines() if line.startswith("```")]
    assert fences
    assert [line for line in fences if not re.fullmatch(r'```(\w+( title="[^"]+")?)?', line)] == []
