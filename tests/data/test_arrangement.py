"""Arrays of any kind become tensors in the layout of images, clouds, or as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.data.arrangement import Arrangement, as_array, as_tensor

LAYOUTS = {
    (9,): ("array", "none"),
    (5, 5): ("array", "none"),
    (8, 8): ("image", "one channel"),
    (1, 8, 8): ("image", "none"),
    (28, 28, 3): ("image", "channels first"),
    (16, 3): ("cloud", "normalise"),
    (2, 3, 4, 5): ("array", "none"),
}


@pytest.mark.parametrize("shape", LAYOUTS)
def test_the_shape_decides_unless_the_kind_is_given(shape: tuple[int, ...]) -> None:
    batch = torch.rand(2, *shape)
    found = Arrangement.of(batch, None, "x")
    assert (found.kind, found.change) == LAYOUTS[shape]
    assert bool(found.notes) == (found.change != "none")
    as_it_is = Arrangement.of(batch, "array", "x")
    assert as_it_is.kind == "array"
    assert torch.equal(as_it_is(batch), batch)


def test_the_changes() -> None:
    pictures = torch.rand(2, 9, 8, 3)
    assert torch.equal(Arrangement("image", "channels first")(pictures), pictures.permute(0, 3, 1, 2))
    assert Arrangement("image", "one channel")(pictures[..., 0]).shape == (2, 1, 9, 8)
    cloud = torch.tensor([[[2.0, 0, 0], [0, 0, 0]]])
    torch.testing.assert_close(Arrangement("cloud", "normalise")(cloud), torch.tensor([[[1.0, 0, 0], [-1, 0, 0]]]))
    assert cloud[0, 0, 0] == 2


@pytest.mark.parametrize(
    ("shape", "kind", "why"),
    [
        ((), None, r"give each a shape, e.g. x\[:, None\]"),
        ((0, 3), None, "hold nothing"),
        ((9,), "image", "images have the shape"),
        ((9, 2), "cloud", "clouds have the shape"),
        ((9,), "imgae", "did you mean 'image'"),
    ],
)
def test_what_cannot_be_arranged(shape: tuple[int, ...], kind: str | None, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Arrangement.of(torch.zeros(2, *shape), kind, "x")


VALUES = [[1, 2], [3, 250]]
NUMBERS: dict[str, Any] = {
    "list": VALUES,
    "int64": np.array(VALUES),
    "uint16": np.array(VALUES, dtype=np.uint16),
    "float16": np.array(VALUES, dtype=np.float16),
    "big-endian": np.array(VALUES, dtype=">f4"),
    "long double": np.array(VALUES, dtype=np.longdouble),
    "reversed": np.array(VALUES[::-1])[::-1],
    "tensor": torch.tensor(VALUES),
    "bfloat16": torch.tensor(VALUES, dtype=torch.bfloat16),
    "tensors": [torch.tensor(row) for row in VALUES],
    "with a gradient": [torch.tensor(row, dtype=torch.float32, requires_grad=True) for row in VALUES],
}


@pytest.mark.parametrize("which", NUMBERS)
def test_numbers_become_floats(which: str) -> None:
    made = as_tensor(NUMBERS[which], "x")
    assert made.dtype == torch.float32
    assert made.tolist() == VALUES


def test_8_bit_integers_stay() -> None:
    assert as_tensor(np.array(VALUES, dtype=np.uint8), "x").dtype == torch.uint8
    assert as_tensor(torch.tensor(VALUES, dtype=torch.uint8), "x").dtype == torch.uint8


@pytest.mark.parametrize(
    "value",
    [
        np.array(VALUES, dtype=complex),
        np.array([["a"]]),
        torch.eye(2).to_sparse(),
        torch.zeros(2, 2, device="meta"),
        torch.zeros(2, dtype=torch.complex64),
        [[1, 2], [3]],
    ],
    ids=["complex array", "texts", "sparse", "meta", "complex", "ragged"],
)
def test_refuses_what_is_no_dense_array_of_numbers(value: Any) -> None:
    with pytest.raises(InputError, match=r"of x .*give"):
        as_tensor(value, "x")


def test_labels_of_different_shapes_are_refused() -> None:
    assert as_array([torch.tensor(3), 4], "labels").tolist() == [3, 4]
    with pytest.raises(InputError, match="labels differ in shape"):
        as_array([[0], [1, 2]], "labels")
