"""PointNet++ on distinct rows is PointNet++: outputs, gradients and statistics against plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import InputError
from fedstill.core.kinds import norm_layers
from fedstill.core.streams import Streams
from fedstill.methods.recalibration import recalibrate, recalibrate_exactly
from fedstill.models import build_model, pointnet, pointnet2, pointnet2_levels
from fedstill.models.batchnorm import normalise
from fedstill.models.kernels import compact
from fedstill.models.kernels.buffers import pool
from fedstill.tasks.classification import Classification

from ..warm import Warm

SMALL = {"width": 8, "centres1": 40, "neighbours1": 10, "centres2": 12, "neighbours2": 12, "dropout": 0.0}


def clouds(batch: int = 6, points: int = 150) -> Tensor:
    """Flattened spheres with none, some, most and all points dropped."""
    x = F.normalize(torch.randn(batch, points, 3), dim=-1) * torch.tensor([1.0, 0.8, 0.6])
    share = torch.linspace(0, 1, batch).unsqueeze(1)
    return torch.where((torch.rand(batch, points) < share).unsqueeze(-1), x[:, :1], x)


def model(seed_norms: bool = False, **sizes: float) -> nn.Module:
    made = build_model("pointnet2", (150, 3), 5, **{**SMALL, **sizes})
    if seed_norms:  # negative gammas too: there the smallest row wins
        for part in made.modules():
            if isinstance(part, nn.BatchNorm1d):
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias, std=0.3)
    return made


def plain(original: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    other = copy.deepcopy(original).to(dtype)
    other.extractor.fast = False
    return other


def learn(made: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    log_probabilities, features = made(x)
    (F.nll_loss(log_probabilities, torch.arange(len(x)) % 5) + features.square().mean()).backward()
    return log_probabilities.detach(), features.detach()


@pytest.mark.parametrize("seed_norms", [False, True], ids=["fresh", "any-sign"])
def test_a_training_step_against_double_precision(seed_norms: bool) -> None:
    fast = model(seed_norms)
    exact, x = plain(fast, torch.float64), clouds()
    outputs, expected = learn(fast, x), learn(exact, x.double())
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=5e-5)
    for (name, one), other in zip(fast.named_parameters(), exact.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        apart = float((one.grad - other.grad).abs().max())
        assert apart <= 1e-4 * max(1.0, float(other.grad.abs().max())), name
        if ".linear" in name and name.endswith("bias"):
            assert not one.grad.any(), "a bias before BatchNorm has no effect, so exactly no gradient"
    for (name, one), other in zip(fast.named_buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(one.to(other.dtype), other, rtol=1e-5, atol=1e-5, msg=name)


def test_a_training_step_against_single_precision() -> None:
    fast, x = model(), clouds()
    other = plain(fast)
    torch.testing.assert_close(learn(fast, x)[0], learn(other, x)[0], rtol=0, atol=5e-5)
    counters = [value.item() for name, value in fast.named_buffers() if name.endswith("tracked")]
    assert counters == [1] * 11


def test_evaluation() -> None:
    fast, x = model(seed_norms=True), clouds()
    with torch.no_grad():
        fast(x)
        other, exact = plain(fast).eval(), plain(fast, torch.float64).eval()
        outputs = fast.eval()(x)[0]
        torch.testing.assert_close(outputs, other(x)[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(outputs.double(), exact(x.double())[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(outputs, fast(x)[0].detach(), rtol=0, atol=1e-6)  # with gradients: plain torch


@pytest.mark.parametrize("name", ["pointnet2", "small-pointnet2", "pointnet2-lite", "small-pointnet2-lite"])
def test_models_of_full_size(name: str) -> None:
    points = 256 if name.endswith("lite") else 1024
    fast, x = build_model(name, (points, 3), 4, dropout=0.0), clouds(3, points)
    exact, other = plain(fast, torch.float64), plain(fast)
    torch.testing.assert_close(learn(fast, x)[0].double(), learn(exact, x.double())[0], rtol=0, atol=5e-5)
    for (part, one), two in zip(fast.named_parameters(), exact.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        # Of a million maxima and ReLUs some few are decided by rounding: a norm, and not the largest difference.
        assert float((one.grad - two.grad).norm()) <= 0.02 * float(two.grad.norm()) + 1e-5, part
    for (part, one), two in zip(fast.named_buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(one.to(two.dtype), two, rtol=1e-5, atol=1e-5, msg=part)
    with torch.no_grad():
        other.load_state_dict(fast.state_dict())
        torch.testing.assert_close(fast.eval()(x)[0], other.eval()(x)[0], rtol=0, atol=1e-6)


def test_clouds_smaller_than_the_sample() -> None:
    fast, x = model(), torch.rand(4, 7, 3)
    exact = plain(fast, torch.float64)
    torch.testing.assert_close(learn(fast, x)[0].double(), learn(exact, x.double())[0], rtol=0, atol=5e-5)


def test_clouds_of_a_single_point() -> None:
    """No neighbour, no spread: the first level's variance is zero, and nothing divides by it."""
    fast, x = model(), torch.rand(4, 1, 3)
    exact = plain(fast, torch.float64)
    torch.testing.assert_close(learn(fast, x)[0].double(), learn(exact, x.double())[0], rtol=0, atol=5e-4)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in fast.parameters())


