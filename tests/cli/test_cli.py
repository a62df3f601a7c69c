"""The command line as a user meets it: output, exit codes, one sentence for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedstill

TINY = ["--rounds", "2", "--clients", "4", "--set", "epochs=1", "--set", "batch=64"]
Call = Callable[..., tuple[int, str, str]]


def answer(call: Call, *words: str) -> Any:
    code, out, err = call(*words, "--json")
    assert code == 0, err
    assert len(out.splitlines()) == 1
    return json.loads(out)


def test_run_prints_one_json_object(call: Call) -> None:
    result = answer(call, "run", "fedavg", "--data", "digits", "--partition", "iid", "--seed", "7", *TINY)
    assert result["method"] == "fedavg"
    assert result["data"] == "digits"
    assert result["seed"] == 7
    assert result["rounds"] == 2
    assert set(result["accuracy"]) == {"last", "best"}
    assert 0 < result["class_accuracy"]["last"] <= 1
    assert result["bytes"]["up"] > result["bytes"]["down"] > 0
    assert result["seconds"] > 0
    assert len(result["sha256"]) == 64
    assert (Path(result["run"]) / "result.json").is_file()


def test_the_same_command_twice_is_one_run(call: Call) -> None:
    first = answer(call, "run", "fedavg", *TINY)
    assert answer(call, "run", "fedavg", *TINY) == first
    assert len(list(Path("runs").iterdir())) == 1


def test_engines_give_one_hash(call: Call) -> None:
    hashes = {
        answer(call, "run", "fedavg", *TINY, "--model", "cnn-bn", "--engine", engine, "--out", engine)["sha256"]
        for engine in ("in-process", "wire", "processes")
    }
    assert len(hashes) == 1


def test_a_validation_share_selects_a_model(call: Call) -> None:
    result = answer(call, "run", "fedavg", *TINY, "--set", "validation=0.2")
    assert set(result["accuracy"]) == {"last", "best", "selected"}
    for which in ("last", "best", "selected"):
        assert (Path(result["run"]) / f"model-{which}.safetensors").is_file()


def test_local_only_reports_personal_models(call: Call) -> None:
    result = answer(call, "run", "local-only", *TINY)
    assert result["personal"]["clients"] == 4
    assert result["personal"]["min"] <= result["accuracy"]["last"] <= result["personal"]["max"]
    assert result["bytes"]["up"] < result["bytes"]["down"]


def test_show_has_a_row_per_round_and_a_curve(call: Call) -> None:
    run = answer(call, "run", "fedavg", *TINY)["run"]
    code, out, _ = call("show", run)
    assert code == 0
    assert "accuracy ▁" in out or "accuracy █" in out
    assert len([line for line in out.splitlines() if "4/4" in line]) == 2
    assert len(answer(call, "show", run)["journal"]) == 2


def test_predict_reads_pictures_and_arrays(call: Call) -> None:
    run = answer(call, "run", "fedavg", "--rounds", "3")["run"]
    from fedstill.data.catalogue import load

    digits = load("digits").test
    pixels = np.asarray(digits.columns["inputs"][:6])  # type: ignore[attr-defined]
    np.save("first.npy", pixels[0])
    for number, image in enumerate(pixels[1:]):
        Image.fromarray(image[0]).save(f"{number}.png")
    found = answer(call, "predict", run, "first.npy", *(f"{number}.png" for number in range(5)))["predictions"]
    truth = [str(label) for label in digits.labels()[:6].tolist()]  # type: ignore[index]
    assert sum(one["class"] == label for one, label in zip(found, truth, strict=True)) >= 5
    code, out, _ = call("predict", run, "first.npy", "--which", "best")
    assert code == 0
    assert "first.npy" in out


def test_predict_with_a_clients_own_model(call: Call) -> None:
    run = answer(call, "run", "local-only", *TINY)["run"]
    np.save("x.npy", np.zeros((8, 8), dtype=np.uint8))
    assert answer(call, "predict", run, "x.npy", "--client", "2")["predictions"][0]["probability"] > 0
    code, _, err = call("predict", run, "x.npy")
    assert code == 2
    assert "--client" in err
    assert call("predict", run, "x.npy", "--client", "9")[0] == 2


def test_egress_lists_what_leaves(call: Call) -> None:
    lines = answer(call, "egress", "fedavg", "--model", "cnn-bn")["leaves"]
    assert {line["kind"] for line in lines} == {"parameters", "statistics", "metrics"}
    assert all(line["bytes"] > 0 and line["why"] for line in lines)
    assert {line["kind"] for line in answer(call, "egress", "local-only")["leaves"]} == {"metrics"}
    assert "model/parameters/*" in call("egress", "fedavg")[1]


@pytest.mark.parametrize("what", ["methods", "datasets", "models", "partitions", "recipes", "participation", "engines"])
def test_list_gives_a_sentence_each(call: Call, what: str) -> None:
    parts = answer(call, "list", what)[what]
    assert parts
    assert all(sentence for sentence in parts.values())


def test_every_recipe_can_be_planned(call: Call) -> None:
    for recipe in answer(call, "list", "recipes")["recipes"]:
        code, out, err = call("run", recipe, "--dry-run")
        assert code == 0, err
        assert "experiment:" in out


def test_a_path_is_printed_as_it_is(call: Call) -> None:
    """Square brackets are markup to the library that prints."""
    code, out, err = call("run", "fedavg", *TINY, "--out", "[draft]:x:")
    assert code == 0, err
    (run,) = Path("[draft]:x:").iterdir()
    assert out.splitlines()[-1] == str(run)
    np.save("[bold].npy", np.zeros((8, 8), dtype=np.uint8))
    assert "[bold].npy" in call("predict", str(run), "[bold].npy")[1]


def test_a_run_is_told_in_one_way(call: Call) -> None:
    words = ["--partition", "pathological:classes_per_client=3", "--query", "0:1"]
    told = answer(call, "run", "local-only", *TINY, *words)
    shown = answer(call, "show", told["run"])
    assert told["measure"] == "accuracy"
    assert "queries" in told
    assert {key: value for key, value in shown.items() if key != "journal"} == told


def test_what_was_damaged_is_said_however_quiet_it_should_be(call: Call) -> None:
    run = Path(answer(call, "run", "fedavg", *TINY)["run"])
    (run / "result.json").unlink()
    (run / "checkpoint.safetensors").write_bytes(b"damaged")
    code, _, err = call("run", "fedavg", *TINY, "--quiet")
    assert code == 0
    assert err.startswith("warning: checkpoint.safetensors is damaged")
    assert call("run", "fedavg", *TINY, "--quiet")[2] == "", "that it was run before is only good to know"


def test_data_commands(call: Call) -> None:
    assert {"digits", "heads", "mnist"} <= {entry["name"] for entry in answer(call, "data", "list", "--data-root", ".")}
    assert answer(call, "data", "check", "digits")["sizes"] == {"train": 1438, "test": 359}
    table = answer(call, "data", "partition", "heads", "--partition", "label-skew", "--clients", "5", "--out", "p.png")
    assert np.array(table["table"]).T.tolist() == [
        [64, 16, 0, 0, 0],
        [0, 48, 32, 0, 0],
        [0, 0, 32, 48, 0],
        [0, 0, 0, 16, 64],
    ]
    assert Path("p.png").stat().st_size > 5_000
    np.savez("own.npz", x=np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8), y=np.arange(40) % 2)
    assert call("data", "add", "own", "own.npz", "--data-root", ".")[0] == 0
    assert answer(call, "run", "fedavg", "--data", "own", "--data-root", ".", *TINY)["data"] == "own"
    assert answer(call, "run", "fedavg", "--data", "npz:own.npz", *TINY)["rounds"] == 2


def broken_npz() -> None:
    Path("broken.npz").write_bytes(b"PK\x03\x04 not really")


MISTAKES = [
    (["run", "fedvag"], "did you mean 'fedavg'"),
    (["run", "fedavg", "--data", "digit"], "did you mean 'digits'"),
    (["run", "fedavg", "--model", "resnet9"], "did you mean 'resnet"),
    (["run", "fedavg", "--partition", "dirichlett"], "did you mean 'dirichlet'"),
    (["run", "fedavg", "--participation", "randm:number=2"], "did you mean 'random'"),
    (["run", "fedavg", "--engine", "process"], "did you mean 'processes'"),
    (["run", "fedavg", "--device", "gpu"], "unknown device 'gpu'"),
    (["run", "fedavg", "--set", "traning.rate=1"], "traning"),
    (["run", "fedavg", "--set", "training.rat=1"], "did you mean 'rate'"),
    (["run", "fedavg", "--set", "rat=1"], "did you mean 'rate'"),
    (["run", "fedavg", "--set", "rate"], "key=value"),
    (["run", "fedavg", "--set", "rate=0"], "training.rate"),
    (["run", "fedavg", "--set", "rate=fast"], "training.rate"),
    (["run", "fedavg", "--set", "rate=NaN"], "training.rate"),
    (["run", "fedavg", "--rounds", "0"], "rounds"),
    (["run", "fedavg", "--rounds", "many"], "rounds"),
    (["run", "fedavg", "--seed", "-1"], "seed"),
    (["run", "fedavg", "--clients", "0"], "clients"),
    (["run", "fedavg", "--clients", "2000"], "2,000 clients cannot share 1,438 samples"),
    (["run", "fedavg", "--set", "validation=1.5"], "validation"),
    (["run", "fedavg", "--set", "min_replies=99"], "min_replies"),
    (["run", "fedavg", "--set", "norm_limit=-1"], "norm_limit"),
    (["run", "fedavg", "--participation", "random"], "fraction or number"),
    (["run", "fedavg", "--participation", "random:number=99"], "participation.number"),
    (["run", "fedavg", "--participation", "everyone:availability=2"], "participation.availability"),
    (["run", "fedavg", "--partition", "dirichlet:alpha=0"], "partition.alpha"),
    (["run", "fedavg", "--partition", "pathological:classes_per_client=99"], "99 classes"),
    (["run", "fedavg", "--data", "mnist", "--data-root", "nowhere"], "nowhere"),
    (["run", "fedavg", "--data", "npz:missing.npz"], "missing.npz"),
    (["run", "fedavg", "--data", "npz:broken.npz"], "broken.npz"),
    (["run", "fedavg", "--data", "heads", "--model", "cnn"], "2048x3"),
    (["run", "fedavg", "--workers", "0", "--engine", "processes"], "workers"),
    (["run", "fedavg", "--plugin", "missing.py"], "missing.py"),
    (["run", "fedavg", "--preset", "tiny"], "only recipes have presets"),
    (["run", "digits", "--preset", "giant"], "no preset 'giant'"),
    (["run", "missing.yaml"], "missing.yaml"),
    (["run", "fedavg", "--bogus"], "--bogus"),
    (["run"], "METHOD_OR_RECIPE"),
    (["list", "method"], "did you mean 'methods'"),
    (["show", "nowhere"], "nowhere is not a run"),
    (["predict", "nowhere", "x.png"], "nowhere is not a run"),
    (["egress", "fedvag"], "did you mean 'fedavg'"),
    (["clean", "--out", "nowhere"], "nowhere"),
    (["data", "check", "digitz"], "did you mean 'digits'"),
    (["data", "add", "a/b", "."], "a/b"),
    (["data", "partition", "digits", "--out", "p.doc"], ".png or .svg"),
    (["data", "partition", "digits", "--partition", "iid:alpha=1"], "alpha"),
    (["data", "show", "head-parts", "--class", "nose"], "there is no class 'nose'"),
    (["frobnicate"], "frobnicate"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_gets_one_sentence_and_exit_code_2(call: Call, words: list[str], says: str) -> None:
    broken_npz()
    before = sorted(Path().rglob("*"))
    code, out, err = call(*words)
    assert code == 2, err
    assert says in err
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in out + err
    assert sorted(Path().rglob("*")) == before, "nothing is half-written"


@pytest.mark.parametrize("out", ["file", "/dev/full/runs", "/proc/runs"])
def test_an_unwritable_folder_is_refused_before_any_work(call: Call, out: str) -> None:
    Path("file").write_text("in the way")
    code, _, err = call("run", "fedavg", *TINY, "--out", out)
    assert code == 2
    assert "cannot write to the folder" in err


def test_quiet_where_there_is_no_terminal(call: Call) -> None:
    code, out, err = call("run", "fedavg", *TINY)
    assert code == 0
    assert err == ""
    assert "accuracy" in out


def test_help_and_version_are_quick_to_import() -> None:
    """`--help` must not wait for torch."""
    code = "import sys\nfrom fedstill.cli.app import app\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_interrupt_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedstill.cli.listing.show", interrupted)
    assert call("list") == (130, "", "fedstill: interrupted: run the same command again to go on\n")


def test_the_package_itself_is_the_command() -> None:
    said = subprocess.run([sys.executable, "-m", "fedstill", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.split()[-1] == fedstill.__version__
