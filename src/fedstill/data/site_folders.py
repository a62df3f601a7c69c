"""A folder with one folder per site, each read as a data set of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.data.data_settings import DataSettings
from fedstill.data.layout import Samples, number_sites_and_groups
from fedstill.data.readers.class_labels import sorted_names
from fedstill.data.readers.label_table import FOLDER, find_table
from fedstill.data.readers.lazy_pixels import DecodedFiles, LazyPixels, joined_pixels
from fedstill.data.readers.pictures import ImageForm
from fedstill.data.readers.raw import FileFindings

Opened = tuple[dict[str, Samples], tuple[str, ...]]


def site_folders(home: Path, settings: DataSettings) -> list[Path]:
    """The folders of sites: where each has a table of its own, or the settings say that folders are sites.

    With one table for all, the sites are read from it and none are found here.
    """
    if not home.is_dir() or settings.site not in (None, FOLDER) or settings.table is not None:
        return []
    folders = sorted(place for place in home.iterdir() if place.is_dir() and not place.name.startswith("."))
    columns = settings.model_copy(update={"site": None})
    if settings.site is None:
        return folders if len(folders) > 1 and all(_has_table(place, columns) for place in folders) else []
    if _has_table(home, columns):
        return []
    if not folders:
        raise InputError(
            f"{home} holds no folders, which site=folder asks for: leave it out, or name a column of sites"
        )
    return folders


def _has_table(place: Path, settings: DataSettings) -> bool:
    """Whether a folder has a table of labels; a .json file may as well be a note beside a shape."""
    try:
        table = find_table(place, settings)
        return table is not None and table.path.suffix.lower() != ".json"
    except InputError:  # without the columns that the settings name; reading it raises the same error
        return False


def joined_sites(folders: list[Path], opened: Callable[[Path], Opened], found: FileFindings) -> Opened:
    """The data of all sites as one: classes are joined by name, and every sample has its site."""
    sites = {folder.name: opened(folder) for folder in folders}
    classes = _classes([names for _, names in sites.values()])
    parts: dict[str, list[Samples]] = {}
    for site, (splits, names) in sites.items():
        numbers = torch.tensor([classes.index(name) for name in names])
        for part, split in splits.items():
            parts.setdefault(part, []).append(_at_site(split, site, numbers, len(classes)))
    joined = {part: _joined(some, found) for part, some in parts.items()}
    number_sites_and_groups(joined, found)
    return joined, classes


def _classes(each: list[tuple[str, ...]]) -> tuple[str, ...]:
    return (
        each[0] if all(names == each[0] for names in each) else sorted_names({one for names in each for one in names})
    )


def _at_site(split: Samples, site: str, numbers: torch.Tensor, classes: int) -> Samples:
    """A site's samples with the numbers of all classes; its patients are not those of other sites."""
    if split.labels.ndim > 1:  # a column for each class
        labels = torch.zeros(len(split.labels), classes, dtype=torch.bool)
        labels[:, numbers] = split.labels
        groups = tuple(f"{site}/{group}" for group in split.groups)
        return replace(split, labels=labels, sites=(site,) * len(labels), groups=groups)
    known = (split.labels >= 0) & (split.labels < len(numbers))
    labels = torch.where(known, numbers[split.labels.clamp(0, len(numbers) - 1)], split.labels)
    groups = tuple(f"{site}/{group}" for group in split.groups)
    return Samples(
        split.inputs, labels, split.kind, split.where, split.names, sites=(site,) * len(labels), groups=groups
    )


def _joined(splits: list[Samples], found: FileFindings) -> Samples:
    first = splits[0]
    for other in splits[1:]:
        if (other.kind, other.inputs.shape[1:], other.inputs.dtype) != (
            first.kind,
            first.inputs.shape[1:],
            first.inputs.dtype,
        ):
            found.faults.append(
                f"site {first.sites[0]} has {_form(first)}, and site {other.sites[0]} {_form(other)}: give all the same"
                " form, e.g. with size=224 for images"
            )
            return first
    names = tuple(name for split in splits for name in split.names)
    labels = torch.cat([split.labels for split in splits])
    return Samples(
        _joined_inputs(splits),
        labels,
        first.kind,
        ", ".join(split.where for split in splits),
        names if len(names) == len(labels) else (),
        sites=tuple(site for split in splits for site in split.sites),
        groups=tuple(group for split in splits for group in split.groups),
    )


def _form(split: Samples) -> str:
    return f"{split.kind}s of shape {tuple(split.inputs.shape[1:])} ({split.inputs.dtype})".replace("torch.", "")


def _joined_inputs(splits: Sequence[Samples]) -> Tensor:
    """The inputs of all sites; images that are decoded when needed stay so."""
    lazy = [pixels for split in splits if isinstance(pixels := cast(object, split.inputs), LazyPixels)]
    if not lazy:
        return torch.cat([split.inputs for split in splits])
    return cast(Tensor, joined_pixels([_as_lazy(split, lazy[0].files.form) for split in splits]))


def _as_lazy(split: Samples, form: ImageForm) -> LazyPixels:
    """The images of a site that fit into memory, like those of others that do not."""
    if isinstance(pixels := cast(object, split.inputs), LazyPixels):
        return pixels
    files = DecodedFiles([Path(name) for name in split.names], form, split.inputs.nbytes)
    for row, image in enumerate(split.inputs):
        files.first_seen(row, image.permute(1, 2, 0).reshape(form.shape).numpy())
    return LazyPixels(files)
