"""The losses of detection by hand, and what they do not depend on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedstill.core.streams import Streams
from fedstill.detection.boxes import lies_in
from fedstill.detection.detection_losses import TERMS, combine, detection_losses
from fedstill.detection.model import Layer, Predictions, TokenPredictions

CLASSES = 3


def predictions(
    probabilities: Tensor,
    boxes: Tensor,
    extent: Sequence[float] = (4.0, 4.0, 2.0),
    layers: int = 1,
    bins: tuple[Tensor, Tensor] | None = None,
    tokens: TokenPredictions | None = None,
) -> Predictions:
    """The same in every layer; without tokens, one that lies far from everything and is sure of it."""
    scenes, queries = probabilities.shape[:2]
    logits, residuals = bins or (torch.zeros(scenes, queries, 0), torch.zeros(scenes, queries, 0))
    far = torch.full((scenes, 1, 3), 99.0)
    alone = TokenPredictions(far, torch.full((scenes, 1), -99.0), far, torch.zeros(scenes, 1, CLASSES))
    said = Layer(probabilities.log(), boxes, logits, residuals)
    wide = torch.tensor(extent).expand(scenes, 3)
    return Predictions((said,) * layers, tokens or alone, torch.zeros(scenes, queries, 4), torch.zeros(scenes, 4), wide)


CUBE = [0.0, 0, 0, 1, 1, 1, 0]
AWAY = [9.0, 0, 0, 1, 1, 1, 0]


def one_scene(layers: int = 1) -> Predictions:
    """Two queries; the second lies on a cube at 0 but half a metre too far along x."""
    probabilities = torch.tensor([[[0.1, 0.1, 0.1, 0.7], [0.1, 0.6, 0.2, 0.1]]])
    boxes = torch.tensor([[AWAY, [0.5, 0, 0, 1, 1, 2, 0]]])
    return predictions(probabilities, boxes, layers=layers)


def random_scenes(seed: int = 0) -> tuple[Predictions, Tensor, Tensor]:
    """Three scenes with 6 queries and 4, 2 and 0 objects."""
    draw = Streams(seed).draw("scenes")

    def numbers(*shape: int) -> Tensor:
        return torch.from_numpy(draw.random(shape)).float()

    said = (numbers(3, 6, CLASSES + 1) * 3).softmax(-1)
    boxes = torch.cat([numbers(3, 6, 3) * 3, numbers(3, 6, 3) + 0.2, torch.zeros(3, 6, 1)], -1)
    places = numbers(3, 10, 3) * 3
    tokens = TokenPredictions(
        places, numbers(3, 10) * 2 - 1, places + numbers(3, 10, 3), (numbers(3, 10, CLASSES) * 2).log_softmax(-1)
    )
    labels = torch.tensor([[0, 1, 2, 1], [2, 0, -1, -1], [-1, -1, -1, -1]])
    truth = torch.cat([numbers(3, 4, 3) * 3, numbers(3, 4, 3) + 0.4, torch.zeros(3, 4, 1)], -1)
    truth[labels < 0] = 0
    return predictions(said, boxes, layers=2, tokens=tokens), labels, truth


def test_every_term_by_hand() -> None:
    """The object is of class 1 and matched with the second query.

    class: -ln 0.6 and 0.25 times -ln 0.7, over 1 + 0.25. centre: 5 * 0.5/4. size: 1/2 (of 2 m, one too high).
    giou: 0.5 m shared of 1 + 2 - 0.5; both are enclosed by 1.5 * 1 * 2 = 3.
    """
    terms = detection_losses(one_scene(), torch.tensor([[1]]), torch.tensor([[CUBE]])).terms()
    assert tuple(terms) == TERMS
    assert terms["class"].item() == pytest.approx((-math.log(0.6) - 0.25 * math.log(0.7)) / 1.25)
    assert terms["centre"].item() == pytest.approx(5 * 0.5 / 4)
    assert terms["size"].item() == pytest.approx(0.5)
    assert terms["giou"].item() == pytest.approx(1 - (0.5 / 2.5 - (3 - 2.5) / 3))
    assert terms["angle"].item() == 0
    assert terms["tokens"].item() == pytest.approx(0.0)


def test_who_was_matched_is_told_by_the_columns_that_were_given() -> None:
    """Each query lies on its object; the row of labels has gaps, which are no objects."""
    labels = torch.tensor([[-1, 1, -1, 0]])
    truth = torch.tensor([[[0.0] * 7, AWAY, [0.0] * 7, CUBE]])
    said = predictions(torch.tensor([[[0.4, 0.3, 0.2, 0.1], [0.3, 0.4, 0.2, 0.1]]]), torch.tensor([[CUBE, AWAY]]))
    (layer,) = detection_losses(said, labels, truth).layers
    scenes, queries, things = layer.pairs
    assert scenes.tolist() == [0, 0]
    assert dict(zip(queries.tolist(), things.tolist(), strict=True)) == {0: 3, 1: 1}
    assert torch.equal(labels[scenes, things], layer.labels)


def test_layers_add_up() -> None:
    labels, truth = torch.tensor([[1]]), torch.tensor([[CUBE]])
    once, thrice = (detection_losses(one_scene(layers), labels, truth).terms() for layers in (1, 3))
    for name in TERMS[:-1]:
        assert thrice[name].item() == pytest.approx(3 * once[name].item())
    assert thrice["tokens"] == once["tokens"]


def test_angles_by_hand() -> None:
    """Four bins; a heading of -1.4 is bin 3 (around -pi/2) with a residual of (pi/2 - 1.4) / (pi/4).

    Cross-entropy of a bin with probability 1/4 is ln 4, times 0.1; the residual that is said is 0, so Huber's loss is
    half its square, times 0.5. Where there are angles, queries without an object count 0.1 and giou nothing.
    """
    bins = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
    said = one_scene()
    said = predictions(said.layers[0].log_probabilities.exp(), said.layers[0].boxes, bins=bins)
    truth = torch.tensor([[[*CUBE[:6], -1.4]]])
    residual = (math.pi / 2 - 1.4) / (math.pi / 4)
    terms = detection_losses(said, torch.tensor([[1]]), truth).terms()
    assert terms["angle"].item() == pytest.approx(0.1 * math.log(4) + 0.5 * residual**2 / 2, rel=1e-5)
    assert terms["class"].item() == pytest.approx((-math.log(0.6) - 0.1 * math.log(0.7)) / 1.1)
    assert terms["giou"] == 0


def test_tokens_by_hand() -> None:
    """Of three tokens two lie in a table of class 0, and one of those in a chair of class 2 under it as well: the
    chair, which is smaller, has it.

    Objectness: ln 2 three times, over 3. Votes: the table's token is 0.5 m off, the chair's hits; classes 1/2 and 1/4;
    over the 2 tokens in objects.
    """
    positions = torch.tensor([[[0.9, 0.0, 0.0], [0.1, 0.0, 0.0], [5.0, 0.0, 0.0]]])
    votes = torch.tensor([[[0.5, 0.0, 0.0], [0.0, 0.0, 0.2], [7.0, 7.0, 7.0]]])
    classes = torch.tensor([[[0.5, 0.3, 0.2], [0.5, 0.25, 0.25], [1.0, 1e-9, 1e-9]]]).log()
    tokens = TokenPredictions(positions, torch.zeros(1, 3), votes, classes)
    truth = torch.tensor([[[0.0, 0, 0, 2, 2, 2, 0], [0.0, 0, 0.2, 0.5, 0.5, 1, 0]]])
    said = predictions(torch.full((1, 2, 4), 0.25), torch.tensor([[CUBE, AWAY]]), tokens=tokens)
    losses = detection_losses(said, torch.tensor([[0, 2]]), truth)
    expected = math.log(2) + (0.5 + math.log(2) + 0.0 + math.log(4)) / 2
    assert losses.terms()["tokens"].item() == pytest.approx(expected, rel=1e-6)
    assert losses.counts["tokens-in-objects"] == 2


def test_a_turned_box_holds_what_lies_in_it() -> None:
    """A beam of 4 m along x, turned by a quarter: what was in it along x is not, what lies along y is."""
    points = torch.tensor([[[1.5, 0.0, 0.0], [0.0, 1.5, 0.0]]])
    beams = torch.tensor([[[0.0, 0, 0, 4, 1, 1, 0], [0.0, 0, 0, 4, 1, 1, math.pi / 2]]])
    assert lies_in(points, beams).tolist() == [[[True, False], [False, True]]]


def test_weights_multiply_what_belongs_to_an_object() -> None:
    said, labels, truth = one_scene(layers=2), torch.tensor([[1]]), torch.tensor([[CUBE]])
    asked: list[tuple[list[float], list[int]]] = []

    def thrice(probability: Tensor, label: Tensor) -> Tensor:
        assert not probability.requires_grad
        asked.append((probability.tolist(), label.tolist()))
        return torch.full_like(probability, 3.0)

    losses = detection_losses(said, labels, truth)
    plain, heavy = losses.terms(), losses.terms(thrice)
    assert asked == [([pytest.approx(0.6)], [1])] * 2
    for name in ("centre", "size", "giou"):
        assert heavy[name].item() == pytest.approx(3 * plain[name].item())
    assert heavy["class"].item() == pytest.approx(2 * (-3 * math.log(0.6) - 0.25 * math.log(0.7)) / 1.25)
    assert heavy["tokens"] == plain["tokens"]


def test_weights_of_one_change_no_bit() -> None:
    losses = detection_losses(*random_scenes())
    plain, same = losses.terms(), losses.terms(lambda probability, label: torch.ones_like(probability))
    assert all(torch.equal(plain[name], same[name]) for name in TERMS)


def test_the_order_of_queries_objects_and_filling_makes_no_difference() -> None:
    said, labels, truth = random_scenes()
    turned = [3, 0, 5, 1, 4, 2]
    layers = tuple(
        Layer(*(part[:, turned] for part in (one.log_probabilities, one.boxes, one.bin_logits, one.bin_residuals)))
        for one in said.layers
    )
    other = Predictions(layers, said.tokens, said.queries, said.features, said.extent)
    mixed = [2, 0, 3, 1]
    plain, moved = detection_losses(said, labels, truth), detection_losses(other, labels[:, mixed], truth[:, mixed])
    for name in TERMS:
        torch.testing.assert_close(plain.terms()[name], moved.terms()[name])
        assert plain.terms()[name] != 0 or name == "angle"


def test_sums_of_scenes_are_those_of_the_batch() -> None:
    said, labels, truth = random_scenes()
    whole = detection_losses(said, labels, truth)
    sums: dict[str, Tensor] = {}
    counts: dict[str, Tensor] = {}
    for row in range(3):
        alone = detection_losses(only(said, row), labels[row : row + 1], truth[row : row + 1])
        sums = {name: value + sums.get(name, 0) for name, value in alone.sums().items()}
        counts = {name: value + counts.get(name, 0) for name, value in alone.counts.items()}
    for name, value in whole.terms().items():
        torch.testing.assert_close(combine(sums, counts)[name], value)


def only(said: Predictions, row: int) -> Predictions:
    def cut(part: Tensor) -> Tensor:
        return part[row : row + 1]

    layers = tuple(Layer(*map(cut, vars(layer).values())) for layer in said.layers)
    tokens = TokenPredictions(*map(cut, vars(said.tokens).values()))
    return Predictions(layers, tokens, cut(said.queries), cut(said.features), cut(said.extent))


def test_a_scene_without_objects_teaches_that_there_are_none() -> None:
    """All queries say "no object" with 0.7 and 0.1."""
    terms = detection_losses(one_scene(), torch.tensor([[-1, -1]]), torch.zeros(1, 2, 7)).terms()
    assert terms["class"].item() == pytest.approx((-math.log(0.7) - math.log(0.1)) / 2)
    assert [terms[name].item() for name in ("centre", "size", "giou", "angle")] == [0, 0, 0, 0]
    empty = detection_losses(one_scene(), torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0, 7))
    assert torch.equal(empty.terms()["class"], terms["class"])


def test_with_more_objects_than_queries_some_answer_for_nothing() -> None:
    labels = torch.tensor([[1, 0, 2]])
    truth = torch.tensor([[CUBE, AWAY, [50.0, 0, 0, 1, 1, 1, 0]]])
    losses = detection_losses(one_scene(), labels, truth)
    assert losses.layers[0].labels.tolist() == [0, 1]
    assert losses.counts["objects"] == 2
    assert losses.counts["queries"] == 2


def test_predictions_that_are_no_numbers_are_matched_last() -> None:
    said = one_scene()
    said.layers[0].boxes[0, 0] = torch.nan
    losses = detection_losses(said, torch.tensor([[1]]), torch.tensor([[CUBE]]))
    assert losses.layers[0].probability.tolist() == pytest.approx([0.6])
    assert all(term.isfinite() for term in losses.terms().values())
    said.layers[0].boxes[:] = torch.nan
    assert detection_losses(said, torch.tensor([[1]]), torch.tensor([[CUBE]])).terms()["centre"].isnan()
