"""Portable forms against the compiled kernels and the models they stand for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedstill.models import build_model, models
from fedstill.models.kernels import ball_query, farthest_points, group, plain
from fedstill.models.kernels.neighbours import nearest as nearest_compiled
from fedstill.models.kernels.ops import squared
from fedstill.models.pointnet import PointNet
from fedstill.models.portable.geometry import between, farthest, nearest, take, within
from fedstill.models.portable.written_out import PortablePointNet, PortablePointNet2, folded, portable
from fedstill.tasks.classification import Classification
from fedstill.tasks.task_choice import task_of

CLOUDS = {
    "random": lambda: torch.randn(3, 50, 3),
    "copies": lambda: torch.randn(2, 10, 3).repeat(1, 4, 1),
    "lattice": lambda: torch.cartesian_prod(*[torch.arange(4.0)] * 3).unsqueeze(0) / 3,
    "one place": lambda: torch.ones(2, 12, 3),
}
POINT_MODELS = [name for name in models.names() if hasattr(models[name], "points") and task_of(name) is Classification]


@pytest.fixture(params=list(CLOUDS))
def clouds(request: pytest.FixtureRequest) -> Tensor:
    return CLOUDS[request.param]()


@pytest.mark.parametrize("samples", [1, 7, 30])
def test_sampling_gives_the_same_indices(clouds: Tensor, samples: int) -> None:
    chosen, distances = farthest(clouds, samples)
    assert torch.equal(chosen, farthest_points(clouds, samples))
    assert torch.equal(chosen, plain.farthest_points(clouds, samples))
    wanted = plain.squared_distances(clouds, take(clouds, chosen))
    assert torch.equal(distances.transpose(0, 1), wanted)
    assert torch.equal(between(clouds, take(clouds, chosen)).transpose(0, 1), wanted)


@pytest.mark.parametrize("neighbours", [1, 5, 9])
@pytest.mark.parametrize("radius", [0.0, 0.4, 1.0, 9.0])
def test_balls_hold_the_same_points(clouds: Tensor, radius: float, neighbours: int) -> None:
    centres = clouds[:, :6]
    found = within(between(clouds, centres), squared(radius, torch.float32), neighbours)
    assert torch.equal(found, ball_query(clouds, centres, radius, neighbours))


def test_a_ball_holds_no_more_than_there_are() -> None:
    """Two points, five asked for: the padding, which a maximum does not notice, is left out."""
    cloud = torch.tensor([[[0.0, 0, 0], [1, 0, 0]]])
    assert within(between(cloud, cloud), 0.25, 5).tolist() == [[[0, 0], [1, 1]]]


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_the_nearest_are_the_same(channels: int) -> None:
    rows = torch.randn(2, 80, channels) + 100  # far from the origin, where products round
    found = nearest(rows, 6).sort(dim=2).values
    assert torch.equal(found, nearest_compiled(rows, rows, 6)[1].sort(dim=2).values)


def test_the_nearest_of_equals_is_the_first() -> None:
    line = torch.tensor([[[0.0], [2.0], [1.0], [2.0]]])
    assert nearest(line, 2).sort(dim=2).values.tolist() == [[[0, 2], [1, 3], [0, 2], [1, 3]]]
    assert nearest(line, 9).shape == (1, 4, 4)


def test_rows_are_taken_from_their_own_cloud() -> None:
    rows, index = torch.randn(3, 7, 4), torch.randint(0, 7, (3, 5, 2))
    assert torch.equal(take(rows, index), group(rows, index))


def test_folding_by_hand() -> None:
    """y = ((2x + 1) - 3) / sqrt(4) * 10 + 5 = 10x - 5, with eps 0."""
    linear, norm = nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)
    norm.load_state_dict(
        {
            name: torch.tensor([value])
            for name, value in {"weight": 10.0, "bias": 5.0, "running_mean": 3.0, "running_var": 4.0}.items()
        },
        strict=False,
    )
    linear.load_state_dict({"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])})
    one = folded(linear, norm)
    assert (one.weight.item(), one.bias.item()) == (10.0, -5.0)


@pytest.mark.parametrize("name", POINT_MODELS)
def test_the_portable_form_is_the_same_function(
    name: str, make_trained: Callable[[str], nn.Module], make_task: Callable[[str], Classification]
) -> None:
    model = make_trained(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    inputs = torch.randn(3, *make_task(name).shape) / 2
    with torch.inference_mode():
        wanted, found = model(inputs), portable(model)(inputs)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=2e-5)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


class Doubled(PointNet):
    def forward(self, points: Tensor) -> Tensor:
        return 2 * super().forward(points)


def test_only_exactly_known_parts_are_replaced() -> None:
    deep = nn.Sequential(nn.Sequential(PointNet(4, 4, 4, 0.1)), Doubled(4, 4, 4, 0.1))
    parts = [type(part) for part in portable(deep).modules()]
    assert PortablePointNet in parts
    assert PointNet not in parts
    assert Doubled in parts
    assert isinstance(portable(PointNet(4, 4, 4, 0.1)), PortablePointNet)
    assert isinstance(portable(build_model("pointnet2-lite", (64, 3), 3)).extractor, PortablePointNet2)
