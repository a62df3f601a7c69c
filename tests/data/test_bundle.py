from __future__ import annotations

import torch

from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.data.bundle import Bundle


def bundle(
    pixel: int = 0, classes: tuple[str, ...] = ("a", "b"), name: str = "toy", validation: bool = False
) -> Bundle:
    inputs = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    inputs[3, 0, 1, 1] = pixel
    data = ArrayDataset(inputs=inputs, labels=torch.tensor([0, 1, 0, 1]))
    return Bundle(name, data, data, classes, "image", (1, 2, 2), data if validation else None)


def test_the_fingerprint_is_of_the_contents() -> None:
    first = bundle().fingerprint()
    assert len(first) == 64
    assert first == bundle(name="another name").fingerprint()
    others = {
        bundle(pixel=1).fingerprint(),
        bundle(classes=("a", "c")).fingerprint(),
        bundle(validation=True).fingerprint(),
    }
    assert len(others | {first}) == 4


def test_shape_and_type_are_part_of_the_fingerprint() -> None:
    def of(inputs: torch.Tensor) -> str:
        data = ArrayDataset(inputs=inputs, labels=torch.zeros(len(inputs), dtype=torch.int64))
        return Bundle("toy", data, data, ("a",), "image", tuple(inputs.shape[1:])).fingerprint()

    zeros = torch.zeros(2, 1, 2, 4)
    prints = {of(zeros), of(zeros.reshape(2, 1, 4, 2)), of(zeros.int()), of(zeros.repeat(1, 1, 1, 2))}
    assert len(prints) == 4
    assert of(zeros) == of(zeros.transpose(2, 3).contiguous().transpose(2, 3))  # how memory lies does not count


def test_any_dataset_has_a_fingerprint() -> None:
    whole = bundle()
    part = Bundle("part", Subset(whole.train, torch.tensor([0, 3])), whole.test, ("a", "b"), "image", (1, 2, 2))
    assert part.fingerprint() != whole.fingerprint()
    assert list(part.splits()) == ["train", "test"]
