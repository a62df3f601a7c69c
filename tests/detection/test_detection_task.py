"""Detection as a task: what models are asked and how their answers are scored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, fit, task_loss
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, under
from fedstill.core.protocols import Meter, Profile, Reply
from fedstill.core.streams import Streams
from fedstill.core.training import Training
from fedstill.detection.detection_section import MAIN, PROTOCOLS, ProtocolName
from fedstill.detection.detection_task import Detection
from fedstill.detection.model import Layer, Predictions, TokenPredictions
from fedstill.detection.rooms import CLASSES, make_rooms
from fedstill.detection.scene_augmentation import SceneAugmentation
from fedstill.models import build_model
from fedstill.runtime.on_site_evaluation import OnSiteEvaluator, SiteScores
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation
from fedstill.tasks.task_choice import task_kind, task_of

from ..methods.sites import build
from .small_scenes import SCENES, bare
from .small_scenes import rooms as some_rooms

LITE = "detr3d-lite"
TINY = {"width": 16, "heads": 2, "tokens": 24, "neighbours": 8, "queries": 8, "candidates": 12, "feedforward": 16}


@pytest.fixture(scope="module")
def rooms() -> ArrayDataset:
    made = make_rooms(24, points=256)
    return ArrayDataset(inputs=made.points, labels=made.classes, boxes=made.boxes)


def task(classes: tuple[str, ...] = CLASSES, protocol: ProtocolName = "strict") -> Detection:
    return Detection(classes, (256, 3), (LITE,), augmentation=SceneAugmentation(), protocol=protocol)


def tiny(seed: int = 0, **sizes: float) -> nn.Module:
    with Streams(seed).ambient("initialise"):
        return build_model(LITE, (256, 3), len(CLASSES), **{**TINY, **sizes})


class Answers(nn.Module):
    """Says of scenes, which it knows by their first point, what it was told to say."""

    def __init__(self, boxes: Tensor, probabilities: Tensor) -> None:
        super().__init__()
        self.boxes, self.probabilities = boxes, probabilities

    def forward(self, points: Tensor) -> Predictions:
        rows = points[:, 0, 0].round().long()
        boxes, said = self.boxes[rows], self.probabilities[rows].log()
        none = boxes[..., :0]
        tokens = TokenPredictions(points[:, :1], points[:, :1, 0], points[:, :1], said[:, :1, :-1])
        return Predictions((Layer(said, boxes, none, none),), tokens, boxes, boxes[:, 0], torch.ones(len(points), 3))


def known(labels: Tensor, boxes: Tensor) -> ArrayDataset:
    """Four points with the scene's number, and five in the middle of each box."""
    names = torch.arange(float(len(labels))).view(-1, 1, 1).expand(-1, 4, 3)
    inputs = torch.cat([names, boxes[..., :3].repeat_interleave(5, dim=1)], dim=1).contiguous()
    return ArrayDataset(inputs=inputs, labels=labels, boxes=boxes)


