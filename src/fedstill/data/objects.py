"""Data that is passed as an object: arrays, frames, torch and Hugging Face data sets, or a list with one per client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Dataset, rarest_class
from fedstill.core.errors import InputError
from fedstill.core.registry import Registry
from fedstill.data.arrangement import Arrangement, as_array, as_tensor
from fedstill.data.bundle import Bundle, datasets
from fedstill.data.client_bundles import of_clients
from fedstill.data.joined_data import joined
from fedstill.data.lazy_data import Examined, Items, LazyDataset, TorchItems, examined
from fedstill.data.readers.raw import PARTS
from fedstill.data.splits import hold_out

_MOST_CLASSES = 2**16
_PAIR = "pass (x, y), or train and test: ((x_train, y_train), (x_test, y_test))"
_HELD_OUT = "a fifth of every class is held out for testing, since no test data was given"

tables: Registry[Any] = Registry("kind of data object")
tables.declare("fedstill.data.data_frames", "pandas", "datasets")


@dataclass
class _Part:
    """One split of one client: columns in memory, or a data set that is read lazily; with labels as they came."""

    data: Tensor | Examined
    labels: list[Any] | np.ndarray[Any, Any]
    name: str
    classes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)


Splits = dict[str, _Part]  # train, validation, test; or whole


def dataset(
    data: Any,
    test: Any = None,
    *,
    validation: Any = None,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    kind: str | None = None,
    label: str | None = None,
    part: bool = False,
) -> Bundle:
    """Data of your own as a data set that every function takes as `data`, examined once.

    `data` is `(x, y)`, arrays or tensors; a torch data set with samples `(input, label)`; a Hugging Face data set; a
    pandas frame with a column `label`; a pair or mapping of these for train and test; or a list with one of these for
    each client, which may also be a name, a path or a data set of this function. Without test data a fifth of every
    class is held out. `kind` is image, cloud, signal (channels, time) or array (numbers of any shape, never changed);
    unset, the shape decides. Labels are one class per sample, or a column of 0 and 1 for each class. 8-bit values
    0..255 reach models as -1..1, others as they are. With `part` it is one client's part of a data set: some of the
    `classes` may have no training samples.

    >>> import fedstill, numpy as np
    >>> x, y = np.random.default_rng(0).random((60, 5)), np.arange(60) % 3
    >>> made = fedstill.dataset((x, y), classes=["low", "middle", "high"], name="triage")
    >>> made.kind, len(made.train), len(made.test), made.shape
    ('array', 48, 12, (5,))
    """
    if isinstance(data, Bundle):
        return data
    if name is not None and name in datasets:
        raise InputError(f"there is a data set called {name!r} in fedstill: choose another name")
    more = {part: one for part, one in (("test", test), ("validation", validation)) if one is not None}
    by_client = isinstance(data, list)
    if by_client and more:
        raise InputError("a list has one data set per client: put each client's test data into it, as (train, test)")
    if by_client and not data:
        raise InputError("the list of clients' data sets is empty: give one data set for each client")
    if by_client and any(isinstance(one, Bundle | str | Path) for one in data):
        made = of_clients(data, lambda one: dataset(one, classes=classes, kind=kind, label=label))
        return replace(made, name=name) if name else _named(made, "clients")
    given = data if by_client else [{"train": data, **more} if more else data]
    clients = [
        _splits(one, kind, label, f"data of client {at}" if by_client else "the data") for at, one in enumerate(given)
    ]
    return _bundle(clients, by_client, classes, name, kind, part)


def _splits(given: Any, kind: str | None, label: str | None, name: str) -> Splits:
    """The splits of what was given, each read."""
    return {
        part: _read(one, kind, label, name if part == "whole" else f"{part} of {name}") for part, one in _parts(given)
    }


def _parts(given: Any) -> Iterator[tuple[str, Any]]:
    """Splits by name; `whole` where there is no split."""
    if isinstance(given, Mapping):
        named = {PARTS.get(str(key).lower(), str(key)): one for key, one in given.items()}
        if strange := sorted(named.keys() - {"train", "validation", "test"}):
            raise InputError(f"data has the parts train, test and validation, and not {strange[0]!r}: rename it")
        if "train" not in named:
            raise InputError("data in parts needs one called train")
        if "test" not in named:
            raise InputError("data in parts needs one called test: pass it, or pass all samples as one part")
        yield from named.items()
    elif isinstance(given, tuple) and len(given) == 2 and not _is_array(given[1]):
        yield from zip(("train", "test"), given, strict=True)
    elif isinstance(given, tuple) and len(given) != 2:
        raise InputError(f"a tuple of {len(given)} is no data set: {_PAIR}")
    else:
        yield "whole", given


def _is_array(value: Any) -> bool:
    """Whether it can be the labels of `(x, y)`, and is no data set of its own."""
    if isinstance(value, list):
        return not value or not isinstance(value[0], tuple | Tensor | np.ndarray) or np.ndim(value[0]) == 0
    return isinstance(value, Tensor | np.ndarray) or type(value).__name__ in ("Series", "Index")


def _read(given: Any, kind: str | None, label: str | None, name: str) -> _Part:
    """One split of one client."""
    package = type(given).__module__.partition(".")[0]
    if package in ("pandas", "datasets"):
        return _table(tables[package](given, None if label is None else str(label), name), kind, name)
    if isinstance(given, tuple) and len(given) == 2:
        return _arrays(*given, name)
    if type(given) is torch.utils.data.TensorDataset and len(given.tensors) == 2:  # a subclass may change samples
        return _arrays(*given.tensors, name)
    if any(kind.__name__ == "DataLoader" for kind in type(given).__mro__):
        raise InputError(f"{name} is a DataLoader: pass its data set, loader.dataset")
    if isinstance(given, torch.utils.data.IterableDataset):
        raise InputError(f"{name} can only be read in order, and clients read samples by number: give it a __getitem__")
    if isinstance(given, Tensor | np.ndarray):
        raise InputError(f"{name} is one array without labels: {_PAIR}")
    if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")) or isinstance(given, str | bytes):
        raise InputError(
            f"{name} is of type {type(given).__name__}: {_PAIR}; or a torch data set, a frame, or a list per client"
        )
    return _lazy(TorchItems(given, type(given).__name__, label), kind)


def _table(made: Items | tuple[Any, Any], kind: str | None, name: str) -> _Part:
    return _arrays(*made, name) if isinstance(made, tuple) else _lazy(made, kind)


def _arrays(x: Any, y: Any, name: str) -> _Part:
    inputs = as_tensor(x, name)
    labels = as_array(y.detach().cpu() if isinstance(y, Tensor) else y, f"labels of {name}")
    if inputs.ndim == 0 or labels.ndim == 0:
        raise InputError(f"{name} has one value where arrays are expected: {_PAIR}")
    if len(inputs) != len(labels):
        raise InputError(f"{name} has {len(inputs):,} samples but {len(labels):,} labels")
    if not len(inputs):
        raise InputError(f"{name} holds no samples")
    if inputs.is_floating_point():
        bad = (~torch.isfinite(inputs.reshape(len(inputs), -1))).any(dim=1).nonzero().flatten()
        if len(bad):
            raise InputError(
                f"{len(bad):,} samples of {name} hold NaN or infinity, the first is row {int(bad[0])}: leave them out,"
                " or replace the values"
            )
    if not isinstance(x, list | tuple):
        inputs = inputs.clone()  # the user may change the array later
    return _Part(inputs, labels, name)


def _lazy(items: Items, kind: str | None) -> _Part:
    read = examined(items, kind)
    return _Part(read, read.labels, items.name, items.classes)


def _bundle(
    clients: list[Splits],
    by_client: bool,
    classes: Sequence[str] | None,
    name: str | None,
    kind: str | None,
    some_classes: bool,
) -> Bundle:
    parts = [part for splits in clients for part in splits.values()]
    numbers, names = _numbered(parts, tuple(map(str, classes)) if classes is not None else None)
    labels = dict(zip(map(id, parts), numbers, strict=True))
    made: dict[str, list[Dataset]] = {}
    kinds: dict[tuple[str, tuple[int, ...]], str] = {}
    types: dict[bool, str] = {}  # whose samples are 8-bit, and whose are not
    notes: list[str] = []
    for site, splits in enumerate(clients):
        for part, one in splits.items():
            data, arrangement, shape = _columns(one, labels[id(one)], site if by_client else None, kind)
            kinds.setdefault((arrangement.kind, shape), one.name)
            types.setdefault(_is_8_bit(one), one.name)
            notes += one.data.notes if isinstance(one.data, Examined) else arrangement.notes
            if part != "whole":
                made.setdefault(part, []).append(data)
                continue
            notes.append(_HELD_OUT)
            for half, rows in zip(
                ("train", "test"),
                hold_out(held if (held := labels[id(one)]).ndim == 1 else rarest_class(held)),
                strict=True,
            ):
                made.setdefault(half, []).append(taken(data, rows))
    if len(kinds) > 1:
        each = [f"{whose} has {what}s of shape {shape}" for (what, shape), whose in kinds.items()]
        raise InputError(f"samples differ in shape: {each[0]}, {each[1]}")
    if len(types) > 1:
        raise InputError(
            f"{types[True]} has 8-bit integers, which reach models as -1..1, and {types[False]} has other numbers: give"
            " all the same type"
        )
    ((found, shape),) = kinds
    splits_made = {part: joined(sets) for part, sets in made.items()}
    _check(splits_made, names, some_classes)
    bundle = Bundle(
        name or "",
        train=splits_made["train"],
        validation=splits_made.get("validation"),
        test=splits_made["test"],
        classes=names,
        kind=found,
        shape=shape,
        notes=tuple(dict.fromkeys(notes)),
        unknown=tuple(dict.fromkeys(_unstable(parts))),
        sites=len(clients) if by_client else 0,
    )
    return bundle if name else _named(bundle, _title(parts[0]))


def _is_8_bit(part: _Part) -> bool:
    return part.data.dtype == torch.uint8


def _named(bundle: Bundle, title: str) -> Bundle:
    """The data set with a name that its content decides."""
    named = replace(bundle, name=f"{title}-{bundle.fingerprint()[:8]}")
    vars(named)["_fingerprint"] = bundle.fingerprint()  # computed once
    return named


def _columns(
    part: _Part, labels: Tensor, site: int | None, kind: str | None
) -> tuple[ArrayDataset | LazyDataset, Arrangement, tuple[int, ...]]:
    where = None if site is None else torch.full((len(part),), site)
    if isinstance(part.data, Examined):
        data = replace(part.data.data, all_labels=labels, site=where)
        return data, data.arrangement, part.data.shape
    arrangement = Arrangement.of(part.data, kind, part.name)
    inputs = arrangement(part.data)
    more = {} if where is None else {"site": where}
    return ArrayDataset(inputs=inputs, labels=labels, **more), arrangement, tuple(inputs.shape[1:])


def taken(data: ArrayDataset | LazyDataset, rows: Tensor) -> Dataset:
    """Some rows of a data set, in memory or not as the data set is."""
    if isinstance(data, LazyDataset):
        return data.taken(rows)
    return ArrayDataset(**{name: column.index_select(0, rows) for name, column in data.columns.items()})


def _numbered(parts: Iterable[_Part], classes: tuple[str, ...] | None) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels as class numbers, and the names of the classes."""
    parts = list(parts)
    several = any(_has_several(part) for part in parts)
    arrays = [_label_array(part, several) for part in parts]
    if any(array.dtype.kind in "UO" for array in arrays):
        texts = [[str(one) for one in array.tolist()] for array in arrays]
        names = classes or tuple(sorted({text for some in texts for text in some}))
        place = {name: number for number, name in enumerate(names)}
        for part, some in zip(parts, texts, strict=True):
            if strange := sorted({text for text in some if text not in place}):
                raise InputError(f"{part.name} has the label {strange[0]!r}, which is not among the classes")
        return [torch.tensor([place[text] for text in some]) for some in texts], names
    if any(array.ndim == 2 for array in arrays):
        return _several(parts, arrays, classes)
    numbers = [torch.from_numpy(array.astype(np.int64)) for array in arrays]
    given = classes or next((part.classes for part in parts if part.classes), None)
    highest = max(int(some.max()) for some in numbers)
    if highest >= _MOST_CLASSES:
        raise InputError(f"labels go up to {highest:,}: number the classes from 0 without gaps")
    names = given or tuple(str(number) for number in range(highest + 1))
    for part, held in zip(parts, numbers, strict=True):
        outside = held[(held < 0) | (held >= len(names))]
        if len(outside):
            raise InputError(
                f"{len(outside):,} labels of {part.name} lie outside 0..{len(names) - 1}, the first is"
                f" {int(outside[0])}: number the {len(names)} classes from 0"
            )
    return numbers, names


