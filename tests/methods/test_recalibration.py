"""Recalibration, against a reference that sees all data at once and knows nothing of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.dataset import ArrayDataset
from fedstill.core.kinds import load_state, norm_layers, running, state_of
from fedstill.core.message import Message, part
from fedstill.core.protocols import Failure, Reply
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.engines import InProcess
from fedstill.methods.recalibration import recalibrate_exactly, recalibrations
from fedstill.models import build_model, models
from fedstill.models.resnet import basic_block, resnet
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.run import execute
from fedstill.tasks.classification import Classification

from .sites import Site, build

IMAGE, CLOUD, CLASSES = (1, 8, 8), (48, 3), 3
BUILDERS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "cnn-bn": (IMAGE, lambda: build_model("cnn-bn", IMAGE, CLASSES)),
    "resnet with shortcuts": (IMAGE, lambda: resnet(IMAGE, CLASSES, basic_block, 4, (4, 8), (1, 2))),
    "wrn16-1": (IMAGE, lambda: build_model("wrn16-1", IMAGE, CLASSES)),
    "pointnet": (CLOUD, lambda: build_model("pointnet-tiny", CLOUD, CLASSES, width=8)),
    "pointnet2": (CLOUD, lambda: build_model("pointnet2-lite", CLOUD, CLASSES, width=4)),
    "dgcnn": (CLOUD, lambda: build_model("dgcnn", CLOUD, CLASSES, width=8, neighbours=5)),
}

# The fast path of point clouds sums in single precision, where plain torch's inputs are summed around their mean.
LIMITS = {"pointnet": 1e-4, "pointnet2": 1e-4}


@dataclass(frozen=True)
class Built(Classification):
    """Classification with one of the small models above, whose weights are always the same draw."""

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> nn.Module:
        with Streams(0).ambient("initialise"):
            model = BUILDERS[architecture][1]()
            for layer in norm_layers(model).values():
                nn.init.uniform_(layer.weight, -1.5, 1.5)
                nn.init.normal_(layer.bias)
        if state is not None:
            load_state(model, state)
        return model


def task_of(name: str) -> Built:
    return Built(("a", "b", "c"), BUILDERS[name][0], (name,))


def skewed(shape: tuple[int, ...], sizes: Sequence[int]) -> list[ArrayDataset]:
    """Clients that hold one class each, and classes that look different: brighter, or longer, and moved."""
    draws = Streams(3).draw("skewed", *shape)
    shards = []
    for label, size in enumerate(sizes):
        inputs = torch.from_numpy(draws.standard_normal((size, *shape))).float()
        looks = 0.2 * inputs * (1 + label) + 0.2 * label
        shards.append(ArrayDataset(inputs=looks, labels=torch.full((size,), label % CLASSES)))
    return shards


def recalibrated(task: Built, data: list[ArrayDataset], way: str, batch: int) -> tuple[Tensors, list[list[Reply]]]:
    """The model's state after its statistics were measured by these clients, and their replies."""
    site = Site(build("fedavg", task), task, data)
    replies = []
    for exchange in recalibrations(task, way, batch):
        replies.append([site.ask(client, 0, exchange) for client in range(len(data))])
        arrived = [reply for reply in replies[-1] if isinstance(reply, Reply)]
        site.server = exchange.aggregate(site.server, arrived, site.context(0, exchange.name))
    return part(site.server, "model/"), replies


def pooled(task: Built, model: nn.Module, data: Sequence[ArrayDataset]) -> Tensors:
    """The reference: all inputs in one batch, and layer after layer, in the order in which data reaches them, set to
    the mean and the unbiased variance of what arrives when the layers before use their new statistics."""
    inputs = torch.cat([shard.batch(torch.arange(len(shard)))["inputs"] for shard in data])
    model.eval()
    for name in order_of_arrival(model, inputs):
        seen: list[Tensor] = []
        layer = norm_layers(model)[name]
        hook = layer.register_forward_pre_hook(lambda layer, given, seen=seen: seen.append(given[0]))
        with torch.no_grad():
            model(inputs)
        hook.remove()
        # A model may take its batch in several pieces.
        rows = torch.cat([piece.double().transpose(0, 1).flatten(1) for piece in seen], dim=1)
        layer.running_mean.copy_(rows.mean(dim=1))
        layer.running_var.copy_(rows.var(dim=1, correction=1))
    return state_of(model)


