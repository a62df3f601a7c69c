"""A simulation's shards as files, one for each site: the way from a simulated federation to a real one."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Dataset, Subset
from fedstill.core.errors import InputError, RunError
from fedstill.core.files import replace_whole, writable_folder
from fedstill.data.site_archive import Shard
from fedstill.deploy.private_files import site_name
from fedstill.runtime.plan import Simulation

_AT_ONCE = 1024  # rows of data that is not held in memory


def write_shards(plan: Simulation, folder: Path) -> list[Path]:
    """One archive per client with its training and test rows and nothing of the others', for `--data npz:FILE`.

    Where models are evaluated centrally, sites get no test rows. The files are for their owner's eyes only: they may
    hold patients.
    """
    clients, bundle = plan.clients, plan.bundle
    if clients.data.labels() is None:
        raise InputError(f"{plan.experiment.data} has no labels: its shards cannot be used as data of sites")
    paths = [folder / f"{site_name(client)}.npz" for client in range(len(clients.shards))]
    if there := sorted(folder.glob(f"{site_name('*')}.npz")) if folder.is_dir() else []:
        raise InputError(f"{folder} holds {there[0].name} already: name another folder, or delete what is in this one")
    writable_folder(folder)
    nobody = torch.zeros(0, dtype=torch.int64)
    try:
        for client, path in enumerate(paths):
            test = Subset(bundle.test, nobody) if clients.test is None else clients.test[1].of(clients.test[0], client)
            columns = {"train": _columns(clients.shards.of(clients.data, client)), "test": _columns(test)}
            _write(path, Shard(bundle.kind, bundle.classes, columns, bundle.categories))
    except OSError as error:
        for path in paths:
            path.unlink(missing_ok=True)
        raise RunError(f"cannot write to {folder}: {error.strerror or error}; nothing was left there") from error
    return paths


def _columns(shard: Dataset) -> Mapping[str, Tensor]:
    """Every column of a shard: as stored where they can be had, else as they come in batches."""
    if isinstance(shard, Subset) and isinstance(shard.data, ArrayDataset):
        return {name: column.index_select(0, shard.rows) for name, column in shard.data.columns.items()}
    batches = [shard.batch(some) for some in torch.arange(len(shard)).split(_AT_ONCE)]
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def _write(path: Path, shard: Shard) -> None:
    archive = BytesIO()
    shard.write(archive)
    replace_whole(path, archive.getvalue(), private=True)
