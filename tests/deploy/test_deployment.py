"""The whole thing over TLS on loopback: a server without data, sites with their own shard only, the same bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.methods import methods
from fedstill.runtime.result import Run
from fedstill.runtime.run_folder import RunFolder
from fedstill.tracking.tracker import Status, TrackedRun, Tracker

SHORT = {"samples": 40, "steps": 3}
LOGITS: dict[str, dict[str, Any]] = {
    "feddf": {"proxy": "digits", **SHORT, "initialise": 0.5},
    "fedmd": {"proxy": "patches:china", **SHORT},
    "single-image": {"patches": {"count": 60}, "selection": {"kmeans": 5, "prune": 0.25}, **SHORT},
}
PERSONAL = {name for name in methods if methods[name].personal}
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in methods.names() if name not in ("centralised", "distill", *LOGITS)},
    **{name: {"method": {"name": name, **settings}} for name, settings in LOGITS.items()},
    "fednova": {"method": "fednova", "training": {"epochs": 1, "batch": 64}},
    "krum": {"method": {"name": "krum", "attackers": 0}},
    "fedavg, recalibrated by layer": {
        "method": {"name": "fedavg", "buffers": "recalibrate", "recalibration": "layer-by-layer"}
    },
    "scaffold, gradients": {"method": {"name": "scaffold", "correction": "gradient"}},
    "feddf, logits both ways": {
        "method": {"name": "feddf", **LOGITS["feddf"], "initialise": 0.1, "downlink": "logits"},
    },
    "feddf, two architectures": {
        "method": {"name": "feddf", **LOGITS["feddf"]},
        "model": None,
        "models": {"cnn-bn": 2, "mlp": 1},
    },
    "feddf, recalibrated, two architectures, logits both ways": {
        "method": {
            "name": "feddf",
            **LOGITS["feddf"],
            "initialise": 0.1,
            "downlink": "logits",
            "statistics": "recalibrate",
        },
        "model": None,
        "models": {"cnn-bn": 2, "mlp": 1},
    },
    "fedavg, a round is selected": {"method": "fedavg", "validation": 0.2},
    "fedbn, proxy": {"method": {"name": "fedbn", "proxy": "average"}},
    "fed3d": {"method": {"name": "fed3d", "share": "all"}},
    "fedavg, some drop out": {"method": "fedavg", "participation": {"name": "random", "number": 2}, "dropout": 0.3},
    "scaffold, some drop out": {"method": "scaffold", "participation": {"name": "random", "number": 2}, "dropout": 0.3},
}


def compared(run: RunFolder) -> dict[str, Any]:
    """What a deployment and a simulation must have in common: every model, and every line of the journal."""
    result = json.loads((run.path / "result.json").read_text())
    models = {path.name: path.read_bytes() for path in run.path.glob("model-*.safetensors")}
    return {"sha256": result["sha256"], "models": models, "journal": (run.path / "journal.jsonl").read_bytes()}


class Steps(Tracker):
    """Keeps which steps of which run a tracker was given, and how the run ended."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.ended: list[str] = []

    def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
        assert "test/accuracy" in metrics
        self.steps.append((run.name, step))

    def close(self, run: TrackedRun, status: Status) -> None:
        self.ended.append(status)


def test_two_sites_over_tls_give_the_bits_of_one_process(stage: Any) -> None:
    made, tracker = stage(2), Steps()
    for site in range(2):
        made.start_site(site, "--once")
    deployed = made.serve(track=tracker)
    assert compared(deployed) == compared(made.alone())
    assert tracker.steps == [(deployed.path.name, record.round) for record in deployed.journal()]
    assert tracker.ended == ["finished"]
    for site in range(2):
        made.company.wait(f"site-{site}")  # it leaves by itself once it has the model
        (received,) = (made.folder / f"site-{site}" / "received").iterdir()
        own, shared = Run(received).model("last").state_dict(), Run(deployed.path).model("last").state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in shared.items())
        assert "what it is" in made.log(site)  # the manifest was shown


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_method_gives_the_same_bits_at_its_sites(running: Any, name: str) -> None:
    deployed = running.serve(**VARIANTS[name])
    assert compared(deployed) == compared(running.alone(**VARIANTS[name]))
    if name in PERSONAL:
        alone = Run(running.alone(**VARIANTS[name]).path)
        for site in range(3):
            received = running.folder / f"site-{site}" / "received" / deployed.path.name
            ours, theirs = Run(received).model(client=site).state_dict(), alone.model(client=site).state_dict()
            assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())


@pytest.mark.slow
def test_a_finished_run_is_found_and_handed_out_again(stage: Any, tmp_path: Path) -> None:
    made = stage(1)
    made.start_site(0)
    first = made.serve(rounds=1)
    assert made.serve(rounds=1).path == first.path
    assert made.notes.text.count("every site has the final model") == 2
    assert len(made.notes.records) == 1
