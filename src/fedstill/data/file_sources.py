"""Loaders of data sets in files: where the files are searched, and the message if they are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.data import readers
from fedstill.data.bundle import Bundle, Source
from fedstill.data.data_settings import DataSettings
from fedstill.data.downloads import DOWNLOADS
from fedstill.data.findings import find_faults
from fedstill.data.image_layout import arrange_samples
from fedstill.data.layout import Samples, tidy
from fedstill.data.readers.raw import SKIPPED, FileFindings, Raw, ReaderHints, content
from fedstill.data.site_folders import joined_sites, site_folders


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
        found = FileFindings(skip=source.settings.on_error == "skip")
        splits, classes = self.open(source, found)
        found.refuse(source.full_name)
        return bundled(source.full_name, splits, classes, found.notes, found.doubts)

    def open(self, source: Source, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
        """The readable splits and the class names; problems are added to `found`."""
        raw, home = Raw({}), Path()
        with found.collecting():
            home = self.locate(source)
            if named := source.settings.of_features:
                raise InputError(f"{named[0]} is a setting of tables of features (table:FILE): leave it out")
            source = replace(source, settings=with_class_file(source.settings, home))
            if folders := site_folders(home, source.settings):
                return self._joined(source, folders, found)
            raw = readers.read(home, found, replace(self.hints, name=source.name, settings=source.settings))
        splits, classes = tidy(raw, found, self.classes, source.settings.normals)
        found.note_skipped()
        with found.collecting():
            arrange_samples(splits, source.settings)
        find_faults(splits, classes, found, every_class=not source.part)
        return splits, classes

    def _joined(
        self, source: Source, folders: list[Path], found: FileFindings
    ) -> tuple[dict[str, Samples], tuple[str, ...]]:
        """The folders of all sites as one data set, with each note once and all skipped files in one."""
        sites = replace(found, notes=[], skipped=[])
        joined = joined_sites(folders, lambda folder: self._site(source, folder, sites), sites)
        found.notes += [note for note in dict.fromkeys(sites.notes) if not note.startswith(SKIPPED)]
        found.skipped += sites.skipped
        found.note_skipped()
        return joined

    def _site(self, source: Source, folder: Path, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
        """One site's folder, read as a data set of its own."""
        settings = source.settings.model_copy(update={"site": None})
        return self.open(replace(source, path=folder, settings=settings, part=True), found)

    def locate(self, source: Source) -> Path:
        """The location of the files, or an error that lists the searched places and how to get the data."""
        how = f"{self.get}; " if self.get else ""
        if source.path is not None:
            if not source.path.exists():
                raise InputError(f"{source.path} does not exist; {how}expected is {self.expected}")
            return source.path
        how += f"`fedstill data add {source.name} PATH` records where it lies"
        if source.name in DOWNLOADS:
            how += f", and `fedstill data get {source.name}` downloads it"
        if not source.root.is_dir():
            why = f"the data root {source.root} does not exist (--data-root, FEDSTILL_DATA)"
            raise InputError(f"{source.name} is not here, {why}: {how}")
        places = [source.root / place for place in (source.name, f"{source.name}.npz", *self.places)]
        for place in places:
            if place.exists():
                return place
        looked = ", ".join(place.relative_to(source.root).as_posix() for place in places)
        raise InputError(f"{source.name} is not here, {source.root} holds none of {looked}: {how}")


def with_class_file(settings: DataSettings, home: Path) -> DataSettings:
    """The settings with the classes of a file, one in each line, where `classes` names one in place of classes."""
    if len(settings.classes) != 1:
        return settings
    given = settings.classes[0]
    folder = home if home.is_dir() else home.parent
    path = next((one for one in (folder / given, folder.parent / given, Path(given)) if one.is_file()), None)
    if path is None and not Path(given).suffix:
        return settings
    if path is None:
        raise InputError(f"{folder} holds no file {given!r}, which classes names: give one with a class in each line")
    names = [line.strip() for line in content(path).decode("utf-8-sig", errors="replace").splitlines()]
    return settings.model_copy(update={"classes": tuple(name for name in names if name)})


def bundled(
    name: str,
    splits: dict[str, Samples],
    classes: tuple[str, ...],
    notes: Sequence[str] = (),
    doubts: Sequence[str] = (),
) -> Bundle:
    """Valid splits as a bundle."""
    sets = {part: split.dataset() for part, split in splits.items()}
    sites = sorted({site for split in splits.values() for site in split.sites})
    return Bundle(
        name,
        train=sets["train"],
        validation=sets.get("validation"),
        test=sets["test"],
        classes=classes,
        kind=splits["train"].kind,
        shape=tuple(splits["train"].inputs.shape[1:]),
        categories=splits["train"].categories,
        notes=(*notes, *doubts),
        doubts=tuple(doubts),
        sites=len(sites),
        site_names=tuple(sites),
        sources={part: split.sources for part, split in splits.items() if split.sources},
        preparation=splits["train"].preparation,
    )
