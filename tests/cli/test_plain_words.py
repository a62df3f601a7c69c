"""What is typed first, typed twice or named as something else gets a plain answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedstill.cli import progress, screen
from fedstill.cli.progress import Display, bar_of, fitting
from fedstill.runtime.assemble import make_experiment

from ..records_by_hand import round_record

Call = Callable[..., tuple[int, str, str]]
TINY = ["--model", "mlp", "--clients", "2", "--rounds", "1", "--set", "epochs=1"]


@pytest.mark.parametrize("words", ["", "data", "deploy", "fleet", "patches"])
def test_a_group_alone_prints_its_help(call: Call, words: str) -> None:
    code, out, err = call(*words.split())
    assert (code, err) == (0, "")
    assert out == call(*words.split(), "--help")[1]
    assert out.startswith("Usage: ")
    assert "\n  --help" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run nosuch.yaml", "there is no file nosuch.yaml"),
        ("run some/where", "there is no file some/where"),
        ("run fedavg --data ok.npz", "say npz:ok.npz"),
        ("run fedavg --data pictures", "say folder:pictures"),
        ("run fedavg --data nosuch.npz", "there is no file nosuch.npz"),
        ("run fedavg --rounds 3 --set rounds=5", "--rounds and `--set rounds=5` contradict each other"),
        ("run fedavg --partition iid --set partition=dirichlet", "--partition and `--set partition=dirichlet`"),
        ("run fedavg --dropout 0.2 --set dropout.rate=0.1", "--dropout and `--set dropout.rate=0.1`"),
        ("run fedavg --set mu=1", "nothing chosen has it, only feddf, fedprox"),
        ("run fedavg --set rat=1", "did you mean 'rate'?"),
        ("run fedavg --set batchsize=1", "did you mean 'batch'?"),
        ("distill --student mlp --teacher-file w.safetensors", "add --teacher-model"),
        ("distill --student mlp --teacher-call a:b --epochs 0", "--epochs is at least 1, not 0"),
        ("study other.json", "other.json cannot be read as a study's results: format: field required"),
        ("report runs --out page.pdf", "page.pdf is to hold a page: give it a name that ends in .html"),
        ("audit table.csv --html page.pdf", "page.pdf is to hold a page"),
        ("query run --client 0 --class 1 --html page.pdf", "page.pdf is to hold a page"),
        ("detect run scan.ply --html page.pdf", "page.pdf is to hold a page"),
    ],
)
def test_one_sentence_in_the_words_that_were_typed(call: Call, words: str, says: str) -> None:
    np.savez("ok.npz", x=np.zeros(1))
    Path("pictures").mkdir()
    Path("other.json").write_text("{}")
    code, out, err = call(*words.split())
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_options_that_agree_with_settings_are_no_contradiction(call: Call) -> None:
    same = ["--rounds", "3", "--set", "rounds=3", "--dropout", "0.2", "--set", "dropout=independent:rate=0.2"]
    more = ["--partition", "dirichlet:alpha=1", "--set", "partition.min_samples=2"]
    code, out, err = call("run", "fedavg", *same, *more, "--set", "attack=nan:share=0.3", "--dry-run")
    assert code == 0, err
    assert "name: nan\n    share: 0.3\n" in out


def test_a_setting_of_a_part_may_hold_a_colon(call: Call) -> None:
    code, out, err = call("run", "feddf", "--set", "method.proxy=npz:elsewhere.npz", "--dry-run")
    assert code == 0, err
    assert "proxy: npz:elsewhere.npz" in out


def test_a_run_says_if_it_was_there_and_is_found_by_its_name(succeed: Callable[..., str]) -> None:
    assert "before" not in succeed("run", "fedavg", *TINY)
    *_, said, _, folder = succeed("run", "fedavg", *TINY).splitlines()
    assert said == "finished before; nothing was done"
    assert succeed("show", Path(folder).name) == succeed("show", folder)


def test_without_a_terminal_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 40.0, 50.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    display = Display(quiet=False)
    display.start(make_experiment({"method": "fedavg", "model": "mlp", "rounds": 4}), [])
    for _ in range(3):
        display.round(round_record())
    assert capsys.readouterr().err.replace("\u00a0", " ") == "round 2/4, accuracy 50.00 %, about 40.0 s left\n"


def test_with_80_columns_the_time_left_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen.errors, "_width", 80)
    bar = bar_of("round")
    name = fitting("single-image on folder:a/rather/long/way/to/pictures")
    display = Display(quiet=True)
    display.accuracy = 0.9638
    bar.add_task(name, total=1000, completed=999, told=display._told())
    with bar.console.capture() as drawn:
        bar.console.print(bar.make_tasks_table(bar.tasks))
    assert drawn.get().rstrip().endswith("left -:--:--")
    assert "round 999/1000 accuracy 96.38\u00a0%" in drawn.get()
