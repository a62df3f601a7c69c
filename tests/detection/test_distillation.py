"""The objective of detectors: who is matched with whom, what the terms are, and where gradients go."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.detection.detection_losses import BOX_TERMS, detection_losses
from fedstill.detection.detection_task import Detected
from fedstill.detection.distillation import DetectorMatching, MatchingSettings, findings
from fedstill.detection.model import Layer, Predictions, TokenPredictions
from fedstill.distillation import objectives
from fedstill.distillation.label_modes import under_labels
from fedstill.distillation.labels_only import LabelsOnly
from fedstill.distillation.objective import Adapters, Lesson
from fedstill.distillation.outputs import Found, named_outputs, output_of

MATCHED = ("soft-targets", "box-targets", "hint")
EXTENT = (2.0, 4.0, 5.0)


def detected(logits: list[Tensor], boxes: list[Tensor], queries: Tensor, extent: Tensor | None = None) -> Detected:
    """What a detector with these layers says; of its two tokens, one is in the middle of everything."""
    scenes, classes = len(queries), logits[0].shape[-1] - 1
    none = queries.new_zeros(scenes, queries.shape[1], 0)
    places = queries.new_tensor([[0.0, 0.0, 0.0], [90.0, 0.0, 0.0]]).expand(scenes, 2, 3)
    tokens = TokenPredictions(
        places, queries.new_zeros(scenes, 2), places + 0.5, queries.new_zeros(scenes, 2, classes).log_softmax(dim=-1)
    )
    layers = tuple(Layer(said, found, none, none) for said, found in zip(logits, boxes, strict=True))
    extent = queries.new_tensor(EXTENT).expand(scenes, 3) if extent is None else extent
    predictions = Predictions(layers, tokens, queries, queries.mean(dim=1), extent)
    return Detected(
        logits[-1], predictions.features, predictions=predictions, boxes=boxes[-1], queries=predictions.queries
    )


def drawn(name: str, queries: int = 6, layers: int = 1, width: int = 3, sure: float = 4.0) -> Detected:
    """Three scenes with random queries, in double precision, four classes and nothing."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(draw.standard_normal(shape))

    draw = Streams(5).draw("detector", name)
    said = [F.log_softmax(sure * normal(3, queries, 5), dim=-1) for _ in range(layers)]
    found = [
        torch.cat([normal(3, queries, 3), normal(3, queries, 3).exp(), torch.zeros(3, queries, 1)], dim=-1)
        for _ in range(layers)
    ]
    return detected(said, found, normal(3, queries, width))


@pytest.fixture
def by_hand() -> tuple[Detected, Found]:
    """One scene, two classes and nothing, two queries a side. The teacher's first is sure of class 0, its second of
    nothing; of the student's, the second lies half a metre from what the teacher found, the first far away.
    """
    said = torch.tensor([[[1, 1, 4], [1, 4, 1]], [[9, 4, 4], [1, 1, 4]]], dtype=torch.float64)
    said = (said / said.sum(dim=-1, keepdim=True)).log()
    boxes = torch.tensor([[9, 9, 9, 1, 1, 1, 0], [0.5, 0, 0, 1, 1, 2, 0]], dtype=torch.float64)
    truth = torch.tensor([[0, 0, 0, 1, 1, 1, 0], [9, 9, 9, 1, 1, 1, 0]], dtype=torch.float64)
    ours = torch.tensor([[[7, 7, 7], [1, 0, 0]]], dtype=torch.float64)
    theirs = torch.tensor([[[1, 2, 0], [5, 5, 5]]], dtype=torch.float64)
    student = detected([said[:1]], [boxes[None]], ours)
    return student, Found(said[1:], torch.zeros(1, 3), boxes=truth[None], queries=theirs)


def teacher_of(output: Detected) -> Found:
    said = output_of({name: tensor.detach().clone() for name, tensor in named_outputs(output).items()})
    assert isinstance(said, Found)
    return said


def objective(labels: Any = "no-ce", **settings: Any) -> DetectorMatching:
    found = under_labels(DetectorMatching(MatchingSettings(**settings)), labels)
    assert isinstance(found, DetectorMatching)
    return found


def values(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}


