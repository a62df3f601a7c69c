"""PointNet++ for points: interpolation by hand and against a slow one, layer shapes, outputs, gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.models import Classifier, build_model, models
from fedstill.models.pointnet2_segmentation import FeaturePropagation, interpolate

NAMES = ["pointnet2-segmentation", "pointnet2-segmentation-lite"]
SMALL = {"width": 8, "centres1": 16, "neighbours1": 6, "centres2": 6, "neighbours2": 5}


def clouds(batch: int = 3, points: int = 40) -> Tensor:
    return F.normalize(torch.randn(batch, points, 3), dim=-1)


def slow_interpolation(points: Tensor, known: Tensor, features: Tensor) -> Tensor:
    out = torch.zeros(*points.shape[:2], features.shape[2], dtype=features.dtype)
    for cloud in range(len(points)):
        for row, at in enumerate(points[cloud]):
            squared = [float(((at - other) ** 2).sum()) for other in known[cloud]]
            three = sorted(range(len(squared)), key=lambda j: (squared[j], j))[:3]
            weights = [1 / (squared[j] + 1e-8) for j in three]
            mean = sum(w * features[cloud, j] for w, j in zip(weights, three, strict=True)) / sum(weights)
            out[cloud, row] = mean
    return out


def test_interpolation_by_hand() -> None:
    known = torch.tensor([[[0.0, 0, 0], [2, 0, 0], [0, 4, 0], [0, 0, 9]]])
    features = torch.tensor([[[1.0, 0], [2, 0], [3, 0], [100, 100]]])
    # At (0, 2, 0) the squared distances are 4, 8, 4 (and 85): weights 2, 1, 2 of 5.
    found = interpolate(torch.tensor([[[0.0, 2, 0]]]), known, features)
    torch.testing.assert_close(found, torch.tensor([[[(2 * 1 + 1 * 2 + 2 * 3) / 5, 0.0]]]))


@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_interpolation_is_the_slow_one(count: int) -> None:
    points, known, features = clouds(2, 20).double(), clouds(2, count).double(), torch.randn(2, count, 4).double()
    torch.testing.assert_close(interpolate(points, known, features), slow_interpolation(points, known, features))


def test_known_points_keep_their_features_and_copies_do_no_harm() -> None:
    known = clouds(2, 9)
    features = torch.randn(2, 9, 5)
    torch.testing.assert_close(interpolate(known, known, features), features, rtol=1e-5, atol=1e-4)
    same = torch.zeros(1, 4, 3)
    assert interpolate(same, same, torch.randn(1, 4, 2)).isfinite().all()


def test_interpolation_has_gradients() -> None:
    points, known = clouds(2, 7).double(), clouds(2, 5).double()
    features = torch.randn(2, 5, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: interpolate(points, known, given), (features,))


def test_propagation_puts_own_features_first() -> None:
    layer = FeaturePropagation(2 + 3, (4,)).eval()
    with torch.no_grad():
        layer.linears[0].weight[:, 2:] = 0  # deaf to what is interpolated
    points, known, own = clouds(2, 6), clouds(2, 3), torch.randn(2, 6, 2)
    one, other = (layer(points, known, own, torch.randn(2, 3, 3)) for _ in range(2))
    assert torch.equal(one, other)
    assert one.shape == (2, 6, 4)


@pytest.mark.parametrize(("name", "w"), [(NAMES[0], 64), (NAMES[1], 32)])
def test_layer_shapes_are_those_of_the_paper(name: str, w: int) -> None:
    model = build_model(name, (512, 3), 50)
    down1, down2 = [(w, 3), (w, w), (2 * w, w)], [(2 * w, 2 * w + 3), (2 * w, 2 * w), (4 * w, 2 * w)]
    down3 = [(4 * w, 4 * w + 3), (8 * w, 4 * w), (16 * w, 8 * w)]
    up3, up2 = [(4 * w, 20 * w), (4 * w, 4 * w)], [(4 * w, 6 * w), (2 * w, 4 * w)]
    up1, head = [(2 * w, 2 * w + 3), (2 * w, 2 * w), (2 * w, 2 * w)], [(2 * w, 2 * w), (50, 2 * w)]
    expected = [*down1, *down2, *down3, *up3, *up2, *up1, *head]
    assert [tuple(p.shape) for p in model.parameters() if p.dim() > 1] == expected
    biases, norms = sum(out for out, _ in expected), sum(out for out, _ in expected[:-1])
    weights = sum(out * given for out, given in expected)
    assert sum(p.numel() for p in model.parameters()) == weights + biases + 2 * norms
    assert sum(isinstance(part, nn.BatchNorm1d) for part in model.modules()) == len(expected) - 1


def test_what_the_builders_say_of_themselves() -> None:
    assert [models[name].points for name in NAMES] == [2048, 256]
    assert all(
        models[name].task == "segmentation" and models.summary(name).endswith((".", "thousand.")) for name in NAMES
    )
    assert all(models[name].defaults["augmentation"] == {"name": "points", "dropout": 0.0} for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_for_every_point(name: str) -> None:
    model = build_model(name, (40, 3), 5, **SMALL)
    assert isinstance(model, Classifier)
    for mode in (True, False):
        log_probabilities, features = model.train(mode)(clouds())
        assert log_probabilities.shape == (3, 40, 5)
        assert features.shape == (3, 40, model.feature_size)
        torch.testing.assert_close(log_probabilities.exp().sum(2), torch.ones(3, 40))
    torch.testing.assert_close(log_probabilities, model.head(features.flatten(0, 1)).view(3, 40, 5).log_softmax(2))


def test_points_move_with_their_answers() -> None:
    """With the first point in its place and balls that are not full, only the order of the answers changes."""
    model = build_model(NAMES[1], (40, 3), 4, **{**SMALL, "neighbours1": 40, "neighbours2": 16}).eval()
    x = clouds()
    order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(39)])
    torch.testing.assert_close(model(x)[0][:, order], model(x[:, order])[0])


def test_every_parameter_learns_also_from_tiny_clouds() -> None:
    for points in (40, 5):
        model = build_model(NAMES[0], (points, 3), 4, **SMALL, radius1=1.5)  # so that balls hold neighbours
        x = clouds(4, points)
        F.nll_loss(model(x)[0].flatten(0, 1), torch.arange(4 * points) % 4).backward()
        still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
        # A bias before BatchNorm has no effect, and its gradient may be exactly zero.
        assert [name for name in still if not name.endswith("bias")] == []


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(InputError, match="needs point clouds"):
        build_model(NAMES[0], (1, 28, 28), 4)
    with pytest.raises(InputError, match="the second level samples the first"):
        build_model(NAMES[0], (64, 3), 4, centres1=8, centres2=9)
    with pytest.raises(InputError, match="holds NaN or infinity"):
        build_model(NAMES[1], (40, 3), 4, **SMALL)(torch.full((2, 40, 3), torch.nan))