def cube(x: float, size: float = 1.0) -> list[float]:
    return [x, 0.0, 0.0, size, size, size, 0.0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_perfect_predictions_score_exactly_one(protocol: ProtocolName, rooms: ArrayDataset) -> None:
    """As many queries as objects, and one more that says "no object" of the place where another object is."""
    labels, boxes = rooms.columns["labels"], rooms.columns["boxes"]
    data = known(labels, boxes)
    sure = nn.functional.one_hot(torch.where(labels < 0, len(CLASSES), labels), len(CLASSES) + 1).float()
    sure = torch.cat([sure, sure.new_zeros(len(sure), 1, len(CLASSES) + 1).index_fill_(2, torch.tensor(10), 1.0)], 1)
    model = Answers(torch.cat([boxes, boxes[:, :1]], 1), 0.9 * sure + 0.1 / (len(CLASSES) + 1))
    asked = task(protocol=protocol)
    found = asked.summarise(asked.score([model], data))
    assert {name: found[name] for name in ("accuracy", "map_25", "map_50", "ar_25", "ar_50")} == {
        "accuracy": 1.0,
        "map_25": 1.0,
        "map_50": 1.0,
        "ar_25": 1.0,
        "ar_50": 1.0,
    }
    assert found["non_finite"] == found["constant"] == 0


def test_metrics_by_hand() -> None:
    """Class a: two objects in two scenes, one found with 0.8 (IoU 1), and with 0.6 a cube that shares a third with the
    other. Class b: one object, a surer wrong detection before the right one. Class c: none.

    At 0.25 both of a are right: 1; b: the right one second: 1/2. At 0.5 a has half its recall at precision 1: 1/2.
    """
    labels = torch.tensor([[0, 1], [0, -1]])
    boxes = torch.tensor([[cube(0), cube(5)], [cube(0), [0.0] * 7]])
    said = torch.tensor([[cube(0), cube(5), cube(20)], [cube(0.5), cube(30), cube(40)]])
    probabilities = torch.tensor(
        [
            [[0.8, 0.1, 0.05, 0.05], [0.1, 0.5, 0.1, 0.3], [0.1, 0.7, 0.1, 0.1]],
            [[0.6, 0.1, 0.1, 0.2], [0.05, 0.02, 0.03, 0.9], [0.05, 0.02, 0.03, 0.9]],
        ]
    )
    three = task(("a", "b", "c"))
    found = three.summarise(three.score([Answers(said, probabilities)], known(labels, boxes)))
    assert found["map_25"] == pytest.approx((1 + 1 / 2) / 2)
    assert found["map_50"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert found["ar_25"] == pytest.approx(1.0)
    assert found["ar_50"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["accuracy"] == found["class_accuracy"] == found["map_25"]


def test_sums_of_sites_add_up(rooms: ArrayDataset) -> None:
    model, asked = tiny(), task()
    exact = asked.score([model], rooms)
    whole = asked.sums(exact)
    parts = [Subset(rooms, torch.arange(0, 5)), Subset(rooms, torch.arange(5, 24))]
    sums = [asked.sums(asked.score([model], part)) for part in parts]
    nothing = asked.sums(asked.score([], rooms))
    for name, value in whole.items():
        both = sums[0][name] + sums[1][name]
        assert nothing[name].shape == value.shape
        assert nothing[name].dtype == value.dtype
        assert not nothing[name].any()
        if value.is_floating_point():
            torch.testing.assert_close(both, value, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(both, value)
    assert asked.scored(whole) == asked.scored(exact) == int((rooms.columns["labels"] >= 0).sum())
    assert whole["scenes"] == 24
    one, other = asked.summarise(whole), asked.summarise({name: sums[0][name] + sums[1][name] for name in whole})
    assert {**one, "loss": 0.0} == {**other, "loss": 0.0}
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_sums_estimate_what_exact_scores_give(rooms: ArrayDataset) -> None:
    """An untrained model, so that right and wrong detections are mixed at every score."""
    model, asked = tiny(3), task()
    exact = asked.score([model], rooms)
    one, other = asked.summarise(exact), asked.summarise(asked.sums(exact))
    assert one.keys() == other.keys()
    for name in ("ar_25", "ar_50", "published_ar_25", "published_ar_50", "loss"):
        assert one[name] == other[name]
    for name in ("map_25", "map_50", "published_map_25", "published_map_50"):
        assert one[name] == pytest.approx(other[name], abs=2e-3)
    assert one["published_ar_25"] > one["ar_25"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_both_protocols_are_evaluated_and_the_chosen_one_is_the_main_one(
    protocol: ProtocolName, rooms: ArrayDataset
) -> None:
    (other,) = (name for name in PROTOCOLS if name != protocol)
    chosen, beside = task(protocol=protocol), task(protocol=other)
    scores = chosen.score([tiny(3)], rooms)
    found, turned = chosen.summarise(scores), beside.summarise(scores)
    assert found["accuracy"] == found["map_25"] == turned[f"{protocol}_map_25"] != turned["map_25"]
    assert {f"{other}_{name}" for name in MAIN} <= found.keys()
    assert not {f"{protocol}_{name}" for name in MAIN} & found.keys()
    assert set(chosen.headlines) <= found.keys()
    assert chosen.on_mix(scores, torch.ones(len(CLASSES))) == pytest.approx(found["map_25"])


def test_the_loss_of_a_score_is_that_of_the_same_scenes_in_one_batch(rooms: ArrayDataset) -> None:
    model = tiny().eval()
    few = Subset(rooms, torch.arange(12))
    terms = task().forward(model, few.batch(torch.arange(12))).terms
    found = task().summarise(task().score([model], few))
    assert found["loss"] == pytest.approx(sum(term.item() for term in terms.values()), rel=1e-5)


def test_forward_says_what_the_model_says(rooms: ArrayDataset) -> None:
    model = tiny().eval()
    batch = rooms.batch(torch.arange(3))
    output = task().forward(model, batch)
    said = model(batch["inputs"])
    assert torch.equal(output.log_probabilities, said.layers[-1].log_probabilities)
    assert torch.equal(output.boxes, said.layers[-1].boxes)
    assert torch.equal(output.queries, said.queries)
    assert torch.equal(output.features, said.features)
    assert tuple(output.terms) == task().terms
    without = task().forward(model, {"inputs": batch["inputs"], "boxes": batch["boxes"]})
    assert without.terms == {}
    assert task().weighted(without, batch, lambda probability, label: probability) == {}
    same = task().weighted(output, batch, lambda probability, label: torch.ones_like(probability))
    assert all(torch.equal(same[name], term) for name, term in output.terms.items())


def test_everything_learns(rooms: ArrayDataset) -> None:
    model = tiny(angle_bins=4)
    terms = task().forward(model, rooms.batch(torch.arange(8))).terms
    torch.stack(list(terms.values())).sum().backward()
    still = [name for name, one in model.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0]
    # BatchNorm takes out what a bias before it adds. A key's bias adds the same to what a query asks of everything, but
    # for prompts, which have no such bias.
    idle = ("key.bias", "level.linear1.bias", "level.linear2.bias", "level.linear3.bias")
    assert [name for name in still if not name.endswith(idle)] == []
    assert all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None)


def trained(data: ArrayDataset, epochs: int, seed: int = 0) -> tuple[nn.Module, float, float]:
    model, asked, streams = tiny(seed, dropout=0.1), task(), Streams(seed)
    settings = Training(optimiser="adamw", rate=4e-3, encoder_rate=0.5, weight_decay=0.01)
    learner = Learner(model, task_loss, settings.optimiser_of(model), streams)
    sums = [
        sum(
            fit([learner], asked, data, Schedule(range(e, e + 1), 8, 0.5), streams, Meter(), augment=asked.augment)[
                0
            ].terms.values()
        )
        for e in range(epochs)
    ]
    return model, sums[0], sums[-1]


def test_training_lowers_the_loss_and_repeats_to_the_bit(rooms: ArrayDataset) -> None:
    model, first, last = trained(rooms, 8)
    assert last < 0.8 * first
    again = trained(rooms, 2)[0], trained(rooms, 2)[0]
    one, two = (state_of(each) for each in again)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert task().score([model], rooms)["non-finite"] == 0


@pytest.mark.parametrize("value", [torch.nan, 1e30], ids=["nan", "huge"])
def test_a_model_that_diverged_is_scored(value: float, rooms: ArrayDataset) -> None:
    model = tiny()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    asked = task()
    found = asked.summarise(asked.score([model], rooms))
    assert found["non_finite"] == 1
    assert found["map_25"] == found["ar_25"] == 0
    assert np.isnan(found["loss"])
    asked.forward(model.train(), rooms.batch(torch.arange(4)))
    assert all(len(one.scores) == 0 for one in asked.detect(model, rooms.columns["inputs"][:2]))


def test_scenes_without_boxes_are_scored() -> None:
    """Detections where nothing is are wrong; a class without objects has no average precision, and no scene has any."""
    data = known(torch.tensor([[0], [-1]]), torch.tensor([[cube(0)], [[0.0] * 7]]))
    said = torch.tensor([[cube(0)], [cube(0)]])
    probabilities = torch.tensor([[[0.6, 0.1, 0.3]], [[0.8, 0.1, 0.1]]])
    two = task(("a", "b"))
    found = two.summarise(two.score([Answers(said, probabilities)], data))
    assert found["map_25"] == 0.5
    empty = two.summarise(
        two.score([Answers(said[1:], probabilities[1:])], known(torch.tensor([[-1]]), torch.zeros(1, 1, 7)))
    )
    assert np.isnan(empty["map_25"])


def test_detect_keeps_the_surest_of_a_class_and_sorts() -> None:
    said = torch.tensor([[cube(0), cube(0.1), cube(0.1), cube(9), [1.0, 0, 0, torch.nan, 1, 1, 0]]])
    probabilities = torch.tensor(
        [[[0.5, 0.1, 0.4], [0.9, 0.05, 0.05], [0.1, 0.6, 0.3], [0.2, 0.1, 0.7], [0.9, 0.05, 0.05]]]
    )
    model, inputs = Answers(said, probabilities), torch.zeros(1, 4, 3)
    two = task(("a", "b"))
    (found,) = two.detect(model, inputs)
    assert found.classes.tolist() == [0, 1, 0]
    assert found.scores.tolist() == pytest.approx([0.9, 0.6, 0.2])
    assert found.boxes[:, 0].tolist() == pytest.approx([0.1, 0.1, 9.0])
    (sure,) = two.detect(model, inputs, least=0.5)
    assert sure.scores.tolist() == pytest.approx([0.9, 0.6])
    (all_of_them,) = two.detect(model, inputs, overlap=1.0)
    assert len(all_of_them.scores) == 4


def test_boxes_follow_the_augmented_cloud(rooms: ArrayDataset) -> None:
    batch = rooms.batch(torch.arange(4))
    changed = task().augment(batch, Streams(0).draw("augment"))
    assert not torch.equal(changed["boxes"], batch["boxes"])
    assert torch.equal(changed["labels"], batch["labels"])
    assert (changed["boxes"][..., 6] == 0).all()


def test_the_mean_over_a_mix_of_classes() -> None:
    """Average precision of a is 1, of b 0, and c has no objects: with three of a to one of b, 3/4."""
    data = known(torch.tensor([[0, 1]]), torch.tensor([[cube(0), cube(5)]]))
    said, probabilities = torch.tensor([[cube(0)]]), torch.tensor([[[0.6, 0.1, 0.1, 0.2]]])
    three = task(("a", "b", "c"))
    scores = three.score([Answers(said, probabilities)], data)
    assert three.on_mix(scores, torch.tensor([3, 1, 4])) == pytest.approx(0.75)


def test_data_and_model_must_ask_and_answer_the_same() -> None:
    assert task_kind("scene", False, LITE, "x") is Detection
    assert (task_of(LITE), task_of("cnn"), task_of("pointnet2-segmentation")) == (
        Detection,
        Classification,
        Segmentation,
    )
    with pytest.raises(
        InputError, match=r"x holds scenes with boxes, which model 'pointnet' cannot find: .*detr3d-lite"
    ):
        task_kind("scene", False, "pointnet", "x")
    for points in (True, False):
        with pytest.raises(InputError, match="model 'detr3d-lite' finds boxes in scenes, but x has none"):
            task_kind("cloud", points, LITE, "x")


def test_tasks_with_the_same_settings_are_equal() -> None:
    assert task() == task()
    assert replace(task(), classes=("a", "b")).tally.classes == 2


def test_sites_without_objects_measure_nothing_and_count_where_others_have_some() -> None:
    """Average precision of no object is no number: nothing is recorded then, and false positives count otherwise."""
    data, model = some_rooms(2), SCENES.build("tiny")
    full, empty = (dict(SCENES.sums(SCENES.score([model], one))) for one in (data, bare(data)))
    assert (SCENES.scored(empty), SCENES.scored(full)) == (0, int((data.columns["labels"] >= 0).sum()))
    evaluator = OnSiteEvaluator(SCENES, Streams(0), 1)
    replies = [
        Reply(Profile(0, 1, "tiny"), Message(under("scores/shared/tiny/", sums)), None) for sums in (empty, full)
    ]
    assert evaluator._shared(["tiny"], replies[:1], "scores/shared/") == {}
    both, alone = (evaluator._shared(["tiny"], some, "scores/shared/") for some in (replies, replies[1:]))
    assert all(np.isfinite(list(both.values())))
    assert both["ar_25"] == alone["ar_25"]
    assert both["map_25"] <= alone["map_25"]


def test_the_manifest_of_a_detector_names_histograms() -> None:
    (line,) = SiteScores(build("fedavg", SCENES, {}), SCENES).egress
    assert "histograms of the scores of detections" in line.why
    assert line.by_class