def test_terms_by_hand(by_hand: tuple[Detected, Found], identity: Adapters) -> None:
    """Softened by T = 2, which takes roots, teacher and student say (3, 2, 2)/7 and (1, 2, 1)/4 of the match.

    Centres are 0.5 m apart in a scene of 2 m, 5 * 0.25; sizes 1 m in one of 5 m, 0.2; they share 0.5 of 2.5 cubic
    metres within 3, so that gIoU = 1/5 - 1/6. The query that is left over has 2/3 for nothing, and counts a quarter,
    of 1 + 1/4 queries. Features are apart by (0, 2, 0). Of two tokens, which are both undecided, one lies in the box,
    votes for a centre that is off by 0.5 on each axis, and gives each of two classes 1/2.
    """
    terms = values(objective().terms(*by_hand, adapters=identity))
    assert terms == pytest.approx(
        {
            "soft-targets": 4 * (3 * math.log(12 / 7) + 2 * math.log(4 / 7) + 2 * math.log(8 / 7)) / 7,
            "box-targets": 1.25 + 0.2 + 1 - (1 / 5 - 1 / 6),
            "empty-queries": 0.25 * math.log(1.5) / 1.25,
            "token-targets": math.log(2) + 1.5 + math.log(2),
            "hint": 4 / 3,
        }
    )


def test_weights(by_hand: tuple[Detected, Found], identity: Adapters) -> None:
    plain = values(objective().terms(*by_hand, adapters=identity))
    weighed = values(objective("use", alpha=0.25, beta=3.0).from_teacher(_lesson(by_hand, identity)))
    factors = dict.fromkeys(plain, 0.25) | {"hint": 0.75}
    assert weighed == pytest.approx({name: factors[name] * value for name, value in plain.items()})


def _lesson(sides: tuple[Detected, Found], adapters: Adapters) -> Any:
    return Lesson(*sides, None, adapters)


def test_what_a_teacher_finds() -> None:
    """Sure of a class by half or more, with a box that is one; those first, in their order, and -1 fills up."""
    said = torch.tensor([[[8, 1, 1], [1, 1, 8], [4, 5, 1], [1, 8, 1]], [[1, 1, 8], [4, 4, 2], [1, 2, 7], [0, 9, 1]]])
    boxes = torch.ones(2, 4, 7)
    boxes[0, 3, 0] = math.nan
    found = findings(
        Found((said / 10.0).log(), torch.zeros(2, 1), boxes=boxes, queries=torch.zeros(2, 4, 1)), least=0.5
    )
    assert found.queries.tolist() == [[0, 2], [3, 0]]
    assert found.labels.tolist() == [[0, 1], [1, -1]]
    assert found.boxes.shape == (2, 2, 7)


def test_what_is_found_twice_is_one_finding() -> None:
    """Of two boxes of a class that share more than a quarter the surer one; others, and other classes, stay."""
    said = torch.tensor([[[6, 2, 2], [8, 1, 1], [1, 7, 2], [7, 1, 2]]]) / 10.0
    boxes = torch.tensor([[0, 0, 0, 1, 1, 1, 0]] * 4, dtype=torch.float32)
    boxes[1, 0], boxes[3, 0] = 0.5, 0.7  # in common: a third; of 0 and 3, 0.3 of 1.7; of 1 and 3, 0.8 of 1.2
    found = findings(Found(said.log(), torch.zeros(1, 1), boxes=boxes[None], queries=torch.zeros(1, 4, 1)), 0.5)
    assert found.queries.tolist() == [[1, 2]]
    boxes[1, 0] = -2
    apart = findings(Found(said.log(), torch.zeros(1, 1), boxes=boxes[None], queries=torch.zeros(1, 4, 1)), 0.5)
    assert apart.queries.tolist() == [[0, 1, 2, 3]]


def test_every_layer_has_its_own_matches(identity: Adapters) -> None:
    teacher = drawn("teacher")
    swapped = [teacher.log_probabilities.flip(1), teacher.log_probabilities], [teacher.boxes.flip(1), teacher.boxes]
    student = detected(*swapped, teacher.queries)
    found = findings(teacher_of(teacher), 0.0)
    first, last = (layer.pairs for layer in detection_losses(student.predictions, found.labels, found.boxes).layers)
    assert torch.equal(last[1], found.queries[last[0], last[2]])
    assert torch.equal(first[1], 5 - found.queries[first[0], first[2]])
    assert last[0].tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert objective(least=0.0).terms(student, teacher_of(teacher), adapters=identity)["hint"] == 0


