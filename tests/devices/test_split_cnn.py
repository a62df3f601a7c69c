"""Models cut in two: the parts are the whole, to the bit, and their states are its state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedstill.core.kinds import load_state, state_of
from fedstill.core.streams import Streams
from fedstill.models import Classifier, build_model
from fedstill.models.classifier import load_part, part_state

SHAPES = {
    "mlp": (1, 8, 8),
    "cnn": (1, 8, 8),
    "cnn-bn": (3, 12, 12),
    "split-cnn": (1, 28, 28),
    "split-cnn-lite": (1, 8, 8),
    "resnet8": (3, 16, 16),
    "resnet20": (1, 8, 8),
    "wrn16-1": (1, 8, 8),
    "pointnet-tiny": (32, 3),
    "pointnet2-lite": (256, 3),
    "dgcnn": (64, 3),
}


def built(name: str, shape: tuple[int, ...], seed: int = 0) -> Classifier:
    with Streams(seed).ambient("initial"):
        model = build_model(name, shape, 5)
    assert isinstance(model, Classifier)
    return model


def batch(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(4, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize("name", SHAPES)
def test_one_part_after_the_other_is_the_whole_model(name: str) -> None:
    """What the first part says is laid out anew between them, as it is after a trip over a wire."""
    model = built(name, SHAPES[name]).eval()
    first, second = (part.eval() for part in model.parts())
    inputs = batch(SHAPES[name])
    with torch.no_grad():
        sent = first(inputs).contiguous().clone()
        assert torch.equal(second(sent).log_softmax(1), model(inputs)[0])


@pytest.mark.parametrize("name", SHAPES)
def test_the_states_of_the_parts_are_the_state_of_the_whole(name: str) -> None:
    model, other = built(name, SHAPES[name]), built(name, SHAPES[name], seed=1)
    states = [part_state(model, part) for part in model.parts()]
    assert not states[0].keys() & states[1].keys()
    whole = {**states[0], **states[1]}
    assert whole.keys() == state_of(model).keys()
    for part, state in zip(other.parts(), states, strict=True):
        load_part(other, part, state)
    assert all(torch.equal(tensor, state_of(model)[name]) for name, tensor in state_of(other).items())
    load_state(other, whole)  # and it is a state like any other


def test_parts_share_the_tensors_of_the_whole_and_states_are_copies() -> None:
    model = built("resnet8", (1, 8, 8))
    _, second = model.parts()
    kept = part_state(model, second)
    nn.init.zeros_(model.head.weight)
    assert part_state(model, second)["parameters/head.weight"].abs().sum() == 0
    assert kept["parameters/head.weight"].abs().sum() > 0


def test_a_part_is_not_loaded_with_less_than_all_of_it() -> None:
    model = built("mlp", (1, 8, 8))
    first, _ = model.parts()
    state = part_state(model, first)
    state.pop("parameters/extractor.1.bias")
    with pytest.raises(KeyError, match=r"extractor\.1\.bias"):
        load_part(model, first, state)


def test_residual_networks_are_cut_after_their_first_stage() -> None:
    """ResNet-8 hands 16 channels of every pixel on; 464 + 4,672 parameters of the docstring's table stay behind."""
    model = built("resnet8", (3, 32, 32))
    first, second = model.parts()
    assert first.eval()(batch((3, 32, 32))).shape == (4, 16, 32, 32)
    assert sum(one.numel() for one in first.parameters()) == 464 + 4_672
    assert sum(one.numel() for one in second.parameters()) == 13_952 + 55_552 + 64 * 5 + 5


def test_where_a_model_is_cut_changes_nothing_about_it() -> None:
    model = built("resnet8", (1, 8, 8)).eval()
    uncut = Classifier(model.extractor, model.head, model.feature_size).eval()
    assert uncut.parts() == (model.extractor, model.head)
    inputs = batch((1, 8, 8))
    assert all(torch.equal(one, two) for one, two in zip(model(inputs), uncut(inputs), strict=True))
    assert list(model.state_dict()) == list(uncut.state_dict())


def test_the_split_network_has_the_sizes_that_were_worked_out() -> None:
    """Ten classes: 9*32 + 32, 288*64 + 64 and 576*128 + 128 for the device; 6272*512 + 512, 2*512 of BatchNorm and
    512*10 + 10 for the server: together 12.6 MiB."""
    model = build_model("split-cnn", (1, 28, 28), 10)
    assert isinstance(model, Classifier)
    first, second = model.parts()
    assert sum(one.numel() for one in first.parameters()) == 320 + 18_496 + 73_856
    assert sum(one.numel() for one in second.parameters()) == 3_211_776 + 1_024 + 5_130
    assert [tuple(one.shape) for one in model.parameters() if one.dim() > 1] == [
        (32, 1, 3, 3),
        (64, 32, 3, 3),
        (128, 64, 3, 3),
        (512, 6272),
        (10, 512),
    ]
    assert sum(tensor.nbytes for tensor in state_of(model).values()) / 2**20 == pytest.approx(12.6, abs=0.05)
    assert any(isinstance(layer, nn.Dropout) for layer in second.modules())


def test_the_split_network_may_have_a_third_linear_layer() -> None:
    model = build_model("split-cnn", (3, 32, 32), 10, middle=64)
    assert [tuple(one.shape) for one in model.head.parameters() if one.dim() > 1] == [(512, 8192), (64, 512), (10, 64)]


def test_the_lite_split_network_has_a_quarter_of_the_widths() -> None:
    """9*8 + 8, 72*16 + 16 and 144*32 + 32; 1568*128 + 128, 2*128 and 128*10 + 10."""
    model = build_model("split-cnn-lite", (1, 28, 28), 10)
    assert sum(one.numel() for one in model.parameters()) == 80 + 1_168 + 4_640 + 200_832 + 256 + 1_290
