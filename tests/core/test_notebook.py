"""What notebooks show, with a module that pretends to be IPython."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.dataset import ArrayDataset
from fedstill.core.notebook import NotebookBar, html_table, in_notebook, panel, picture
from fedstill.core.table import text_table
from fedstill.data.bundle import Bundle

EVIL = "<script>alert('&')</script>"
SMALL: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 3}


class Tags(HTMLParser):
    """The tags of a piece of HTML, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(shown: str) -> set[str]:
    tags = Tags(shown)
    assert not tags.open
    assert "script" not in tags.seen
    assert not re.search(r"(src|href)=.?https?:", shown)
    return tags.seen


class Kernel:
    """IPython in a notebook: what was displayed, each with the states that it went through."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []

    def display(self, shown: Any, display_id: bool) -> Any:
        assert display_id
        states = [shown._repr_html_()]
        self.outputs.append(states)
        return SimpleNamespace(update=lambda again: states.append(again._repr_html_()))


def pretend(monkeypatch: pytest.MonkeyPatch, shell: Any) -> Kernel:
    kernel = Kernel()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = kernel.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return kernel


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr("fedstill.core.notebook._EVERY", 0.0)
    return pretend(monkeypatch, SimpleNamespace(kernel=object()))


def test_a_terminal_is_no_notebook_with_ipython_or_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    for shell in (None, SimpleNamespace()):
        pretend(monkeypatch, shell)
        assert not in_notebook()
    pretend(monkeypatch, SimpleNamespace(kernel=object()))
    assert in_notebook()


def test_a_run_shows_rounds_accuracy_and_time_left(notebook: Kernel, tmp_path: Path) -> None:
    fedstill.run("fedavg", out=tmp_path, **SMALL)
    (states,) = notebook.outputs
    assert [re.search(r"round (\d/\d)", state)[1] for state in states] == ["0/3", "1/3", "2/3", "3/3"]  # type: ignore[index]
    assert 'value="2.0"' in states[2] or 'value="2"' in states[2]
    assert re.search(r"fedavg on digits .*accuracy \d+\.\d\d\xa0%, .* left", states[2])
    assert "left" not in states[3]
    assert check(states[-1]) == {"div", "progress", "svg", "polyline", "title"}, (
        "the curve of its accuracy, without a script"
    )
    fedstill.run("fedavg", out=tmp_path, **SMALL)
    assert "note: this experiment has been run already" in notebook.outputs[1][-1]
    assert "progress" not in notebook.outputs[1][-1]
    fedstill.run("fedavg", out=tmp_path, progress=False, **SMALL)
    assert len(notebook.outputs) == 2


def test_a_run_that_ends_early_leaves_a_bar_that_says_so(notebook: Kernel, tmp_path: Path) -> None:
    def fails(record: Any) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        fedstill.run("fedavg", out=tmp_path, callbacks=fails, **SMALL)
    assert re.search(r"round 1/3, accuracy \S+\s%, stopped", notebook.outputs[0][-1])


def test_a_study_shows_its_runs(notebook: Kernel, tmp_path: Path) -> None:
    recipe = {"experiment": {**SMALL, "rounds": 1}, "grid": {"method": ["fedavg", "fedprox"]}}
    fedstill.study(recipe, out=tmp_path, workers=1)
    (states,) = notebook.outputs
    assert "0/2 runs done" in states[0]
    assert "2/2 runs done" in states[-1]


def test_in_a_script_nothing_is_shown_unless_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fedstill.run("fedavg", out=tmp_path, **SMALL)
    assert capfd.readouterr() == ("", "")


def test_progress_in_a_script_is_that_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("fedstill.cli.progress.RunDisplay.round", lambda self, record: seen.append(record.round))
    monkeypatch.setattr("fedstill.cli.progress.RunDisplay.close", lambda self: seen.append("closed"))
    fedstill.run("fedavg", out=tmp_path, progress=True, **SMALL)
    assert seen[:3] == [1, 2, 3]
    assert seen[-1] == "closed"


def test_every_text_is_escaped() -> None:
    table = text_table("", [EVIL], [[EVIL]], (), EVIL)
    shown = panel(EVIL, {EVIL: EVIL}, html_table(table), picture("", 8, EVIL))
    assert check(shown) >= {"table", "img"}
    assert shown.count("&lt;script&gt;") == 8
    bar = NotebookBar(EVIL)
    bar.total, bar.text = 1.0, EVIL
    bar.lines = [EVIL]
    check(bar._repr_html_())
    assert repr(bar) == f"{EVIL} {EVIL}\n{EVIL}"


@pytest.mark.parametrize("channels", [1, 3])
def test_a_data_set_shows_classes_samples_and_pictures(channels: int) -> None:
    inputs = torch.zeros(20, channels, 8, 8, dtype=torch.uint8)
    data = ArrayDataset(inputs=inputs, labels=torch.arange(20) % 2)
    bundle = Bundle(EVIL, data, data, (EVIL, "b"), "image", (channels, 8, 8))
    shown = bundle._repr_html_()
    check(shown)
    assert shown.count("<img") == 8
    assert "20 train, 20 test" in shown
    assert len(shown) < 6000
    assert repr(bundle) == f"Bundle({EVIL!r}, 2 classes, 20 train, 20 test, image of {(channels, 8, 8)})"


def test_a_data_set_without_pictures() -> None:
    data = ArrayDataset(inputs=torch.zeros(4, 16, 3), labels=torch.zeros(4, dtype=torch.int64))
    shown = Bundle("clouds", data, data, tuple(map(str, range(40))), "cloud", (16, 3))._repr_html_()
    assert "<img" not in shown
    assert "40: 0, 1, 2" in shown
    assert "11, …" in shown


def test_runs_and_studies_show_themselves(tmp_path: Path) -> None:
    recipe = {"about": EVIL, "experiment": {**SMALL, "rounds": 1}, "grid": {"method": ["fedavg", "fedprox"]}}
    study = fedstill.Study(recipe)
    check(study._repr_html_())
    assert re.fullmatch(r"Study\('\S+', two runs\)", repr(study))
    results = study.run(tmp_path, workers=1)
    assert check(results._repr_html_()) >= {"table"}
    assert "fedprox" in results._repr_html_()
    assert EVIL not in results._repr_html_()
    assert re.fullmatch(r"Results\('\S+', two runs, by method\)", repr(results))
    run = fedstill.load_run(next(path.parent for path in tmp_path.glob("*/config.json")))
    assert check(run._repr_html_()) == {"div", "strong", "table", "tr", "td"}
    assert "1 of 1" in run._repr_html_()
    (run.path / "result.json").unlink()
    assert "not finished" in run._repr_html_()