def test_pieces_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, x = model(), clouds()
    pieces = copy.deepcopy(whole)
    expected = learn(whole, x)[0]
    monkeypatch.setattr(compact, "PIECE", 32 * 40)
    torch.testing.assert_close(learn(pieces, x)[0], expected, rtol=0, atol=1e-5)
    for one, other in zip(pieces.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)


def bits(made: nn.Module, x: Tensor) -> list[Tensor]:
    made.zero_grad()
    state = copy.deepcopy(made.state_dict())
    found = [*learn(made, x), *(p.grad.clone() for p in made.parameters() if p.grad is not None)]
    found += [value.clone() for value in made.buffers()]
    made.load_state_dict(state)
    return found


def test_the_same_bits_whatever_was_computed_before() -> None:
    made, x = model(), clouds()
    first = bits(made, x)
    other = model(width=16)
    learn(other, clouds(3, 90))
    for floats in pool._free:
        floats.fill_(torch.nan)
    assert all(torch.equal(one, again) for one, again in zip(first, bits(made, x), strict=True))


SCRIPT = """
import hashlib, torch
from fedstill.core.streams import Streams
from fedstill.models import build_model
with Streams(3).ambient("bits"):
    model, x = build_model("small-pointnet2-lite", (200, 3), 4), torch.rand(5, 200, 3)
    out, _ = model(x)
    out[:, 0].sum().backward()
    tensors = [out, *(p.grad for p in model.parameters()), *model.buffers()]
    tensors.append(model.eval()(x)[0])
digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()
print(digest)
"""


def test_the_same_bits_in_another_process(foreign: Warm, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    here: dict[str, str] = {}
    exec(SCRIPT, here)
    torch.set_num_threads(threads)
    there = foreign.python(f"import torch; torch.set_num_threads(1)\n{SCRIPT}", tmp_path)
    assert there.stdout.strip() == here["digest"], there.stderr


@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_without_gradients(quiet: Callable[[], object], mode: bool) -> None:
    made, x = model(), clouds()
    other = copy.deepcopy(made).train(mode)
    with quiet():  # type: ignore[attr-defined]
        outputs = made.train(mode)(x)[0]
    assert not outputs.requires_grad
    torch.testing.assert_close(outputs.clone(), other(x)[0].detach(), rtol=0, atol=1e-6)
    assert all(torch.equal(one, two) for one, two in zip(made.buffers(), other.buffers(), strict=True))


def test_parameters_that_do_not_learn() -> None:
    made, x = model(), clouds()
    whole = copy.deepcopy(made)
    for part in made.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.requires_grad_(False)
    learn(made, x)
    learn(whole, x)
    for (name, one), two in zip(made.named_parameters(), whole.parameters(), strict=True):
        assert (one.grad is None) == ("norm" in name or name.startswith(("head.1", "head.5")))
        assert one.grad is None or torch.equal(one.grad, two.grad)


def test_statistics_frozen_while_weights_learn_is_plain_torch() -> None:
    made, x = model(), clouds()
    made(x)
    made.extractor.level1.norm2.eval()
    before = made.extractor.level1.norm2.running_mean.clone()
    other = plain(made)
    torch.testing.assert_close(learn(made, x)[0], learn(other, x)[0], rtol=0, atol=0)
    assert torch.equal(before, made.extractor.level1.norm2.running_mean)


def test_gradients_may_be_asked_for_twice() -> None:
    made, x = model(), clouds()
    loss = made(x)[0][:, 0].sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in made.parameters() if p.grad is not None]
    made.zero_grad()
    made(clouds())[0].sum().backward()  # somebody else borrows buffers in between
    made.zero_grad()
    loss.backward()
    assert all(torch.equal(one, p.grad) for one, p in zip(once, made.parameters(), strict=True))


