"""Tables of features as data sets: `table:FILE`, or a folder with one table per site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedstill.core.errors import InputError
from fedstill.data.bundle import Source
from fedstill.data.data_settings import DataSettings
from fedstill.data.file_sources import FromFiles, with_class_file
from fedstill.data.findings import find_faults
from fedstill.data.image_layout import arrange_samples
from fedstill.data.layout import Samples, held_out_rows, number_sites_and_groups, taken
from fedstill.data.readers.feature_table import FeatureTable, class_names, find_copies, prepare, read_features
from fedstill.data.readers.raw import Array, FileFindings


class TableFiles(FromFiles):
    """A loader for tables whose rows are samples: numbers and categories in columns, and a column of classes."""

    expected = "a .csv, .tsv or .parquet file with a row per sample, or a folder with one such file per site"

    def open(self, source: Source, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
        settings = source.settings
        splits: dict[str, Samples] = {}
        classes: tuple[str, ...] = ()
        with found.collecting():
            if source.part and settings.scale == "shared":
                raise InputError("scale=shared needs the rows of all sites, and this is one site's: set scale=site")
            if settings.file is not None:
                raise InputError("file is a setting of tables of labels, and this is a table of features: leave it out")
            settings = with_class_file(settings, self.locate(source))
            table = read_features(self.locate(source), settings, found)
            classes = class_names(table, settings, found)
            find_copies(table, found)
            rows = _rows(table, classes, found)
            trained = np.zeros(len(table), dtype=bool)
            trained[rows["train"].numpy()] = True
            inputs, preparation = prepare(table, trained, settings, found)
            whole = Samples(
                torch.from_numpy(inputs),
                _labels(table, classes),
                "array",
                table.where,
                tuple(table.rows),
                sites=tuple(table.sites),
                groups=tuple(table.groups),
            )
            splits = {part: taken(whole, some) for part, some in rows.items() if len(some)}
            for split in splits.values():
                split.preparation = preparation
            arrange_samples(splits, settings)  # which refuses settings of images
            number_sites_and_groups(splits, found)
        find_faults(splits, classes, found, every_class=not source.part)
        return splits, classes


def read_unlabelled(path: Path, settings: DataSettings, found: FileFindings) -> Array | None:
    """The training rows of a table without a column of classes, as numbers; None if there is such a column.

    Its columns must be those of the clients' tables, in the same order.
    """
    table = read_features(path, settings, found, needs_labels=False)
    if any(table.labels) or table.targets:
        return None
    trained = np.array([part == "train" for part in table.parts] or [True] * len(table))
    numbers: Array = prepare(table, trained, settings, found)[0][trained]
    return numbers


def _labels(table: FeatureTable, classes: tuple[str, ...]) -> torch.Tensor:
    if table.targets:
        return torch.tensor(table.targets)
    place = {name: number for number, name in enumerate(classes)}
    return torch.tensor([place[label] for label in table.labels])


def _rows(table: FeatureTable, classes: tuple[str, ...], found: FileFindings) -> dict[str, torch.Tensor]:
    """The rows of each split, by the column of splits or held out here."""
    if not table.parts:
        return held_out_rows(_labels(table, classes), tuple(table.sites), tuple(table.groups), found)
    parts = np.array(table.parts)
    if "test" not in table.parts and "validation" in table.parts:
        found.notes.append("there is no row of the split test: those of validation are tested on")
        parts[parts == "validation"] = "test"
    rows = {part: torch.from_numpy(np.flatnonzero(parts == part)) for part in ("train", "validation", "test")}
    for part in ("train", "test"):
        if not len(rows[part]):
            raise InputError(f"{table.where} has no row of the split {part}: add some, or leave that column out")
    return {part: some for part, some in rows.items() if len(some)}
