"""Clients whose data sets are given by name, path or as data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.dataset import column
from fedstill.core.errors import InputError

RNG = np.random.default_rng(0)


def archive(path: Path, labels: list[int], classes: list[str], count: int = 40) -> Path:
    y = np.resize(labels, count)
    x = RNG.integers(0, 256, (count, 8, 8), dtype=np.uint8)
    np.savez(path, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10], classes=np.array(classes))
    return path


def test_archives_of_sites_become_one_federation_with_each_sites_own_samples(tmp_path: Path) -> None:
    one = archive(tmp_path / "one.npz", [0, 1], ["cat", "dog"])
    two = archive(tmp_path / "two.npz", [0, 1], ["dog", "emu"], 20)
    made = fedstill.dataset([one, f"npz:{two}"])
    assert made.classes == ("cat", "dog", "emu")
    assert made.sites == 2
    sites, labels = column(made.train, "site"), made.train.labels()
    assert sites is not None
    assert labels is not None
    assert sites.bincount().tolist() == [40, 20]
    assert labels[sites == 0].unique().tolist() == [0, 1]
    assert labels[sites == 1].unique().tolist() == [1, 2]  # by name: what the second site calls 0 is a dog
    with np.load(two) as held:
        assert torch.equal(made.train.batch(torch.arange(40, 60))["inputs"][:, 0], _floats(held["x_train"]))
    run = fedstill.run("fedavg", data=[one, two], model="mlp", rounds=1, out=tmp_path / "runs")
    assert (run.experiment.clients, run.experiment.partition.name) == (2, "sites")
    again = fedstill.run("fedavg", data=[one, two], model="mlp", rounds=1, out=tmp_path / "runs")
    assert again.reused


def _floats(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).float() / 127.5 - 1


def test_data_sets_and_arrays_can_stand_side_by_side() -> None:
    x, y = RNG.random((30, 1, 8, 8)).astype(np.float32), np.arange(30) % 2
    made = fedstill.dataset([fedstill.dataset((x, y)), ((x, y), (x[:4], y[:4]))])
    assert (made.sites, len(made.train), made.classes) == (2, 24 + 30, ("0", "1"))
    assert made.train.batch(torch.arange(54))["sample_id"].unique().numel() == 54


def test_other_shapes_and_missing_files_are_refused(tmp_path: Path) -> None:
    x, y = RNG.random((30, 1, 8, 8)).astype(np.float32), np.arange(30) % 2
    with pytest.raises(InputError, match=r"client 0 has images of shape \(1, 8, 8\), and that of client 1 .*the same"):
        fedstill.dataset([fedstill.dataset((x, y)), (x[:, :, :7], y)])
    with pytest.raises(InputError, match="does not exist"):
        fedstill.dataset([tmp_path / "none.npz"])
