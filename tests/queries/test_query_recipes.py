"""The recipes in which clients ask for classes: what the published tables take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedstill.data.named_slices import part_of
from fedstill.runtime.recipes import recipe_names
from fedstill.studies import Study

PROBE = "query-probe"  # asks nobody
RECIPES = [name for name in recipe_names(study=True) if name == "query" or name.startswith("query-")]
RECIPES.remove(PROBE)
ONE_ROUND = {"local-only", "ensemble", "pfnm", "clue", "naive-kd", "qkt", "qkt-light"}


def test_every_group_of_tables_has_one() -> None:
    """Tables 2 and 20-24, 3, 4, 5-8, 9-13, 14, 15-16, 17-18 and 19."""
    beside = ("ablation", "clients", "epochs", "heterogeneity", "lambda", "light", "masking", "models")
    assert set(RECIPES) == {"query", *(f"query-{name}" for name in beside)}


@pytest.mark.parametrize("preset", [None, "lite"], ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_queries_are_asked_by_the_published_settings(name: str, preset: str | None) -> None:
    """Adam at 1e-3 with decay 4e-4 in batches of 32; alone up to 100 epochs with patience 10 (lite: 30 and 5), then one
    round; others 100 rounds (lite: 20) of 2 epochs, FedAvg(1) one. 25 epochs of transfer for CIFAR-10 and CINIC-10, 10
    elsewhere; lambda 1.5, and 3 for a hundred classes."""
    epochs, patience, rounds = (100, 10, 100) if preset is None else (30, 5, 20)
    for cell in Study(name, preset=preset, data_root=Path("nowhere")).expand():
        experiment, settings = cell.experiment, cell.experiment.method.settings.model_dump()
        training, method, data = experiment.training, experiment.method.name, part_of(experiment.data)[0]
        assert (training.optimiser, training.rate) == ("adam", 1e-3)
        assert (training.weight_decay, training.batch) == (4e-4, 32)
        assert experiment.queries is not None
        assert experiment.clients == (50 if name == "query-clients" else 10)
        assert preset is None or experiment.model in ("cnn", "resnet8", "pointnet-tiny")
        if method in ONE_ROUND:
            assert (experiment.rounds, training.epochs, settings["patience"]) == (1, epochs, patience), cell
        else:
            assert experiment.rounds == (1 if cell.labels.get("method") == "FedAvg(1)" else rounds), cell
            assert training.epochs == 2
        if "transfer_epochs" in settings:
            assert settings["transfer_epochs"] == (25 if data in ("cifar10", "cinic10") else 10), cell
        if "query_weight" in settings and name != "query-lambda":
            assert settings["query_weight"] == (3.0 if data == "cifar100" else 1.5), cell
        if method == "moon":
            assert (settings["mu"], settings["tau"]) == (5.0, 0.5)
        if method == "fedprox":
            assert settings["mu"] == 0.01


@pytest.mark.parametrize("name", RECIPES)
def test_the_published_variant_has_the_published_rule(name: str) -> None:
    """The threshold of 1 % wherever there is a probe; all other settings are those of the corrected variant."""
    cells = {
        variant: Study(name, {"seed": 7}, variant=variant, data_root=Path("nowhere")).expand()
        for variant in (None, "corrected", "as-published")
    }
    rules = {
        variant: {cell.experiment.method.settings.model_dump().get("probe_rule") for cell in found} - {None}
        for variant, found in cells.items()
    }
    assert rules == {None: {"gap"}, "corrected": {"gap"}, "as-published": {"threshold"}}
    assert len(cells["as-published"]) == len(cells[None])
    for one, other in zip(cells[None], cells["as-published"], strict=True):
        before, after = one.experiment.method.settings.model_dump(), other.experiment.method.settings.model_dump()
        assert {key for key in before if before[key] != after[key]} <= {"probe_rule"}
        assert after.get("threshold", 0.01) == 0.01


def values(name: str, setting: str) -> list[Any]:
    cells = Study(name, {"seed": 7}).expand()
    return [cell.experiment.method.settings.model_dump()[setting] for cell in cells]


def test_sweeps() -> None:
    assert values("query-lambda", "query_weight") == [1, 1.5, 2, 4]
    assert values("query-masking", "frozen") == [0, 0.005, 0.01, 0.025, 0.05, 0.1]
    assert Counter(values("query-epochs", "tune")) == {False: 20, True: 20}  # five data sets, two shards, two queries
    parts = [
        tuple(cell.experiment.method.settings.model_dump()[part] for part in ("filter", "mask", "refine"))
        for cell in Study("query-ablation", {"seed": 7}).expand()[1:]
    ]
    assert parts == [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]
    partitions = [cell.experiment.partition for cell in Study("query-heterogeneity", {"seed": 7}).expand()]
    held = Counter(next(iter(part.settings.model_dump().values())) for part in partitions)
    assert held == dict.fromkeys([4, 3, 2, 0.1, 0.01], 2 * 8)  # two kinds of queries, eight methods


def test_of_fifty_clients_some_take_part() -> None:
    """Learning alone and the ensemble of all concern everybody; of four methods a tenth and a fifth take part."""
    cells = Study("query-clients", {"seed": 7}).expand()
    shares = Counter(cell.experiment.participation.settings.model_dump().get("fraction") for cell in cells)
    assert shares == {None: 2 * 2, 0.1: 2 * 4, 0.2: 2 * 4}


def test_a_server_has_samples_that_no_client_has() -> None:
    for preset in (None, "lite"):
        for cell in Study("query-light", {"seed": 7}, preset=preset).expand():
            settings = cell.experiment.method.settings.model_dump()
            if settings.get("first_phase") == "server":
                (data, own), (proxy, apart) = part_of(cell.experiment.data), part_of(settings["proxy"])
                assert data == proxy
                assert own is not None
                assert apart is not None
                assert own.stop == apart.start if preset is None else own.stop < apart.start


@pytest.mark.parametrize("preset", [None, "lite"], ids=str)
def test_what_tables_share_is_run_once(preset: str | None) -> None:
    """QKT and KD on CIFAR-10 with three classes a client and single queries are in nearly every table."""

    def keys(name: str, **chosen: str) -> set[str]:
        study = Study(name, {"seed": 7}, preset=preset, data_root=Path("nowhere"))
        return {
            job.key
            for cell, job in study.study_plan.cells
            if job is not None and all(cell.labels[axis] == label for axis, label in chosen.items())
        }

    whole = {"data": "CIFAR-10", "queries": "single", "partition": "few classes"}
    (asked,) = keys("query", **whole, method="QKT")
    assert keys("query-ablation", parts="QKT") == {asked}
    assert keys("query-lambda", query_weight="1.5") == {asked}
    assert keys("query-masking", frozen="0.0") == {asked}
    assert keys("query-ablation", parts="KD") == keys("query", **whole, method="KD")
    three = keys("query-heterogeneity", queries="single", partition="three classes", method="QKT")
    assert (three == {asked}) == (preset is None)  # lite has half of the images