def order_of_arrival(model: nn.Module, inputs: Tensor) -> list[str]:
    seen: dict[str, None] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda layer, given, name=name: seen.setdefault(name))
        for name, layer in norm_layers(model).items()
    ]
    with torch.no_grad():
        model(inputs)
    for hook in hooks:
        hook.remove()
    return list(seen)


def furthest(model: nn.Module, ours: Tensors, theirs: Tensors) -> float:
    """The largest difference of a running statistic, in units of the layer's own standard deviation or variance."""
    worst = 0.0
    means, variances = (running(model, statistic) for statistic in ("running_mean", "running_var"))
    for layer in means:
        spread = theirs[variances[layer]].double()
        mean = (ours[means[layer]] - theirs[means[layer]]).double().abs() / spread.sqrt()
        variance = (ours[variances[layer]] - theirs[variances[layer]]).double().abs() / spread
        worst = max(worst, float(mean.max()), float(variance.max()))
    return worst


@pytest.mark.parametrize("name", BUILDERS)
def test_layer_by_layer_is_pooled_data(name: str) -> None:
    """Three clients with different numbers of different data, batches of five (the last of them of one): 1e-5."""
    task = task_of(name)
    data = skewed(task.shape, (6, 9, 11))
    ours, _ = recalibrated(task, data, "layer-by-layer", batch=5)
    theirs = pooled(task, task.build(name), data)
    assert furthest(task.build(name), ours, theirs) < LIMITS.get(name, 1e-5)
    start = state_of(task.build(name))
    assert all(torch.equal(ours[one], start[one]) for one in ours if not one.startswith("buffers/"))
    assert furthest(task.build(name), start, theirs) > 0.1


@pytest.mark.parametrize("name", BUILDERS)
def test_one_pass_is_pooled_data_where_all_batches_are_alike(name: str) -> None:
    """Three clients with the same data in one batch: what training-mode BatchNorm sees in all of them at once.

    The reference is torch's own: momentum None keeps the plain statistics of the one batch it has seen.
    """
    task = task_of(name)
    data = skewed(task.shape, (12,)) * 3
    ours, _ = recalibrated(task, data, "one-pass", batch=12)
    model = task.build(name).eval()
    for layer in norm_layers(model).values():
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
        layer.register_forward_pre_hook(lambda layer, given: None)  # models with a fast path take the plain one
    with torch.no_grad():
        # Thirty-six clouds are more than DGCNN evaluates at once: in training it takes them all.
        model.extractor.training = True
        model(torch.cat([shard.columns["inputs"] for shard in data]))
    assert furthest(model, ours, state_of(model)) < LIMITS.get(name, 1e-5)


@pytest.mark.parametrize("name", BUILDERS)
def test_one_pass_is_exact_for_the_first_layer_and_only_close_for_later_ones(name: str) -> None:
    """With a class a client some later channel is off by a fifth of its standard deviation or variance, or more: only
    layer-by-layer is as if data were pooled, as the setting's description says."""
    task = task_of(name)
    data = skewed(task.shape, (6, 9, 11))
    ours, _ = recalibrated(task, data, "one-pass", batch=16)
    theirs = pooled(task, task.build(name), data)
    first = next(iter(running(task.build(name), "running_var").values()))
    assert torch.allclose(ours[first], theirs[first], rtol=1e-5)
    assert furthest(task.build(name), ours, theirs) > 0.2


@pytest.mark.parametrize("name", BUILDERS)
def test_a_server_with_data_of_its_own_measures_exactly(name: str) -> None:
    """More samples than fit into one batch of evaluation, of three different kinds one after the other."""
    task = task_of(name)
    shards = skewed(task.shape, (120, 9, 140) if task.shape == IMAGE else (6, 9, 11))
    model = task.build(name)
    whole = ArrayDataset(**{key: torch.cat([one.columns[key] for one in shards]) for key in ("inputs", "labels")})
    recalibrate_exactly(model, task, whole)
    assert furthest(model, state_of(model), pooled(task, task.build(name), shards)) < LIMITS.get(name, 1e-5)


class Bare(Classification):
    """The model of a test, whatever it is."""

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch["inputs"])


