"""`fedstill run`, `egress` and `show` as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    words = ["run", "fedavg", *TINY, "--model", "cnn-bn", "--workers", "1"]
    hashes = {
        answer(call, *words, "--engine", engine, "--out", engine)["sha256"]
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


def test_egress_lists_what_leaves(call: Call) -> None:
    lines = answer(call, "egress", "fedavg", "--model", "cnn-bn")["leaves"]
    assert {line["kind"] for line in lines} == {"parameters", "statistics", "metrics"}
    assert all(line["bytes"] > 0 and line["why"] for line in lines)
    assert {line["kind"] for line in answer(call, "egress", "local-only")["leaves"]} == {"metrics"}
    assert "model/parameters/*" in call("egress", "fedavg")[1]
    assert {line["when"] for line in lines} == {"every round"}


def test_every_recipe_can_be_planned(call: Call) -> None:
    for recipe in answer(call, "list", "recipes")["recipes"]:
        code, out, err = call("run", recipe, "--dry-run")
        assert code == (2 if "cannot run here" in out else 0), err
        assert "experiment:" in out


def test_a_dry_run_of_what_cannot_run_exits_with_2(call: Call) -> None:
    code, out, err = call("run", "fedavg", "--data", "mnist", "--dry-run")
    assert (code, err) == (2, "")
    assert "data: mnist" in out
    assert "# cannot run here: " in out
    assert call("run", "fedavg", "--data", "mnist", "--dry-run", "--json")[0] == 2


@pytest.mark.parametrize(
    "impossible",
    [("--device", "tpu"), ("--engine", "nosuch"), ("--engine", "processes", "--workers", "0"), ("--out", "file/runs")],
)
def test_a_dry_run_refuses_where_the_run_does(call: Call, tmp_path: Path, impossible: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("not a folder")
    words = [str(tmp_path / one) if one.startswith("file") else one for one in impossible]
    asked = ["run", "fedavg", "--data", "digits", "--model", "mlp", "--rounds", "1", *words]
    code, out, _ = call(*asked, "--dry-run")
    assert code == 2
    assert "# cannot run here: " in out
    assert call(*asked)[0] == 2


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


def test_training_that_diverges_is_called_that(call: Call) -> None:
    """Rate 1e30: every client's weights overflow in every round. Attackers that send such numbers are no such thing."""
    code, out, err = call("run", "fedavg", *TINY, "--set", "training.rate=1e30", "--out", "wild")
    assert code == 0, err
    assert "8 failures (8 refused as not finite), 2 rounds skipped\ntraining diverged: lower training.rate\n" in out
    journal = json.loads(call("show", str(next(Path("wild").iterdir())), "--json")[1])["journal"]
    assert {record["skipped"] for record in journal} == {"0 of 4 replies (4 refused as not finite), and 1 are needed"}
    code, out, err = call("run", "fedavg", *TINY, "--set", "attack=nan")
    assert code == 0, err
    assert "2 failures (2 refused as not finite), 0 rounds skipped\n" in out
    assert "diverged" not in out


def test_an_unfinished_run_counts_the_rounds_that_are_played(call: Call) -> None:
    """Fine-tuning has one round more than the setting."""
    run = Path(json.loads(call("run", "fine-tuned", *TINY, "--json")[1])["run"])
    (run / "result.json").unlink()
    code, out, err = call("show", str(run))
    assert code == 0, err
    assert "not finished: 3 of 3 rounds" in out


def test_a_run_says_if_it_was_there_and_is_found_by_its_name(succeed: Callable[..., str]) -> None:
    assert "before" not in succeed("run", "fedavg", *TINY)
    *_, said, _, folder = succeed("run", "fedavg", *TINY).splitlines()
    assert said == "finished before; nothing was done"
    assert succeed("show", Path(folder).name) == succeed("show", folder)
