"""Data sets of scenes with features of points beside their coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedstill.core.dataset import ANSWERS, ArrayDataset, Batch, Dataset, Subset, column
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.detection.cloud_files import CloudFile, FileScenes, scene_data
from fedstill.detection.point_features import FEATURES, FeatureName, columns_with, features_of, with_height

_COLUMNS = (*ANSWERS, "category", "sample_id")  # of a split, beside its clouds


def with_features(bundle: Bundle, wanted: tuple[str, ...]) -> Bundle:
    """Scenes whose points have these features; those of data that already has some must be the same.

    Colours are read again from the files of the scenes, heights are computed from the points that are left.
    """
    features = tuple(name for name in FEATURES if name in wanted)
    points, columns = bundle.shape
    there = features_of(columns)
    if there and there != features:
        raise InputError(
            f"the points of {bundle.name} have {' and '.join(there)} beside their coordinates: set"
            f" detection.features={','.join(there)}"
        )
    if there == features:
        return bundle if bundle.features == features else replace(bundle, features=features)
    splits = {
        part: _featured(data, bundle.sources.get(part, ()), points, features, bundle.name)
        for part, data in bundle.splits().items()
    }
    return replace(
        bundle,
        train=splits["train"],
        validation=splits.get("validation"),
        test=splits["test"],
        shape=(points, columns_with(features)),
        features=features,
    )


def _featured(
    data: Dataset, sources: tuple[object, ...], points: int, features: tuple[FeatureName, ...], name: str
) -> Dataset:
    if "colour" in features:
        return _coloured(data, sources, points, features, name)
    if isinstance(data, Subset) and isinstance(data.data, FileScenes):
        data = data.data.first_points(points, data.rows)
    if isinstance(data, FileScenes):
        return scene_data(data.files, points, data.columns_at_hand, features)
    if isinstance(data, ArrayDataset):
        return ArrayDataset(**{**data.columns, "inputs": with_height(data.columns["inputs"])})
    return WithHeight(data)


def _coloured(
    data: Dataset, sources: tuple[object, ...], points: int, features: tuple[FeatureName, ...], name: str
) -> Dataset:
    """Scenes read from their files again, now with colours."""
    numbers = column(data, "sample_id")
    files = [one for one in sources if isinstance(one, CloudFile)]
    if numbers is None or not files or (numbers >= len(files)).any():
        raise InputError(
            f"{name} has no colours of points: choose scenes from files with colours, or leave colour out of"
            " detection.features"
        )
    held = {key: found for key in _COLUMNS if (found := column(data, key)) is not None}
    return scene_data([files[row].with_colours() for row in numbers.tolist()], points, held, features)


@dataclass(frozen=True)
class WithHeight:
    """Scenes of any data set with the heights of their points, computed batch by batch."""

    data: Dataset

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Batch:
        batch = self.data.batch(rows)
        return {**batch, "inputs": with_height(batch["inputs"])}

    def labels(self) -> Tensor | None:
        return self.data.labels()

    def unlabelled(self) -> WithHeight:
        return WithHeight(self.data.unlabelled())

    def column(self, name: str) -> Tensor | None:
        """A whole column that is at hand, of those beside the clouds."""
        return None if name == "inputs" else column(self.data, name)
