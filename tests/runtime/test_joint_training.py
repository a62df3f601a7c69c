"""Runs that learn together: one that cannot go on leaves, and the others have the bits they would have alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.core.task import Tensors
from fedstill.distillation.distill import Distillation
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.joint_training import train_jointly
from fedstill.runtime.launch import launch
from fedstill.runtime.result import Run
from fedstill.runtime.run import Attempt


def alone(data: str = "digits", **training: Any) -> Experiment:
    """A student without teachers, which is enough to learn beside others."""
    return make_experiment(
        {
            "method": {"name": "distill", "share": 0.2},
            "objective": "labels-only",
            "data": data,
            "model": "mlp",
            "rounds": 2,
            "training": {"batch": 64, **training},
        }
    )


def fails_in(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the students with a rate of 0.5 fail there."""
    if place == "begin":
        begin = Attempt.round

        def round(self: Attempt) -> Any:
            if self.plan.experiment.training.rate == 0.5:
                raise RuntimeError("boom")
            return begin(self)

        monkeypatch.setattr(Attempt, "round", round)
        return
    method = getattr(Distillation, place)

    def broken(self: Distillation, state: Tensors, *rest: Any) -> Any:
        if self.training.rate == 0.5:
            raise RuntimeError("boom")
        return method(self, state, *rest)

    monkeypatch.setattr(Distillation, place, broken)


@pytest.mark.parametrize("place", ["begin", "prepare", "request", "aggregate"])
def test_one_who_cannot_go_on_leaves_and_the_others_stay(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_itself = launch(alone(rate=0.01), out=tmp_path / "alone")
    fails_in(place, monkeypatch)
    good, bad, other = train_jointly([alone(rate=rate) for rate in (0.01, 0.5, 0.02)], tmp_path / "together")
    assert isinstance(bad, RuntimeError)
    assert str(bad) == "boom"
    assert isinstance(good, Path)
    assert isinstance(other, Path)
    assert Run(good).sha256 == by_itself.sha256
    assert Run(other).finished


def test_data_that_is_missing_stops_only_those_who_need_it(tmp_path: Path) -> None:
    good, bad = train_jointly([alone(), alone(f"npz:{tmp_path / 'nothing.npz'}")], tmp_path / "runs")
    assert isinstance(good, Path)
    assert isinstance(bad, Exception)


def test_students_of_different_data_learn_apart(tmp_path: Path) -> None:
    """Data sets that differ in nothing but their samples: without teachers nothing else tells these lessons apart."""
    draw, sources = np.random.default_rng(0), []
    for name in ("one", "other"):
        inputs, labels = draw.standard_normal((80, 1, 8, 8)).astype(np.float32), np.arange(80) % 10
        np.savez(tmp_path / f"{name}.npz", x=inputs, y=labels)
        sources.append(f"npz:{tmp_path / name}.npz")
    experiments = [alone(source) for source in sources]
    runs = [Run(path) for path in train_jointly(experiments, tmp_path / "together") if isinstance(path, Path)]
    for run, experiment in zip(runs, experiments, strict=True):
        assert run.sha256 == launch(experiment, out=tmp_path / "alone").sha256


def test_a_joint_pass_that_fails_is_logged_and_kept_and_students_are_trained_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    experiments = [alone(rate=rate) for rate in (0.01, 0.02)]
    by_themselves = [launch(one, out=tmp_path / "alone").sha256 for one in experiments]

    def broken(self: Distillation, requests: Any) -> Any:
        raise RuntimeError("no memory for two")

    monkeypatch.setattr(Distillation, "reply_jointly", broken)
    runs = [Run(path) for path in train_jointly(experiments, tmp_path / "together") if isinstance(path, Path)]
    assert [run.sha256 for run in runs] == by_themselves
    assert "joint training of 2 students failed" in caplog.text
    assert "Traceback" in caplog.text
    for run in runs:
        assert "RuntimeError: no memory for two" in str(run.joint_error)


def test_interrupted_runs_go_on_together_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is ahead of the other by a round when both go on."""
    experiments = [alone(rate=rate) for rate in (0.01, 0.02)]
    by_themselves = [launch(one, out=tmp_path / "alone").sha256 for one in experiments]
    kept, keep = list[Attempt](), Attempt.keep

    def interrupted(self: Attempt, *rest: Any) -> None:
        keep(self, *rest)
        kept.append(self)
        if len(kept) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Attempt, "keep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_jointly(experiments, tmp_path / "together")
    monkeypatch.setattr(Attempt, "keep", keep)
    runs = [Run(path) for path in train_jointly(experiments, tmp_path / "together") if isinstance(path, Path)]
    assert [run.sha256 for run in runs] == by_themselves
