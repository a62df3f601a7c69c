"""Counts by score: sums of sites are the whole, to the bit the exact metrics of rounded scores, and how far off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.boxes import Steps, Tally, average_precision, judge

CLASSES = 4  # of which the last has no objects

Scene = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def scenes(draw: Any, count: int, turned: bool = True) -> list[Scene]:
    """Objects, and detections around them that are the surer the nearer they are, with some luck."""
    made = []
    for seed in range(count):
        objects = seed % 6
        truth, labels = draw(objects, 100 + seed, turned=turned, spread=4.0), torch.arange(objects) % 3
        noise = draw(3 * objects + 4, 200 + seed, turned=turned)
        noise[:, 3:] *= 0.05
        size = torch.linspace(0.01, 0.3, len(noise)).double()
        boxes = torch.cat([truth.repeat(3, 1), draw(4, 300 + seed, turned=turned, spread=4.0)]) + noise * size[:, None]
        luck = torch.rand(len(noise), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        scores = (1 - size * 3 + luck) / 2
        classes = torch.cat([labels.repeat(3), torch.arange(4)])
        made.append((boxes, scores.clamp(0, 1), classes, truth, labels))
    return made


def counted(tally: Tally, some: list[Scene]) -> dict[str, Tensor]:
    counts = tally.empty()
    for scene in some:
        tally.add(counts, *scene)
    return counts


def exactly(some: list[Scene], threshold: float, rounded: Tally | None = None) -> list[float]:
    """From all detections in one place."""
    values = []
    for kind in range(CLASSES):
        scores, right, truths = [], [], 0
        for boxes, each, classes, truth, labels in some:
            flags = judge(boxes, each, classes, truth, labels, [threshold])[0]
            scores.append(each[classes == kind])
            right.append(flags[classes == kind])
            truths += int((labels == kind).sum())
        together = torch.cat(scores)
        if rounded is not None:
            together = rounded.rounded(together)
        values.append(average_precision(Steps.of(together, torch.cat(right), truths)))
    return values


def test_the_sums_of_sites_are_the_whole(draw: Any) -> None:
    tally, every = Tally(CLASSES), scenes(draw, 12)
    whole = counted(tally, every)
    sites = [counted(tally, every[start::3]) for start in (2, 0, 1)]
    # As sums are taken in evaluation on site: whole numbers of another width are the same numbers.
    summed = {name: torch.stack([site[name] for site in sites]).sum(dim=0) for name in whole}
    assert all(torch.equal(summed[name], whole[name].long()) for name in whole)
    assert tally.metrics(summed) == tally.metrics(whole)
    assert int(whole["detections"].sum()) == sum(len(scene[0]) for scene in every)
    assert whole["objects"].tolist() == [sum(int((s[4] == kind).sum()) for s in every) for kind in range(CLASSES)]


@pytest.mark.parametrize("bits", [3, 8, 16])
def test_equal_to_the_bit_for_rounded_scores(draw: Any, bits: int) -> None:
    tally, every = Tally(CLASSES, bits=bits), scenes(draw, 12)
    found = tally.precisions(counted(tally, every))
    for row, threshold in enumerate(tally.thresholds):
        expected = exactly(every, threshold, tally)
        assert found[row, :3].tolist() == expected[:3]
        assert found[row].isnan().tolist() == [False, False, False, True]


@pytest.mark.parametrize("bits", [1, 3, 5, 8, 12, 16])
def test_without_rounding_it_lies_between_the_bounds(draw: Any, bits: int) -> None:
    tally, every = Tally(CLASSES, bits=bits), scenes(draw, 12)
    counts = counted(tally, every)
    low, high = tally.precisions(counts)[:, :3], tally.precisions(counts, best=True)[:, :3]
    exact = torch.tensor([exactly(every, threshold)[:3] for threshold in tally.thresholds], dtype=torch.float64)
    assert ((low <= exact + 1e-12) & (exact <= high + 1e-12)).all()
    if bits <= 3:
        assert (high - low).max() > 0.1
    means = tally.bounds(counts)
    assert torch.allclose(means[0], low.mean(dim=1))
    assert torch.allclose(means[1], high.mean(dim=1))
    if bits == 16:  # 200 scores hardly ever fall together in 65,536 places
        assert torch.allclose(low, exact, atol=1e-3)


@pytest.mark.parametrize("steepness", [1.0, 8.0, 24.0], ids=["unsure", "sure", "very sure"])
def test_rounding_costs_little_however_sure_a_detector_is(steepness: float) -> None:
    """Log-odds are spread evenly, and rounded in steps of 34 / 2^bits: less is lost than two steps' share of them.

    For the surest that is 4e-5 with 16 bits, for one whose scores all lie between 0.38 and 0.62, 1e-3.
    """
    generator = torch.Generator().manual_seed(9)
    luck = torch.rand(4000, 2, generator=generator, dtype=torch.float64)
    scores, right = ((luck[:, 0] - 0.5) * steepness).sigmoid(), luck[:, 1] < luck[:, 0] ** 2
    exact = average_precision(Steps.of(scores, right, 1500))
    assert 0.5 < exact < 0.9
    for bits in (16, 12):
        most = 2 * 34 / 2**bits / steepness
        value = average_precision(Steps.of(Tally(1, bits=bits).rounded(scores), right, 1500))
        assert exact - most < value <= exact


def test_rounding_keeps_the_order() -> None:
    around = torch.linspace(0, 1, 100_001)
    ends = torch.tensor([1e-30, 1e-7, 0.5]).repeat(2)
    ends[3:] = 1 - ends[3:]
    scores = torch.cat([around, ends]).sort().values
    places = Tally(1).rounded(scores)
    assert (places.diff() >= 0).all()
    assert (int(places[0]), int(places[-1])) == (0, 65_535)
    assert len(places.unique()) > 15_000


def test_recall_is_exact_whatever_the_rounding(draw: Any) -> None:
    every = scenes(draw, 12)
    fine, coarse = (tally.recalls(counted(tally, every))[:, :3] for tally in (Tally(CLASSES), Tally(CLASSES, bits=1)))
    assert torch.equal(fine, coarse)
    assert 0.2 < float(fine.mean()) < 1


def test_perfect_predictions_give_exactly_one(draw: Any) -> None:
    tally, counts = Tally(CLASSES), Tally(CLASSES).empty()
    for *_, truth, labels in scenes(draw, 8):
        tally.add(counts, truth, torch.linspace(0.3, 1.0, len(truth)), labels, truth, labels)
    assert tally.metrics(counts) == {"map_25": 1.0, "recall_25": 1.0, "map_50": 1.0, "recall_50": 1.0}


def test_a_missed_class_counts_and_an_absent_one_does_not() -> None:
    """Class 0 is found, class 1 never; class 2 does not exist, although something says so."""
    boxes = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0], [9.0, 0, 0, 1, 1, 1, 0]])
    tally, counts = Tally(3), Tally(3).empty()
    tally.add(counts, boxes, torch.tensor([0.9, 0.8]), torch.tensor([0, 2]), boxes, torch.tensor([0, 1]))
    assert tally.metrics(counts)["map_25"] == 0.5
    assert tally.metrics(counts)["recall_50"] == 0.5


def test_the_order_of_detections_and_scenes_changes_no_bit(draw: Any) -> None:
    tally, every = Tally(CLASSES), scenes(draw, 8)
    whole = counted(tally, every)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        shuffled = []
        for boxes, scores, classes, truth, labels in reversed(every):
            order = torch.randperm(len(boxes), generator=generator)
            shuffled.append((boxes[order], scores[order], classes[order], truth, labels))
        again = counted(tally, shuffled)
        assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_equal_scores_count_the_same_in_any_order() -> None:
    """Three detections of one object with one score: one is right, whichever comes first."""
    truth = torch.tensor([[0.0, 0, 0, 2, 2, 2, 0]])
    boxes = torch.tensor([[0.0, 0, z, 2, 2, 2, 0] for z in (0.0, 0.5, 1.0)])  # IoU 1, 0.6 and 1/3
    scores, zeros = torch.full((3,), 0.5), torch.zeros(3, dtype=torch.int64)
    tally = Tally(1)
    every = [
        counted(tally, [(boxes[order], scores, zeros, truth, zeros[:1])]) for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0])
    ]
    assert all(torch.equal(one[name], every[0][name]) for one in every for name in one)
    assert tally.metrics(every[0])["map_25"] == pytest.approx(1 / 3)


def test_nobody_has_counted_anything() -> None:
    tally = Tally(2, thresholds=(0.25,), bits=4)
    counts = tally.empty()
    assert {name: tuple(tensor.shape) for name, tensor in counts.items()} == {
        "detections": (2, 16),
        "right": (1, 2, 16),
        "objects": (2,),
    }
    assert all(value != value for value in tally.metrics(counts).values())
    tally.add(counts, torch.zeros(0, 7), torch.zeros(0), torch.zeros(0).long(), torch.ones(1, 7), torch.tensor([1]))
    assert tally.metrics(counts) == {"map_25": 0.0, "recall_25": 0.0}


def test_the_curve_of_a_class() -> None:
    truth = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0], [5.0, 0, 0, 1, 1, 1, 0]])
    boxes = torch.cat([truth, torch.tensor([[9.0, 0, 0, 1, 1, 1, 0]])])
    tally, zeros = Tally(1), torch.zeros(3, dtype=torch.int64)
    counts = counted(tally, [(boxes, torch.tensor([1.0, 0.0, 0.5]), zeros, truth, zeros[:2])])
    steps = tally.steps(counts, 0, 1)
    assert steps.scores.tolist() == pytest.approx([1.0, 0.5, 0.0], abs=1e-4)
    assert (steps.right.tolist(), steps.all.tolist(), steps.truths) == ([1, 0, 1], [1, 1, 1], 2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": torch.tensor([4])}, "detection 0 is of class 4, but classes are 0 to 3"),
        ({"labels": torch.tensor([-1])}, "true box 0 is of class -1, but classes are 0 to 3"),
        ({"scores": torch.tensor([1.5])}, "detection 0 has the score 1.5, which is not between 0 and 1"),
        ({"scores": torch.tensor([torch.nan])}, "detection 0 has the score nan"),
    ],
    ids=["class", "label", "score", "nan"],
)
def test_refused_before_anything_is_counted(change: dict[str, Tensor], sentence: str) -> None:
    zero, box = torch.zeros(1, dtype=torch.int64), torch.ones(1, 7)
    given = {"boxes": box, "scores": torch.ones(1), "classes": zero, "truth": box, "labels": zero, **change}
    counts = Tally(4, bits=2).empty()
    with pytest.raises(InputError, match=sentence):
        Tally(4, bits=2).add(counts, **given)
    assert all(int(tensor.sum()) == 0 for tensor in counts.values())
    with pytest.raises(InputError, match="scores can be rounded to 1 to 16 bits, not 17"):
        Tally(4, bits=17)
