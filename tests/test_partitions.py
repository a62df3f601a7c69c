"""Partitions of any labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.errors import InputError
from fedstill.partitions import partition
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.simulated_clients import SimulatedClients

LABELS = [number % 4 for number in range(200)]


@pytest.mark.parametrize("labels", [LABELS, np.array(LABELS, dtype=np.int32), torch.tensor(LABELS)])
def test_every_row_has_one_owner_whatever_holds_the_labels(labels: Any) -> None:
    shards = fedstill.partitions.partition(labels, 5, "dirichlet", alpha=0.1, seed=3)
    assert sorted(np.concatenate(shards).tolist()) == list(range(200))
    again = partition(LABELS, 5, "dirichlet", alpha=0.1, seed=3)
    assert [one.tolist() for one in shards] == [one.tolist() for one in again]
    other = partition(LABELS, 5, "dirichlet", alpha=0.1, seed=4)
    assert [one.tolist() for one in shards] != [one.tolist() for one in other]


def test_shards_are_those_of_a_run() -> None:
    given = {"method": "fedavg", "data": "digits", "clients": 4, "seed": 9, "partition": "dirichlet:alpha=0.3"}
    clients = make_plan(make_experiment(given)).clients
    assert isinstance(clients, SimulatedClients)
    labels = clients.data.labels()
    assert labels is not None
    shards = partition(labels, 4, "dirichlet", alpha=0.3, seed=9)
    assert [one.tolist() for one in shards] == [clients.shards.rows(client).tolist() for client in range(4)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"name": "dirichlet", "alpha": 0}, r"alpha: Input should be greater than 0 \(got 0\)"),
        ({"name": "dirichlet", "alhpa": 1}, "did you mean 'alpha'"),
        ({"clients": 0}, "at least one client"),
        ({"clients": 201}, "ask for at most 200"),
        ({"labels": [0.5, 1.0]}, "pass one class number for each sample"),
        ({"labels": []}, "pass one class number"),
        ({"labels": [[1, 2]]}, "pass one class number"),
        ({"classes": 2}, r"labels range over 0\.\.3"),
    ],
)
def test_bad_input_gets_one_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        partition(**{"labels": LABELS, "clients": 5, **given})