@pytest.mark.parametrize("bins", [0, 4], ids=["aligned", "turned"])
def test_matches_are_those_of_the_task(bins: int) -> None:
    """Of turned boxes centres and objectness count too; each match has its probability of the finding's class."""
    student, teacher = drawn("student", queries=9, layers=2).predictions, teacher_of(drawn("teacher"))
    none = torch.zeros(3, 9, bins, dtype=torch.float64)
    student = replace(
        student, layers=tuple(replace(layer, bin_logits=none, bin_residuals=none) for layer in student.layers)
    )
    found = findings(teacher, 0.3)
    losses = detection_losses(student, found.labels, found.boxes)
    for layer, own in zip(student.layers, losses.layers, strict=True):
        scenes, queries, things = own.pairs
        kinds = teacher.log_probabilities[scenes, found.queries[scenes, things], :-1].argmax(dim=-1)
        assert torch.equal(kinds, own.labels)
        assert torch.equal(layer.log_probabilities[scenes, queries, kinds].exp(), own.probability)


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_a_student_that_equals_its_teacher_has_nothing_to_learn_from_its_findings(
    least: float, identity: Adapters
) -> None:
    student = drawn("same")
    teacher = teacher_of(student)
    assert int((findings(teacher, 0.5).labels >= 0).sum()) > 5
    terms = values(objective(least=least).terms(student, teacher, adapters=identity))
    assert [terms[name] for name in MATCHED] == pytest.approx([0.0] * 3, abs=1e-14)


@pytest.mark.parametrize("queries", [4, 6, 9])
def test_the_order_of_the_teachers_queries_plays_no_part(queries: int, identity: Adapters) -> None:
    """Nor does it matter whether the student has fewer queries or more: the same bits of terms and gradients."""
    teacher = drawn("teacher", queries=6)
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    shuffled = output_of(
        {name: tensor[:, order] for name, tensor in named_outputs(teacher).items() if name != "features"}
        | {"features": teacher.features}
    )
    results = []
    for told in (teacher_of(teacher), shuffled):
        student, leaves = _leaves(drawn("student", queries=queries, layers=2))
        terms = objective().terms(student, told, adapters=identity)
        torch.stack(list(terms.values())).sum().backward()
        results.append((terms, [leaf.grad for leaf in leaves]))
    assert all(torch.equal(results[0][0][name], results[1][0][name]) for name in results[0][0])
    assert all(torch.equal(one, two) for one, two in zip(results[0][1], results[1][1], strict=True))


def _leaves(output: Detected) -> tuple[Detected, list[Tensor]]:
    """The same, of tensors that collect gradients: raw scores, boxes and features of queries."""
    said = [layer.log_probabilities.detach().requires_grad_() for layer in output.predictions.layers]
    boxes = [layer.boxes.detach().requires_grad_() for layer in output.predictions.layers]
    queries = output.queries.detach().requires_grad_()
    again = detected([F.log_softmax(raw, dim=-1) for raw in said], boxes, queries)
    return again, [*said, *boxes, queries]


def test_gradients_reach_the_student_and_nobody_else() -> None:
    student, leaves = _leaves(drawn("student", layers=2))
    teacher, theirs = _leaves(drawn("teacher", width=4))
    with Streams(1).ambient("adapters"):
        adapters = objective().adapters(3, 4).double()
    torch.stack(list(objective().terms(student, teacher, adapters=adapters).values())).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.any() for leaf in (*leaves, *adapters.parameters()))
    assert all(leaf.grad is None for leaf in theirs)


def test_a_teacher_that_finds_nothing_teaches_to_find_nothing(identity: Adapters) -> None:
    """No term on matched queries; every query is empty, so that the other term is their mean."""
    student, leaves = _leaves(drawn("student"))
    nothing = torch.tensor([-40.0, -40, -40, -40, 0]).double().expand(3, 6, 5)
    teacher = Found(nothing, torch.zeros(3, 3), boxes=torch.ones(3, 6, 7).double(), queries=student.queries.detach())
    terms = objective().terms(student, teacher, adapters=identity)
    assert [terms[name].item() for name in MATCHED] == [0.0] * 3
    assert terms["empty-queries"].item() == pytest.approx(-student.log_probabilities[..., -1].mean().item())
    torch.stack(list(terms.values())).sum().backward()
    assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves)


