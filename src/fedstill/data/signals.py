"""Signals as data sets: `signals:ARCHIVE.npz`, or `signals:FOLDER` with a file for each signal.

A folder has a table of labels, or a folder for each class. Signals of several lengths become as long as most are:
longer ones are cut to their middle, shorter ones padded with zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from fedstill.core.errors import InputError
from fedstill.data.bundle import Source
from fedstill.data.data_settings import DataSettings
from fedstill.data.file_sources import FromFiles, with_class_file
from fedstill.data.findings import find_faults
from fedstill.data.layout import Samples, as_labels, held_out_rows, in_order, number_sites_and_groups, populated, taken
from fedstill.data.readers import npz
from fedstill.data.readers.class_labels import sorted_names
from fedstill.data.readers.label_table import SEVERAL, TableRow, find_table
from fedstill.data.readers.raw import Array, FileFindings
from fedstill.data.readers.signal_files import SUFFIXES, Signal, as_length, read_signal
from fedstill.data.site_folders import site_folders

_MANY_CHANNELS = 16  # more of them than moments are probably moments
Opened = tuple[dict[str, Samples], tuple[str, ...]]


class SignalFiles(FromFiles):
    """A loader for signals (channels, time)."""

    expected = "an .npz archive with x (samples, channels, time) and y, or a folder of .npy or .csv files with a table"

    def open(self, source: Source, found: FileFindings) -> Opened:
        splits: dict[str, Samples] = {}
        classes: tuple[str, ...] = ()
        settings = source.settings
        with found.collecting():
            if wrong := [
                name for name in ("size", "channels", "normals", *settings.of_features) if name in settings.text()
            ]:
                raise InputError(f"{wrong[0]} is no setting of signals: leave it out")
            home = self.locate(source)
            settings = with_class_file(settings, home)
            source = replace(source, settings=settings)
            if home.is_file():
                whole, classes = _archive(home, found)
            elif folders := site_folders(home, settings):
                return self._joined(source, folders, found)
            else:
                whole, classes = _folder(home, settings, found)
            splits = _split(whole, classes, found)
            number_sites_and_groups(splits, found)
        found.note_skipped()
        find_faults(splits, classes, found, every_class=not source.part)
        _doubt_axes(splits, found)
        return splits, classes


def _doubt_axes(splits: dict[str, Samples], found: FileFindings) -> None:
    """Report signals whose axes were probably exchanged."""
    channels, length = next((split.inputs.shape[1:] for split in splits.values()), (0, 0))
    if channels > _MANY_CHANNELS and channels > length:
        found.doubts.append(
            f"signals have {channels:,} channels of {length:,} moments: the axes are (channels, time), so exchange them"
            " if time comes first"
        )


def _split(given: dict[str, Samples], classes: tuple[str, ...], found: FileFindings) -> dict[str, Samples]:
    """The splits of the files, or a fifth of every class held out."""
    if "whole" not in given:
        return in_order(given, found)
    whole, _ = given["whole"], classes
    rows = held_out_rows(whole.labels, whole.sites, whole.groups, found)
    return {part: taken(whole, some) for part, some in rows.items() if len(some)}


def _archive(path: Path, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
    raw = npz.read(path, found)
    splits: dict[str, Samples] = {}
    for part, split in raw.splits.items():
        inputs = np.asarray(split.inputs)
        inputs = inputs[:, None] if inputs.ndim == 2 else inputs
        if inputs.ndim != 3 or inputs.dtype.kind not in "iuf" or 0 in inputs.shape:
            shape = f"{inputs.dtype} of shape {inputs.shape}"
            raise InputError(f"{split.where} holds {shape}: signals are numbers (samples, channels, time)")
        labels = as_labels(split.labels, split.where)
        if len(labels) != len(inputs):
            raise InputError(f"{len(inputs):,} samples but {len(labels):,} labels ({split.where})")
        splits[part] = Samples(torch.from_numpy(inputs.astype(np.float32)), labels, "signal", split.where)
    if raw.classes or not splits:
        return splits, raw.classes or ()
    several = next(iter(splits.values())).labels
    count = several.shape[1] if several.ndim > 1 else max(int(one.labels.max()) for one in splits.values()) + 1
    return splits, tuple(map(str, range(count)))


def _folder(home: Path, settings: DataSettings, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """Files of a table of labels, or of class folders."""
    listed, classes = _listed(home, settings, found)
    if not listed:
        raise InputError(
            f"{home} has no signals with a class ({', '.join(SUFFIXES)}): give a table of labels, or folders"
        )
    signals: dict[Path, Signal] = {}
    for path in listed:
        with found.reading():
            signals[path] = read_signal(path)
    if not signals:
        return {}, classes
    usual = _usual_shape(signals.values(), found)
    parts: dict[str, list[tuple[Path, Signal]]] = {}
    for path, signal in signals.items():
        with found.reading():
            fitting = as_length(signal, usual, str(path))
            parts.setdefault(listed[path].part or "whole", []).append((path, fitting))
    if "whole" in parts and len(parts) > 1:
        found.notes.append(f"{len(parts.pop('whole')):,} signals without a split are left out")
    place = {name: number for number, name in enumerate(classes)}
    splits = {part: _samples(some, [listed[path] for path, _ in some], place, home) for part, some in parts.items()}
    if "whole" in splits:
        splits["whole"], classes = populated(splits["whole"], classes, found)
    return splits, classes


def _usual_shape(signals: Collection[Signal], found: FileFindings) -> tuple[int, int]:
    """The channels and the length that most signals have."""
    lengths = Counter(signal.shape[1] for signal in signals)
    channels = Counter(signal.shape[0] for signal in signals).most_common(1)[0][0]
    usual = lengths.most_common(1)[0][0]
    if len(lengths) > 1:
        found.notes.append(f"signals have {len(lengths)} lengths: all are cut or padded to {usual:,}, which most have")
    return channels, usual


def read_unlabelled(home: Path, settings: DataSettings, found: FileFindings) -> Array | None:
    """The signals in the folder itself, by name; None if there are none, a table of labels, or class folders."""
    files = _files(home)
    if not files or any(path.parent != home for path in files) or find_table(home, settings) is not None:
        return None
    signals: dict[Path, Signal] = {}
    for path in files:
        with found.reading():
            signals[path] = read_signal(path)
    fitting: list[Signal] = []
    if signals:
        usual = _usual_shape(signals.values(), found)
        for path, signal in signals.items():
            with found.reading():
                fitting.append(as_length(signal, usual, str(path)))
    return np.stack(fitting) if fitting else None


def _samples(signals: list[tuple[Path, Signal]], rows: list[TableRow], place: dict[str, int], home: Path) -> Samples:
    several = rows[0].label == SEVERAL
    labels = torch.tensor([row.targets if several else place[row.label] for row in rows])
    sites, groups = (tuple(getattr(row, key) for row in rows) for key in ("site", "group"))
    inputs = torch.from_numpy(np.stack([signal for _, signal in signals]))
    names = tuple(str(path) for path, _ in signals)
    held = (sites if any(sites) else (), groups if any(groups) else ())
    return Samples(inputs, labels, "signal", str(home), names, sites=held[0], groups=held[1])


def _files(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*") if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))


def _listed(home: Path, settings: DataSettings, found: FileFindings) -> tuple[dict[Path, TableRow], tuple[str, ...]]:
    """The files that have a class, and the classes."""
    table = find_table(home, settings)
    files = _files(home)
    if table is None:
        folders = [path for path in files if path.parent != home]
        if loose := [path for path in files if path.parent == home and folders]:
            found.doubts.append(f"{len(loose):,} files are in no class folder and are left out: {loose[0]}")
        listed = {path: TableRow(path.parent.name) for path in folders}
        return listed, settings.classes or sorted_names({row.label for row in listed.values()})
    places = {path: PurePosixPath(path.relative_to(home).as_posix()) for path in files if path != table.path}
    rows, listed = table.match(places.values()), {}
    for path, place in places.items():
        if (row := rows.get(place)) is not None and table.rows[row].label:
            listed[path] = table.rows[row]._replace(site=table.site(row, place))
    if unlisted := [str(place) for path, place in places.items() if path not in listed]:
        found.notes.append(
            f"{len(unlisted):,} files have no class in {table.path.name} and are left out: {unlisted[0]}"
        )
    used = set(rows.values())
    table.report({*used, *(name for name, row in table.rows.items() if not row.label)}, found)
    return listed, table.sorted_classes({row.label for row in listed.values()}, found)
