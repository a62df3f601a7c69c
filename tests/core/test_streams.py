from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedstill.core.streams import Streams

names = st.lists(st.text(max_size=6) | st.integers(-(2**70), 2**70), max_size=4)


def numbers(streams: Streams, *path: str | int) -> list[float]:
    return streams.draw(*path).random(4).tolist()


@given(st.integers(0, 2**63 - 1), names, names)
def test_a_path_gives_the_same_draw_however_it_is_walked(seed: int, head: list, tail: list) -> None:
    assert numbers(Streams(seed).at(*head), *tail) == numbers(Streams(seed), *head, *tail)
    assert numbers(Streams(seed).at(*head).at(*tail)) == numbers(Streams(seed, (*head, *tail)))


@given(names, names)
def test_different_paths_give_different_draws(left: list, right: list) -> None:
    assert (numbers(Streams(3), *left) == numbers(Streams(3), *right)) == (left == right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("a", "b"), ("ab",)),
        (("a", "b"), ("b", "a")),
        ((1,), ("1",)),
        ((1, 2), (12,)),
        (("a",), ("a", "")),
        (("a', 'b",), ("a", "b")),
        ((), ("",)),
    ],
)
def test_names_that_look_alike_are_kept_apart(left: tuple, right: tuple) -> None:
    assert numbers(Streams(0), *left) != numbers(Streams(0), *right)


def test_seeds_are_kept_apart_and_from_names() -> None:
    assert numbers(Streams(1)) != numbers(Streams(2))
    assert numbers(Streams(1), 2) != numbers(Streams(12))
    assert numbers(Streams(2**32)) != numbers(Streams(0))


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_who_counted_does_not_matter(kind: type) -> None:
    expected = numbers(Streams(5), "client", 3)
    assert numbers(Streams(5), "client", kind(3)) == expected
    assert numbers(Streams(kind(5)), "client", 3) == expected
    assert numbers(Streams(5).at("client", kind(3))) == expected


def test_a_draw_starts_afresh_each_time() -> None:
    streams = Streams(0)
    assert numbers(streams, "x") == numbers(streams, "x")
    generator = streams.draw("x")
    assert generator.random() != generator.random()


@given(st.integers(0, 2**63 - 1), names)
def test_a_generator_is_that_of_its_128_bit_key(seed: int, path: list) -> None:
    """Philox is handed its key in another way than as `key`, which must not show in a single draw."""
    streams = Streams(seed)
    expected = np.random.Generator(np.random.Philox(key=streams._key(tuple(path))))
    found = streams.draw(*path)
    assert found.bit_generator.state["state"]["key"].tolist() == expected.bit_generator.state["state"]["key"].tolist()
    assert found.bit_generator.random_raw(9).tolist() == expected.bit_generator.random_raw(9).tolist()
    assert pickle.loads(pickle.dumps(found)).random(3).tolist() == expected.random(3).tolist()


def test_a_generator_has_no_children_that_nobody_could_draw_again() -> None:
    with pytest.raises(TypeError, match="spawn"):
        Streams(0).draw("x").spawn(1)


def test_numpy_draws_leave_the_global_generators_alone() -> None:
    before, legacy = torch.default_generator.get_state(), np.random.get_state()[1].copy()
    Streams(0).draw("x").permutation(100)
    assert torch.equal(torch.default_generator.get_state(), before)
    assert (np.random.get_state()[1] == legacy).all()


def test_ambient_puts_the_global_generator_back() -> None:
    torch.rand(3)  # somewhere in the middle of its sequence
    before = torch.default_generator.get_state()
    with Streams(0).ambient("x"):
        torch.randn(7)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_ambient_puts_the_global_generator_back_after_an_exception() -> None:
    before = torch.default_generator.get_state()

    def fails() -> None:
        with Streams(0).ambient("x"):
            torch.rand(3)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.equal(torch.default_generator.get_state(), before)