def test_a_certain_teacher_is_a_label(identity: Adapters) -> None:
    """At T = 1, a teacher without doubt gives the task's own losses, with its boxes for labels."""
    student = drawn("student", layers=2)
    labels = torch.tensor([[0, 3, -1], [2, -1, -1], [-1, -1, -1]])
    kinds = torch.where(labels < 0, 4, labels)
    boxes = drawn("truth").boxes[:, :3]
    certain = torch.where(F.one_hot(kinds, 5) > 0, 0.0, -math.inf).double()
    teacher = Found(certain, torch.zeros(3, 3), boxes=boxes, queries=torch.zeros(3, 3, 3).double())
    terms = objective(temperature=1.0).terms(student, teacher, adapters=identity)
    losses = detection_losses(student.predictions, labels, boxes)
    own = losses.terms()
    assert terms["box-targets"].item() == pytest.approx(sum(own[name].item() for name in BOX_TERMS))
    assert terms["token-targets"].item() == own["tokens"].item()
    # The mean over three matches here, over these and a quarter of all other queries there.
    matches, queries = 3, 3 + 0.25 * 15
    whole = terms["soft-targets"] * matches / queries + terms["empty-queries"]
    assert whole.item() == pytest.approx(own["class"].item())


@pytest.mark.parametrize("side", ["student", "teacher"])
def test_what_is_no_number(side: str, identity: Adapters) -> None:
    """A student's shows, a teacher's is no finding."""
    student, teacher = drawn("student"), teacher_of(drawn("teacher"))
    if side == "teacher":
        teacher = replace(teacher, boxes=teacher.boxes * math.nan)
        terms = values(objective().terms(student, teacher, adapters=identity))
        assert [terms[name] for name in MATCHED] == [0.0] * 3
    else:
        broken = detected(
            [student.log_probabilities * math.nan], [student.boxes * math.nan], student.queries * math.nan
        )
        terms = values(objective().terms(broken, teacher, adapters=identity))
        assert all(math.isnan(terms[name]) for name in MATCHED)


# Labels


def test_what_is_declared() -> None:
    kind = objectives["detector"]
    assert (kind().hard_label_weight, kind().reads, kind.least_teachers) == (0.5, {"labels", "features"}, 1)
    assert kind.students == {"detector"}
    assert LabelsOnly.students == {"classifier", "detector"}
    assert all(field.description for field in kind.Options.model_fields.values())
    free = objective("withhold")
    assert (free.hard_label_weight, free.reads, free.settings.alpha) == (0.0, {"features"}, 1.0)


def test_labels_are_the_tasks_own_terms(identity: Adapters) -> None:
    student, teacher = drawn("student"), teacher_of(drawn("teacher"))
    own = {"class": torch.tensor(3.0), "giou": torch.tensor(0.5)}
    taught = replace(student, terms=own)
    labels = torch.zeros(3, 1, dtype=torch.int64)
    terms = objective("use", alpha=0.75).terms(taught, teacher, labels, identity)
    assert (terms["class"].item(), terms["giou"].item()) == (0.75, 0.125)
    assert list(terms)[2:] == list(objective().terms(student, teacher, adapters=identity))
    assert values(LabelsOnly().terms(taught, teacher, labels)) == {"class": 3.0, "giou": 0.5}
    for asked in (objective("use"), LabelsOnly()):
        with pytest.raises(InputError, match="reads labels, and the batch has none"):
            asked.terms(student, teacher, None, identity)


def test_both_controls_are_one_computation(identity: Adapters) -> None:
    """Whether or not the student's output has terms: they are not looked at."""
    student, teacher = drawn("student"), teacher_of(drawn("teacher"))
    labelled = replace(student, terms={"class": torch.tensor(math.nan)})
    kept = objective("no-ce").terms(labelled, teacher, torch.zeros(3, 1, dtype=torch.int64), identity)
    withheld = objective("withhold").terms(student, teacher, None, identity)
    assert kept.keys() == withheld.keys()
    assert all(torch.equal(kept[name], withheld[name]) for name in kept)


# Words


def test_words_are_put_together_again() -> None:
    output = drawn("one")
    again = output_of({f"2/{name}": tensor for name, tensor in named_outputs(output).items()}, "2/")
    assert isinstance(again, Found)
    assert all(torch.equal(getattr(again, name), tensor) for name, tensor in named_outputs(output).items())
    plain = output_of(named_outputs(Output(torch.zeros(2, 3), torch.ones(2, 4))))
    assert type(plain) is Output
