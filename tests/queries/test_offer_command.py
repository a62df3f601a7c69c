"""`fedstill query` on a folder of checkpoints: tables, page, record and kept model, without any run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from .offered import data_file, hand_over, net

Call = Callable[..., tuple[int, str, str]]
ASK = ["query", "peers", "--model", "small_nets:build", "--data", "npz:mine.npz", "--own", "mine.safetensors"]
QUICK = ["--set", "transfer_epochs=2", "--set", "training.batch=16", "--set", "training.rate=0.01"]


@pytest.fixture
def folder(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return hand_over(tmp_path)


def test_tables_page_record_and_model(call: Call, folder: Path) -> None:
    code, out, err = call(*ASK, "--class", "date", *QUICK)
    assert code == 0, err
    text = " ".join(out.replace("\u00a0", " ").split())
    assert "date: said of noise (recall it reports)" in text
    assert "(75.00 %) date teaches" in text
    assert "↑0 B" in text
    (run,) = Path("runs").iterdir()
    assert "A query for date" in (run / "query.html").read_text()
    code, again, _ = call(*ASK, "--class", "date", *QUICK, "--json")
    told = json.loads(again)
    assert told["run"] == str(run)
    assert (told["held"], told["unmeasured"]) == (None, [])
    assert [one["name"] for one in told["offered"]] == ["north", "south"]
    assert told["offered"][1]["recall"] == {"3": 0.75}
    code, shown, err = call("show", str(run))
    assert (code, "forgetting" in shown) == (0, True), err
    assert (run / "model-last.safetensors").is_file()


def test_the_probe_and_the_plan_train_nothing(call: Call, folder: Path) -> None:
    code, out, err = call(*ASK[:-2], "--probe")
    assert code == 0, err
    assert "date 75" in out.replace("\u00a0", " ")
    told = json.loads(call(*ASK[:-2], "--probe", "--json")[1])
    assert list(told["probed"]) == ["north", "south"]
    code, out, err = call(*ASK, "--class", "date", "--dry-run", "--json")
    assert json.loads(out)["experiment"]["queries"]["by_hand"] == {"0": [3]}
    assert not Path("runs").exists()


def test_a_class_without_held_out_samples(call: Call, folder: Path, tmp_path: Path) -> None:
    data_file(tmp_path / "mine.npz", held_out=(0, 1))
    code, out, err = call(*ASK, "--class", "date", *QUICK)
    assert code == 0, err
    assert "the test data has no samples of date" in " ".join(out.split())


def _sick(folder: Path) -> None:
    tensors = dict(net().state_dict())
    tensors["1.bias"] = torch.full((8,), float("nan"))
    save_file(tensors, folder / "north.safetensors")


def _other(folder: Path) -> None:
    save_file(dict(net(classes=7).state_dict()), folder / "north.safetensors")


def _pickle(folder: Path) -> None:
    torch.save(net().state_dict(), folder / "north.pt")


def _none(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()


@pytest.mark.parametrize(
    ("harm", "words", "sentence"),
    [
        (_sick, ["--class", "3"], "are not finite: '1.bias'"),
        (_other, ["--class", "3"], "or has another number of classes"),
        (_pickle, ["--class", "3"], "may be a pickle"),
        (_none, ["--class", "3"], "holds no checkpoint of a peer"),
        (None, ["--class", "oak"], "there is no class 'oak'"),
        (None, [], "say what you ask for"),
        (None, ["--class", "3", "--client", "0"], "leave --client out"),
        (None, ["--class", "3", "--set", "threshold=1"], 'threshold 1) for "date"; the nearest are peer south'),
        (None, ["--class", "3", "--set", "temprature=1"], "temprature"),
        (None, ["--class", "3", "--html", "page.txt"], "page.txt"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    call: Call, folder: Path, harm: Callable[[Path], None] | None, words: list[str], sentence: str
) -> None:
    if harm is not None:
        harm(folder)
    code, out, err = call(*ASK[:-2], *words)  # without an own model, whose training would be work
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert sentence in err
    assert not Path("runs").exists()


def test_options_of_the_two_forms_do_not_mix(call: Call, folder: Path) -> None:
    code, _, err = call("query", "peers", "--class", "3")
    assert (code, "name your own data" in err) == (2, True)
    code, _, err = call("query", "absent", "--class", "3", "--model", "mlp")
    assert (code, "which needs --data" in err) == (2, True)
    Path("run").mkdir()
    Path("run", "config.json").write_text("{}")
    code, _, err = call("query", "run", "--client", "0", "--class", "3", "--data", "npz:mine.npz")
    assert (code, "and run is a run: leave them out" in err) == (2, True)