def test_exact_statistics_by_hand() -> None:
    """0, 2, 4, 9 times 2 plus 1 are 1, 5, 9, 19: mean 8.5, squares 56.25 + 12.25 + 0.25 + 110.25 = 179, over 3.

    Dropout before the layer would halve and double inputs; after ReLU of (x - 8.5) / sqrt(179/3 + eps) * 3 the second
    layer gets 0, 0 and two numbers.
    """
    first, second = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    linear = nn.Linear(1, 1)
    with torch.no_grad():
        linear.weight.fill_(2), linear.bias.fill_(1), first.weight.fill_(3)
    model = nn.Sequential(nn.Dropout(0.5), linear, first, nn.ReLU(), nn.Dropout(0.5), second)
    task = Bare(("a", "b"), (1,), ("mlp",))
    recalibrate_exactly(model.train(), task, ArrayDataset(inputs=torch.tensor([[0.0], [2.0], [4.0], [9.0]])))
    assert (first.running_mean.item(), first.running_var.item()) == pytest.approx((8.5, 179 / 3), rel=1e-6)
    scale = 3 / (179 / 3 + 1e-5) ** 0.5
    low, high = 0.5 * scale, 10.5 * scale
    mean = (low + high) / 4
    variance = (2 * mean**2 + (low - mean) ** 2 + (high - mean) ** 2) / 3
    assert (second.running_mean.item(), second.running_var.item()) == pytest.approx((mean, variance), rel=1e-6)
    assert not model.training


def test_exact_statistics_follow_the_order_of_calls() -> None:
    """The layer that is defined last is called first; with one sample there is no variance, and nothing changes."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.late, self.early = nn.BatchNorm1d(1), nn.BatchNorm1d(1)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.late(self.early(inputs))

    model, task = Backwards(), Bare(("a", "b"), (1,), ("mlp",))
    recalibrate_exactly(model, task, ArrayDataset(inputs=torch.tensor([[7.0]])))
    assert (model.early.running_mean.item(), model.late.running_var.item()) == (0, 1)
    recalibrate_exactly(model, task, ArrayDataset(inputs=torch.tensor([[3.0], [5.0]])))
    assert (model.early.running_mean.item(), model.early.running_var.item()) == (4, 2)
    assert (model.late.running_mean.item(), model.late.running_var.item()) == pytest.approx((0, 1), abs=1e-4)


def shape_for(name: str) -> tuple[int, ...]:
    return (64, 3) if hasattr(models[name], "points") else (1, 64) if name == "cnn1d" else (1, 8, 8)


@pytest.mark.parametrize("name", models.names())
def test_batchnorm_layers_of_every_model_can_be_listened_to_in_an_order_in_which_data_flows(name: str) -> None:
    """A model that went around its BatchNorm modules would send nothing; and one layer at a time works only if those
    defined before it are those that its data came through."""
    fewer = {"tokens": 32, "queries": 8} if "detr3d" in name else {}  # they change no layer
    fewer |= {"candidates": 16} if "detr3d-lite" in name else {}
    with Streams(0).ambient("model"):
        model = build_model(name, shape_for(name), CLASSES, **fewer).eval()
        inputs = torch.randn(2, *shape_for(name))
    assert order_of_arrival(model, inputs) == list(norm_layers(model))


@pytest.mark.parametrize("name", ["pointnet2-lite", "dgcnn", "cnn-bn"])
def test_each_layer_is_reached_when_it_is_listened_to_alone(name: str) -> None:
    """Fast paths look for hooks layer by layer: none may be overlooked."""
    with Streams(0).ambient("model"):
        model = build_model(name, shape_for(name), CLASSES).eval()
        inputs = torch.randn(2, *shape_for(name))
    for layer in norm_layers(model).values():
        seen: list[int] = []
        hook = layer.register_forward_pre_hook(lambda layer, given, seen=seen: seen.append(1))
        with torch.no_grad():
            model(inputs)
        hook.remove()
        assert seen


def rows_seen(name: str, way: str, clouds: int, batch: int) -> list[int]:
    task = task_of(name)
    _, replies = recalibrated(task, skewed(task.shape, (clouds,)), way, batch)
    return [int(tensor) for (reply,) in replies for key, tensor in reply.message.items() if key.endswith("/rows")]


@pytest.mark.parametrize(
    ("name", "way"),
    [("pointnet", "layer-by-layer"), ("dgcnn", "one-pass"), ("dgcnn", "layer-by-layer")],
)
def test_every_sample_of_a_batch_is_counted(name: str, way: str) -> None:
    """24 clouds, the usual batch for clouds. Layers before pooling see 24 * 48 points (times 5 neighbours in the edge
    layers of DGCNN), the head's two layers 24."""
    points = [24 * 48] * 3 if name == "pointnet" else [24 * 48 * 5] * 4 + [24 * 48]
    assert sorted(rows_seen(name, way, 24, batch=24)) == sorted([*points, 24, 24])


