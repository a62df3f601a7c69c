from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedstill.models import build_model
from fedstill.models.cost import flops

from ..warm import Warm

CNN = 2 * (784 * 8 * 9 + 196 * 16 * 72 + 784 * 128 + 128 * 10)
MLP = 2 * (784 * 200 + 200 * 200 + 200 * 10)
RESNET8 = 2 * (
    1024 * 16 * 27  # the stem
    + 2 * 1024 * 16 * 144  # 32x32 pixels, 16 channels
    + 256 * 32 * 144
    + 256 * 32 * 288  # 16x16, 32
    + 64 * 64 * 288
    + 64 * 64 * 576  # 8x8, 64
    + 64 * 10
)
POINTNET = 2 * (1024 * (3 * 64 + 64 * 128 + 128 * 1024) + 1024 * 512 + 512 * 256 + 256 * 10)


@pytest.mark.parametrize(
    ("name", "shape", "by_hand"),
    [
        ("cnn", (1, 28, 28), CNN),
        ("cnn-bn", (1, 28, 28), CNN),
        ("mlp", (1, 28, 28), MLP),
        ("resnet8", (3, 32, 32), RESNET8),
        ("pointnet", (1024, 3), POINTNET),
    ],
)
def test_products_as_counted_by_hand(name: str, shape: tuple[int, ...], by_hand: int) -> None:
    """Two operations for each weight and each pixel (or point) that it is applied to; no biases."""
    assert flops(build_model(name, shape, 10), shape) == by_hand
    assert (CNN, MLP, RESNET8, POINTNET) == (767_744, 397_600, 24_478_976, 286_921_728)


def test_pointnet2_in_its_written_out_form_with_its_searches() -> None:
    """512 balls of 32, 128 balls of 64, 128 rows. Each of 512 samples and of 512 balls looks at 1,024 points, each of
    128 balls at 512: three coordinates, three operations each."""
    rows = 512 * 32 * (3 * 64 + 64 * 64 + 64 * 128)
    rows += 128 * 64 * ((3 + 128) * 128 + 128 * 128 + 128 * 256)
    rows += 128 * ((3 + 256) * 256 + 256 * 512 + 512 * 1024)
    head = 1024 * 512 + 512 * 256 + 256 * 10
    searches = 9 * (512 * 1024 + 512 * 1024 + 128 * 512)
    model = build_model("pointnet2", (1024, 3), 10)
    assert flops(model, (1024, 3)) == 2 * (rows + head) + searches == 1_685_066_752


def test_dgcnn_with_every_edge_a_row_and_its_searches() -> None:
    """20 edges a point with 22,720 weights (see the model), an embedding, a head; every pair of points is compared
    among 3, 32, 32 and 64 channels."""
    products = 1024 * (20 * 22_720 + 256 * 512) + 1024 * 208 + 208 * 104 + 104 * 10
    searches = 3 * 1024 * 1024 * (3 + 32 + 32 + 64)
    model = build_model("dgcnn", (1024, 3), 10)
    assert flops(model, (1024, 3)) == 2 * products + searches == 1_611_608_352


def test_segmentation_looks_for_neighbours_on_the_way_up_too() -> None:
    points, w, first, second = 256, 32, 64, 16
    down = first * 16 * (3 * w + w * w + 2 * w * w)
    down += second * 16 * ((3 + 2 * w) * 2 * w + 4 * w * w + 8 * w * w)
    down += second * ((3 + 4 * w) * 4 * w + 32 * w * w + 128 * w * w)
    up = second * (20 * w * 4 * w + 16 * w * w) + first * (6 * w * 4 * w + 8 * w * w)
    up += points * ((3 + 2 * w) * 2 * w + 4 * w * w + 4 * w * w)
    head = points * (4 * w * w + 2 * w * 5)
    searches = 9 * (points * first + first * points + second * first)  # sampling and two levels of balls
    searches += 9 * (second * 1 + first * second + points * first)
    model = build_model("pointnet2-segmentation-lite", (points, 3), 5)
    assert flops(model, (points, 3)) == 2 * (down + up + head) + searches


@pytest.mark.parametrize("name", ["cnn-bn", "mlp", "resnet20", "wrn16-1"])
def test_torchs_own_counter_agrees_where_it_sees_everything(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = build_model(name, (3, 16, 16), 7).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.ones(1, 3, 16, 16))
    assert flops(model, (3, 16, 16)) == counter.get_total_flops() > 0


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


def test_products_without_a_layer_are_seen() -> None:
    """6 x 4 by 4 x 6, then 6 x 6 by 6 x 4: 2 * 144 each."""
    assert flops(Attention(), (6, 4)) == 2 * 2 * 6 * 6 * 4


def test_other_precisions_and_parts_of_a_model() -> None:
    model = build_model("cnn", (1, 8, 8), 10)
    assert flops(model.double(), (1, 8, 8)) == flops(model.float(), (1, 8, 8))
    whole = flops(model, (1, 8, 8))
    assert flops(model.extractor, (1, 8, 8)) + flops(model.head, (128,)) == whole  # type: ignore[arg-type]
    assert flops(nn.ReLU(), (5,)) == 0


@pytest.mark.parametrize("name", ["pointnet-tiny", "pointnet2-lite", "dgcnn"])
def test_the_model_is_left_as_it_was(name: str) -> None:
    model = build_model(name, (64, 3), 4).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    luck = torch.get_rng_state()
    first = flops(model, (64, 3))
    assert all(part.training and not part._forward_hooks for part in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), luck)
    model(torch.randn(3, 64, 3))  # other geometry at hand, another mode: the same count
    assert flops(model.eval(), (64, 3)) == first


def test_counting_does_not_load_the_compiler(foreign: Warm, tmp_path: Path) -> None:
    code = (
        "import sys, fedstill.models as m; from fedstill.models.cost import flops\n"
        "assert flops(m.build_model('cnn', (1, 8, 8), 4), (1, 8, 8)) > 0\n"
        "print([n for n in ('torch._dynamo', 'numba', 'torchvision') if n in sys.modules])"
    )
    done = foreign.python(code, tmp_path)
    assert done.stdout.strip() == "[]", done.stderr
