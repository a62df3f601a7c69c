"""A loaded data set, and the registry of functions that load one by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import torch

from fedstill.core.dataset import Dataset
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.registry import Registry
from fedstill.data.clouds import first_points
from fedstill.data.data_kinds import data_kinds
from fedstill.data.joined_data import contents_of

Kind = str  # a name in `data_kinds`


@dataclass(frozen=True)
class Bundle:
    """The splits of one data set with the facts that a task needs: classes, kind and shape of a sample.

    >>> pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> from fedstill.core.dataset import ArrayDataset
    >>> data = ArrayDataset(inputs=pixels, labels=torch.tensor([0, 1]))
    >>> bundle = Bundle("blank", train=data, test=data, classes=("a", "b"), kind="image", shape=(1, 8, 8))
    >>> bundle.fingerprint()[:12]
    '6550f6145799'
    """

    name: str
    train: Dataset
    test: Dataset
    classes: tuple[str, ...]
    kind: Kind
    shape: tuple[int, ...]  # image: (channels, height, width); cloud and scene: (points, 3)
    validation: Dataset | None = None
    categories: tuple[str, ...] = ()  # names of the values of `category`: kinds of objects, or of rooms
    notes: tuple[str, ...] = ()  # changes made to the files' contents while reading
    unknown: tuple[str, ...] = ()  # why its content cannot be recognised again
    sites: int = 0  # number of clients, where each brought its own part (column `site`)

    def __repr__(self) -> str:
        samples = ", ".join(f"{len(data):,} {split}" for split, data in self.splits().items())
        return f"Bundle({self.name!r}, {len(self.classes)} classes, {samples}, {self.kind} of {self.shape})"

    def _repr_html_(self) -> str:
        from fedstill.data.bundle_panel import bundle_panel  # only notebooks need what draws pictures

        return bundle_panel(self)

    def with_points(self, count: int) -> Bundle:
        """The first points of every cloud, normalised again: another data set, with its own fingerprint.

        Scenes are not rescaled, and keep all their boxes.
        """
        if not data_kinds[self.kind].points:
            raise InputError(f"{self.name} holds {self.kind}s: only of clouds can points be taken")
        if not 1 <= count <= self.shape[0]:
            raise InputError(
                f"{self.name} holds {self.kind}s of {self.shape[0]:,} points: {count:,} cannot be taken of each"
            )
        if count < (fewest := data_kinds[self.kind].fewest_points):
            raise InputError(f"{self.name} holds {self.kind}s, which need at least {fewest} points each, not {count}")
        if count == self.shape[0]:
            return self
        cut = {split: first_points(data, count, self.kind == "cloud") for split, data in self.splits().items()}
        return replace(
            self, train=cut["train"], validation=cut.get("validation"), test=cut["test"], shape=(count, *self.shape[1:])
        )

    def splits(self) -> dict[str, Dataset]:
        """The existing splits, by name, in a fixed order."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: data for name, data in every.items() if data is not None}

    def fingerprint(self) -> str:
        """A SHA-256 of the contents: equal data has an equal fingerprint, whatever its name or location."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = sha256(repr(self.classes).encode())
        for split, data in self.splits().items():
            for name, part in contents_of(data):
                digest.update(f"{split}/{name} {part.dtype} {tuple(part.shape)}".encode())
                digest.update(part.contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Source:
    """Arguments of a loader: the requested name, the data root, and an explicit path if the user gave one.

    Loaders that need no files ignore it.
    """

    name: str
    root: Path
    path: Path | None = None
    part: bool = False  # one site's part of a data set: not every class needs samples


Loader = Callable[[Source], Bundle]

datasets: Registry[Loader] = Registry("data set")


def class_number(name: str | int, classes: Sequence[str]) -> int:
    """A class by number, or by name."""
    if name in classes:
        return list(classes).index(str(name))
    if str(name).isdecimal() and int(name) < len(classes):
        return int(name)
    raise InputError(
        f"there is no class {name!r}: {did_you_mean(str(name), classes)}; or give a number from 0 to {len(classes) - 1}"
    )
