"""The three faults of the released code of the single-image paper, by numbers, each beside what its text says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstill.core.streams import Streams
from fedstill.methods.gradients import correction
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.recipes import recipe_folder
from fedstill.shared_image.proxy_selection import Heuristic, Selection, balance_classes, prune_by_sureness
from fedstill.shared_image.released_code import squared_sum
from fedstill.shared_image.single_image import SingleImageSettings
from fedstill.studies import Study

from .pools import pool

ONE_CLASS = torch.zeros(10, dtype=torch.int64)
DISTANCES = torch.arange(10.0)  # sample k is at distance k from its cluster's centre


# "easy" is "mixed"


@pytest.mark.parametrize(
    ("heuristic", "four", "five"),
    [
        ("easy", [0, 1, 2, 3], [0, 1, 2, 3, 4]),
        ("easy-as-released", [0, 1, 8, 9], [0, 1, 2, 8, 9]),
        ("mixed", [0, 1, 8, 9], [0, 1, 7, 8, 9]),
        ("hard", [6, 7, 8, 9], [5, 6, 7, 8, 9]),
    ],
)
def test_released_easy_takes_the_hardest_too(heuristic: Heuristic, four: list[int], five: list[int]) -> None:
    """Of an odd number, `mixed` takes one more of the hardest, and the released code one more of the easiest."""
    for target, expected in ((4, four), (5, five)):
        assert balance_classes(DISTANCES, ONE_CLASS, target, 1.0, heuristic).tolist() == expected


def as_released(distances: np.ndarray, classes: np.ndarray, target: int) -> list[int]:
    """By the released numbers: 100 % easy and 50 % hard of a class's share, the surplus taken off the easy."""
    kinds = np.unique(classes)
    each = target // len(kinds)
    chosen: set[int] = set()
    for kind in kinds:
        rows = np.flatnonzero(classes == kind)
        easy, hard = int(1.0 * each), int(0.5 * each)
        easy += each - (easy + hard)
        order = rows[np.argsort(distances[rows])]
        chosen |= {*order[:easy].tolist(), *order[::-1][:hard].tolist()}
    return sorted(chosen)


def test_released_easy_equals_an_independent_count() -> None:
    numbers = np.random.default_rng(2)
    distances, classes = numbers.random(90), numbers.permutation(90) % 3
    here = balance_classes(torch.from_numpy(distances), torch.from_numpy(classes), 33, 1.0, "easy-as-released")
    assert here.tolist() == as_released(distances, classes, 33)
    easy = set(balance_classes(torch.from_numpy(distances), torch.from_numpy(classes), 33, 1.0, "easy").tolist())
    assert len(easy & set(here.tolist())) == 3 * 6  # of 11 per class, the 6 easiest


# "random" leaves 41 %


