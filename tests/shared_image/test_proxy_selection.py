"""Selection as a whole: what always holds, without a stage, on odd pools, refused; and what a model makes of a pool."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedstill.core.dataset import AT_ONCE, ArrayDataset
from fedstill.core.errors import InputError, UnusableError
from fedstill.core.streams import Streams
from fedstill.shared_image import proxy_selection
from fedstill.shared_image.embedding_clusters import cluster
from fedstill.shared_image.proxy_selection import (
    Drop,
    Heuristic,
    Scope,
    Selection,
    Sureness,
    balance_classes,
    draw_uniformly,
    pool_outputs,
    prune_by_sureness,
    sureness,
)
from fedstill.tasks.classification import Classification

from .pools import pool

HERE = Streams(0)


# What always holds --------------------------------------------------------------------------------------------------

SELECTIONS = st.builds(
    Selection,
    kmeans=st.integers(0, 6),
    balance=st.sampled_from([0.0, 0.3, 1.0]),
    heuristic=st.sampled_from(get_args(Heuristic)),
    prune=st.sampled_from([0.0, 0.1, 0.5, 0.7, 0.9, 0.99]),
    by=st.sampled_from(get_args(Sureness)),
    drop=st.sampled_from(get_args(Drop)),
    scope=st.sampled_from(get_args(Scope)),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(chosen=SELECTIONS, samples=st.integers(6, 90), data=st.data())
def test_as_many_as_asked_for_each_once(chosen: Selection, samples: int, data: st.DataObject) -> None:
    target = data.draw(st.integers(1, samples))
    embeddings, logits = pool(samples, classes=data.draw(st.integers(1, 12)))
    rows = chosen.select(embeddings, logits, target, HERE)
    assert rows.dtype == torch.int64
    assert len(rows) == target or (chosen.drop == "random-as-released" and len(rows) > target)
    assert (rows.diff() > 0).all()
    assert rows[0] >= 0
    assert rows[-1] < samples
    assert torch.equal(rows, chosen.select(embeddings, logits, target, HERE))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    heuristic=st.sampled_from(get_args(Heuristic)),
    drop=st.sampled_from(["top", "bottom"]),
    scope=st.sampled_from(get_args(Scope)),
    samples=st.integers(5, 60),
    data=st.data(),
)
def test_the_order_of_the_pool_does_not_matter_to_the_stages(
    heuristic: Heuristic, drop: Drop, scope: Scope, samples: int, data: st.DataObject
) -> None:
    """Where no two are equal and nothing is drawn: the same samples, wherever they stand."""
    target = data.draw(st.integers(1, samples))
    order = torch.tensor(data.draw(st.permutations(range(samples))))
    embeddings, logits = pool(samples)
    values, classes = embeddings[:, 0], logits.argmax(dim=1)
    here = balance_classes(values, classes, target, 1.0, heuristic)
    there = balance_classes(values[order], classes[order], target, 1.0, heuristic)
    assert torch.equal(order[there].sort().values, here)
    here = prune_by_sureness(values, classes, target, HERE, drop, scope)
    there = prune_by_sureness(values[order], classes[order], target, HERE, drop, scope)
    assert torch.equal(order[there].sort().values, here)


def test_the_order_of_the_pool_does_not_matter_with_one_cluster() -> None:
    embeddings, logits = pool(80)
    order = torch.from_numpy(Streams(8).draw("order").permutation(80))
    chosen = Selection(kmeans=1, prune=0.5)
    here = chosen.select(embeddings, logits, 20, HERE)
    there = chosen.select(embeddings[order], logits[order], 20, HERE)
    assert torch.equal(order[there].sort().values, here)


def test_a_fresh_process_with_two_threads_selects_the_same() -> None:
    program = """
