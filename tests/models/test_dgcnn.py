"""The compact DGCNN: sizes, neighbours against brute force, edge layers against the formula written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.models import build_model, models
from fedstill.models.dgcnn import EdgeConv
from fedstill.models.kernels.neighbours import nearest, nearest_plain, summarise


def clouds(batch: int = 3, points: int = 40, channels: int = 3) -> Tensor:
    return torch.randn(batch, points, channels)


def with_ties(batch: int = 2, points: int = 30, channels: int = 3) -> Tensor:
    """A small grid: many points in the same place, and many more equally far."""
    return torch.randint(0, 3, (batch, points, channels)).float()


def brute_force(queries: Tensor, points: Tensor, count: int) -> list[list[list[int]]]:
    found = []
    for some, others in zip(queries.tolist(), points.tolist(), strict=True):
        rows = []
        for at in some:
            far = [sum((a - b) ** 2 for a, b in zip(at, other, strict=True)) for other in others]
            rows.append(sorted(range(len(others)), key=lambda j: (far[j], j))[:count])
        found.append(rows)
    return found


def test_size_and_shapes() -> None:
    model = build_model("dgcnn", (1024, 3), 40)
    assert [tuple(p.shape) for p in model.parameters() if p.dim() > 1] == [
        *((32, 6), (32, 64), (64, 64), (128, 128)),
        *((512, 256), (208, 1024), (104, 208), (40, 104)),
    ]
    assert sum(parameter.numel() for parameter in model.parameters()) == 395_088
    assert sum(buffer.numel() for buffer in model.buffers()) == 2_160 + 7
    assert sum(tensor.nbytes for tensor in model.state_dict().values()) / 2**20 == pytest.approx(1.515, abs=5e-4)
    assert models["dgcnn"].points == 1024
    assert model.feature_size == 1024


def test_outputs_of_every_layer() -> None:
    model = build_model("dgcnn", (40, 3), 5)
    shapes = []
    for layer in model.extractor.edges:
        layer.register_forward_hook(lambda module, given, out: shapes.append(tuple(out.shape)))
    for mode in (True, False):
        log_probabilities, features = model.train(mode)(clouds())
        assert log_probabilities.shape == (3, 5)
        assert features.shape == (3, 1024)
        torch.testing.assert_close(log_probabilities.exp().sum(1), torch.ones(3))
    assert shapes == 2 * [(3, 40, width) for width in (32, 32, 64, 128)]
    assert torch.equal(log_probabilities, model.head(features).log_softmax(1))


@pytest.mark.parametrize("make", [clouds, with_ties])
@pytest.mark.parametrize("count", [1, 7, 99])
def test_nearest_is_brute_force(make: object, count: int) -> None:
    points = make(channels=4).double()  # type: ignore[operator]
    queries = torch.cat([points[:, ::3], clouds(len(points), 5, 4).double()], dim=1)
    distances, index = nearest(queries, points, count)
    assert index.tolist() == brute_force(queries, points, count)
    exact = (queries.unsqueeze(2) - points.unsqueeze(1)).square().sum(3).gather(2, index)
    torch.testing.assert_close(distances, exact)


@pytest.mark.parametrize("channels", [1, 3, 33])
@pytest.mark.parametrize("make", [clouds, with_ties])
def test_compiled_and_plain_neighbours_agree_to_the_bit(make: object, channels: int) -> None:
    points = make(channels=channels) * 0.1  # type: ignore[operator]
    for one, other in zip(nearest(points, points, 9), nearest_plain(points, points, 9), strict=True):
        assert torch.equal(one, other)


def test_copies_are_at_distance_zero_however_large_the_channels_are() -> None:
    points = (1e4 + clouds(1, 6, 64)).repeat(1, 2, 1)
    distances, index = nearest(points, points, 2)
    assert distances.eq(0).all()
    assert index[0].tolist() == 2 * [[row, row + 6] for row in range(6)]


def written_out(layer: EdgeConv, features: Tensor) -> Tensor:
    """The formula with a row for every edge, and torch's own BatchNorm."""
    _, index = nearest_plain(features.detach(), features.detach(), min(layer.neighbours, features.shape[1]))
    neighbours = torch.stack([cloud[rows] for cloud, rows in zip(features, index, strict=True)])
    own = features.unsqueeze(2).expand_as(neighbours)
    edges = layer.linear(torch.cat([own, neighbours - own], dim=3))
    edges = layer.norm(edges.permute(0, 3, 1, 2).flatten(2)).view(len(edges), -1, *edges.shape[1:3])
    return F.leaky_relu(edges, 0.2).amax(dim=3).transpose(1, 2)


