"""Frames of pandas and data sets of Hugging Face."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError

from ..own_objects import X_TEST, Y_TEST, X, Y

pd = pytest.importorskip("pandas")
hf = pytest.importorskip("datasets")

NUMBERS = {"a": range(6), "b": np.linspace(0, 1, 6)}
LABELS = [0, 1] * 3


def hugging_face(x: Any = X, y: Any = Y) -> Any:
    return hf.Dataset.from_dict({"inputs": x.tolist(), "label": y.tolist()})


def frame(**columns: Any) -> Any:
    return pd.DataFrame({**NUMBERS, "label": LABELS, **columns})


def inputs_of(made: Any) -> torch.Tensor:
    return made.train.batch(torch.arange(len(made.train)))["inputs"]  # type: ignore[no-any-return]


def test_a_frame_is_its_columns_of_numbers_beside_the_labels() -> None:
    made = fedstill.dataset(frame(), frame())
    expected = np.stack([np.arange(6), np.linspace(0, 1, 6)], axis=1)
    assert np.array_equal(inputs_of(made).numpy(), expected.astype(np.float32))
    assert made.train.labels().tolist() == LABELS  # type: ignore[union-attr]


def test_a_frame_has_the_fingerprint_of_its_arrays() -> None:
    made = fedstill.dataset(pd.DataFrame(X).assign(label=Y), pd.DataFrame(X_TEST).assign(label=Y_TEST))
    assert made.fingerprint() == fedstill.dataset((X, Y), (X_TEST, Y_TEST)).fingerprint()
    assert made.fingerprint() == fedstill.dataset((pd.DataFrame(X), pd.Series(Y)), (X_TEST, Y_TEST)).fingerprint()


def test_a_frame_that_is_changed_later_does_not_change_the_data_set() -> None:
    table = pd.DataFrame(X)
    pair = fedstill.dataset((table, pd.Series(Y)))
    labelled = table.assign(label=Y)
    made = fedstill.dataset(labelled)
    before = [inputs_of(one).clone() for one in (pair, made)]
    table.iloc[:, :] = 7.0
    labelled.iloc[:, :] = 1
    assert all(torch.equal(inputs_of(one), then) for one, then in zip((pair, made), before, strict=True))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["sick", "well"] * 3, ("sick", "well")),
        (pd.Categorical(["sick", "well"] * 3), ("sick", "well")),
        (pd.array(LABELS, dtype="Int64"), ("0", "1")),
        ([True, False] * 3, ("0", "1")),
    ],
    ids=["texts", "categories", "nullable", "booleans"],
)
def test_labels_of_a_frame(labels: Any, classes: tuple[str, ...]) -> None:
    assert fedstill.dataset(frame(label=labels)).classes == classes


def test_the_column_of_labels_can_be_named_and_columns_can_be_numbers() -> None:
    assert fedstill.dataset(frame(outcome=LABELS).drop(columns="label"), label="outcome").shape == (2,)
    numbered: Any = 1
    assert fedstill.dataset(pd.DataFrame({0: range(6), 1: LABELS}), label=numbered).shape == (1,)


def test_a_column_of_arrays() -> None:
    made = fedstill.dataset(pd.DataFrame({"scan": [np.full((2, 2), at) for at in range(6)], "label": LABELS}))
    assert made.shape == (2, 2)


FRAMES: dict[str, tuple[Any, str]] = {
    "no labels": (lambda: frame().drop(columns="label"), r"none is called label: name it, fedstill.dataset\(data"),
    "texts": (lambda: frame(city=["x", "y"] * 3), r"\(city\): encode them, e.g. with pandas.get_dummies"),
    "dates": (lambda: frame(day=pd.date_range("2020", periods=6)), r"\(day\): encode them"),
    "missing": (lambda: frame(age=[1.0, None] * 3), r"missing values \(age\): fill them in"),
    "missing labels": (lambda: frame(label=[0, None] * 3), "rows without a label in 'label': leave them out"),
    "one column": (lambda: frame()[["label"]], "give features, too"),
    "twice": (lambda: pd.DataFrame(np.zeros((6, 3)), columns=["a", "a", "label"]), "several columns called 'a'"),
    "labels twice": (lambda: pd.DataFrame(np.zeros((6, 3)), columns=["a", "label", "label"]), "called 'label'"),
    "empty": (lambda: frame()[:0], "holds no samples"),
    "series": (lambda: frame()["a"], "without labels: give a frame"),
    "arrays": (lambda: pd.DataFrame({"s": [np.zeros(2), np.zeros(3)] * 3, "label": LABELS}), "differ in shape"),
    "infinity": (lambda: frame(b=[np.inf] * 6), "hold NaN or infinity"),
    "float labels": (lambda: frame(label=[0.5, 1.5] * 3), "give whole numbers"),
}


@pytest.mark.parametrize("which", FRAMES)
def test_refused_frames(which: str) -> None:
    make, why = FRAMES[which]
    with pytest.raises(InputError, match=why) as refused:
        fedstill.dataset(make())
    assert "\n" not in str(refused.value)


def test_a_hugging_face_data_set_gives_its_numbers() -> None:
    made = fedstill.dataset(hf.DatasetDict(train=hugging_face(), test=hugging_face(X_TEST, Y_TEST)))
    assert not isinstance(made.train, ArrayDataset)
    assert np.array_equal(inputs_of(made).numpy(), X)
    assert made.train.labels().tolist() == Y.tolist()  # type: ignore[union-attr]
    assert (len(made.train), len(made.test)) == (48, 12)


def test_8_bit_columns_reach_models_as_8_bit_arrays_do() -> None:
    pixels = (np.arange(10 * 64) % 256).astype(np.uint8).reshape(10, 1, 8, 8)
    features = hf.Features(x=hf.Array3D((1, 8, 8), "uint8"), label=hf.Value("int64"))
    source = hf.Dataset.from_dict({"x": pixels, "label": [0, 1] * 5}, features=features)
    made, arrays = fedstill.dataset(source), fedstill.dataset((pixels, [0, 1] * 5))
    assert torch.equal(inputs_of(made), inputs_of(arrays))
    assert inputs_of(made).min() == -1


def test_pictures_and_names_of_classes() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (10, 9, 8, 3), dtype=np.uint8)
    features = hf.Features(scan=hf.Image(), finding=hf.ClassLabel(names=["none", "some"]))
    pictures = [image.fromarray(one) for one in pixels]
    made = fedstill.dataset(hf.Dataset.from_dict({"scan": pictures, "finding": [0, 1] * 5}, features=features))
    assert (made.kind, made.shape, made.classes) == ("image", (3, 9, 8), ("none", "some"))
    assert torch.equal(inputs_of(made), inputs_of(fedstill.dataset((pixels, [0, 1] * 5))))


def test_a_transform_of_the_users_own_is_applied() -> None:
    source = hugging_face()
    source.set_transform(lambda rows: {"x": [[v * 100 for v in row] for row in rows["inputs"]], "label": rows["label"]})
    assert torch.allclose(inputs_of(fedstill.dataset(source)), 100 * inputs_of(fedstill.dataset((X, Y))))


def test_a_format_of_the_users_own_changes_nothing() -> None:
    assert fedstill.dataset(hugging_face().with_format("torch")).fingerprint() == (
        fedstill.dataset(hugging_face()).fingerprint()
    )


SETS: dict[str, tuple[Any, str]] = {
    "no labels": (lambda: hf.Dataset.from_dict({"x": [1, 2]}), "none is called label"),
    "inputs": (lambda: hf.Dataset.from_dict({"a": [1], "b": [1], "label": [0]}), "rename the one with samples"),
    "texts": (lambda: hf.Dataset.from_dict({"text": ["u", "v"], "label": [0, 1]}), "give numbers"),
    "empty": (lambda: hf.Dataset.from_dict({"x": [], "label": []}), "holds no samples"),
    "missing": (lambda: hf.Dataset.from_dict({"x": [[1.0, None]] * 4, "label": [0, 1] * 2}), "NaN"),
    "streamed": (lambda: hugging_face().to_iterable_dataset(), "load it without streaming"),
    "no test": (lambda: hf.DatasetDict(train=hugging_face()), "needs one called test"),
    "strange part": (
        lambda: hf.DatasetDict(train=hugging_face(), test=hugging_face(), extra=hugging_face()),
        "not 'extra': rename it",
    ),
}


@pytest.mark.parametrize("which", SETS)
def test_refused_hugging_face_data_sets(which: str) -> None:
    make, why = SETS[which]
    with pytest.raises(InputError, match=why) as refused:
        fedstill.dataset(make())
    assert "\n" not in str(refused.value)
