"""Whole runs with secure aggregation in simulation: same bits with and without masks, near the plain run, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.engines import InProcess
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

SMALL: dict[str, Any] = {
    "data": "digits[:8%]",
    "clients": 4,
    "rounds": 2,
    "model": "mlp",
    "seed": 3,
    "evaluate_every": 2,
    "training": {"epochs": 1, "batch": 32},
    "partition": {"name": "dirichlet", "alpha": 1.0, "min_samples": 8},
}
METHODS: dict[str, dict[str, Any]] = {
    "recalibrated": {"method": {"name": "fedavg", "buffers": "recalibrate"}, "model": "cnn-bn"},
    "uniform": {"method": {"name": "fedavg", "weights": "uniform"}},
    "fedadam": {"method": "fedadam"},
    "fednova": {"method": "fednova"},
    "scaffold": {"method": "scaffold"},
    "feddyn": {"method": "feddyn"},
    "fedbn": {"method": {"name": "fedbn", "proxy": "average"}, "model": "cnn-bn"},
    "fed3d": {"method": {"name": "fed3d", "share": "all"}},
}
MORE: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in ("fedavg", "fedprox", "fedavgm", "fedyogi", "fedadagrad", "fine-tuned")},
    "moon": {"method": "moon", "model": "cnn"},
    "ditto": {"method": "ditto", "model": "cnn-bn"},
    "as parameters": {"method": {"name": "fedavgm", "buffers": "as-parameters"}, "model": "cnn-bn"},
}


def ran(folder: Path, **settings: Any) -> RunFolder:
    return execute(make_plan(make_experiment({**SMALL, **settings})), InProcess(), folder)


def last_model(run: RunFolder) -> dict[str, torch.Tensor]:
    (model,) = run.load_models("last").values()
    return {name: tensor for name, tensor in model.items() if not name.startswith("counters/")}


EVERY = [*METHODS.values(), *(pytest.param(one, marks=pytest.mark.slow) for one in MORE.values())]


@pytest.mark.parametrize("given", EVERY, ids=[*METHODS, *MORE])
def test_masks_change_no_bit_and_fixed_point_nearly_nothing(given: dict[str, Any], tmp_path: Path) -> None:
    plain, fixed, masked = (last_model(ran(tmp_path, **given, secure=way)) for way in (None, "fixed-point", True))
    assert all(torch.equal(fixed[name], masked[name]) for name in fixed)
    assert plain.keys() == fixed.keys()
    differences = [float((plain[name].double() - fixed[name].double()).abs().max()) for name in plain]
    assert max(differences) < 2e-6  # of weights in single precision
    assert any(float(one.abs().max()) for one in plain.values())


def test_the_journal_has_the_sums_and_no_loss_of_a_client(tmp_path: Path) -> None:
    summed, clear, off = (
        ran(tmp_path, method="fedavg", secure={"name": "masked", "reports": how}).journal()
        for how in ("sums", "clear", "off")
    )
    plain = ran(tmp_path, method="fedavg").journal()
    told = summed[-1].method_metrics
    assert (told["sum: clients"], told["sum: clipped"]) == (4, 0)
    assert told["sum: loss, cross-entropy"] == pytest.approx(plain[-1].loss["cross-entropy"], abs=1e-5)
    assert not summed[-1].loss
    assert not off[-1].loss
    assert "sum: steps" not in off[-1].method_metrics
    assert clear[-1].loss["cross-entropy"] == pytest.approx(plain[-1].loss["cross-entropy"])


def test_a_small_clip_is_counted_and_a_norm_limit_keeps_a_client_out(tmp_path: Path) -> None:
    clipped = ran(tmp_path, method="fedavg", secure={"name": "fixed-point", "clip": 0.001}).journal()
    assert clipped[-1].method_metrics["sum: clipped"] > 100
    kept_out = ran(tmp_path, method="fedavg", secure={"name": "masked", "norm": 1e-6}, rounds=1).journal()
    assert kept_out[0].skipped is not None
    assert all("longer than secure.norm of 1e-06" in one.detail for one in kept_out[0].failures)


def test_evaluation_on_site_is_in_sums_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "fedavg", "model": "cnn-bn", "evaluation": "on-site", "rounds": 1}
    settings |= {"validation": 0.2, "check_statistics": True, "data": "digits[:15%]"}
    plain, fixed, masked = (
        ran(tmp_path, **settings, secure=secure).journal()[-1].evaluation for secure in (None, "fixed-point", True)
    )
    assert plain is not None
    assert fixed is not None
    assert masked is not None
    assert fixed.test == masked.test
    assert masked.test["accuracy"] == plain.test["accuracy"]
    assert masked.validation["accuracy"] == plain.validation["accuracy"]
    assert masked.test["loss"] == pytest.approx(plain.test["loss"], abs=1e-6)
    assert masked.batchnorm is not None
    assert plain.batchnorm is not None
    assert masked.batchnorm.recalibrated == pytest.approx(plain.batchnorm.recalibrated)


def test_dropouts_during_work_are_lost_before_their_upload(tmp_path: Path) -> None:
    """Their keys are recovered: the sum is that of the others."""
    settings = {"dropout": {"name": "independent", "rate": 0.3, "when": "during"}, "clients": 5, "seed": 0}
    fixed = ran(tmp_path, method="fedavg", secure="fixed-point", **settings)
    masked = ran(tmp_path, method="fedavg", secure=True, **settings)
    assert any(record.failures and record.skipped is None for record in masked.journal())
    assert [one.accepted for one in fixed.journal()] == [one.accepted for one in masked.journal()]
    one, other = last_model(fixed), last_model(masked)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"method": "fedmedian"}, "fedmedian needs single replies in `train`: choose .*fedavg.*, or set secure=false"),
        ({"method": "krum"}, "krum needs single replies"),
        ({"method": "trimmed-mean"}, "trimmed-mean needs single replies"),
        ({"method": "clipped-mean"}, "clipped-mean needs single replies"),
        ({"method": "local-only"}, "local-only needs single replies"),
        ({"method": {"name": "feddf", "proxy": "digits"}}, "feddf needs single replies"),
        ({"method": "fedavg", "norm_limit": 3.0}, "set secure.norm in its place"),
        ({"method": "fedavg", "attack": "sign-flip"}, "leave attack out"),
        ({"method": "fedavg", "mitigation": "mimic"}, "leave mitigation out"),
        ({"method": {"name": "fedavg", "weights": "uniform"}, "privacy": "client-level"}, "choose privacy=distr"),
        ({"method": "fedavg", "dropout": {"name": "independent", "rate": 0.1, "replace": True}}, "leave dropout.repl"),
        ({"method": "fedavg", "clients": 2}, "at least 3 clients in a round, and 2 are sampled"),
        ({"method": "fedavg", "participation": {"name": "power-of-choice", "number": 3}}, "asks single clients"),
        ({"method": "fedavg", "secure": {"name": "masked", "bits": 48, "clip": 1024.0}}, "set secure.bits lower"),
        ({"method": "fedavg", "secure": "mask"}, "did you mean 'masked'"),
        ({"method": "fedavg", "secure": {"name": "masked", "threshold": "all"}}, "secure.threshold"),
        ({"method": "fedavg", "secure": {"name": "masked", "bitz": 3}}, "bitz"),
        ({"method": "fedavg", "secure": 3}, "secure"),
    ],
)
def test_what_does_not_go_with_sums_is_refused_before_any_work(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        make_plan(make_experiment({**SMALL, "secure": True, **settings}))


def test_without_it_nothing_changes_and_false_is_without() -> None:
    plain, off = (
        make_plan(make_experiment({**SMALL, "method": "fedavg", **given})) for given in ({}, {"secure": False})
    )
    on = make_plan(make_experiment({**SMALL, "method": "fedavg", "secure": True}))
    assert plain.identity == off.identity != on.identity
    assert "secure" not in plain.experiment.hashed()


def test_the_manifest_says_what_is_masked() -> None:
    plan = make_plan(make_experiment({**SMALL, "method": "fedavg", "secure": True, "evaluation": "on-site"}))
    for rehearse in (False, True):
        leaves = egress_manifest(plan, rehearse)["leaves"]
        masked = [line for line in leaves if line.get("masked")]
        assert [line["exchange"] for line in masked] == ["train", "evaluate"]
        assert [line["kind"] for line in masked] == ["parameters", "statistics"]
        rest = {line["kind"] for line in leaves if not line.get("masked")}
        assert rest == {"metrics"}