def twins(neighbours: int) -> tuple[EdgeConv, EdgeConv]:
    pair = EdgeConv(5, 12, neighbours), EdgeConv(5, 12, neighbours)
    with torch.no_grad():
        pair[0].norm.weight.copy_(torch.randn(12))  # some factors are negative: there the minimum counts
        pair[0].norm.bias.copy_(torch.randn(12))
        pair[0].norm.running_mean.copy_(torch.randn(12))
        pair[0].norm.running_var.copy_(torch.rand(12) + 0.5)
    pair[1].load_state_dict(pair[0].state_dict())
    return pair


@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("neighbours", [6, 100])
@pytest.mark.parametrize("training", [True, False])
def test_an_edge_layer_is_its_formula(training: bool, neighbours: int, offset: float) -> None:
    ours, theirs = twins(neighbours)
    features = clouds(4, 30, 5) + offset
    one, other = features.clone().requires_grad_(), features.clone().requires_grad_()
    out, expected = ours.train(training)(one), written_out(theirs.train(training), other)
    tolerance = 1e-5 if offset == 0 else 1e-4  # far from zero the formula itself has fewer digits
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=10 * tolerance)
    for (name, parameter), twin in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, twin.grad, rtol=1e-3, atol=10 * tolerance * 30, msg=name)
    for (name, kept), twin in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(kept, twin, rtol=1e-5, atol=1e-5, msg=name)


def test_gradients_of_an_edge_layer_are_exact() -> None:
    layer = EdgeConv(3, 4, 5).double()
    with torch.no_grad():
        layer.norm.weight.copy_(torch.tensor([1.0, -0.5, 2.0, -1.0]))

    def run(weight: Tensor, features: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"linear.weight": weight}, (features,))

    weight, features = layer.linear.weight.detach().requires_grad_(), clouds(2, 9).double().requires_grad_()
    assert torch.autograd.gradcheck(run, (weight, features))


def test_sums_over_neighbours_without_a_row_for_each() -> None:
    rows = clouds(2, 20, 6).requires_grad_()
    _, index = nearest(rows, rows, 5)
    ours = summarise(rows, index)
    along = torch.stack([cloud[i] for cloud, i in zip(rows, index, strict=True)])
    written = along.amax(2), along.sum(2), along.square().sum(2)
    for one, other in zip(ours, written, strict=True):
        torch.testing.assert_close(one, other)
        weights = torch.randn_like(one)
        gradients = (torch.autograd.grad((out * weights).sum(), rows, retain_graph=True)[0] for out in (one, other))
        torch.testing.assert_close(*gradients)


def test_the_order_of_points_does_not_matter() -> None:
    model = build_model("dgcnn", (64, 3), 6, width=16).eval()
    x = clouds(4, 64)
    torch.testing.assert_close(model(x)[0], model(x[:, torch.randperm(64)])[0])


def test_a_cloud_alone_is_what_it_is_in_company() -> None:
    model = build_model("dgcnn", (24, 3), 6, width=16, neighbours=5).eval()
    x = clouds(19, 24)
    with torch.inference_mode():
        together = model(x)[1]
        alone = torch.cat([model(one.unsqueeze(0))[1] for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(together, model(x)[1], rtol=1e-6, atol=1e-6)


def test_every_parameter_learns_even_from_clouds_smaller_than_a_neighbourhood() -> None:
    model = build_model("dgcnn", (8, 3), 4, width=16)
    F.nll_loss(model(clouds(6, 8))[0], torch.arange(6) % 4).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_it_learns_to_tell_shapes_apart() -> None:
    model = build_model("dgcnn", (32, 3), 2, width=16, neighbours=8, dropout=0.0)
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)

    def batch() -> tuple[Tensor, Tensor]:
        labels = torch.arange(16) % 2
        x = F.normalize(torch.randn(16, 32, 3), dim=-1)
        return torch.where(labels.view(-1, 1, 1) == 0, x, x * torch.tensor([1.0, 1.0, 0.5])), labels

    for _ in range(60):
        x, labels = batch()
        optimiser.zero_grad()
        F.nll_loss(model(x)[0], labels).backward()
        optimiser.step()
    x, labels = batch()
    assert (model.eval()(x)[0].argmax(1) == labels).float().mean() > 0.9


def test_running_statistics_can_be_taken_from_all_batches_alike() -> None:
    layer, other = twins(6)
    for norm in (layer.norm, other.norm):
        norm.momentum = None
        norm.reset_running_stats()
    for _ in range(3):
        x = clouds(2, 12, 5)
        layer(x)
        written_out(other, x)
    torch.testing.assert_close(layer.norm.running_mean, other.norm.running_mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.norm.running_var, other.norm.running_var, rtol=1e-5, atol=1e-5)


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(InputError, match="needs point clouds"):
        build_model("dgcnn", (1, 28, 28), 4)
    with pytest.raises(InputError, match="at least one neighbour a point, not 0"):
        build_model("dgcnn", (64, 3), 4, neighbours=0)
    x = clouds()
    x[1, 4, 2] = float("nan")
    with pytest.raises(InputError, match="cloud 1 of the batch holds NaN"):
        build_model("dgcnn", (40, 3), 4)(x)
