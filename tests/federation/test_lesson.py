"""Runs that learn together: one that cannot go on leaves, and the others have the bits they would have alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.config import Experiment, make_experiment
from fedstill.core.task import Tensors
from fedstill.federation.launch import launch
from fedstill.federation.lesson import learn_together
from fedstill.federation.result import Run
from fedstill.federation.run import Attempt
from fedstill.methods import Distillation


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
            return (yield from begin(self))

        monkeypatch.setattr(Attempt, "round", round)
        return
    method = getattr(Distillation, place)

    def broken(self: Distillation, state: Tensors, *rest: Any) -> Any:
        if self.training.rate == 0.5:
            raise RuntimeError("boom")
        return method(self, state, *rest)

    monkeypatch.setattr(Distillation, place, broken)


@pytest.mark.parametrize("place", ["begin", "prepare", "request", "merge"])
def test_one_who_cannot_go_on_leaves_and_the_others_stay(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_itself = launch(alone(rate=0.01), out=tmp_path / "alone")
    fails_in(place, monkeypatch)
    good, bad, other = learn_together([alone(rate=rate) for rate in (0.01, 0.5, 0.02)], tmp_path / "together")
    assert isinstance(bad, RuntimeError)
    assert str(bad) == "boom"
    assert isinstance(good, Path)
    assert isinstance(other, Path)
    assert Run(good).sha256 == by_itself.sha256
    assert Run(other).finished


def test_data_that_is_missing_stops_only_those_who_need_it(tmp_path: Path) -> None:
    good, bad = learn_together([alone(), alone(f"npz:{tmp_path / 'nothing.npz'}")], tmp_path / "runs")
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
    runs = [Run(path) for path in learn_together(experiments, tmp_path / "together") if isinstance(path, Path)]
    for run, experiment in zip(runs, experiments, strict=True):
        assert run.sha256 == launch(experiment, out=tmp_path / "alone").sha256
