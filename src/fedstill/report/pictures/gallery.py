"""Which samples of a data set are shown, and where on the sheet they go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedstill.core.dataset import Batch
from fedstill.core.errors import InputError, did_you_mean
from fedstill.data.bundle import Bundle, Kind
from fedstill.data.point_labels import kind_names, shape_kinds

_WIDE = 8  # samples side by side at most
_TALL = 1.2  # height by width of a sheet of classes at most, before another column of them is begun


@dataclass(frozen=True)
class Marks:
    """Which part each point belongs to, numbered among the parts that things of this kind have."""

    names: tuple[str, ...]
    points: Tensor  # (samples, points)


@dataclass(frozen=True)
class Gallery:
    """A few samples of some classes, as models see them; where every point has a label, of some kinds of things."""

    name: str
    about: str
    kind: Kind
    samples: dict[str, Tensor]  # class -> (count, *shape)
    whole_class: bool  # one class was asked for, so it is shown in more detail
    marks: dict[str, Marks] = field(default_factory=dict)  # kind -> parts of its samples, where points have labels

    @property
    def parts(self) -> int:
        """How many parts the kind with most of them has: so many colours are needed."""
        return max((len(marks.names) for marks in self.marks.values()), default=0)

    @property
    def legend(self) -> tuple[str, ...]:
        """The parts, where all that is shown has the same ones; else their colours mean another thing for each kind."""
        every = {marks.names for marks in self.marks.values()}
        return every.pop() if len(every) == 1 else ()


def choose(bundle: Bundle, wanted: str | None, count: int) -> Gallery:
    """Samples of the training split, spread over each class: the same ones every time."""
    if count < 1:
        raise InputError(f"--count must be at least 1, not {count}")
    labels = bundle.train.labels()
    if labels is None:
        raise InputError(f"{bundle.name} has no labels to choose classes by")
    kinds, every = shape_kinds(bundle.train), kind_names(bundle)
    names = every if wanted is None else (_class(wanted, every),)
    samples: dict[str, Tensor] = {}
    marks: dict[str, Marks] = {}
    for name in names:
        rows = (kinds == every.index(name)).nonzero().flatten()
        if not len(rows):  # of kinds of things a partial download may lack some
            continue
        some = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(np.int64)
        batch = bundle.train.batch(rows[torch.from_numpy(some)])
        samples[name] = batch["inputs"][:, :, :3] if bundle.kind == "cloud" else batch["inputs"]  # without normals
        if labels.ndim == 2 and labels.dtype != torch.bool:  # of parts
            marks[name] = _marks(labels[rows].unique(), batch, bundle.classes)
    if not samples:
        raise InputError(f"{bundle.name} has no training samples of {names[0]}")
    size = f"{bundle.shape[0]:,} points" if bundle.kind == "cloud" else f"{bundle.shape[2]}x{bundle.shape[1]} pixels"
    total = len(kinds) if wanted is None else int((kinds == every.index(names[0])).sum())
    one, several = ("kind", "kinds") if marks else ("class", "classes")
    what = f"{len(samples)} {several}" if wanted is None else f"{one} {names[0]}"
    about = f"{what} · {total:,} training samples · {size}"
    if len({each.names for each in marks.values()}) > 1:
        about += " · colours are parts, of each kind its own"
    return Gallery(bundle.name, about, bundle.kind, samples, wanted is not None, marks)


def _marks(parts: Tensor, batch: Batch, classes: Sequence[str]) -> Marks:
    """`parts` are all that a kind of thing has, ascending: colours then do not depend on which samples are shown."""
    labels = batch["labels"][:, : batch["inputs"].shape[1]]
    return Marks(tuple(classes[part] for part in parts.tolist()), torch.searchsorted(parts, labels.contiguous()))


def _class(wanted: str, classes: Sequence[str]) -> str:
    alike = [name for name in classes if name.lower() == wanted.lower()]
    if wanted in classes or len(alike) == 1:
        return wanted if wanted in classes else alike[0]
    raise InputError(f"there is no class {wanted!r}: {did_you_mean(wanted, classes)}")


@dataclass(frozen=True)
class PlacedSample:
    """A sample at its place, counted in cells from the top left; clouds also say from where they are seen."""

    column: float
    row: float
    sample: Tensor
    view: str
    marks: Tensor | None = None  # the part of every point


@dataclass(frozen=True)
class Label:
    """A word to the left of a row."""

    column: float
    row: float
    text: str


@dataclass(frozen=True)
class Sheet:
    """A page of cells and words."""

    cells: list[PlacedSample]
    labels: list[Label]
    width: float
    height: float


def lay_out(gallery: Gallery, views: Sequence[str], overview: str, letter: float) -> Sheet:
    """One class: its samples side by side, once per view. Several classes: a row each, in columns of rows.

    `letter` is the width of a letter in cells, which decides how much room labels need.
    """
    cells: list[PlacedSample] = []
    labels: list[Label] = []
    if gallery.whole_class:
        ((name, samples),) = gallery.samples.items()
        margin = _margin(views if len(views) > 1 else (), letter)
        for number, sample in enumerate(samples):
            line, column = divmod(number, _WIDE)
            for offset, view in enumerate(views):
                row = line * (len(views) + 0.25 * (len(views) > 1)) + offset
                cells.append(PlacedSample(margin + column, row, sample, view, _marked(gallery, name, number)))
                if column == 0 and len(views) > 1:
                    labels.append(Label(margin, row, view))
    else:
        margin = _margin(gallery.samples, letter)
        widest = min(_WIDE, max(len(samples) for samples in gallery.samples.values()))
        rows = _rows(len(gallery.samples), margin + widest)
        for number, (name, samples) in enumerate(gallery.samples.items()):
            block, row = divmod(number, rows)
            start = margin + block * (margin + widest)
            labels.append(Label(start, row, name))
            cells += [
                PlacedSample(start + column, row, sample, overview, _marked(gallery, name, column))
                for column, sample in enumerate(samples[:widest])
            ]
    width = max(cell.column for cell in cells) + 1
    return Sheet(cells, labels, width, max(cell.row for cell in cells) + 1)


def _marked(gallery: Gallery, name: str, number: int) -> Tensor | None:
    return gallery.marks[name].points[number] if name in gallery.marks else None


def _rows(classes: int, width: float) -> int:
    """How many classes go below each other.

    >>> _rows(4, 6.5), _rows(10, 3.5)
    (4, 5)
    """
    columns = next(columns for columns in range(1, classes + 1) if -(-classes // columns) <= _TALL * columns * width)
    return -(-classes // columns)


def _margin(words: Sequence[str] | dict[str, Tensor], letter: float) -> float:
    return max((min(len(word), 24) for word in words), default=0) * letter + 0.15