def kept(count: int, target: int, seed: int, drop: str = "random-as-released") -> Tensor:
    sure, classes = torch.rand(count, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 10
    return prune_by_sureness(sure, classes, target, Streams(seed), drop)  # type: ignore[arg-type]


def test_released_random_leaves_two_fifths_by_formula_and_by_simulation() -> None:
    """Ten classes of 500 with 450 draws each: (1 - 1/500)^450 = 40.63 %, exp(-0.9) = 40.66 %; and not 10 %."""
    formula = (1 - 1 / 500) ** 450
    assert formula == pytest.approx(math.exp(-0.9), abs=5e-4)
    shares = [len(kept(5000, 500, seed)) / 5000 for seed in range(20)]
    assert np.mean(shares) == pytest.approx(formula, abs=0.004)  # its standard error is 0.001
    assert np.std(shares) < 0.01
    assert {len(kept(5000, 500, seed, "random")) for seed in range(3)} == {500}


def test_released_random_drops_what_is_drawn_from_each_class() -> None:
    """The draws repeated by hand: of 20 rows of class 0 and 10 of class 1, 18 and 9 draws."""
    classes = torch.tensor([0] * 20 + [1] * 10)
    left = prune_by_sureness(torch.zeros(30), classes, 3, Streams(4), "random-as-released")
    draws = Streams(4).draw("pruning")
    dropped = {*draws.integers(0, 20, 18).tolist(), *(20 + draws.integers(0, 10, 9)).tolist()}
    assert left.tolist() == sorted(set(range(30)) - dropped)
    assert len(left) > 3


def test_a_selection_as_released_returns_more_than_asked_for() -> None:
    embeddings, logits = pool(3000)
    chosen = Selection(kmeans=0, drop="random-as-released").select(embeddings, logits, 300, Streams(0))
    assert len(chosen) / 3000 == pytest.approx(math.exp(-0.9), abs=0.03)


# FedProx's term is the squared sum


def stepped(seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model away from its anchor, with gradients of zero."""
    with Streams(seed).ambient("model"):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        anchor = {name: weight.detach() + torch.randn_like(weight) for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    return model, anchor


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def test_the_released_gradient_is_one_number_for_every_weight() -> None:
    """Against autograd, for both terms; and where the differences cancel, the released one is zero."""
    for released in (True, False):
        model, anchor = stepped(3)
        weights = list(model.parameters())
        away = flat(weights) - flat(list(anchor.values()))
        term = 0.7 / 2 * (away.sum() ** 2 if released else away.square().sum())
        expected = flat(list(torch.autograd.grad(term, weights)))
        made = squared_sum(model, 0.7, anchor) if released else correction(model, pull=0.7, anchor=anchor)
        made(model)
        found = flat([weight.grad for weight in weights if weight.grad is not None])
        assert torch.allclose(found, expected, atol=1e-5)
        assert (len(found.unique()) == 1) == released
    model, anchor = stepped(3)
    first = next(iter(anchor))
    shift = sum((weight - anchor[name]).sum() for name, weight in model.named_parameters())
    anchor[first] = anchor[first] + shift / anchor[first].numel()
    squared_sum(model, 0.7, anchor)(model)
    assert flat([weight.grad for weight in model.parameters() if weight.grad is not None]).abs().max() < 1e-5


def test_the_released_curvature_is_as_large_as_there_are_weights() -> None:
    """So that plain gradient descent diverges at rates above 2 / (mu n), here n = 30; the published limit is 2 / mu."""
    model, anchor = stepped(5)
    weights = list(model.parameters())
    away = flat(weights) - flat(list(anchor.values()))
    ones = torch.ones(len(away))
    gradient = torch.autograd.grad(away.sum() ** 2 / 2, weights, create_graph=True)
    along = torch.autograd.grad(flat(list(gradient)) @ ones, weights)
    assert torch.allclose(flat(list(along)), ones * len(ones))


def test_an_anchor_that_stays_in_the_graph_leaves_no_gradient_at_all() -> None:
    """The client that we could read in the released code does not detach the anchor: both gradients cancel."""
    model, _ = stepped(6)
    weights = list(model.parameters())
    anchor = flat(weights)  # not detached
    with torch.no_grad():
        for weight in weights:
            weight += 0.1
    term = (flat(weights) - anchor).sum() ** 2 / 2
    assert term.item() == pytest.approx((0.1 * len(anchor)) ** 2 / 2, rel=1e-4)
    assert flat(list(torch.autograd.grad(term, weights))).abs().max() == 0


# Where they are used


def test_only_the_recipe_that_compares_them_uses_these_settings() -> None:
    using = [path.stem for path in sorted(recipe_folder().glob("*.yaml")) if "-as-released" in path.read_text()]
    assert using == ["image-released-code"]


@pytest.mark.parametrize(("preset", "runs", "kept"), [(None, 9 * 2, 20_330), ("lite", 9 * 3, 2_033)])
def test_the_recipe_has_a_control_with_as_many_samples(preset: str | None, runs: int, kept: int) -> None:
    """exp(-0.9) of the candidates, without replacement: what is left of the fault if the number alone matters."""
    study = Study("image-released-code", preset=preset, data_root=Path("nowhere"))
    assert len(study.study_plan.jobs) == runs
    method = {cell.labels["code"]: cell.experiment.method.settings for cell in study.expand()}
    released, control = method["random as released"], method["random, 41 % kept"]
    assert isinstance(released, SingleImageSettings)
    assert isinstance(control, SingleImageSettings)
    assert released.selection is not None
    assert control.selection is not None
    assert released.selection.candidates(released.samples) == control.selection.candidates(control.samples)
    assert control.samples == kept == round(released.samples * 10 * math.exp(-0.9), -1 if preset is None else 0)


def test_the_squared_sum_is_what_clients_train_with_and_no_part_of_earlier_identities() -> None:
    method = {"name": "feddf", "proxy": "digits", "mu": 0.1}
    plans = [
        make_plan(make_experiment({"method": {**method, **more}, "clients": 2}))
        for more in ({}, {"proximal": "distance"}, {"proximal": "sum-as-released"})
    ]
    assert plans[0].identity == plans[1].identity != plans[2].identity
    assert "proximal" not in plans[0].experiment.hashed()["method"]
    model, anchor = stepped(8)
    plans[2].method.pull(model, anchor)(model)  # type: ignore[attr-defined]
    assert all(len(weight.grad.unique()) == 1 for weight in model.parameters() if weight.grad is not None)