def test_all_batches_alike_where_batchnorm_has_no_momentum() -> None:
    made = model()
    for part in made.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.momentum = None
    other = plain(made)
    for x in (clouds(), clouds(4), clouds(5)):
        made(x)
        other(x)
    for (name, one), two in zip(made.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(one, two[1], rtol=1e-4, atol=1e-5, msg=name)


def test_hooks_double_precision_and_gradients_of_points_are_served_by_plain_torch() -> None:
    made, x = model(), clouds()
    seen: list[str] = []
    handle = made.extractor.level2.norm1.register_forward_hook(lambda *_: seen.append("norm1"))
    made(x)
    handle.remove()
    assert seen == ["norm1"]
    x.requires_grad_()
    made(x)[0][:, 0].sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert copy.deepcopy(made).double()(x.detach().double())[0].dtype == torch.float64


@pytest.mark.parametrize("architecture", ["pointnet2", "pointnet"])
@pytest.mark.parametrize("exactly", [True, False], ids=["layer-by-layer", "one-pass"])
def test_statistics_are_measured_on_the_fast_path(
    architecture: str, exactly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all hooks of recalibration, in training and in evaluation, on batches of different sizes."""
    made = model(seed_norms=True) if architecture == "pointnet2" else build_model("pointnet-tiny", (150, 3), 5)
    data = ArrayDataset(inputs=clouds(10), labels=torch.zeros(10, dtype=torch.int64))
    task = Classification(("a", "b", "c", "d", "e"), (150, 3), (architecture,))
    other, on_plain_path = plain(made), []
    monkeypatch.setattr(pointnet2_levels, "normalise", lambda *given: on_plain_path.append(1) or normalise(*given))
    monkeypatch.setattr(pointnet, "normalise", lambda *given: on_plain_path.append(1) or normalise(*given))
    for one, expected in ((made, False), (other, True)):
        recalibrate_exactly(one, task, data) if exactly else recalibrate(one, task, data, Streams(1), 4)
        assert bool(on_plain_path) is expected
    for layer, same in zip(norm_layers(made).values(), norm_layers(other).values(), strict=True):
        sd = same.running_var.sqrt()
        torch.testing.assert_close(layer.running_mean / sd, same.running_mean / sd, rtol=0, atol=1e-4)
        torch.testing.assert_close(layer.running_var, same.running_var, rtol=1e-4, atol=0)


def test_a_second_level_cannot_sample_more_than_the_first() -> None:
    with pytest.raises(InputError, match="41 of 40 is too many"):
        model(centres2=41)


def test_training_may_follow_evaluation_on_larger_batches() -> None:
    """Buffers that evaluation left behind are used again: they must not be inference tensors."""
    model = build_model("small-pointnet2-lite", (64, 3), 4)
    clouds = torch.rand(40, 64, 3, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        model.eval()(clouds)
    model.train()(clouds[:8])[0].sum().backward()
    assert model.extractor.level1.linear1.weight.grad.isfinite().all()


@pytest.mark.parametrize("dropped", [0, 40], ids=["distinct", "dropped"])
def test_pointnet_on_distinct_points_is_pointnet(dropped: int) -> None:
    """Outputs, gradients and running statistics of plain torch, also where many points are copies of the first."""
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 64, 3))).float()
    points[:, 64 - dropped :] = points[:, :1]
    fast = build_model("pointnet-tiny", (64, 3), 4)
    plain = copy.deepcopy(fast)
    plain.extractor.fast = False
    labels = torch.tensor([0, 1, 2])
    for model in (fast, plain):
        F.nll_loss(model.train()(points)[0], labels).backward()
    for (name, one), other in zip(fast.named_parameters(), plain.parameters(), strict=True):
        if one.grad is None:
            assert name.startswith("extractor.linear")  # a bias before BatchNorm, whose gradient is zero
            assert name.endswith("bias")
            assert other.grad is not None
            assert other.grad.abs().max() < 1e-5
        else:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=5e-5)
    for one, other in zip(fast.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for one, other in zip(fast.eval()(points), plain.eval()(points), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_models_that_sample_alike_share_the_geometry_of_a_batch() -> None:
    """Worked out once for the same tensor; anew for another one, for another sampling, and after a change in place."""
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 64, 3))).float()
    one, other = (build_model("pointnet2-lite", (64, 3), 4) for _ in range(2))
    small = build_model("small-pointnet2-lite", (64, 3), 4)
    assert one.extractor.geometry(points) is other.extractor.geometry(points)
    assert one.extractor.geometry(points) is not small.extractor.geometry(points)
    before = one.extractor.geometry(points)
    assert one.extractor.geometry(points.clone()) is not before
    points.mul_(0.5)
    changed = one.extractor.geometry(points)
    assert changed is not before
    assert not np.array_equal(changed.level1.offset, before.level1.offset)


def test_the_geometry_of_kept_data_is_computed_once_for_all_models_and_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever evaluates it, also in another thread; it is computed anew where somebody has changed the data."""
    made, build = [], pointnet2.compact_geometry
    monkeypatch.setattr(pointnet2, "compact_geometry", lambda *given: made.append(1) or build(*given))
    data = ArrayDataset(inputs=clouds(6), labels=torch.arange(6) % 5)
    task = Classification(("a", "b", "c", "d", "e"), (150, 3), ("pointnet2",))
    one, other = model(), model(seed_norms=True)
    expected = [task.score([each], Subset(data, torch.arange(6))) for each in (one, other)]
    assert len(made) == 2
    for each, scores in zip((one, other, one), (*expected, expected[0]), strict=True):
        again: list[Any] = []
        for _ in range(2):
            thread = Thread(target=lambda each=each, again=again: again.append(task.score([each], data)))
            thread.start()
            thread.join()
            assert all(torch.equal(again[-1][name], scores[name]) for name in scores)
    assert len(made) == 3
    with torch.inference_mode():
        data.whole()["inputs"].mul_(2)
    assert all(torch.equal(tensor, expected[0][name]) for name, tensor in task.score([one], data).items())
    assert len(made) == 4
    assert vars(data).keys() == {"columns"}, "what is kept is no part of its content"