import hashlib, torch
from fedstill.core.streams import Streams
from fedstill.shared_image.proxy_selection import Selection
torch.set_num_threads({threads})
numbers = Streams(5).draw("many")
embeddings = torch.from_numpy(numbers.standard_normal((3000, 32))).float()
logits = torch.from_numpy(numbers.standard_normal((3000, 10))).float()
rows = Selection(kmeans=200, prune=0.5).select(embeddings, logits, 500, Streams(0))
digest = hashlib.sha256(rows.numpy().tobytes()).hexdigest()
"""
    here: dict[str, Any] = {}
    exec(program.format(threads=1), here)
    there = subprocess.run(
        [sys.executable, "-c", program.format(threads=2) + "print(torch.get_num_threads(), digest)"],
        env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == ["2", here["digest"]]
    assert len(here["rows"]) == 500


# Without one stage or both ------------------------------------------------------------------------------------------


def test_no_selection_is_a_uniform_draw() -> None:
    neither = Selection(kmeans=0, prune=0)
    embeddings, logits = pool(50)
    rows = neither.select(embeddings, logits, 10, HERE)
    assert torch.equal(rows, draw_uniformly(50, 10, HERE))
    assert torch.equal(rows, neither.select(-embeddings, -logits, 10, HERE))
    assert set(rows.tolist()) < set(draw_uniformly(50, 20, HERE).tolist())
    assert not neither.asks
    assert Selection(kmeans=0).asks
    assert Selection(prune=0).asks


def test_a_uniform_draw_takes_every_row_equally_often() -> None:
    """5 of 20 in 400 draws: 100 times each, with a standard deviation of sqrt(400 * 0.25 * 0.75) = 8.7."""
    counts = sum(draw_uniformly(20, 5, Streams(seed)).bincount(minlength=20) for seed in range(400))
    assert isinstance(counts, Tensor)
    assert 100 - 5 * 8.7 < counts.min() <= counts.max() < 100 + 5 * 8.7


def test_confidence_alone_prunes_a_uniform_draw() -> None:
    embeddings, logits = pool(200)
    rows = Selection(kmeans=0, prune=0.8).select(embeddings, logits, 20, HERE)
    drawn = draw_uniformly(200, 100, HERE)
    left = prune_by_sureness(sureness(logits[drawn]), logits[drawn].argmax(dim=1), 20, HERE)
    assert torch.equal(rows, drawn[left])


def test_clusters_alone_take_the_target_directly() -> None:
    embeddings, logits = pool(200)
    rows = Selection(kmeans=9, prune=0).select(embeddings, logits, 20, HERE)
    distances = cluster(embeddings, 9, HERE.draw("clusters")).distances
    assert torch.equal(rows, balance_classes(distances, logits.argmax(dim=1), 20))


@pytest.mark.parametrize("samples", [40, 100])
def test_a_pool_no_larger_than_the_candidates_is_only_pruned(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 at e = 0.9 ask for 100 candidates: there is nothing for clusters to choose, and none are made."""
    monkeypatch.setattr(proxy_selection, "cluster", None)
    embeddings, logits = pool(samples)
    rows = Selection(kmeans=5).select(embeddings, logits, 10, HERE)
    assert torch.equal(rows, prune_by_sureness(sureness(logits), logits.argmax(dim=1), 10, HERE))


# Odd pools ----------------------------------------------------------------------------------------------------------


def test_the_whole_pool() -> None:
    embeddings, logits = pool(12)
    for chosen in (Selection(kmeans=3), Selection(kmeans=0, prune=0), Selection(kmeans=12, prune=0)):
        assert chosen.select(embeddings, logits, 12, HERE).tolist() == list(range(12))


def test_a_model_that_always_says_the_same() -> None:
    """One predicted class: balancing takes the hardest of all, pruning the least sure of them."""
    embeddings, _ = pool(60)
    logits = torch.stack([torch.arange(60.0), torch.full((60,), -1.0)], dim=1)
    rows = Selection(kmeans=1, prune=0.5).select(embeddings, logits, 10, HERE)
    hardest = cluster(embeddings, 1, HERE.draw("clusters")).distances.argsort(descending=True)[:20]
    assert rows.tolist() == sorted(hardest.tolist())[:10]


def test_copies_of_few_samples() -> None:
    """More clusters than different samples: every distance is zero, and each class gives its first ones."""
    embeddings, logits = (each.repeat(10, 1) for each in pool(5, classes=3))
    rows = Selection(kmeans=40, prune=0).select(embeddings, logits, 12, HERE)
    classes = logits.argmax(dim=1)
    assert torch.equal(rows, balance_classes(torch.zeros(50), classes, 12))


def test_classes_that_are_ruled_out() -> None:
    """Log-probabilities of minus infinity are what a sure model says, and no fault."""
    logits = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0], [-0.5, -0.9], [-0.4, -1.1]])
    rows = Selection(kmeans=0, prune=0.5).select(torch.zeros(4, 1), logits, 2, HERE)
    assert rows.tolist() == [2, 3]


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "samples", "target", "sentence"),
    [
        ({}, 50, 1, "a pool of 50 samples cannot be put into 1,000 clusters"),
        ({"kmeans": 5}, 50, 51, "51 samples cannot be selected from a pool of 50"),
        ({"kmeans": 5}, 50, 0, "at least one sample has to be selected, not 0"),
        ({"kmeans": 0, "prune": 0}, 0, 1, "1 samples cannot be selected from a pool of 0"),
    ],
    ids=["clusters", "target", "nothing", "empty"],
)
def test_what_cannot_be_selected(changes: dict[str, Any], samples: int, target: int, sentence: str) -> None:
    chosen = Selection(**changes)
    with pytest.raises(InputError, match=sentence):
        chosen.select(*pool(samples), target, HERE)
    with pytest.raises(InputError, match=sentence):
        chosen.check(samples, target)


@pytest.mark.parametrize(
    "changes", [{"prune": 1.0}, {"prune": -0.1}, {"balance": 1.1}, {"kmeans": -1}, {"drop": "all"}]
)
def test_settings_out_of_range(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        Selection(**changes)


@pytest.mark.parametrize("which", [0, 1], ids=["embeddings", "logits"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_that_are_not_numbers(which: int, value: float) -> None:
    outputs = pool(20)
    outputs[which][3, 1] = value
    with pytest.raises(UnusableError, match="not all finite"):
        Selection(kmeans=2, prune=0).select(*outputs, 5, HERE)


def test_tables_that_do_not_belong_together() -> None:
    embeddings, logits = pool(20)
    with pytest.raises(InputError, match=r"\(20, 3\) and \(19, 4\)"):
        Selection(kmeans=2).select(embeddings, logits[1:], 5, HERE)
    with pytest.raises(InputError, match="one row of embeddings"):
        Selection(kmeans=2).select(embeddings[:, :, None], logits, 5, HERE)


# What a model makes of the pool -------------------------------------------------------------------------------------


class Probe(nn.Module):
    """Features are the inputs, logits their negatives; says if it is ever asked in training mode."""

    outputs = "log-probabilities"

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        assert not self.training
        assert torch.is_inference_mode_enabled()
        return -inputs, inputs


def test_a_pool_goes_through_the_model_in_order_and_in_evaluation() -> None:
    task = Classification(("a", "b", "c"), (3,), ("mlp",))
    inputs = pool(AT_ONCE + 7)[0]
    data = ArrayDataset(inputs=inputs, labels=torch.full((len(inputs),), 99))  # no such class: a loss would fail
    embeddings, logits = pool_outputs(task, Probe().train(), data)
    assert torch.equal(embeddings, inputs)
    assert torch.equal(logits, -inputs)
    assert not embeddings.is_inference()


def test_an_empty_pool() -> None:
    task = Classification(("a", "b"), (3,), ("mlp",))
    with pytest.raises(InputError, match="empty"):
        pool_outputs(task, Probe(), ArrayDataset(inputs=torch.zeros(0, 3)))
