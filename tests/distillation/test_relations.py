"""Similarities, distances and angles, against numbers derived by hand and against loops over tuples."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedstill.core.task import Output
from fedstill.distillation.intermediate import IntermediateSettings
from fedstill.distillation.relations import Relational, SimilarityPreserving, angles, distances, similarity

# A right triangle with sides 3, 4, 5, and three points in a row.
TRIANGLE = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
ROW = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
# Sides 3, 4, 5 in units of 4 against 1, 2, 1 in units of 4/3, for the pairs 12, 13, 23: 0, -1/2 and 1/2 apart.
DISTANCES = (0 + 0.125 + 0.125) / 3
# Cosines 0, 3/5, 4/5 against 1, -1, 1 at the three corners: 1, 1.6 and 0.2 apart; above one the loss is linear.
ANGLES = (0.5 + 1.1 + 0.02) / 3


def with_features(ours: Tensor, theirs: Tensor) -> tuple[Output, Output]:
    alike = torch.full((len(ours), 2), math.log(0.5), dtype=ours.dtype)
    return Output(alike, ours), Output(alike, theirs)


def test_sp_by_hand(squares: tuple[Output, Output, Tensor]) -> None:
    """Inner products [[25, 0], [0, 4]] and [[25, 15], [15, 25]]: rows (1, 0) and (5, 3)/sqrt(34), 2 - 10/sqrt(34)
    apart, both of them; over batch^2 = 4."""
    student, teacher, _ = squares
    terms = SimilarityPreserving().terms(student, teacher)
    by_hand = 2 * (2 - 10 / math.sqrt(34)) / 4
    assert list(terms) == ["soft-targets", "similarity"]
    assert terms["similarity"].item() == pytest.approx(0.5 * by_hand, abs=1e-12)
    reference = SimilarityPreserving(IntermediateSettings(beta="reference")).terms(student, teacher)
    assert reference["similarity"].item() == pytest.approx(3000 * by_hand, rel=1e-12)


def test_sp_is_blind_to_one_scale_for_all() -> None:
    torch.testing.assert_close(similarity(9 * TRIANGLE, ROW), similarity(TRIANGLE, 0.1 * ROW))


def test_sp_is_blind_to_rotation(make_output: Any) -> None:
    features = make_output("features", width=2).features
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    assert similarity(features @ turn, features).item() == pytest.approx(0, abs=1e-25)


def test_rkd_by_hand() -> None:
    terms = Relational().terms(*with_features(TRIANGLE, ROW))
    assert list(terms) == ["soft-targets", "distances", "angles"]
    assert terms["distances"].item() == pytest.approx(0.5 * DISTANCES, abs=1e-12)
    assert terms["angles"].item() == pytest.approx(0.5 * ANGLES, abs=1e-12)


def test_rkd_with_a_number_for_weight() -> None:
    terms = Relational(IntermediateSettings(beta=3)).terms(*with_features(TRIANGLE, ROW))
    assert terms["distances"].item() == pytest.approx(3 * DISTANCES, abs=1e-12)
    assert terms["angles"].item() == pytest.approx(3 * ANGLES, abs=1e-12)


def test_the_reference_weights_mean_all_tuples() -> None:
    """25 times the mean over all 9 pairs, of which 6 are of two samples; 50 over 27 triplets, of which 6 count."""
    terms = Relational(IntermediateSettings(beta="reference")).terms(*with_features(TRIANGLE, ROW))
    assert terms["distances"].item() == pytest.approx(25 * DISTANCES * 6 / 9, abs=1e-12)
    assert terms["angles"].item() == pytest.approx(50 * ANGLES * 6 / 27, abs=1e-12)


def huber(difference: float) -> float:
    return difference**2 / 2 if abs(difference) < 1 else abs(difference) - 0.5


def test_rkd_against_loops_over_distinct_tuples(make_output: Any) -> None:
    ours, theirs = (make_output(name, batch=6, width=width).features for name, width in (("s", 3), ("t", 5)))
    sides = ours.numpy(), theirs.numpy()
    pairs = list(itertools.permutations(range(6), 2))
    lengths = [np.array([np.linalg.norm(side[i] - side[j]) for i, j in pairs]) for side in sides]
    relative = [each / each.mean() for each in lengths]
    by_loop = np.mean([huber(a - b) for a, b in zip(*relative, strict=True)])
    assert distances(ours, theirs).item() == pytest.approx(by_loop, rel=1e-12)

    def cosine(side: np.ndarray, i: int, j: int, k: int) -> float:
        one, two = side[i] - side[j], side[k] - side[j]
        return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))

    triplets = itertools.permutations(range(6), 3)
    by_loop = np.mean([huber(cosine(sides[0], *each) - cosine(sides[1], *each)) for each in triplets])
    assert angles(ours, theirs).item() == pytest.approx(by_loop, rel=1e-12)


@pytest.mark.parametrize("term", [distances, angles], ids=["distances", "angles"])
def test_relations_are_blind_to_place_size_and_rotation(term: Any) -> None:
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    assert term(5 * TRIANGLE @ turn + 11, TRIANGLE).item() == pytest.approx(0, abs=1e-25)
    torch.testing.assert_close(term(5 * TRIANGLE @ turn - 3, ROW), term(TRIANGLE, ROW))


def test_two_samples_have_nothing_to_relate() -> None:
    ours, theirs = TRIANGLE[:2].clone().requires_grad_(), ROW[:2]
    terms = Relational().terms(*with_features(ours, theirs))
    assert terms["distances"].item() == 0
    assert terms["angles"].item() == 0
    (terms["distances"] + terms["angles"]).backward()
    assert ours.grad is not None
    assert ours.grad.isfinite().all()


def test_equal_samples_have_no_distance_and_no_angle() -> None:
    """Two of three the same: distances 0, 1, 1 in units of 2/3 against 3/4, 1, 5/4; and no NaN in the gradient."""
    ours = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    by_hand = (huber(0.75) + huber(1.5 - 1) + huber(1.5 - 1.25)) / 3
    term = distances(ours, TRIANGLE)
    assert term.item() == pytest.approx(by_hand, abs=1e-12)
    (term + angles(ours, TRIANGLE)).backward()
    assert ours.grad is not None
    assert ours.grad.isfinite().all()


def test_all_samples_equal() -> None:
    ours = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    total = distances(ours, TRIANGLE) + angles(ours, TRIANGLE) + similarity(ours, TRIANGLE)
    total.backward()
    assert total.isfinite()
    assert ours.grad is not None
    assert ours.grad.isfinite().all()


def test_angles_in_single_precision_with_a_common_offset(make_output: Any) -> None:
    """Features of size one around ten: no digits are lost to the offset."""
    ours, theirs = (make_output(name, batch=24, width=64).features + 10 for name in ("s", "t"))
    for term in (distances, angles):
        assert term(ours.float(), theirs.float()).item() == pytest.approx(term(ours, theirs).item(), rel=1e-4)
