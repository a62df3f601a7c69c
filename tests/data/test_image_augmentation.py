"""What `images` adds beside flip and crop: each map by hand, its draws, and that none of them is on by default."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstill.core.streams import Streams
from fedstill.data.image_augmentation import ImageAugmentation, coloured, cut_out, turned


def photographs(size: int = 6, side: int = 12) -> torch.Tensor:
    values = np.random.default_rng(0).uniform(-1, 1, (size, 3, side, side))
    return torch.from_numpy(values.astype(np.float32))


def augmented(images: torch.Tensor, seed: int = 0, **settings: float) -> torch.Tensor:
    found = ImageAugmentation(**settings)({"inputs": images}, Streams(seed).draw("augment"))  # type: ignore[arg-type]
    return found["inputs"]


def test_nothing_new_is_on_by_default() -> None:
    assert ImageAugmentation().hashed() == {"flip": True, "padding": None, "fill": -1.0}
    generator = Streams(0).draw("augment")
    ImageAugmentation()({"inputs": photographs()}, generator)
    used = Streams(0).draw("augment")
    used.random(6)
    used.integers(0, 5, (6, 2))
    assert generator.random() == used.random(), "the stream goes on where it always did"


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_turns_by_right_angles_are_exact(quarters: int) -> None:
    images = photographs()
    angles = torch.full((6,), quarters * torch.pi / 2)
    expected = torch.rot90(images, quarters, dims=(2, 3))
    torch.testing.assert_close(turned(images, angles, torch.ones(6), -1.0), expected, rtol=0, atol=1e-5)


def test_a_smaller_image_has_a_filled_margin() -> None:
    image = torch.full((1, 1, 8, 8), 0.5)
    small = turned(image, torch.zeros(1), torch.tensor([0.5]), -1.0)[0, 0]
    assert (small[2:6, 2:6] == 0.5).all()
    assert (small[0] == -1).all()
    wide = turned(torch.full((1, 1, 4, 16), 0.5), torch.tensor([torch.pi / 2]), torch.ones(1), -1.0)[0, 0]
    assert (wide[:, 7:9] == 0.5).all(), "proportions are kept: a wide image that is turned is high"
    assert (wide[:, :5] == -1).all()


def test_colour_by_hand() -> None:
    """Pixels 0.2 and 0.6: brightness 1.5 gives 0.3 and 0.9, their mean is 0.6, contrast 0.5 gives 0.45 and 0.75."""
    image = torch.tensor([0.2, 0.6]).view(1, 1, 1, 2).expand(1, 3, 1, 2) * 2 - 1
    found = coloured(image, torch.tensor([1.5]), torch.tensor([0.5]), torch.tensor([0.0]))
    torch.testing.assert_close((found[0, :, 0] + 1) / 2, torch.tensor([[0.45, 0.75]]).expand(3, 2))
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1) * 2 - 1
    flat = coloured(red, torch.ones(1), torch.ones(1), torch.zeros(1))
    torch.testing.assert_close((flat.flatten() + 1) / 2, torch.full((3,), 0.299))


def test_cutout_fills_one_square_inside() -> None:
    found = cut_out(torch.ones(2, 3, 8, 8), torch.tensor([[0.5, 0.5], [0.99, 0.0]]), 4, -1.0)
    assert (found[0] == -1).sum() == 3 * 16
    assert (found[1] == -1).sum() == 3 * 2 * 3, "cut off at two borders"


@pytest.mark.parametrize("settings", [{"rotate": 20}, {"zoom": 0.2}, {"colour": 0.4}, {"cutout": 0.5}])
def test_each_changes_images_differently_and_from_the_stream_alone(settings: dict[str, float]) -> None:
    images = photographs()
    before, torch_state = images.clone(), torch.get_rng_state()
    first, plain = augmented(images, **settings), augmented(images)
    assert torch.equal(first, augmented(images, **settings))
    assert not torch.equal(first, augmented(images, seed=1, **settings))
    assert not torch.equal(first, plain)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert first.min() >= -1.0001
    assert first.max() <= 1.0001
