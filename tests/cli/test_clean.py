"""`fedstill clean`: what it frees, and what it spares."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedstill.runtime.run_folder import RunFolder

TINY = ["--rounds", "2", "--clients", "4", "--set", "epochs=1", "--set", "batch=64"]
Call = Callable[..., tuple[int, str, str]]


def answer(call: Call, *words: str) -> Any:
    code, out, err = call(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_clean_frees_only_what_it_was_told_to(call: Call) -> None:
    shared = Path(answer(call, "run", "fedavg", *TINY)["run"])
    personal = Path(answer(call, "run", "local-only", *TINY)["run"])
    assert answer(call, "clean")["would_free_bytes"] == 0
    assert answer(call, "clean", "--checkpoints")["freed_bytes"] == 0
    assert (shared / "checkpoint.safetensors").exists()
    assert answer(call, "clean", "--checkpoints", "--yes")["freed_bytes"] > 0
    assert not (shared / "checkpoint.safetensors").exists()
    assert (personal / "checkpoint.safetensors").exists(), "personal models hang on it"
    assert answer(call, "run", "fedavg", *TINY)["run"] == str(shared), "the result is still there"
    (shared / "result.json").unlink()
    lock = RunFolder(shared).lock()
    Path("runs/failures").mkdir()
    assert "being worked on" in {run["state"] for run in answer(call, "clean", "--all", "--yes")["runs"]}
    assert shared.exists(), "somebody works on it"
    assert not Path("runs/failures").exists()
    lock.release()
    assert call("clean", "--all", "--yes")[0] == 0
    assert not shared.exists()


def test_clean_spares_what_figures_of_a_fleet_are_read_from(call: Call) -> None:
    fleet = Path(answer(call, "run", "fedavg", *TINY, "--set", "fleet={}")["run"])
    plain = Path(answer(call, "run", "fedavg", *TINY)["run"])
    told = {run["run"]: run for run in answer(call, "clean", "--checkpoints", "--yes")["runs"]}
    assert (fleet / "checkpoint.safetensors").exists()
    assert not (plain / "checkpoint.safetensors").exists()
    assert told[fleet.name]["frees_bytes"] == 0
    assert told[plain.name]["bytes"] > told[plain.name]["frees_bytes"] > 0


def test_clean_frees_what_it_cannot_read_and_follows_no_links(call: Call) -> None:
    """Of another format, with a part of a plugin that is not here, and a link to a folder elsewhere."""
    runs = [Path(answer(call, "run", "fedavg", *TINY, "--seed", str(seed))["run"]) for seed in range(3)]
    other, plugged, linked = runs
    for run, field, said in ((other, "format", 99), (plugged, "experiment", {"method": {"name": "mine"}})):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, field: said}))
        (run / "digests.json").unlink()
    linked.rename("elsewhere")
    linked.symlink_to(Path("elsewhere").resolve())
    told = {run["run"]: run for run in answer(call, "clean", "--checkpoints", "--yes")["runs"]}
    assert [told[run.name]["state"] for run in runs] == ["cannot be read", "finished", "finished"]
    assert [told[run.name]["frees_bytes"] > 0 for run in runs] == [False, True, True]
    answer(call, "clean", "--all", "--yes")
    assert not any(run.exists() for run in runs)
    assert Path("elsewhere/result.json").exists()
