"""The robust rules: by hand, against brute force, and what a liar can and cannot do to each kind of state."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Engine, Method, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.methods import methods
from fedstill.methods.krum import krum_scores, squared_distances
from fedstill.methods.robust import RobustRecalibration, median
from fedstill.methods.trimmed_mean import extremes
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute
from fedstill.tasks.classification import Classification

TASK = Classification(("a", "b"), (1, 8, 8), ("cnn-bn",))
TURN = RoundContext(0, 1, 10, "train", Streams(0))
WEIGHT, VARIANCE, BATCHES = "model/parameters/w", "model/buffers/running_var", "model/counters/num_batches_tracked"
ROBUST = ["clipped-mean", "krum", "multi-krum", "trimmed-mean"]


def make(name: str, **given: Any) -> Method:
    kind = methods[name]
    return kind(kind.Options(**given), TASK, Training())


def state(weight: Sequence[float], variance: Sequence[float] | None = None, batches: int = 0) -> dict[str, Tensor]:
    held = {WEIGHT: torch.tensor(weight, dtype=torch.float32), BATCHES: torch.tensor(batches)}
    return held if variance is None else {**held, VARIANCE: torch.tensor(variance, dtype=torch.float32)}


def reply(client: int, model: Tensors, samples: int = 10) -> Reply:
    return Reply(Profile(client, samples, "cnn-bn"), Message({**model, "steps": torch.tensor(3)}), {})


def merged(method: Method, models: Sequence[Tensors], start: Tensors | None = None) -> Tensors:
    start = start or {name: torch.zeros_like(tensor) for name, tensor in models[0].items()}
    return method.aggregate(start, [reply(client, model) for client, model in enumerate(models)], TURN)


def weights_of(*values: float) -> list[dict[str, Tensor]]:
    return [state([value]) for value in values]


# -- trimmed mean


def test_trimmed_mean_by_hand() -> None:
    """Five replies, beta 0.2: one is cut at either end of each coordinate.

    (1, 2, 3, 10, -50) -> (1 + 2 + 3) / 3 = 2;  (0, 100, 4, 5, 6) -> (4 + 5 + 6) / 3 = 5.
    """
    models = [state(pair) for pair in ([1, 0], [2, 100], [3, 4], [10, 5], [-50, 6])]
    assert merged(make("trimmed-mean"), models)[WEIGHT].tolist() == [2, 5]


def test_trimmed_mean_without_trimming_is_the_plain_mean() -> None:
    """Beta 0, or fewer replies than 1 / beta: (1 + 2 + 3 + 10) / 4 = 4."""
    models = weights_of(1, 2, 3, 10)
    assert merged(make("trimmed-mean", beta=0.0), models)[WEIGHT].item() == 4
    assert merged(make("trimmed-mean", beta=0.2), models)[WEIGHT].item() == 4
    assert merged(make("trimmed-mean", beta=0.25), models)[WEIGHT].item() == 2.5


@pytest.mark.parametrize("beta", [0.5, 0.7, -0.1])
def test_trimmed_mean_refuses_to_cut_everything(beta: float) -> None:
    with pytest.raises(InputError, match=r"method\.beta"):
        make_experiment({"method": {"name": "trimmed-mean", "beta": beta}})


def test_what_is_cut_is_the_floor_of_the_decimal() -> None:
    """In binary 0.29 * 100 is 28.99..., 0.57 * 100 is 56.99...; just below a half never reaches it."""
    cases = [(0.29, 100), (0.07, 100), (0.1, 9), (0.1, 10), (0.3, 10), (0.4999999999, 10)]
    assert [extremes(beta, count) for beta, count in cases] == [29, 7, 0, 1, 3, 4]


# -- Krum


def test_krum_by_hand() -> None:
    """Weights 0, 1, 2, 4, 100 and f = 1: the 5 - 1 - 2 = 2 nearest count.

    0: 1 + 4 = 5;  1: 1 + 1 = 2;  2: 1 + 4 = 5;  4: 4 + 9 = 13;  100: 96^2 + 98^2 = 18820.
    Krum takes 1. Multi-Krum keeps four: (0 + 1 + 2 + 4) / 4 = 1.75; with keep 3, (0 + 1 + 2) / 3 = 1.
    """
    models = weights_of(0, 1, 2, 4, 100)
    distances = squared_distances(models, [WEIGHT])
    assert krum_scores(distances, 1).tolist() == [5, 2, 5, 13, 18820]
    assert merged(make("krum", attackers=1), models)[WEIGHT].item() == 1
    assert merged(make("multi-krum", attackers=1), models)[WEIGHT].item() == 1.75
    assert merged(make("multi-krum", attackers=1, keep=3), models)[WEIGHT].item() == 1
    assert merged(make("multi-krum", attackers=1, keep=1), models)[WEIGHT].item() == 1


def test_multi_krum_never_keeps_more_than_can_be_honest() -> None:
    models = weights_of(0, 1, 2, 4, 100)
    assert merged(make("multi-krum", attackers=1, keep=5), models)[WEIGHT].item() == 1.75


def test_of_equal_scores_the_smaller_client_wins() -> None:
    """0, 1, 2, 3 with f = 0 and two nearest: scores 5, 2, 2, 5: clients 1 and 2 tie; keep 3 takes client 0, not 3."""
    models = weights_of(0, 1, 2, 3)
    assert merged(make("krum", attackers=0), models)[WEIGHT].item() == 1
    assert merged(make("multi-krum", attackers=0, keep=3), models)[WEIGHT].item() == 1
    assert merged(make("krum", attackers=0), models[::-1])[WEIGHT].item() == 2


def test_with_fewer_than_2f_plus_3_replies_krum_takes_the_median() -> None:
    """Six replies and f = 2 (seven are needed): the median of 0, 1, 2, 4, 50, 100 is 3, which nobody sent."""
    models = weights_of(0, 1, 2, 4, 50, 100)
    for name in ("krum", "multi-krum"):
        assert merged(make(name, attackers=2), models)[WEIGHT].item() == 3
        assert merged(make(name), models[:2])[WEIGHT].item() == 0.5
        assert merged(make(name), models[3:4])[WEIGHT].item() == 4


def test_left_out_f_is_the_most_that_the_replies_allow() -> None:
    """Nine replies allow (9 - 3) / 2 = 3, so Multi-Krum averages six: (0 + ... + 5) / 6 = 2.5."""
    models = weights_of(0, 1, 2, 3, 4, 5, 100, 200, 300)
    assert merged(make("multi-krum"), models)[WEIGHT].item() == 2.5
    assert digest(merged(make("multi-krum"), models)) == digest(merged(make("multi-krum", attackers=3), models))
    assert digest(merged(make("krum"), models)) == digest(merged(make("krum", attackers=3), models))


def brute_force_scores(rows: np.ndarray, attackers: int) -> list[float]:
    """The smallest sum of squared distances to any n - f - 2 others, over all choices of them."""
    count = len(rows)
    return [
        min(
            sum(float(((rows[one] - rows[other]) ** 2).sum()) for other in chosen)
            for chosen in combinations([other for other in range(count) if other != one], count - attackers - 2)
        )
        for one in range(count)
    ]


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 8), st.integers(0, 2), st.integers(0, 10_000))
def test_krum_against_brute_force(count: int, attackers: int, seed: int) -> None:
    attackers = min(attackers, (count - 3) // 2)
    rows = np.random.default_rng(seed).standard_normal((count, 6)).astype(np.float32)
    # Two tensors of different shapes, so that what is flattened and added up is tested too.
    models = [{WEIGHT: torch.tensor(row[:4]).view(2, 2), "model/parameters/z": torch.tensor(row[4:])} for row in rows]
    expected = brute_force_scores(rows.astype(np.float64), attackers)
    found = krum_scores(squared_distances(models, sorted(models[0])), attackers)
    assert found.tolist() == pytest.approx(expected)
    best = int(np.argmin(expected))
    chosen = merged(make("krum", attackers=attackers), models)
    assert all(torch.equal(chosen[name], models[best][name]) for name in models[best])
    kept = np.argsort(expected)[: count - attackers]
    mean = merged(make("multi-krum", attackers=attackers), models)["model/parameters/z"]
    assert mean.tolist() == pytest.approx(rows[kept, 4:].mean(axis=0).tolist(), abs=1e-6)


# -- clipped mean


def test_clipped_mean_by_hand() -> None:
    """From (1, 1): updates (3, 4) of norm 5, (0, 10) of norm 10 and (-60, 80) of norm 100.

    C = 5: (3, 4) + (0, 5) + (-3, 4) = (0, 13), a third of it added: (1, 1 + 13/3).
    Median: C = 10: (3, 4) + (0, 10) + (-6, 8) = (-3, 22): (1 - 1, 1 + 22/3).
    """
    models = [state(pair) for pair in ([4, 5], [1, 11], [-59, 81])]
    start = state([1, 1])
    fixed = merged(make("clipped-mean", norm=5.0), models, start)[WEIGHT]
    assert fixed.tolist() == pytest.approx([1, 1 + 13 / 3])
    by_median = merged(make("clipped-mean"), models, start)[WEIGHT]
    assert by_median.tolist() == pytest.approx([0, 1 + 22 / 3])


def test_of_an_even_number_of_norms_the_smaller_middle_one_clips() -> None:
    """Updates of 1 and 1000: both count as 1, so the mean moves by 1, not by hundreds."""
    assert merged(make("clipped-mean"), weights_of(1, 1000))[WEIGHT].item() == 1


def test_the_norm_is_of_the_whole_update_not_of_each_tensor() -> None:
    """Tensors 3 and 4 make a norm of 5; clipped to 1 they are 0.6 and 0.8."""
    model = {WEIGHT: torch.tensor([3.0]), "model/parameters/z": torch.tensor([4.0])}
    clipped = merged(make("clipped-mean", norm=1.0), [model])
    assert clipped[WEIGHT].item() == pytest.approx(0.6)
    assert clipped["model/parameters/z"].item() == pytest.approx(0.8)


def test_clients_that_did_not_move_leave_the_model_where_it_was() -> None:
    start = state([2.5])
    assert merged(make("clipped-mean"), [state([2.5])] * 3, start)[WEIGHT].item() == 2.5


@pytest.mark.parametrize("norm", [0.0, -1.0, "mean"])
def test_clipped_mean_refuses_a_norm_that_is_none(norm: Any) -> None:
    with pytest.raises(InputError, match=r"method\.norm"):
        make_experiment({"method": {"name": "clipped-mean", "norm": norm}})


# -- what all of them promise

HONEST = st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=9)
LIES = st.floats(-(2.0**127), 2.0**127, width=32)


@settings(max_examples=60, deadline=None)
@given(HONEST, st.lists(LIES, min_size=2, max_size=2))
@pytest.mark.parametrize("name", ["fedmedian", "trimmed-mean"])
def test_two_liars_cannot_leave_the_range_of_the_honest(name: str, honest: list[float], lies: list[float]) -> None:
    """Seven to eleven replies, of which beta = 0.3 cuts two or three at either end."""
    method = make(name, **({"beta": 0.3} if name == "trimmed-mean" else {}))
    values = [lies[0], *honest, lies[1]]
    models = [state([value], [abs(value)]) for value in values]
    found = merged(method, models)[WEIGHT].item()
    assert min(honest) <= found <= max(honest)


@settings(max_examples=60, deadline=None)
@given(HONEST, st.lists(LIES, min_size=2, max_size=2))
def test_two_liars_move_a_clipped_mean_by_two_limits_at_most(honest: list[float], lies: list[float]) -> None:
    """From zero with C = 1 a liar adds 1 / n at the most to what silence would have given."""
    method = make("clipped-mean", norm=1.0)
    lying = merged(method, weights_of(*honest, *lies))[WEIGHT].item()
    silent = merged(method, weights_of(*honest, 0, 0))[WEIGHT].item()
    assert abs(lying - silent) <= 2 / (len(honest) + 2) + 1e-6
    assert abs(lying) <= 1 + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 9), st.integers(0, 10_000))
@pytest.mark.parametrize("name", [*ROBUST, "fedmedian"])
def test_who_sent_what_does_not_matter(name: str, count: int, seed: int) -> None:
    """Distinct models, dealt to the clients in another order: the same outcome up to rounding.

    Of three replies Krum sees one neighbour each: the nearest two tie, and the client id decides.
    """
    generator = np.random.default_rng(seed)
    rows, order = generator.standard_normal((count, 3)), generator.permutation(count)
    models = [state(row.tolist(), (row**2).tolist(), batches) for batches, row in enumerate(rows)]
    one, other = merged(make(name), models), merged(make(name), [models[client] for client in order])
    for tensor in (WEIGHT, VARIANCE, BATCHES):
        assert torch.allclose(one[tensor], other[tensor], atol=1e-6), tensor


@pytest.mark.parametrize("name", ROBUST)
def test_clients_count_alike_whatever_they_claim(name: str) -> None:
    models = [state([value], [1 + value]) for value in (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)]
    start, method = state([0.0], [1.0]), make(name)
    modest, boastful = (
        method.aggregate(start, [reply(client, model, claim**client) for client, model in enumerate(models)], TURN)
        for claim in (1, 100)
    )
    assert digest(modest) == digest(boastful)


@pytest.mark.parametrize("name", ROBUST)
def test_what_is_merged_has_the_types_and_names_of_before(name: str) -> None:
    models = [state([value, 1], [value], 4) for value in (1.0, 2.0, 3.0, 4.0)]
    start = {**state([0, 0], [1]), "other": torch.tensor(7)}
    before = digest(start)
    after = merged(make(name), models, start)
    assert {key: (tensor.dtype, tensor.shape) for key, tensor in after.items()} == {
        key: (tensor.dtype, tensor.shape) for key, tensor in start.items()
    }
    assert after["other"].item() == 7
    assert digest(start) == before


@pytest.mark.parametrize("name", ROBUST)
def test_equal_replies_are_the_outcome(name: str) -> None:
    one = state([0.1, 0.7, -3.3], [0.3], 12)
    after = merged(make(name), [one] * 6)
    assert {key: after[key].tolist() for key in one} == {key: tensor.tolist() for key, tensor in one.items()}


# -- BatchNorm: the side door


@pytest.mark.parametrize("poison", [-1e6, 0.0, 1e30], ids=["negative", "zero", "huge"])
@pytest.mark.parametrize("buffers", ["average", "as-parameters"])
@pytest.mark.parametrize("name", ["krum", "multi-krum", "trimmed-mean"])
def test_blameless_weights_do_not_smuggle_poisoned_statistics(name: str, buffers: str, poison: float) -> None:
    """Two of nine send the very middle of the honest weights, which scores best, with a poisoned variance.

    Honest variances lie in 1.0 .. 1.6; the plain mean would be (9.1 + 2 p) / 9.
    """
    settings = {"beta": 0.3} if name == "trimmed-mean" else {"attackers": 2}
    honest = [state([0.3 * value], [1 + 0.1 * value], 10) for value in range(7)]
    liars = [state([0.9], [poison], 2**62) for _ in range(2)]
    after = merged(make(name, buffers=buffers, **settings), [*liars, *honest])
    assert 1 <= after[VARIANCE].item() <= 1.6
    assert after[BATCHES].item() == 10


def test_clipped_mean_keeps_statistics_out_of_reach_unless_they_are_part_of_the_update() -> None:
    """Variances 1, 1.1, 1.2 and a lie of -50: the median is 1.05. As part of the update each is held to C = 2.

    As parameters, from variance 1 and weights that do not move: changes 0, 0.1, 0.2 and -51, the last clipped to -2:
    1 + (0.3 - 2) / 4 = 0.575. A smaller variance would have become negative.
    """
    start = state([0.0], [1.0])
    models = [state([0.0], [value]) for value in (1.0, 1.1, 1.2, -50.0)]
    assert merged(make("clipped-mean", norm=2.0), models, start)[VARIANCE].item() == pytest.approx(1.05)
    clipped = merged(make("clipped-mean", norm=2.0, buffers="as-parameters"), models, start)
    assert clipped[VARIANCE].item() == pytest.approx(0.575)


def test_krums_weights_and_statistics_are_one_clients_own() -> None:
    models = [state([0.3 * value], [2 - 0.1 * value]) for value in range(7)]
    after = merged(make("krum", attackers=2), models)
    pair = after[WEIGHT].item(), after[VARIANCE].item()
    assert pair in [(model[WEIGHT].item(), model[VARIANCE].item()) for model in models]


def test_statistics_on_a_large_scale_do_not_hide_a_lie_in_the_weights() -> None:
    """Variances spread over thousands, weights over tenths, and a liar in the very middle of the variances.

    In one vector with f = 1 the two nearest of the liar are at 100^2 + 50^2 each (about 25,000), those of the honest
    client at 2900 at 100^2 + 50^2 and 200^2 (about 52,500): the liar would be chosen. Scored apart it is not.
    """
    models = [state([weight], [variance]) for weight, variance in ((0.1, 0), (0.2, 2900), (0.3, 3100), (0.4, 6000))]
    models.append(state([50.0], [3000.0]))
    assert merged(make("krum", attackers=1, buffers="as-parameters"), models)[WEIGHT].item() == 50
    assert merged(make("krum", attackers=1), models)[WEIGHT].item() < 0.5


@pytest.mark.parametrize("way", ["one-pass", "layer-by-layer"])
@pytest.mark.parametrize("name", ROBUST)
def test_recalibration_takes_the_median_of_the_clients_statistics(name: str, way: str) -> None:
    """Ten rows each with means 1, 2, 3 and variance 1 (unbiased: squares = 10 mean^2 + 9), and a liar's sums.

    The means 1, 2, 3 and 1e12 have the median 2.5, the variances 1, 1, 1 and 0 (clamped) the median 1.
    """
    method = make(name, buffers="recalibrate", recalibration=way)
    server = method.start(Streams(0))
    own, *exchanges = method.exchanges(server, 0)
    assert own is method
    assert exchanges
    for exchange in exchanges:
        assert isinstance(exchange, RobustRecalibration)
        expected = exchange.expect(server, Profile(0, 10, "cnn-bn"), Message({}))
        replies = []
        for client, mean in enumerate((1.0, 2.0, 3.0, 1e12)):
            sums = {"rows": 10, "sum": 10 * mean, "squares": 10 * mean**2 + 9 if mean < 4 else 0.0}
            message = {
                full: torch.full(shape, sums[full.rpartition("/")[2]], dtype=dtype)
                for full, (shape, dtype) in expected.items()
            }
            replies.append(Reply(Profile(client, 10, "cnn-bn"), Message(message), {}))
        server = exchange.aggregate(server, replies, TURN)
    means = [tensor for full, tensor in server.items() if full.endswith("running_mean")]
    variances = [tensor for full, tensor in server.items() if full.endswith("running_var")]
    assert means
    assert all(torch.allclose(tensor, torch.tensor(2.5)) for tensor in means)
    assert all(torch.allclose(tensor, torch.tensor(1.0)) for tensor in variances)


def test_every_robust_method_is_tested_here() -> None:
    """The robust methods are those whose file takes its aggregation of buffers from `robust`."""
    files = {name: import_module(methods[name].__module__) for name in methods.names()}
    robust = {name for name, file in files.items() if "with_robust_buffers" in vars(file)}
    assert robust - {"fedmedian"} == set(ROBUST)


def test_median_of_one_and_two() -> None:
    assert median([torch.tensor([3.0])]).tolist() == [3]
    assert median([torch.tensor([3.0]), torch.tensor([5.0])]).tolist() == [4]


@pytest.mark.parametrize("name", ["krum", "multi-krum"])
def test_a_real_choice_has_the_same_bits_in_every_engine(
    name: str, tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path
) -> None:
    """With all five clients and f = 1; where three are asked, Krum has little to choose from."""
    plan = tiny_plan(method={"name": name, "attackers": 1}, model="cnn-bn", rounds=2, attack="sign-flip")
    found = {
        engine: execute(plan, engines[engine], tmp_path / engine) for engine in ("in-process", "wire", "processes-2")
    }
    results = {engine: (run.path / "checkpoint.safetensors").read_bytes() for engine, run in found.items()}
    assert results["wire"] == results["in-process"]
    assert results["processes-2"] == results["in-process"]


def test_more_attackers_than_a_round_can_stand_are_refused() -> None:
    """Krum needs 2f + 3 replies: with f = 2, seven clients a round."""
    base = {"method": {"name": "krum", "attackers": 2}, "data": "digits", "clients": 10}
    make_plan(make_experiment({**base, "participation": {"name": "random", "number": 7}}))
    with pytest.raises(InputError, match="needs 7 clients or more, and there are 6"):
        make_plan(make_experiment({**base, "participation": {"name": "random", "number": 6}}))
