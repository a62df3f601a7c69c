"""What a study has to do on this machine: every cell resolved against its data, identical runs counted once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedstill.config import Experiment
from fedstill.core.errors import InputError
from fedstill.core.plugins import loaded_plugins
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle
from fedstill.data.catalogue import load
from fedstill.federation.plan import check_device, make_method, make_plan, make_task, resolve
from fedstill.studies.grid import Cell
from fedstill.tasks.classification import Classification


@dataclass(frozen=True)
class Job:
    """A run that some cells of the study share, known by the identity that ends its folder's name."""

    identity: str
    cell: Cell = field(compare=False)  # the first of them

    @property
    def method(self) -> str:
        return self.cell.experiment.method.name


@dataclass(frozen=True)
class Agenda:
    """The study's cells with their identities, its distinct runs, and the data sets that are not here."""

    cells: tuple[tuple[Cell, str], ...]
    missing: dict[str, str]  # by data set, what its loader said

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Distinct runs in the order in which the grid first names them."""
        first: dict[str, Job] = {}
        for cell, identity in self.cells:
            first.setdefault(identity, Job(identity, cell))
        return tuple(first.values())

    def check_data(self) -> None:
        if self.missing:
            sentences = [sentence.rstrip(".") for sentence in self.missing.values()]
            raise InputError(f"the study cannot run here: {'; '.join(sentences)}")


def make_agenda(cells: Sequence[Cell], data_root: Path | None = None, device: str = "cpu") -> Agenda:
    """Resolve every cell; one that its data, model or method refuses is refused here, before anything has run.

    Without its data a cell is told from others by its configuration alone.
    """
    check_device(device)
    missing: dict[str, str] = {}
    identities: dict[int, str] = {}
    for data in dict.fromkeys(cell.experiment.data for cell in cells):
        concerned = [(number, cell) for number, cell in enumerate(cells) if cell.experiment.data == data]
        try:
            shelf = _Shelf(load(data, data_root), data_root, device)
        except InputError as error:
            missing[data] = str(error)
            for number, cell in concerned:
                identities[number] = cell.experiment.identity("not here")
            continue
        for number, cell in concerned:
            try:
                identities[number] = shelf.identity(cell.experiment)
            except InputError as error:
                raise InputError(f"the experiment {cell}: {error}") from None
    return Agenda(tuple((cell, identities[number]) for number, cell in enumerate(cells)), missing)


class _Shelf:
    """One data set, and what is costly to make of it: clouds with fewer points, and tasks with a model."""

    def __init__(self, bundle: Bundle, data_root: Path | None, device: str) -> None:
        self.bundle, self.data_root, self.device = bundle, data_root, device
        self.cut: dict[tuple[str | None, int | None], Bundle] = {}
        self.tasks: dict[str, Classification] = {}

    def identity(self, experiment: Experiment) -> str:
        if experiment.teachers:  # whose weights are part of it
            return make_plan(experiment, self.data_root, self.device).identity
        key = (experiment.model, experiment.points)
        resolved, cut = resolve(experiment, self.cut.get(key, self.bundle))
        self.cut[key] = cut
        wanted = json.dumps([resolved.model, resolved.points, resolved.model_dump(mode="json")["augmentation"]])
        if wanted not in self.tasks:
            self.tasks[wanted] = make_task(resolved, cut)
        make_method(resolved, self.tasks[wanted], Streams(resolved.seed))
        return resolved.identity(cut.fingerprint(), loaded_plugins().values())
