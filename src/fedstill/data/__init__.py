"""Data sets, their readers, and the ways of cutting them into clients' shards.

Importing the package registers the built-in data sets, so that whoever has the catalogue has all of them.
"""

from fedstill.core.dataset import ArrayDataset
from fedstill.data import (
    augment,
    digits,
    heads,
    known,
    known_clouds,
    parts,
    scene_augment,
    scene_files,
    scene_sets,
    scene_shards,
)
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.data.rooms import unlabelled as unlabelled_scenes

__all__ = [
    "ArrayDataset",
    "Bundle",
    "Source",
    "augment",
    "datasets",
    "digits",
    "heads",
    "known",
    "known_clouds",
    "parts",
    "scene_augment",
    "scene_files",
    "scene_sets",
    "scene_shards",
    "unlabelled_scenes",
]