def test_ambient_scopes_nest() -> None:
    with Streams(0).ambient("outer"):
        expected = torch.rand(6)
    with Streams(0).ambient("outer"):
        first = torch.rand(3)
        with Streams(0).ambient("inner"):
            torch.randn(5)
        second = torch.rand(3)
    assert torch.equal(torch.cat([first, second]), expected)


@pytest.mark.parametrize("poison", [0, 1])
def test_initialisation_and_dropout_depend_on_the_stream_alone(poison: int) -> None:
    def made() -> tuple[torch.Tensor, torch.Tensor]:
        with Streams(4).ambient("model"):
            layer = nn.Linear(5, 5)
            return layer.weight.detach(), nn.Dropout(0.5)(torch.ones(50))

    torch.manual_seed(poison)
    torch.randn(1)  # leaves a cached second normal number behind, which must not get in
    one = made()
    torch.manual_seed(poison + 10)
    two = made()
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    with Streams(4).ambient("another"):
        assert not torch.equal(nn.Linear(5, 5).weight, one[0])


def test_a_normal_number_left_over_outside_does_not_get_in() -> None:
    torch.manual_seed(1)
    with Streams(0).ambient("x"):
        expected = torch.randn(1)
    torch.randn(1)
    with Streams(0).ambient("x"):
        assert torch.equal(torch.randn(1), expected)


def test_two_hundred_thousand_streams_are_distinct_where_32_bit_seeds_collide() -> None:
    """200,000 draws of 32 bits collide about 200,000^2 / 2 / 2^32 = 4.7 times; 128-bit keys never do.

    Building all those states would take minutes, so the keys are compared, and for some of them that the whole key
    decides the state.
    """
    streams = Streams(7).at("client")
    keys = [streams._key((index, "torch")) for index in range(200_000)]
    assert len(set(keys)) == 200_000
    assert len({key & 0xFFFF_FFFF for key in keys}) < 200_000
    assert max(keys) > 2**127
    for index in (0, 17, 199_999):
        words = np.random.Generator(np.random.Philox(key=keys[index])).integers(0, 2**32, 624, dtype=np.uint64)
        state = streams.torch_state(index).numpy()
        assert state[24 : 24 + 8 * 624].view(np.uint64).tolist() == words.tolist()


def test_two_thousand_generators_start_differently() -> None:
    first = set()
    for index in range(2000):
        with Streams(7).ambient("client", index):
            first.add(tuple(torch.randint(2**31, (2,)).tolist()))
    assert len(first) == 2000


def test_the_whole_state_is_filled() -> None:
    one = Streams(0).torch_state("a").numpy()[24 : 24 + 8 * 624].view(np.uint64)
    two = Streams(0).torch_state("b").numpy()[24 : 24 + 8 * 624].view(np.uint64)
    assert (one < 2**32).all()
    assert (one != two).all()


def test_first_uniform_numbers_over_many_streams_are_uniform() -> None:
    """Mean 1/2 with standard error sqrt(1/12/4000) = 0.0046; variance 1/12 with about 0.0012; both within 4 sigma."""
    first = []
    for index in range(4000):
        with Streams(11).ambient("u", index):
            first.append(torch.rand(1, dtype=torch.float64))
    values = torch.cat(first)
    assert abs(values.mean().item() - 0.5) < 4 * 0.0046
    assert abs(values.var().item() - 1 / 12) < 4 * 0.0012
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / 4000**0.5


def test_one_stream_is_uniform_and_normal() -> None:
    with Streams(11).ambient("long"):
        uniform, normal = torch.rand(200_000, dtype=torch.float64), torch.randn(200_000, dtype=torch.float64)
    assert abs(uniform.mean().item() - 0.5) < 4 * (1 / 12 / 200_000) ** 0.5
    assert abs(uniform.var().item() - 1 / 12) < 4 * (1 / 180 / 200_000) ** 0.5
    assert abs(normal.mean().item()) < 4 / 200_000**0.5
    assert abs(normal.var().item() - 1) < 4 * (2 / 200_000) ** 0.5
