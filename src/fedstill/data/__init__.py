"""Data sets, their readers, and the ways of cutting them into clients' shards. Slices bring more."""

from fedstill.core.dataset import ArrayDataset
from fedstill.data import augmentation, digits, heads, known_clouds, known_images, point_labels
from fedstill.data.bundle import Bundle, Source, datasets

__all__ = [
    "ArrayDataset",
    "Bundle",
    "Source",
    "augmentation",
    "datasets",
    "digits",
    "heads",
    "known_clouds",
    "known_images",
    "point_labels",
]
