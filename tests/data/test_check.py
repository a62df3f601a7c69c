from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.data.catalogue import Bundle, Source, check, datasets, load


@pytest.fixture
def made() -> Iterator[Callable[[Bundle], str]]:
    """Register a bundle as somebody's data set."""

    def register(bundle: Bundle) -> str:
        @datasets.register(bundle.name)
        def loader(source: Source) -> Bundle:
            return bundle

        return bundle.name

    yield register
    datasets._parts.pop("made", None)


def test_a_clean_data_set_has_no_problems() -> None:
    report = check("digits")
    assert report.ok
    assert report.usable
    assert report.where == "built in"
    assert report.sizes == {"train": 1438, "test": 359}
    assert sum(report.counts["train"]) == 1438
    assert (report.kind, report.dtype, report.range) == ("image", "uint8", (0.0, 255.0))
    assert report.fingerprint == load("digits").fingerprint()


def test_everything_wrong_is_listed_at_once(tmp_path: Path) -> None:
    x_train = np.random.default_rng(0).normal(size=(6, 5, 5))
    x_test = np.concatenate([x_train[1:3], np.zeros((2, 5, 5))])
    x_train[0, 0, 0], x_train[5, 1, 1] = np.nan, np.inf
    np.savez(
        tmp_path / "bad.npz",
        x_train=x_train,
        y_train=[0, 1, 1, 0, 7, -2],
        x_test=x_test,
        y_test=[0, 0, 0, 0],
        classes=["a", "b", "c"],
    )
    report = check(f"npz:{tmp_path / 'bad.npz'}")
    assert report.problems == (
        "2 train labels lie outside 0..2, the first is 7",
        f"2 train samples hold NaN or infinity, the first is row 0 of x_train, y_train in {tmp_path / 'bad.npz'}",
        "class 'c' has no training samples: add some, or take the class away",
        "class 'b' has no test samples: its accuracy cannot be measured",
        "class 'c' has no test samples: its accuracy cannot be measured",
        "2 identical samples are in both train and test",
    )
    assert not report.usable
    assert report.fingerprint is None
    assert report.counts == {"train": (2, 2, 0), "test": (4, 0, 0)}
    assert report.range is not None
    assert np.isfinite(report.range).all()


def test_training_labels_that_cannot_be_read_are_not_held_against_the_others(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, size=(6, 3, 3), dtype=np.uint8)
    np.savez(tmp_path / "bad.npz", x_train=pixels[:4], y_train=[0.5, 1, 0, 1], x_test=pixels[4:], y_test=[0, 1])
    problems = check("mine", path=tmp_path / "bad.npz").problems
    assert problems
    assert not any("outside" in one for one in problems)


def test_an_overlap_is_a_problem_but_loads(tmp_path: Path) -> None:
    pixels = np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3)
    np.savez(tmp_path / "twice.npz", x_train=pixels, y_train=[0, 1, 0, 1], x_test=pixels[2:], y_test=[0, 1])
    report = check("mine", path=tmp_path / "twice.npz")
    assert report.problems == ("2 identical samples are in both train and test",)
    assert report.usable
    assert load("mine", path=tmp_path / "twice.npz").fingerprint() == report.fingerprint


def test_a_missing_path_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    report = check("mnist", path=tmp_path / "nothing")
    assert not report.usable
    assert "nothing does not exist" in report.problems[0]
    assert (report.kind, report.dtype, report.range, report.sizes) == (None, None, None, {})


def test_a_bundle_made_by_code_is_examined_too(made: Callable[[Bundle], str]) -> None:
    data = ArrayDataset(inputs=torch.tensor([[[[1.0]]], [[[torch.nan]]]]), labels=torch.tensor([0, 5]))
    part = Subset(data, torch.tensor([0]))
    report = check(made(Bundle("made", data, part, ("a", "b"), "image", (1, 1, 1))))
    assert "1 train samples hold NaN or infinity" in report.problems
    assert "1 train labels lie outside 0..1, the first is 5" in report.problems
    assert not report.usable


def test_a_bundle_without_labels_is_a_problem(made: Callable[[Bundle], str]) -> None:
    data = ArrayDataset(inputs=torch.zeros(2, 1, 1, 1), labels=torch.tensor([0, 0]))
    report = check(made(Bundle("made", data, data.unlabelled(), ("a",), "image", (1, 1, 1))))
    assert report.problems == ("the test split has no labels",)
