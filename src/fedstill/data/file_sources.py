"""Loaders of data sets in files: where the files are searched, and the message if they are missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.data import readers
from fedstill.data.bundle import Bundle, Source
from fedstill.data.findings import find_faults
from fedstill.data.layout import Samples, tidy
from fedstill.data.readers.raw import FileFindings, Raw, ReaderHints


class FromFiles:
    """A loader for files under the data root, or at a path that the user gives."""

    expected = readers.EXPECTED

    def __init__(
        self,
        summary: str,
        *,
        places: tuple[str, ...] = (),
        classes: tuple[str, ...] | None = None,
        get: str = "",
        group: Callable[[str], str | None] | None = None,
        object_folders: bool = False,
        prefer: str = "",
    ) -> None:
        self.__doc__ = summary
        self.places = places  # relative to the root, tried after NAME and NAME.npz
        self.classes = classes  # for files that do not name their classes
        self.get = get  # how to obtain the data
        self.hints = ReaderHints(group=group, object_folders=object_folders, prefer=prefer)  # for folders of shapes

    def __call__(self, source: Source) -> Bundle:
        found = FileFindings()
        splits, classes = self.open(source, found)
        found.refuse(source.name)
        return bundled(source.name, splits, classes, (*found.notes, *found.doubts))

    def open(self, source: Source, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
        """The readable splits and the class names; problems are added to `found`."""
        raw = Raw({})
        with found.collecting():
            raw = readers.read(self.locate(source), found, replace(self.hints, name=source.name))
        splits, classes = tidy(raw, found, self.classes)
        find_faults(splits, classes, found, every_class=not source.part)
        return splits, classes

    def locate(self, source: Source) -> Path:
        """The location of the files, or an error that lists the searched places and how to get the data."""
        how = f"{self.get}; " if self.get else ""
        if source.path is not None:
            if not source.path.exists():
                raise InputError(f"{source.path} does not exist; {how}expected is {self.expected}")
            return source.path
        how += f"`fedstill data add {source.name} PATH` records where it lies"
        if not source.root.is_dir():
            why = f"the data root {source.root} does not exist (--data-root, FEDSTILL_DATA)"
            raise InputError(f"{source.name} is not here, {why}: {how}")
        places = [source.root / place for place in (source.name, f"{source.name}.npz", *self.places)]
        for place in places:
            if place.exists():
                return place
        looked = ", ".join(place.relative_to(source.root).as_posix() for place in places)
        raise InputError(f"{source.name} is not here, {source.root} holds none of {looked}: {how}")


def bundled(name: str, splits: dict[str, Samples], classes: tuple[str, ...], notes: tuple[str, ...] = ()) -> Bundle:
    """Valid splits as a bundle."""
    sets = {part: split.dataset() for part, split in splits.items()}
    return Bundle(
        name,
        train=sets["train"],
        validation=sets.get("validation"),
        test=sets["test"],
        classes=classes,
        kind=splits["train"].kind,
        shape=tuple(splits["train"].inputs.shape[1:]),
        categories=splits["train"].categories,
        notes=notes,
    )
