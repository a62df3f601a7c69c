"""PointNeXt-S and PointNet++ MSG: published sizes, a slow plain implementation, normals, export."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstill
from fedstill.core.errors import InputError
from fedstill.models import build_model
from fedstill.models.pointnet2_msg import PointNet2Msg
from fedstill.models.pointnext import PointNext


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def shared(model: nn.Module) -> nn.Module:
    """The model in evaluation with statistics and factors that differ from channel to channel."""
    torch.manual_seed(0)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            for tensor in (part.weight, part.bias, part.running_mean):
                assert tensor is not None
                tensor.data.add_(0.2 * torch.randn_like(tensor))
            assert part.running_var is not None
            part.running_var.mul_(torch.rand_like(part.running_var) + 0.5)
    return model.eval()


def test_sizes_beside_the_published_ones() -> None:
    """The papers' code: PointNeXt-S 1.37 million (15 classes, four numbers a point), MSG 1.7 million (40 classes)."""
    with torch.device("meta"):
        msg, normals = (build_model("pointnet2-msg", (1024, channels), 40) for channels in (3, 6))
        small = build_model("pointnext-s", (1024, 3), 15)
    assert count(msg) == sum_of_msg(0) == 1_747_368
    assert count(normals) == sum_of_msg(3) == 1_747_848
    levels = sum((3 + i) * i + 2 * i + i * 2 * i + 4 * i + i * 2 * i + 2 * i for i in (32, 64, 128, 256))
    last, head = 515 * 512 + 1024 + 512 * 512 + 1024, 512 * 512 + 1024 + 512 * 256 + 512 + 256 * 15 + 15
    assert count(small) == 32 * 3 + 32 + levels + last + head
    assert round(count(small) / 1e6, 1) == 1.4


def sum_of_msg(extra: int) -> int:
    def layers(*widths: int) -> int:
        return sum(a * b + 3 * b for a, b in pairwise(widths))

    first = layers(3 + extra, 32, 32, 64) + layers(3 + extra, 64, 64, 128) + layers(3 + extra, 64, 96, 128)
    second = layers(323, 64, 64, 128) + layers(323, 128, 128, 256) + layers(323, 128, 128, 256)
    return first + second + layers(643, 256, 512, 1024) + layers(1024, 512, 256) + 256 * 40 + 40


def sampled(points: Tensor, number: int) -> list[int]:
    """Farthest points of one cloud, one after the other."""
    chosen = [0]
    while len(chosen) < number:
        gaps = torch.stack([(points - points[row]).square().sum(dim=1) for row in chosen]).amin(dim=0)
        chosen.append(int(gaps.argmax()))
    return chosen


def near(points: Tensor, centre: Tensor, radius: float, most: int) -> list[int]:
    inside = ((points - centre).square().sum(dim=1) <= radius**2).nonzero().flatten().tolist()
    return inside[:most]


def slow_pointnext(model: PointNext, cloud: Tensor) -> Tensor:
    """One cloud, one centre and one neighbour after the other, as the paper describes it."""
    points, features = cloud[:, :3], model.embedding(cloud)
    for level in model.levels:
        rows = sampled(points, max(1, len(points) // 2))
        found = []
        for row in rows:
            told = []
            for other in near(points, points[row], level.radius, 32):
                given = torch.cat([(points[other] - points[row]) / level.radius, features[other]]).unsqueeze(0)
                told.append(level.norm2(level.linear2(level.norm1(level.linear1(given)).relu()))[0])
            found.append((torch.stack(told).amax(dim=0) + level.shortcut(features[row])).relu())
        points, features = points[rows], torch.stack(found)
    rows = torch.cat([points, features], dim=1)
    return model.norm2(model.linear2(model.norm1(model.linear1(rows)).relu())).relu().amax(dim=0)


def slow_msg(model: PointNet2Msg, cloud: Tensor) -> Tensor:
    points, features = cloud[:, :3], cloud[:, 3:]
    for level, number in zip((model.level1, model.level2), model.centres, strict=True):
        rows = sampled(points, number)
        found = []
        for row in rows:
            parts = []
            for scale in level.scales:
                told = []
                for other in near(points, points[row], scale.ball.radius, scale.ball.neighbours):
                    out = torch.cat([points[other] - points[row], features[other]]).unsqueeze(0)
                    for linear, norm in scale.layers():
                        out = norm(linear(out)).relu()
                    told.append(out[0])
                parts.append(torch.stack(told).amax(dim=0))
            found.append(torch.cat(parts))
        points, features = points[rows], torch.stack(found)
    out = torch.cat([points, features], dim=1)
    for linear, norm in model.level3.layers():
        out = norm(linear(out)).relu()
    return out.amax(dim=0)


@pytest.mark.parametrize("channels", [3, 6])
def test_against_slow_plain_implementations(channels: int) -> None:
    clouds = torch.from_numpy(np.random.default_rng(1).uniform(-0.5, 0.5, (2, 40, channels)).astype(np.float32))
    with torch.no_grad():
        small = shared(build_model("pointnext-s:width=8", (40, channels), 4))
        assert isinstance(small.extractor, PointNext)
        slow = torch.stack([slow_pointnext(small.extractor, cloud) for cloud in clouds])
        torch.testing.assert_close(small.extractor(clouds), slow, rtol=1e-4, atol=1e-4)
        msg = shared(build_model("pointnet2-msg:centres1=12,centres2=5", (40, channels), 4))
        assert isinstance(msg.extractor, PointNet2Msg)
        slow = torch.stack([slow_msg(msg.extractor, cloud) for cloud in clouds])
        torch.testing.assert_close(msg.extractor(clouds), slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["pointnext-s:width=8", "pointnet2-msg:centres1=8,centres2=4"])
def test_gradients_reach_every_weight_and_group_norm_works(name: str) -> None:
    for model in (build_model(name, (48, 3), 3), build_model(f"{name},norm=group", (48, 3), 3)):
        clouds = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 48, 3)).astype(np.float32))
        model(clouds)[0][:, 0].sum().backward()
        assert all(weight.grad is not None for weight in model.parameters())


def test_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match=r"it needs point clouds \(points x 3\), or with normals \(points x 6\)"):
        build_model("pointnext-s", (64, 4), 3)


def test_the_program_of_a_model_computes_the_same() -> None:
    model = shared(build_model("pointnext-s:width=8", (32, 3), 3))
    clouds = torch.from_numpy(np.random.default_rng(3).uniform(-0.5, 0.5, (2, 32, 3)).astype(np.float32))
    with torch.no_grad():
        program = torch.export.export(model, (clouds,), strict=False)
        torch.testing.assert_close(program.module()(clouds)[0], model(clouds)[0], rtol=1e-4, atol=1e-5)


def test_clouds_with_normals_are_learned(tmp_path: Path) -> None:
    """Points on planes that differ in their normals alone: coordinates say nothing."""
    draw = np.random.default_rng(0)
    labels = np.arange(48) % 2
    points = draw.uniform(-1, 1, (48, 32, 3)).astype(np.float32)
    normals = np.zeros_like(points)
    normals[np.arange(48), :, labels] = 1
    data = fedstill.dataset((np.concatenate([points, normals], axis=2), labels), kind="array", name="planes")
    made = fedstill.run(
        "fedavg", data=data, model="pointnext-s:width=8", clients=2, rounds=3, batch=8, rate=0.01, out=tmp_path
    )
    assert made.accuracy == 1.0
