"""Recipes for the tables of the single-image paper: how many runs each is, with which settings, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.runtime.experiment import Experiment
from fedstill.shared_image.ensemble_settings import EnsembleSettings
from fedstill.shared_image.proxy_selection import Selection
from fedstill.studies import Study
from fedstill.studies.grid import GridCell
from fedstill.studies.study_plan import Job

POOL = {"cifar100": 50_000, "cifar10[50%:]": 5_000}  # training samples; the second of the 10,000 that lite counts on
# Distinct runs in both scales, counted by hand.
RUNS = {
    "image-heterogeneity": (3 * 2 * 2 * 3 * 2, 3 * 1 * 2 * 3 * 1),  # strategy, epochs, alpha, rate, seed
    "image-architectures": (2 * 3 * 2, 2 * 3 * 1),
    "proxy-selection": (3 * 3 * 2, 3 * 3 * 2),
    "image-clusters": (2 * (5 + 5 + 3 - 2) * 2, (4 + 5 + 3 - 2) * 2),  # parts a, b, c have two runs in common
    "image-pruning": (2 * (3 + 3 - 1) * 2, (3 + 3 - 1) * 2),
    "image-client-rate": (5, 5),
    "image-server-rate": (5 * 2, 5 * 2),
    "image-embedding": (2, 2),
}


def jobs(name: str, preset: str | None = None) -> tuple[Job, ...]:
    return Study(name, preset=preset, data_root=Path("nowhere")).study_plan.jobs


def cells(name: str, preset: str | None = None, variant: str | None = None) -> tuple[GridCell, ...]:
    return Study(name, preset=preset, variant=variant, data_root=Path("nowhere")).expand()


def settings(experiment: Experiment) -> Any:
    return experiment.method.settings


def values(name: str, get: Callable[[Experiment], Any]) -> set[Any]:
    return {get(cell.experiment) for cell in cells(name)}


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_counted(name: str) -> None:
    assert (len(jobs(name)), len(jobs(name, "lite"))) == RUNS[name]


@pytest.mark.parametrize("name", RUNS)
def test_paper_settings_and_lite_ones(name: str) -> None:
    """20 clients, 40 % of them in each of 30 rounds, batch 128; 500 steps of 128 at 0.005 on the server."""
    for cell in cells(name):
        experiment, method = cell.experiment, settings(cell.experiment)
        training = experiment.training
        assert (experiment.clients, experiment.validation) == (20, 0.1)
        assert experiment.participation.settings.model_dump()["fraction"] == 0.4
        assert (training.batch, training.optimiser) == (128, "adam")
        assert experiment.rounds == 30 or (name, experiment.rounds) == ("image-embedding", 1)
        assert training.rate == 0.01 or name == "image-client-rate"
        assert training.epochs == 40 or (name, training.epochs) == ("image-heterogeneity", 20)
        if isinstance(method, EnsembleSettings):
            assert (method.steps, method.batch, method.temperature) == (500, 128, 1.0)
            assert (method.statistics, method.rate) == ("frozen", 0.001) or name == "image-server-rate"
    for cell in cells(name, "lite"):
        experiment, method = cell.experiment, settings(cell.experiment)
        assert (experiment.data, experiment.clients, experiment.training.batch) == ("cifar10[:50%]", 10, 32)
        assert experiment.rounds == {"image-architectures": 6}.get(name, 10) or name == "image-embedding"
        assert experiment.training.epochs == 5
        assert "wrn16-4" not in experiment.architectures
        if name != "image-client-rate":  # which found these
            assert experiment.training.rate == (0.001 if experiment.model == "cnn-bn" else 0.01)
        if isinstance(method, EnsembleSettings):
            assert (method.steps, method.batch) == (100, 64)


@pytest.mark.parametrize("name", [*RUNS, "image-mixed", "image-traffic"])
@pytest.mark.parametrize("preset", [None, "lite"])
def test_as_published_is_what_the_papers_code_does(name: str, preset: str | None) -> None:
    """Every distillation in training mode at 0.005, clipped, of its best step, averaged in rounds 1, 5, 10, ..."""
    if name == "image-client-rate":  # FedAvg
        return
    for cell in cells(name, preset, "as-published"):
        method = settings(cell.experiment)
        if isinstance(method, EnsembleSettings):
            found = (method.statistics, method.clip_logits, method.keep, method.averaging, method.selector)
            assert found == ("batch", 2.5, "best-step", "multiples", "best")
            assert method.rate == 0.005 or name == "image-server-rate"


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("preset", [None, "lite"])
def test_selection_has_something_to_choose_from(name: str, preset: str | None) -> None:
    """A pool that is no larger than samples / (1 - prune) leaves clusters without a choice."""
    for cell in cells(name, preset):
        method = settings(cell.experiment)
        selection: Selection | None = getattr(method, "selection", None)
        if selection is None or not selection.asks:
            continue
        pool = method.patches.count if hasattr(method, "patches") else POOL[method.proxy]
        selection.check(pool, method.samples)
        assert selection.candidates(method.samples) < pool, cell


def test_what_tables_have_in_common_is_run_once() -> None:
    """Table 1 has the rows of Table 3 at the lowest rate, and Table 2 those of one image; the figures a run of both.

    Lite recipes differ in their models and rounds; the figures' run is shared there, too.
    """
    budget = {job.key for job in jobs("image-budget")}
    assert len(budget & {job.key for job in jobs("image-architectures")}) == 2 * 2
    assert len(budget & {job.key for job in jobs("image-heterogeneity")}) == 3 * 2
    for preset in (None, "lite"):
        budget = {job.key for job in jobs("image-budget", preset)}
        assert len(budget & {job.key for job in jobs("image-embedding", preset)}) == 1


def test_what_is_varied() -> None:
    assert values("image-heterogeneity", lambda one: settings(one).initialise) == {1.0, 0.5, 0.2}
    assert values("image-heterogeneity", lambda one: one.partition.settings.model_dump()["alpha"]) == {1.0, 0.1}
    assert values("image-heterogeneity", lambda one: (settings(one).selection is None, settings(one).mu > 0)) == {
        (True, False),
        (False, False),
        (False, True),
    }
    assert values("image-architectures", lambda one: one.model) == {"resnet8", "resnet20", "wrn16-4"}
    assert values("proxy-selection", lambda one: (settings(one).proxy, settings(one).samples)) == {("cifar100", 1000)}
    for name in ("image-client-rate", "image-server-rate"):
        assert values(name, lambda one: one.partition.settings.model_dump()["alpha"]) == {100.0}
    rates = {0.1, 0.05, 0.01, 0.005, 0.001}
    assert values("image-client-rate", lambda one: (one.method.name, one.training.rate)) == {
        ("fedavg", rate) for rate in rates
    }
    assert values("image-server-rate", lambda one: (one.method.name, settings(one).rate)) == {
        ("feddf", rate) for rate in rates
    }


def test_the_two_mechanisms_are_varied_one_at_a_time() -> None:
    """Table 8 without pruning: clusters at 0.1 and easy, balance at 1,000 and easy, heuristics at 1,000 and 1.0."""
    clusters = values(
        "image-clusters",
        lambda one: (
            settings(one).selection.kmeans,
            settings(one).selection.balance,
            settings(one).selection.heuristic,
            settings(one).selection.prune,
        ),
    )
    assert clusters == {
        *((count, 0.1, "easy", 0) for count in (5, 10, 50, 100, 1000)),
        *((1000, balance, "easy", 0) for balance in (0.0, 0.05, 0.1, 0.5, 1.0)),
        *((1000, 1.0, heuristic, 0) for heuristic in ("easy", "hard", "mixed")),
    }
    pruning = values(
        "image-pruning",
        lambda one: (settings(one).selection.kmeans, settings(one).selection.drop, settings(one).selection.prune),
    )
    assert pruning == {(0, "top", 0.1), (0, "top", 0.5), (0, "top", 0.9), (0, "bottom", 0.9), (0, "random", 0.9)}
