"""Hints and attention, against numbers derived by hand; features (3, 4, 0), (0, 0, 2) and (0, 5, 0), (0, 3, 4)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.distillation.features import Attention, Feature, FeatureSettings, attention, hint
from fedstill.distillation.intermediate import IntermediateSettings
from fedstill.distillation.objective import Adapters

Squares = tuple[Output, Output, Tensor]

# Directions (0.6, 0.8, 0), (0, 0, 1) and (0, 1, 0), (0, 0.6, 0.8): squared differences 0.4 and 0.4 over six numbers.
HINT = 0.8 / 6
# Raw differences (3, -1, 0), (0, -3, -2).
RAW_HINT = (9 + 1 + 9 + 4) / 6
# Squares (9, 16, 0)/sqrt(337), (0, 0, 1) and (0, 1, 0), (0, 9, 16)/sqrt(337): each pair 2 - 2 * 16/sqrt(337) apart.
ATTENTION = 2 * (2 - 32 / math.sqrt(337)) / 6


def test_feature_by_hand(squares: Squares, identity: Adapters) -> None:
    student, teacher, _ = squares
    terms = Feature().terms(student, teacher, None, identity)
    assert list(terms) == ["soft-targets", "hint"]
    assert terms["hint"].item() == pytest.approx(0.5 * HINT, abs=1e-12)


def test_attention_by_hand(squares: Squares, identity: Adapters) -> None:
    student, teacher, _ = squares
    terms = Attention().terms(student, teacher, None, identity)
    assert list(terms) == ["soft-targets", "attention"]
    assert terms["attention"].item() == pytest.approx(0.5 * ATTENTION, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"beta": "seed"}, 0.5 * HINT, id="seed"),
        pytest.param({"beta": 0.2}, 0.2 * HINT, id="number"),
        pytest.param({"beta": "reference"}, 100 * RAW_HINT, id="reference-means-raw-features"),
        pytest.param({"beta": "reference", "normalise": True}, 100 * HINT, id="reference-weight-alone"),
        pytest.param({"beta": "seed", "normalise": False}, 0.5 * RAW_HINT, id="raw-features-alone"),
    ],
)
def test_weights_of_the_hint(
    squares: Squares, identity: Adapters, settings: dict[str, object], expected: float
) -> None:
    student, teacher, _ = squares
    objective = Feature(FeatureSettings.model_validate(settings))
    found = objective.terms(student, teacher, torch.tensor([0, 0]), identity)["hint"].item()
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_reference_weight_of_attention(squares: Squares, identity: Adapters) -> None:
    student, teacher, _ = squares
    objective = Attention(IntermediateSettings(beta="reference"))
    assert objective.terms(student, teacher, None, identity)["attention"].item() == pytest.approx(1000 * ATTENTION)


def test_size_and_sign_play_no_part_in_attention(squares: Squares) -> None:
    student, teacher, _ = squares
    scale = torch.tensor([[-3.0], [0.01]], dtype=torch.float64)
    changed = attention(scale * student.features, 7 * teacher.features)
    torch.testing.assert_close(changed, attention(student.features, teacher.features))


def test_size_plays_no_part_in_normalised_hints_but_sign_does(squares: Squares) -> None:
    student, teacher, _ = squares
    torch.testing.assert_close(hint(5 * student.features, teacher.features), hint(student.features, teacher.features))
    assert hint(-student.features, student.features).item() == pytest.approx(4 * 2 / 6)


@pytest.mark.parametrize("kind", [Feature, Attention], ids=["feature", "attention"])
def test_phi_maps_to_the_teachers_width(kind: type[Feature | Attention]) -> None:
    adapters = kind().adapters(4, 7)
    assert {name: tuple(value.shape) for name, value in adapters.named_parameters()} == {
        "student.weight": (7, 4),
        "student.bias": (7,),
    }
    teacher = torch.ones(2, 7)
    assert adapters(torch.ones(2, 4), teacher)[1] is teacher


def test_adapters_come_from_the_stream_in_scope() -> None:
    def build(name: str) -> nn.Module:
        with Streams(3).ambient(name):
            return Feature().adapters(4, 7)

    first, again, other = (build(name).state_dict()["student.weight"] for name in ("a", "a", "b"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_adapters_are_missed_with_a_sentence(squares: Squares) -> None:
    student, teacher, _ = squares
    with pytest.raises(InputError, match="'feature' learns adapters beside the student, and was given none"):
        Feature().terms(student, teacher)