def _several(
    parts: Sequence[_Part], arrays: Sequence[np.ndarray[Any, Any]], classes: tuple[str, ...] | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Columns of 0 and 1, one for each class."""
    width = max(array.shape[-1] for array in arrays)
    names = classes or tuple(str(number) for number in range(width))
    for part, array in zip(parts, arrays, strict=True):
        if array.ndim != 2 or array.shape[1] != len(names):
            raise InputError(
                f"labels of {part.name} have the shape {array.shape}, and there are {len(names)} classes: give all"
                " parts a column of 0 and 1 for each class"
            )
    return [torch.from_numpy(array.astype(bool)) for array in arrays], names


def _has_several(part: _Part) -> bool:
    """Whether labels are columns of 0 and 1, and no one-hot code: some sample has no class, or several."""
    given = as_array(part.labels, f"labels of {part.name}")
    if given.ndim != 2 or given.shape[1] < 2 or given.dtype.kind not in "biu":
        return False
    return bool(((given == 0) | (given == 1)).all()) and bool((given.sum(axis=1) != 1).any())


def _label_array(part: _Part, several: bool) -> np.ndarray[Any, Any]:
    """The labels of a part: whole numbers or texts, one per sample; or columns of 0 and 1."""
    given = part.labels
    if isinstance(given, list):
        given = as_array(given, f"labels of {part.name}")
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if several and given.ndim == 2 and given.dtype.kind in "biu":
        return given
    if given.ndim != 1:
        hint = ", e.g. y.argmax(1)" if given.ndim == 2 else ""
        raise InputError(f"labels of {part.name} have the shape {given.shape}: give one class number per sample{hint}")
    if given.dtype.kind == "b":
        return given.astype(np.int64)
    if given.dtype.kind == "O" and not all(isinstance(one, str) for one in given):
        raise InputError(f"labels of {part.name} are of several types: give whole numbers, or texts")
    if given.dtype.kind not in "iuUO":
        raise InputError(f"labels of {part.name} are of type {given.dtype}: give whole numbers, e.g. y.astype(int)")
    return given


def _check(splits: Mapping[str, Dataset], classes: tuple[str, ...], some_classes: bool = False) -> None:
    if len(classes) < 2:
        raise InputError(f"there is one class, {classes[0]!r}: at least two are needed")
    if len(set(classes)) < len(classes):
        raise InputError("several classes have the same name: give each its own")
    for part, data in splits.items():
        if not len(data):
            raise InputError(f"the {part} part holds no samples: give more data, or its parts yourself")
    held = splits["train"].labels()
    assert held is not None
    counts = held.sum(dim=0) if held.ndim > 1 else torch.bincount(held, minlength=len(classes))
    if bool((counts == 0).any()) and not some_classes:
        lacking = classes[int((counts == 0).nonzero()[0])]
        raise InputError(f"class {lacking!r} has no training samples: add some, or number the classes without gaps")


def _unstable(parts: Iterable[_Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part.data, Examined) and not part.data.data.stable:
            yield f"the data set {part.name} gives other values when it is read twice"


def _title(part: _Part) -> str:
    if not isinstance(part.data, Examined):
        return "arrays"
    if " " in part.name:  # no name of its own, such as "the data" in messages
        return "data"
    return "".join(letter if letter.isalnum() else "-" for letter in part.name)
