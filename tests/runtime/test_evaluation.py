from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.dataset import column
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import under
from fedstill.core.protocols import Engine
from fedstill.core.streams import Streams
from fedstill.data.lookup import load
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.run import execute


def test_personal_models_that_are_not_finite_are_said_to_be(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path
) -> None:
    """A pull of 1000 at rate 0.05 throws weights fifty times as far at each step: personal models end as NaN."""
    plan = tiny_plan(method={"name": "ditto", "pull": 1000.0}, clients=2, rounds=1)
    (record,) = execute(plan, engines["in-process"], tmp_path).journal()
    assert record.evaluation.personal.non_finite == 2
    assert record.evaluation.finite  # the shared model is FedAvg's, and sound


def test_where_only_personal_models_are_scored_they_decide(tiny_plan: Any, tmp_path: Path) -> None:
    plan = tiny_plan(method="local-only", clients=2)
    store = ClientStore(tmp_path / "clients", 2)
    sound = state_of(plan.task.build("cnn", streams=Streams(0)))
    broken = {name: tensor * float("nan") for name, tensor in sound.items()}
    for client, state in enumerate((sound, broken)):
        store.stage(client, 0, under("model/", state))
    evaluation = plan.evaluator(plan.method, {}, plan.profiles, store)
    assert evaluation.personal.non_finite == 1
    assert not evaluation.finite


def write_site_table(folder: Path) -> str:
    """Clouds of two classes at three sites, of 24, 12 and 12 files, as a folder with a table."""
    draw = np.random.default_rng(0)
    rows = ["file,label,site"]
    for number in range(48):
        label = number % 2
        np.save(folder / f"{number:02}.npy", draw.normal(size=(40, 3)) * (1, 1, 1 if label else 0.2))
        rows.append(
            f"{number:02}.npy,{'flat' if label == 0 else 'round'},{('south', 'north', 'south', 'west')[number % 4]}"
        )
    (folder / "labels.csv").write_text("\n".join(rows))
    return f"folder:{folder}"


@pytest.mark.parametrize("method", ["fedavg", "local-only"])
def test_sites_are_scored_on_their_own_test_samples(tmp_path: Path, method: str) -> None:
    (tmp_path / "data").mkdir()
    data = write_site_table(tmp_path / "data")
    settings = {"data": data, "partition": "sites", "model": "pointnet-tiny", "rounds": 1, "training.epochs": 1}
    run = fedstill.run(method, out=tmp_path / "runs", **settings)
    assert run.experiment.clients == 3
    by_site = run.result.by_site
    assert list(by_site) == ["north", "south", "west"]
    sites = column(load(data).test, "site")
    assert [by_site[name]["samples"] for name in by_site] == torch.bincount(sites).tolist()
    if method == "fedavg":
        right = torch.tensor(run.predictions()) == torch.tensor(run.test_labels)
        for number, name in enumerate(by_site):
            assert by_site[name]["accuracy"] == pytest.approx(float(right[sites == number].double().mean()))
    assert run.journal[-1].evaluation.by_site == by_site


def test_a_number_of_clients_that_contradicts_the_sites_is_refused(tmp_path: Path) -> None:
    data = write_site_table(tmp_path)
    with pytest.raises(InputError, match="the data has 3 sites, and clients is 4: leave clients out"):
        fedstill.run("fedavg", data=data, partition="sites", clients=4, out=tmp_path / "runs")
