"""A loaded data set, and the registry of functions that load one by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from weakref import finalize

import torch

from fedstill.core.dataset import Dataset
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.registry import Registry
from fedstill.data.clouds import SPARSE, drawn_points, first_points, has_order
from fedstill.data.data_kinds import data_kinds
from fedstill.data.data_settings import DataSettings
from fedstill.data.feature_preparation import Preparation
from fedstill.data.joined_data import Pieces, contents_of

Kind = str  # a name in `data_kinds`


# By the id of a bundle that lives, and a number of points; not in the bundle, whose content it is no part of.
_cuts: dict[tuple[int, int], Bundle] = {}


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
    shape: tuple[int, ...]  # image: (channels, height, width); cloud: (points, 3); scene: (points, 3 or with features)
    validation: Dataset | None = None
    categories: tuple[str, ...] = ()  # names of the values of `category`: kinds of objects, or of rooms
    notes: tuple[str, ...] = ()  # changes made to the files' contents while reading, and the doubts
    doubts: tuple[str, ...] = ()  # why results on this data may mislead
    unknown: tuple[str, ...] = ()  # why its content cannot be recognised again
    sites: int = 0  # number of clients, where each brought its own part (column `site`)
    site_names: tuple[str, ...] = ()  # of these, where they have names
    sources: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # by split and sample: to read more from
    features: tuple[str, ...] = ()  # of points, beside their coordinates
    preparation: Preparation | None = None  # of a table of features: how its cells became numbers

    def __repr__(self) -> str:
        samples = ", ".join(f"{len(data):,} {split}" for split, data in self.splits().items())
        return f"Bundle({self.name!r}, {len(self.classes)} classes, {samples}, {self.kind} of {self.shape})"

    def _repr_html_(self) -> str:
        from fedstill.data.bundle_panel import bundle_panel  # only notebooks need what draws pictures

        return bundle_panel(self)

    def with_points(self, count: int) -> Bundle:
        """So many points of every cloud, normalised again: another data set, with its own fingerprint.

        Fewer are the first ones where points are stored in random order, and are drawn where they are not. More are
        all points, and some of them again. Scenes are not rescaled, and keep all their boxes. Asked again, it is the
        same object: students in joint training share it.
        """
        if not data_kinds[self.kind].points:
            raise InputError(f"{self.name} holds {self.kind}s: only of clouds can points be taken")
        stored = self.shape[0]
        most = stored * SPARSE if self.kind == "cloud" else stored
        if not 1 <= count <= most:
            raise InputError(
                f"{self.name} holds {self.kind}s of {stored:,} points: {count:,} cannot be taken of each,"
                f" so choose from 1 to {most:,}"
            )
        if count < (fewest := data_kinds[self.kind].fewest_points):
            raise InputError(f"{self.name} holds {self.kind}s, which need at least {fewest} points each, not {count}")
        if count == stored:
            return self
        key = id(self), count
        if key not in _cuts:
            _cuts[key] = self._cut(count, stored)
            finalize(self, _cuts.pop, key, None)
        return _cuts[key]

    def _cut(self, count: int, stored: int) -> Bundle:
        if drawn := self.kind == "cloud" and (count > stored or has_order(self.train)):
            cut = {split: drawn_points(data, count) for split, data in self.splits().items()}
        else:
            cut = {split: first_points(data, count, self.kind == "cloud") for split, data in self.splits().items()}
        note = (
            f"clouds hold {stored:,} points: some of each, drawn at random, are repeated to make {count:,}"
            if count > stored
            else f"points are stored in an order: {count:,} of each cloud are drawn at random, not the first ones"
        )
        return replace(
            self,
            train=cut["train"],
            validation=cut.get("validation"),
            test=cut["test"],
            shape=(count, *self.shape[1:]),
            notes=(*self.notes, note) if drawn else self.notes,
        )

    def with_features(self, features: tuple[str, ...]) -> Bundle:
        """The same samples with these features of their points beside coordinates, where the kind of data has any."""
        add = data_kinds[self.kind].with_features
        return self if add is None else add(self, features)

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
                for some in part.parts() if isinstance(part, Pieces) else (part,):
                    digest.update(some.contiguous().flatten().view(torch.uint8).numpy().data)
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
    settings: DataSettings = field(default_factory=DataSettings)  # written behind the name

    @property
    def full_name(self) -> str:
        """The name with its settings."""
        return self.name + self.settings.text()


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
