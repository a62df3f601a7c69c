"""The point-cloud models: sizes to the element, shapes, heads, and what every classifier here promises."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.models import build_model, freeze, models

FAMILIES = ("pointnet", "small-pointnet")
# Multi-scale grouping has sizes and tests of its own.
NAMES = [
    name
    for name in models.names()
    if name.startswith(FAMILIES) and "segmentation" not in name and name != "pointnet2-msg"
]
LEVELS = {"centres1": 16, "neighbours1": 6, "centres2": 6, "neighbours2": 5}
SMALL = {name: {"width": 8, **LEVELS} if "2" in name else {"width": 16} for name in NAMES}


def small(name: str, classes: int = 4, points: int = 48) -> nn.Module:
    return build_model(name, (points, 3), classes, **SMALL[name])


def clouds(batch: int = 4, points: int = 48) -> Tensor:
    return F.normalize(torch.randn(batch, points, 3), dim=-1)


def test_the_models_and_the_points_they_want() -> None:
    wanted = {name: models[name].points for name in NAMES}
    full, lite = ("pointnet", "pointnet2", "small-pointnet2"), ("pointnet2-lite", "small-pointnet2-lite")
    tiny = ("pointnet-tiny", "small-pointnet-tiny")
    assert wanted == {**dict.fromkeys(full + lite, 1024), **dict.fromkeys(tiny, 256)}
    assert all(models.summary(name).endswith((".", ":", "baseline.")) for name in NAMES)


@pytest.mark.parametrize(
    ("name", "classes", "parameters", "buffers", "mebibytes"),
    [
        ("pointnet2", 40, 1_475_688, 6_667, 5.655),
        ("pointnet2", 4, 1_466_436, 6_667, 5.619),
        ("small-pointnet2", 40, 374_344, 3_339, 1.441),
        ("small-pointnet2", 4, 369_700, 3_339, 1.423),
    ],
)
def test_sizes_to_the_element(name: str, classes: int, parameters: int, buffers: int, mebibytes: float) -> None:
    model = build_model(name, (1024, 3), classes)
    assert sum(tensor.numel() for tensor in model.parameters()) == parameters
    assert sum(tensor.numel() for tensor in model.buffers()) == buffers
    assert sum(tensor.nbytes for tensor in model.state_dict().values()) / 2**20 == pytest.approx(mebibytes, abs=5e-4)


def linear_shapes(width: int, classes: int) -> list[tuple[int, int]]:
    w = width
    level1 = [(w, 3), (w, w), (2 * w, w)]
    level2 = [(2 * w, 2 * w + 3), (2 * w, 2 * w), (4 * w, 2 * w)]
    level3 = [(4 * w, 4 * w + 3), (8 * w, 4 * w), (16 * w, 8 * w)]
    return [*level1, *level2, *level3, (8 * w, 16 * w), (4 * w, 8 * w), (classes, 4 * w)]


@pytest.mark.parametrize(
    ("name", "width"),
    [("pointnet2", 64), ("small-pointnet2", 32), ("pointnet2-lite", 32), ("small-pointnet2-lite", 16)],
)
def test_layer_shapes(name: str, width: int) -> None:
    model = build_model(name, (1024, 3), 10)
    assert [tuple(p.shape) for p in model.parameters() if p.dim() > 1] == linear_shapes(width, 10)
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm1d)]
    assert [norm.num_features for norm in norms] == [out for out, _ in linear_shapes(width, 10)[:-1]]
    assert all(norm.momentum == 0.1 and norm.eps == 1e-5 for norm in norms)
    assert model.feature_size == 16 * width


def test_layer_shapes_of_the_pointnets() -> None:
    for name, shapes in {
        "pointnet": [(64, 3), (128, 64), (1024, 128), (512, 1024), (256, 512), (5, 256)],
        "pointnet-tiny": [(32, 3), (64, 32), (128, 64), (64, 128), (32, 64), (5, 32)],
        "small-pointnet-tiny": [(16, 3), (32, 16), (64, 32), (32, 64), (16, 32), (5, 16)],
    }.items():
        assert [tuple(p.shape) for p in build_model(name, (256, 3), 5).parameters() if p.dim() > 1] == shapes


def test_state_names_stay_what_they_are() -> None:
    """They are on the wire and in checkpoints."""
    names = list(build_model("pointnet2-lite", (256, 3), 4).state_dict())
    tensors = ("weight", "bias")
    kept = (*tensors, "running_mean", "running_var", "num_batches_tracked")
    assert names == [
        *(
            f"extractor.level{level}.{part}{number}.{tensor}"
            for level in (1, 2, 3)
            for number in (1, 2, 3)
            for part in ("linear", "norm")
            for tensor in (tensors if part == "linear" else kept)
        ),
        *(f"head.{place}.{tensor}" for place in (0, 1, 4, 5, 8) for tensor in (kept if place in (1, 5) else tensors)),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_outputs(name: str) -> None:
    model = small(name)
    x = clouds(3)
    for mode in (True, False):
        log_probabilities, features = model.train(mode)(x)
        assert log_probabilities.shape == (3, 4)
        assert features.shape == (3, model.feature_size)
        torch.testing.assert_close(log_probabilities.exp().sum(1), torch.ones(3))
    assert torch.equal(log_probabilities, model.head(features).log_softmax(1))


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_points_matters_only_to_sampling(name: str) -> None:
    """With the first point in its place, distinct distances and balls that are not full, any order is the same."""
    sizes = {**SMALL[name], "neighbours1": 48, "neighbours2": 16} if "2" in name else {}
    model = build_model(name, (48, 3), 4, **sizes).eval()
    x = clouds()
    order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(47)])
    torch.testing.assert_close(model(x)[0], model(x[:, order])[0])


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_come_from_the_ambient_generator_alone(name: str) -> None:
    def fresh(seed: int) -> dict[str, Tensor]:
        with Streams(seed).ambient("initial"):
            return small(name).state_dict()

    one, again, other = fresh(0), fresh(0), fresh(1)
    assert all(torch.equal(value, again[key]) for key, value in one.items())
    assert all(not torch.equal(value, other[key]) for key, value in one.items() if value.dim() > 1)


@pytest.mark.parametrize("name", NAMES)
def test_extractors_can_be_frozen(name: str) -> None:
    model = small(name)
    freeze(model.extractor)
    before = {key: value.clone() for key, value in model.extractor.state_dict().items()}
    model.train()
    optimiser = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    log_probabilities, features = model(clouds())
    assert not features.requires_grad
    F.nll_loss(log_probabilities, torch.arange(4)).backward()
    optimiser.step()
    assert all(torch.equal(before[key], value) for key, value in model.extractor.state_dict().items())
    assert all(parameter.grad is not None for parameter in model.head.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_pickles_are_the_same_model(name: str) -> None:
    model = small(name)
    model(clouds())
    model.eval()
    x = clouds()
    with torch.no_grad():
        expected = model(x)[0]
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(expected, other(x)[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3, 32, 32), (64,), (0, 3), (100, 6)])
def test_a_shape_a_model_cannot_read_is_one_sentence(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=f"model '{name}' cannot read inputs of shape .* point clouds"):
        build_model(name, shape, 10)


@pytest.mark.parametrize("name", NAMES)
def test_bad_clouds_are_refused(name: str) -> None:
    model = small(name)
    x = clouds()
    x[2, 0, 0] = torch.nan
    for mode in (True, False):
        with pytest.raises(InputError, match="cloud 2 of the batch"):
            model.train(mode)(x)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_can_be_learnt(name: str) -> None:
    """Spheres, and the same squashed to discs, in a few steps."""
    x, y = clouds(64), torch.arange(64) % 2
    x[y == 1, :, 2] *= 0.2
    model = small(name, classes=2)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for rows in torch.arange(64).repeat(25).split(16):
        optimiser.zero_grad()
        F.nll_loss(model(x[rows])[0], y[rows]).backward()
        optimiser.step()
    with torch.no_grad():
        assert (model.eval()(x)[0].argmax(1) == y).float().mean() > 0.9