def test_what_leaves_a_client_is_statistics_and_nothing_else() -> None:
    """For each layer the number of rows, their sum and the sum of their squares: by hand for the first of `cnn-bn`."""
    task = task_of("cnn-bn")
    (shard,) = skewed(task.shape, (7,))
    for way, count in (("one-pass", 1), ("layer-by-layer", 2)):
        exchanges = recalibrations(task, way, 4)
        assert len(exchanges) == count
        site = Site(build("fedavg", task), task, [shard])
        site.states[0] = {"kept": torch.ones(1)}
        for exchange in exchanges:
            assert {line.kind for line in exchange.egress} == {"statistics"}
            reply = site.ask(0, 0, exchange)
            expected = exchange.expect(site.server, site.profile(0), Message({}))
            assert {name: (tuple(t.shape), t.dtype) for name, t in reply.message.items()} == dict(expected)
            assert {name.rsplit("/", 1)[1] for name in reply.message} == {"rows", "sum", "squares"}
            assert set(reply.state) == {"kept"}
        _, replies = recalibrated(task, [shard], way, 4)
        message = replies[0][0].message
        layer = next(iter(norm_layers(task.build("cnn-bn"))))
        convolution = task.build("cnn-bn").extractor[1]
        with torch.no_grad():
            arriving = convolution(shard.columns["inputs"]).double()
        assert message[f"norm/{layer}/rows"].item() == 7 * 64
        assert torch.allclose(message[f"norm/{layer}/sum"], arriving.sum(dim=(0, 2, 3)), rtol=1e-5)
        assert torch.allclose(message[f"norm/{layer}/squares"], arriving.square().sum(dim=(0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize(("way", "samples", "abstains"), [("one-pass", 1, True), ("layer-by-layer", 1, False)])
def test_a_client_without_enough_data_abstains_and_the_others_decide(way: str, samples: int, abstains: bool) -> None:
    """One sample has no variance to normalise by in training mode; measured layer by layer it counts like any other.
    Nobody can say anything without data."""
    task = task_of("cnn-bn")
    usual = skewed(task.shape, (6, 9))
    for count in (samples, 0):
        (little,) = skewed(task.shape, (max(count, 1),))
        little = ArrayDataset(**{name: column[:count] for name, column in little.columns.items()})
        ours, replies = recalibrated(task, [*usual, little], way, batch=16)
        outcome = replies[0][2]
        if abstains or count == 0:
            assert isinstance(outcome, Failure)
            assert outcome.reason == "abstained"
            assert furthest(task.build("cnn-bn"), ours, recalibrated(task, usual, way, batch=16)[0]) == 0
        else:
            assert isinstance(outcome, Reply)
            theirs = pooled(task, task.build("cnn-bn"), [*usual, little])
            assert furthest(task.build("cnn-bn"), ours, theirs) < 1e-5


def test_models_without_batchnorm_take_no_extra_exchange() -> None:
    task = Classification(("a", "b"), IMAGE, ("cnn",))
    for way in ("one-pass", "layer-by-layer"):
        assert list(recalibrations(task, way, 16)) == []
        method = build("fedavg", task, buffers="recalibrate", recalibration=way)
        assert list(method.exchanges({}, 0)) == [method]


def test_a_run_ends_with_the_statistics_of_its_final_weights(tiny_plan: Any, tmp_path: Path) -> None:
    """Digits with a class or two a client, FedAvgM: the statistics are those of all training data under the final
    weights, which averaged ones are far from."""
    task, gaps = task_of("cnn-bn"), {}
    for way, settings in (("recalibrate", {"recalibration": "layer-by-layer"}), ("average", {})):
        plan = tiny_plan(
            method={"name": "fedavgm", "buffers": way, **settings},
            model="cnn-bn",
            rounds=2,
            evaluate_every=2,
            partition={"name": "dirichlet", "alpha": 0.3},
        )
        (progress, *_), _ = candidates(execute(plan, InProcess(), tmp_path / way).path)
        model, ours = plan.task.build("cnn-bn", part(progress.server, "model/")), part(progress.server, "model/")
        theirs = pooled(task, model, [plan.bundle.train])
        gaps[way] = furthest(model, ours, theirs)
    assert gaps["recalibrate"] < 1e-5
    assert gaps["average"] > 0.1
