from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.data.heads import CLASSES, NECK, head, heads, make_heads

Cloud = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return heads(Source("heads", Path()))


@pytest.fixture(scope="module")
def labelled(bundle: Bundle) -> tuple[Cloud, npt.NDArray[np.int64]]:
    parts = [data.batch(torch.arange(len(data))) for data in (bundle.train, bundle.test)]
    clouds, labels = (torch.cat([part[name] for part in parts]).numpy() for name in ("inputs", "labels"))
    return clouds, labels


def sample(kind: str, count: int = 40) -> list[Cloud]:
    return [head(Streams(5).draw("test", kind, index), kind, 2048).astype(np.float32) for index in range(count)]


def above_the_ears(cloud: Cloud) -> Cloud:
    """The braincase: ears and face would blur what is measured."""
    return cloud[cloud[:, 2] > 0.1]


def cephalic_index(cloud: Cloud) -> float:
    """Width by length, as a clinician measures it with callipers."""
    width, length, _ = np.ptp(above_the_ears(cloud), axis=0)
    return float(width / length)


def forehead_by_back(cloud: Cloud) -> float:
    """Width of the head near its front end by that near its back end."""
    brain = above_the_ears(cloud)
    low, high = brain[:, 1].min(), brain[:, 1].max()
    share = (brain[:, 1] - low) / (high - low)
    return float(np.ptp(brain[(share > 0.8) & (share < 0.95), 0]) / np.ptp(brain[(share > 0.05) & (share < 0.2), 0]))


def skew(cloud: Cloud) -> float:
    """How much further the forehead reaches on the left than on the right."""
    brain = above_the_ears(cloud)
    left, right = (brain[(x > 0.15) & (x < 0.45), 1].max() for x in (brain[:, 0], -brain[:, 0]))
    return float(left - right)


def test_the_bundle(bundle: Bundle) -> None:
    assert datasets["heads"] is heads
    assert (bundle.name, bundle.kind, bundle.shape) == ("heads", "cloud", (2048, 3))
    assert bundle.classes == ("control", "coronal", "metopic", "sagittal")
    for data, each in ((bundle.train, 80), (bundle.test, 20)):
        labels = data.labels()
        assert labels is not None
        assert labels.dtype == torch.int64
        assert torch.bincount(labels).tolist() == [each] * 4
        inputs = data.batch(torch.arange(len(data)))["inputs"]
        assert (inputs.shape, inputs.dtype) == ((4 * each, 2048, 3), torch.float32)


def test_no_head_is_in_both_splits(bundle: Bundle) -> None:
    train, test = (
        {row.numpy().tobytes() for row in data.batch(torch.arange(len(data)))["inputs"]}
        for data in (bundle.train, bundle.test)
    )
    assert len(train | test) == 400


def test_the_bundle_is_always_the_same(bundle: Bundle) -> None:
    assert heads(Source("heads", Path())).fingerprint() == bundle.fingerprint()


def test_a_head_does_not_depend_on_how_many_others_are_made() -> None:
    few, some = make_heads(per_class=2, points=128), make_heads(per_class=5, points=128)
    assert some[1].tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    for label in range(4):
        assert np.array_equal(few[0][2 * label : 2 * label + 2], some[0][5 * label : 5 * label + 2])


def test_seeds_classes_and_indices_give_different_heads() -> None:
    clouds = np.concatenate([make_heads(per_class=3, points=64, seed=seed)[0] for seed in (0, 1)])
    assert len({cloud.tobytes() for cloud in clouds}) == 24


def test_clouds_are_finite_and_normalised(labelled: tuple[Cloud, npt.NDArray[np.int64]]) -> None:
    clouds, _ = labelled
    assert clouds.dtype == np.float32
    assert np.isfinite(clouds).all()
    assert np.abs(clouds.mean(axis=1, dtype=np.float64)).max() < 1e-6
    assert np.linalg.norm(clouds, axis=2).max(axis=1) == pytest.approx(1.0, abs=1e-6)


def test_the_first_points_cover_the_head(labelled: tuple[Cloud, npt.NDArray[np.int64]]) -> None:
    """Every point has one of the first 256 nearby, and those have the centre and the size of the whole."""
    for cloud in labelled[0][::25]:
        first = cloud[:256]
        gaps = np.sqrt(((cloud[:, None] - first) ** 2).sum(axis=2)).min(axis=1)
        assert gaps.max() < 0.35
        assert np.abs(first.mean(axis=0)).max() < 0.12
        assert (np.ptp(first, axis=0) / np.ptp(cloud, axis=0)).min() > 0.85


def test_there_is_a_neck_and_nothing_in_it() -> None:
    for cloud in sample("control", 5):
        directions = cloud / np.linalg.norm(cloud, axis=1, keepdims=True)
        assert (directions @ NECK).max() < 0.95
        assert (directions @ -NECK).max() > 0.99


def test_length_and_width_follow_the_suture_that_closed() -> None:
    """Clinically below 0.75 for a closed sagittal suture, about 0.8 for healthy heads, above 0.85 for short ones."""
    sagittal, control, brachycephaly = (
        np.array([cephalic_index(cloud) for cloud in sample(kind)]) for kind in ("sagittal", "control", "brachycephaly")
    )
    assert sagittal.mean() < 0.75 < control.mean() < 0.85 < brachycephaly.mean()
    assert sagittal.max() < np.median(control) < brachycephaly.min()


def test_a_closed_metopic_suture_narrows_the_forehead() -> None:
    metopic, control = (np.array([forehead_by_back(c) for c in sample(kind)]) for kind in ("metopic", "control"))
    assert metopic.mean() < 0.85 * control.mean()


def test_one_closed_coronal_suture_skews_the_head() -> None:
    plagiocephaly, control, brachycephaly = (
        np.array([abs(skew(cloud)) for cloud in sample(kind)]) for kind in ("plagiocephaly", "control", "brachycephaly")
    )
    assert plagiocephaly.mean() > 2.5 * control.mean()
    assert plagiocephaly.mean() > 2.5 * brachycephaly.mean()


def test_coronal_heads_are_of_both_kinds_and_of_both_sides() -> None:
    broad = sum(cephalic_index(cloud) > 0.88 for cloud in sample("coronal"))
    assert 10 <= broad <= 30
    fuller_on_the_left = sum(skew(cloud) > 0 for cloud in sample("plagiocephaly"))
    assert 10 <= fuller_on_the_left <= 30


def test_the_classes_are_learnable_but_not_trivial(labelled: tuple[Cloud, npt.NDArray[np.int64]]) -> None:
    """The bounding box is not enough; second and third moments nearly are."""
    clouds, labels = labelled
    box = np.ptp(clouds, axis=1)
    x, y, z = np.moveaxis(clouds, 2, 0)
    products = [a * b for a, b in ((x, x), (y, y), (z, z), (x, y), (x, z), (y, z))]
    products += [product * axis for product in products for axis in (x, y, z)]
    moments = np.column_stack([box, *(product.mean(axis=1) for product in products)])

    def accuracy(features: npt.NDArray[np.float32]) -> float:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
        return float(cross_val_score(model, features, labels, cv=5).mean())

    assert 0.5 < accuracy(box) < 0.75
    assert 0.8 < accuracy(moments) < 0.96


def test_the_names_of_the_classes_are_the_labels() -> None:
    clouds, labels = make_heads(per_class=1, points=32)
    for cloud, label in zip(clouds, labels, strict=True):
        again = head(Streams(0).draw("heads", CLASSES[label], 0), CLASSES[label], 32)
        assert np.array_equal(cloud, again.astype(np.float32))
