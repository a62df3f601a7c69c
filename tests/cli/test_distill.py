"""`fedstill distill` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstill

Call = Callable[..., tuple[int, str, str]]
QUICK = ("--epochs", "2", "--set", "training.batch=64", "--set", "method.share=0.2")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("taught")
    return fedstill.run("centralised", out=out, model="cnn", rounds=2, training={"batch": 64, "rate": 0.1}).path


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "distill")


def answer(call: Call, *words: str, code: int = 0) -> dict[str, Any]:
    ended, out, err = call(*words, "--json")
    assert ended == code, err
    (line,) = out.splitlines()
    return dict(json.loads(line))


def test_a_run_is_distilled_and_found_again(call: Call, taught: Path) -> None:
    words = ("--teacher", str(taught), "--student", "mlp", "--objective", "dkd:temperature=4", "--seed", "5", *QUICK)
    result = answer(call, *words)
    assert (result["method"], result["model"], result["rounds"], result["seed"]) == ("distill", "mlp", 2, 5)
    assert result["data"] == "digits"
    (teacher,) = result["teachers"]
    assert (teacher["name"], teacher["model"]) == (taught.name, "cnn")
    assert 0.5 < teacher["metrics"]["accuracy"] <= 1
    folder = Path(result["run"])
    config = json.loads((folder / "config.json").read_text())["experiment"]
    assert config["objective"] == {"name": "dkd", "target": 1.0, "others": 8.0, "temperature": 4}
    assert config["method"]["labels"] == "use"
    assert len(config["teachers"][0]["sha256"]) == 64
    losses = [json.loads(line)["loss"] for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [set(loss) for loss in losses] == [{"cross-entropy", "target-class", "other-classes"}] * 2
    assert json.loads((folder / "result.json").read_text())["teachers"] == result["teachers"]
    again = answer(call, *words)
    assert (again["run"], again["sha256"], again["seconds"]) == (result["run"], result["sha256"], result["seconds"])


def test_the_screen_tells_of_the_teacher(call: Call, taught: Path) -> None:
    code, out, _ = call("--teacher", str(taught), "--student", "mlp", "--labels", "withhold", *QUICK)
    assert code == 0
    assert f"teacher {taught.name} (cnn, last):" in " ".join(out.split())


def test_the_two_controls_agree(call: Call, taught: Path) -> None:
    hashes = {
        answer(call, "--teacher", str(taught), "--student", "mlp", "--labels", labels, *QUICK)["sha256"]
        for labels in ("no-ce", "withhold")
    }
    assert len(hashes) == 1


def test_several_teachers_and_a_teacher_of_ones_own(call: Call, taught: Path, tmp_path: Path) -> None:
    both = answer(
        call, "--teacher", str(taught), "--teacher", str(taught), "--which", "best", "--student", "mlp",
        "--objective", "multi-teacher", *QUICK,
    )  # fmt: skip
    assert len(both["teachers"]) == 2
    file = str(taught / "model-last.safetensors")
    own = answer(call, "--teacher-file", file, "--teacher-model", "cnn", "--student", "mlp", *QUICK)
    assert own["teachers"][0]["name"] == "model-last.safetensors"
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    called = answer(call, "--teacher-call", "mine:make", "--student", "mlp", *QUICK)
    assert called["teachers"][0]["model"] == "mine:make"


def test_unlabelled_files_to_distil_on(call: Call, taught: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "pixels.npz", x=np.arange(64 * 64, dtype=np.uint16).reshape(64, 8, 8) % 251)
    words = ("--teacher", str(taught), "--student", "mlp", "--proxy", "npz:pixels.npz", "--epochs", "1")
    assert answer(call, *words, "--labels", "withhold")["rounds"] == 1
    code, _, err = call(*words)
    assert code == 2
    assert "the proxy data has none" in err


def test_a_dry_run_shows_the_experiment_and_writes_nothing(call: Call, taught: Path, tmp_path: Path) -> None:
    shown = answer(call, "--teacher", str(taught), "--student", "mlp", "--dry-run", *QUICK)
    assert shown["status"].startswith("found; this run is called distill-digits-")
    assert shown["experiment"]["teachers"][0]["run"] == str(taught)
    missing = answer(call, "--teacher", str(taught), "--student", "mlp", "--data", "mnist", "--dry-run", code=2)
    assert missing["status"].startswith("cannot run here: ")
    assert "mnist" in missing["status"]
    proxy = answer(call, "--teacher", str(taught), "--student", "mlp", "--proxy", "cifar10", "--dry-run", code=2)
    assert "cifar10" in proxy["status"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--student mlp", "name the teacher: a run with --teacher, or your own"),
        ("--teacher {run} --teacher-call a:b --student mlp", "either runs (--teacher) or one of your own"),
        ("--teacher-call a:b --teacher-model cnn --student mlp", "--teacher-model says what one --teacher-file holds"),
        ("--teacher {run} --teacher-model resnet8 --student mlp", "has no resnet8: known: cnn"),
        ("--teacher-file a.safetensors --student mlp", "needs the name of its model"),
        ("--teacher-call a:b --which best --student mlp", "--which chooses one of a run's"),
        ("--teacher nowhere --student mlp", "nowhere is not a run"),
        ("--teacher {run}", "--student"),
        ("--teacher {run} --student cnn", "the student is the teacher"),
        ("--teacher {run} --student mpl", "did you mean 'mlp'"),
        ("--teacher {run} --student mlp --objective vanila", "did you mean 'vanilla'"),
        ("--teacher {run} --student mlp --objective dkd:T=4", "unknown setting 'objective.T'"),
        ("--teacher {run} --student mlp --labels withold", "did you mean 'withhold'?"),
        ("--teacher {run} --student mlp --labels withhold --objective crd", "not assessable without labels"),
        ("--teacher {run} --student mlp --which bets", "did you mean 'best'?"),
        ("--teacher {run} --student mlp --which selected", "no validation share was set"),
        ("--teacher {run} --student mlp --objective multi-teacher", "needs 2 teachers or more"),
        ("--teacher {run} --student mlp --data mnist", "mnist"),
        ("--teacher {run} --student mlp --proxy npz:absent.npz", "absent.npz does not exist"),
        ("--teacher {run} --student mlp --epochs 0", "--epochs is at least 1"),
        ("--teacher {run} --student mlp --set share=0", "share"),
        ("--teacher-file absent.safetensors --teacher-model cnn --student mlp", "cannot be read"),
    ],
    ids=lambda value: value.removeprefix("--teacher {run} --student ") if value.startswith("--") else "",
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    call: Call, taught: Path, tmp_path: Path, words: str, sentence: str
) -> None:
    code, out, err = call(*(word.format(run=taught) for word in words.split()))
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []
