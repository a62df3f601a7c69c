"""Hidden patches: what the encoder may see, what is to be said, and how far that is from the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.detection.model import Detector
from fedstill.detection.model.masked_autoencoder import MaskedAutoencoder, chamfer
from fedstill.models import build_model


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(Streams(seed).draw("test").standard_normal(shape)).float()


def autoencoder(hidden: float = 0.5, layers: int = 1, **sizes: float) -> MaskedAutoencoder:
    small: dict[str, float] = {"tokens": 8, "candidates": 8, "queries": 4, "neighbours": 6, "floor": 0.0}
    with Streams(1).ambient("initialise"):
        detector = build_model("small-detr3d-lite", (64, 3), 2, **{**small, **sizes})
        assert isinstance(detector, Detector)
        return MaskedAutoencoder(detector, hidden, layers)


def brute_force(said: Tensor, truth: Tensor) -> float:
    """Chamfer distance by its definition, point by point, in double precision."""
    ours, theirs = said.double().numpy(), truth.double().numpy()
    there = np.mean([min(((p - q) ** 2).sum() for q in theirs) for p in ours])
    back = np.mean([min(((p - q) ** 2).sum() for p in ours) for q in theirs])
    return float(there + back)


def test_chamfer_against_brute_force() -> None:
    said, truth = numbers(2, 3, 5, 3), numbers(2, 3, 7, 3, seed=1)
    found = chamfer(said, truth)
    expected = [[brute_force(said[i, j], truth[i, j]) for j in range(3)] for i in range(2)]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_repeated_points_do_not_count() -> None:
    """Padding repeats the first point: the distance is that of the distinct ones."""
    said, truth = numbers(4, 3), numbers(3, 3, seed=1)
    padded = torch.cat([truth, truth[:1], truth[:1]])
    there = torch.tensor([True, True, True, False, False])
    assert chamfer(said, padded, there).item() == pytest.approx(brute_force(said, truth), rel=1e-6)
    assert chamfer(said, padded).item() != pytest.approx(brute_force(said, truth), rel=1e-3)


def test_chamfer_of_the_same_points_in_another_order_is_zero() -> None:
    points = numbers(2, 6, 3)
    assert chamfer(points, points.flip(1)).tolist() == [0.0, 0.0]


def test_chamfers_gradient_is_that_of_all_distances() -> None:
    """Against autograd through the whole table of distances."""
    said, truth = numbers(3, 5, 3).requires_grad_(), numbers(3, 4, 3, seed=1)
    squares = (said.unsqueeze(2) - truth.unsqueeze(1)).square().sum(dim=-1)
    table = squares.amin(dim=2).mean(dim=1) + squares.amin(dim=1).mean(dim=1)
    (expected,) = torch.autograd.grad(table.sum(), said)
    (found,) = torch.autograd.grad(chamfer(said, truth).sum(), said)
    torch.testing.assert_close(found, expected)


def test_the_encoder_sees_no_hidden_token() -> None:
    """Features of hidden tokens are made worthless: nothing that is said changes."""
    model = autoencoder().eval()
    points, noise = numbers(2, 64, 3), numbers(2, 8, seed=3)
    hidden = noise.argsort(dim=1)[:, :4]
    plain = model(points, noise)

    def spoil(module: object, inputs: object, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        positions, features = output
        return positions, features.scatter(1, hidden.unsqueeze(-1).expand(-1, -1, features.shape[-1]), torch.nan)

    model.detector.tokens.register_forward_hook(spoil)
    assert torch.equal(model(points, noise).said, plain.said)
    assert torch.equal(model(points, noise).features, plain.features)
    assert not model(points, -noise).said.isfinite().all()


def test_the_decoder_is_told_where_hidden_patches_are() -> None:
    model = autoencoder().eval()
    found = model(numbers(1, 64, 3), numbers(1, 8, seed=3))
    assert found.said.shape == found.truth.shape == (1, 4, 6, 3)
    assert not torch.allclose(found.said[0, 0], found.said[0, 1])


def test_a_patch_is_what_its_token_is_made_of() -> None:
    """Three points within 1 m of the first, which come around it in units of the radius; the rest repeats the first."""
    cloud = torch.tensor([[[1.0, 0, 0], [1.5, 0, 0], [9, 9, 9], [1, 0, -1]]])
    truth, there = autoencoder(radius=1.0).patches(cloud, cloud[:, :1])
    assert truth[0, 0, :3].tolist() == [[0, 0, 0], [0.5, 0, 0], [0, 0, -1]]
    assert truth[0, 0, 3:].abs().max() == 0
    assert there[0, 0].tolist() == [True, True, True, False, False, False]
    halved, _ = autoencoder(radius=2.0).patches(cloud, cloud[:, :1])
    assert halved[0, 0, 1].tolist() == [0.25, 0, 0]


def test_a_longer_reach_takes_in_what_the_token_is_not_made_of() -> None:
    """In the same units: what lies three radii away is at 3."""
    cloud = torch.tensor([[[0.0, 0, 0], [1.5, 0, 0], [9, 9, 9]]])
    model = autoencoder(radius=0.5)
    assert model.patches(cloud, cloud[:, :1])[0].abs().max() == 0
    model.reach = 3.0
    assert model.patches(cloud, cloud[:, :1])[0][0, 0, 1].tolist() == [3.0, 0, 0]


def test_patches_have_no_floor_where_tokens_have_none() -> None:
    heights = torch.linspace(0, 1, 64)
    cloud = torch.stack([torch.zeros(64), torch.zeros(64), heights], dim=1).unsqueeze(0)
    truth, _ = autoencoder(floor=0.5, radius=3.0, neighbours=64).patches(cloud, torch.zeros(1, 1, 3))
    assert truth[..., 2].min() * 3 > 0.5


def test_only_tokens_and_encoder_of_the_detector_learn() -> None:
    model = autoencoder()
    model(numbers(2, 64, 3), numbers(2, 8, seed=3)).distance().backward()
    learns = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    parts = {name.split(".")[1] for name in learns if name.startswith("detector.")}
    assert parts == {"tokens", "encoder"}
    everything = {name for name, _ in model.named_parameters()}
    assert {name for name in everything - learns if not name.startswith("detector.")} == set()


@pytest.mark.parametrize("share", [0.0, 0.05, 0.97])
def test_some_patches_are_hidden_and_some_are_seen(share: float) -> None:
    with pytest.raises(InputError, match=r"some tokens must be hidden and some seen"):
        autoencoder(share)
