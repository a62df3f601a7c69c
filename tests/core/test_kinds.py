from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedstill.core.kinds import BUFFERS, COUNTERS, PARAMETERS, average, load_state, only, state_of


class Mixed(nn.Module):
    """One of everything: tied and frozen parameters, BatchNorm, buffers of several types, one that is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.frozen = nn.Parameter(torch.rand(2), requires_grad=False)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("num_batches_tracked", torch.rand(2))  # a float, whatever its name says
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("table", torch.arange(4, dtype=torch.int32))
        self.register_buffer("scratch", torch.zeros(9), persistent=False)


def test_state_is_split_by_what_a_tensor_is() -> None:
    assert set(state_of(Mixed())) == {
        "parameters/one.weight",
        "parameters/one.bias",
        "parameters/two.weight",
        "parameters/two.bias",
        "parameters/frozen",
        "parameters/norm.weight",
        "parameters/norm.bias",
        "buffers/norm.running_mean",
        "buffers/norm.running_var",
        "buffers/num_batches_tracked",
        "counters/norm.num_batches_tracked",
        "counters/mask",
        "counters/table",
    }


def _drop_bias(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    del state[f"{prefix}one.bias"]


class Hooked(nn.Module):
    """A module that decides what it saves, by a hook or by a method of its own."""

    def __init__(self, by_hook: bool) -> None:
        super().__init__()
        self.one, self.by_hook = nn.Linear(2, 2), by_hook
        if by_hook:
            self.register_state_dict_post_hook(_drop_bias)

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.by_hook:
            destination[f"{prefix}more"] = torch.ones(1)


@pytest.mark.parametrize("model", [Mixed(), nn.Sequential(Mixed(), nn.GRU(2, 2)), Hooked(True), Hooked(False)])
def test_a_state_has_the_tensors_of_a_state_dict_in_its_order(model: nn.Module) -> None:
    for wrapped in (model, nn.ModuleDict({"a": model, "again": model, "none": None})):  # type: ignore[dict-item]
        state, expected = state_of(wrapped), wrapped.state_dict()
        assert [name.split("/", 1)[1] for name in state] == list(expected)
        assert all(torch.equal(one, other) for one, other in zip(state.values(), expected.values(), strict=True))


def test_a_state_is_a_copy() -> None:
    model = Mixed()
    before = state_of(model)
    kept = {name: tensor.clone() for name, tensor in before.items()}
    with torch.no_grad():
        model.one.weight.add_(1)
        model.norm.running_mean.add_(1)
    assert all(torch.equal(before[name], kept[name]) for name in kept)
    before["parameters/two.weight"].fill_(3)
    assert not torch.equal(before["parameters/one.weight"], before["parameters/two.weight"])
    assert not any(tensor.requires_grad for tensor in before.values())


def test_loading_a_models_own_state_changes_nothing_and_another_ones_everything() -> None:
    model, other = Mixed(), Mixed()
    with torch.no_grad():
        other.norm.running_var.mul_(2)
        other.norm.num_batches_tracked.add_(5)
        other.mask.logical_not_()
    state = state_of(other)
    load_state(other, state_of(other))
    load_state(model, state)
    for held in (state_of(other), state_of(model)):
        assert held.keys() == state.keys()
        assert all(torch.equal(held[name], state[name]) and held[name].dtype == state[name].dtype for name in state)
    assert model.two.weight is model.one.weight


def test_a_loaded_state_is_not_shared_with_the_model() -> None:
    model, state = nn.Linear(2, 1), state_of(nn.Linear(2, 1))
    load_state(model, state)
    with torch.no_grad():
        model.weight.fill_(9)
    assert not (state["parameters/weight"] == 9).any()


@pytest.mark.parametrize("change", ["missing", "surplus"])
def test_a_state_of_another_model_is_an_error(change: str) -> None:
    state = state_of(nn.Linear(2, 1))
    if change == "missing":
        del state["parameters/bias"]
    else:
        state["parameters/extra"] = torch.ones(1)
    with pytest.raises(RuntimeError):
        load_state(nn.Linear(2, 1), state)


def test_kinds_by_name() -> None:
    state = state_of(nn.BatchNorm1d(2))
    assert set(only(BUFFERS, state)) == {"buffers/running_mean", "buffers/running_var"}
    assert set(only(PARAMETERS, state)) == {"parameters/weight", "parameters/bias"}
    assert set(only(COUNTERS, state)) == {"counters/num_batches_tracked"}


def test_an_average_by_hand() -> None:
    """Weights 1 and 3, so shares 1/4 and 3/4.

    parameters: 1/4 * (4, 0) + 3/4 * (8, 4) = (7, 3); buffers alike: 1/4 * 2 + 3/4 * 10 = 8; counters: max(9, 2) = 9.
    """
    first = {
        "parameters/w": torch.tensor([4.0, 0.0]),
        "buffers/m": torch.tensor([2.0]),
        "counters/n": torch.tensor(9),
        "counters/seen": torch.tensor([True, False]),
    }
    second = {
        "parameters/w": torch.tensor([8.0, 4.0]),
        "buffers/m": torch.tensor([10.0]),
        "counters/n": torch.tensor(2),
        "counters/seen": torch.tensor([False, False]),
    }
    merged = average([first, second], [1, 3])
    assert merged["parameters/w"].tolist() == [7, 3]
    assert merged["buffers/m"].tolist() == [8]
    assert merged["counters/n"].item() == 9
    assert merged["counters/n"].dtype == torch.int64
    assert merged["counters/seen"].tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_average_keeps_types(dtype: torch.dtype) -> None:
    states = [{"parameters/w": torch.tensor([value], dtype=dtype)} for value in (1, 2, 6)]
    merged = average(states, [1, 1, 1])["parameters/w"]
    assert merged.dtype == dtype
    assert merged.item() == 3


def test_an_average_in_double_precision_keeps_small_terms() -> None:
    """In single precision 2^24 + 1 + 1 loses both ones; the mean of the three is (2^24 + 2) / 3 = 5592406."""
    states = [{"parameters/w": torch.tensor([value])} for value in (2.0**24, 1.0, 1.0)]
    assert average(states, [1, 1, 1])["parameters/w"].item() == 5592406


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=12), st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_the_mean_of_equal_models_is_that_model_to_the_bit(weights: list[float], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    state = {
        "parameters/w": torch.randn(300, generator=generator) * 10.0 ** float(seed % 30 - 15),
        "buffers/v": torch.rand(300, generator=generator),
        "counters/n": torch.tensor(2**60 + 1),
    }
    merged = average([state] * len(weights), weights)
    assert all(torch.equal(merged[name], state[name]) for name in state)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=6), st.sampled_from([2, 4, 1024]))
@settings(deadline=None)
def test_only_the_ratio_of_weights_counts(weights: list[int], scale: int) -> None:
    """Scaling by a power of two is exact, so the bits must not change."""
    states = [{"parameters/w": torch.rand(20)} for _ in weights]
    one = average(states, weights)["parameters/w"]
    two = average(states, [weight * scale for weight in weights])["parameters/w"]
    assert torch.equal(one, two)


def test_a_weight_of_zero_takes_no_part() -> None:
    states = [{"parameters/w": torch.tensor([5.0])}, {"parameters/w": torch.tensor([1.0])}]
    assert average(states, [0, 2])["parameters/w"].item() == 1


def test_an_average_leaves_its_inputs_alone() -> None:
    states: list[dict[str, Tensor]] = [{"parameters/w": torch.ones(2)}, {"parameters/w": torch.zeros(2)}]
    average(states, [1, 1])["parameters/w"].fill_(9)
    single = average(states[:1], [1])
    single["parameters/w"].fill_(9)
    assert states[0]["parameters/w"].tolist() == [1, 1]
    assert states[1]["parameters/w"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("count", "weights"), [(0, []), (2, [1]), (1, [1, 1]), (2, [0, 0]), (2, [-1, -1]), (2, [float("nan"), 1])]
)
def test_averages_that_mean_nothing_are_refused(count: int, weights: list[float]) -> None:
    with pytest.raises(ValueError, match="finite weights, none negative and not all zero"):
        average([{"parameters/w": torch.ones(1)}] * count, weights)


def test_a_model_that_lacks_a_tensor_is_an_error() -> None:
    with pytest.raises(ValueError, match="the same names"):
        average([{"parameters/w": torch.ones(1)}, {}], [1, 1])
