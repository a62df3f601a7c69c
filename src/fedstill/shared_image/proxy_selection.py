"""Selection of the samples of a proxy pool for distillation, by the current model's outputs.

    pool ──balance_classes──► candidates ──prune_by_sureness──► target
         far from the centre              without the surest
         of their cluster, from           share of every
         every predicted class            predicted class

This follows the dataset pruning of federated distillation from a single image (its Algorithms 2 and 3). Where that is
ambiguous, or yields only approximately the requested number of samples, the rules here are:

- There are `ceil(target / (1 - prune))` candidates, in decimal arithmetic: 1,000 at 0.9 need 10,000, not 10,001.
  A pool that is no larger is a set of candidates as it stands; where it is smaller, a smaller share is pruned.
- Without balancing, candidates are a uniform draw; with neither, so are the samples selected.
- A class gives up the floor of its share, so that up to one sample a class too many is left. These few go too, one of a
  class, from the classes whose share was rounded down: those first whose next sample is first in the order of dropping.
- `mixed` takes as many of the hardest as of the easiest, and one more of the hardest where the number is odd.
- In every order the lower index comes first where two are equal.

Two values reproduce faults of the paper's released code, for comparison only (recipe `image-released-code`).
`heuristic: easy-as-released` selects the easiest and the hardest, half and half, which is `mixed`.
`drop: random-as-released` draws the rows to drop with replacement: e n draws from n rows leave a row with probability
(1 - 1/n)^(e n), about exp(-e). At e = 0.9, 41 % are left instead of 10 %: four times as many samples as asked for.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.dataset import Dataset, every_row, without_answers
from fedstill.core.errors import InputError, UnusableError
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Task
from fedstill.distillation.numerics import bounded
from fedstill.shared_image.embedding_clusters import cluster

Heuristic = Literal["easy", "hard", "mixed", "easy-as-released"]
Sureness = Literal["confidence", "entropy"]
Drop = Literal["top", "bottom", "random", "random-as-released"]
Scope = Literal["class", "all"]
Indices = npt.NDArray[np.int64]


class Selection(Settings):
    """The selection of samples from a proxy pool by a model's outputs."""

    kmeans: int = Field(1000, ge=0, description="clusters of embeddings for class balancing; 0: a uniform draw instead")
    balance: float = Field(
        1.0, ge=0, le=1, description="fraction of the candidates that is balanced over predicted classes"
    )
    heuristic: Heuristic = Field(
        "hard",
        description="hard: far from the cluster's centre; easy: near it; mixed: half of each; easy-as-released: mixed,"
        " by a fault of the released code",
    )
    prune: float = Field(
        0.9, ge=0, lt=1, description="fraction of the candidates that is dropped by confidence; 0: none"
    )
    by: Sureness = Field(
        "confidence", description="measure of confidence: the largest probability, or the negative entropy"
    )
    drop: Drop = Field(
        "top",
        description="which candidates are dropped: the most confident (top), the least confident, or random ones;"
        " random-as-released: drawn with replacement, so that more are left than asked for",
    )
    scope: Scope = Field(
        "class", description="whether the fraction is dropped from each predicted class or from all candidates together"
    )

    @property
    def asks(self) -> bool:
        """Whether the selection depends on a model's outputs; a uniform draw does not."""
        return self.kmeans > 0 or self.prune > 0

    def candidates(self, target: int) -> int:
        """The number of candidates for pruning; balancing has a choice only in a larger pool.

        >>> Selection().candidates(1000), Selection(prune=0.7).candidates(10), Selection(prune=0).candidates(10)
        (10000, 34, 10)
        """
        return ceil(target / (1 - _decimal(self.prune)))

    def check(self, pool: int, target: int) -> None:
        """Refuse an impossible selection; needs no model, so that it can be checked before training."""
        _check_size(pool, target)
        if self.kmeans > pool:
            raise InputError(
                f"a pool of {pool:,} samples cannot be put into {self.kmeans:,} clusters:"
                " make the pool larger, or `kmeans` smaller"
            )

    def select(self, embeddings: Tensor, logits: Tensor, target: int, streams: Streams) -> Tensor:
        """Exactly `target` rows of the pool, ascending, from one row of embeddings and of logits per sample.

        With `drop: random-as-released` there are more.

        Example: four samples of class 0 and three of class 1, on a line, with increasing confidence in their class. Two
        are selected, from twice as many candidates: with one cluster, the two of each class that are farthest from the
        centre at 3. Of these, the more confident one of each class is dropped.

        >>> line = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
        >>> logits = torch.tensor([[1.0, 0], [2, 0], [3, 0], [4, 0], [0, 5], [0, 6], [0, 7]])
        >>> balanced = Selection(kmeans=1, prune=0).select(line, logits, 4, Streams(0))
        >>> both = Selection(kmeans=1, prune=0.5).select(line, logits, 2, Streams(0))
        >>> balanced.tolist(), both.tolist()
        ([0, 1, 5, 6], [0, 5])
        """
        pool = len(embeddings)
        self.check(pool, target)
        _check_outputs(embeddings, logits)
        size = min(pool, self.candidates(target))
        classes = logits.detach().cpu().argmax(dim=1)
        chosen = torch.arange(pool)
        if size < pool and self.kmeans:
            distances = cluster(embeddings, self.kmeans, streams.draw("clusters")).distances
            chosen = balance_classes(distances, classes, size, self.balance, self.heuristic)
        elif size < pool:
            chosen = draw_uniformly(pool, size, streams)
        if size == target:
            return chosen
        sure = sureness(logits[chosen.to(logits.device)], self.by)
        return chosen[prune_by_sureness(sure, classes[chosen], target, streams, self.drop, self.scope)]


def draw_uniformly(pool: int, target: int, streams: Streams) -> Tensor:
    """No selection: any `target` of the pool, ascending. A larger draw from the same streams contains a smaller one."""
    _check_size(pool, target)
    return _ascending(streams.draw("proxy").permutation(pool)[:target])


def balance_classes(
    distances: Tensor, classes: Tensor, target: int, factor: float = 1.0, heuristic: Heuristic = "hard"
) -> Tensor:
    """Exactly `target` rows, ascending: floor(target / C * factor) of each of the C predicted classes, by distance.

    A class that has fewer contributes all. The missing rows are selected by the same heuristic from all that remain.

    Example: two per class, though class 0 has only one; then 4.0, which is the farthest that remains:

    >>> distances = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> balance_classes(distances, torch.tensor([0, 1, 1, 1, 1, 1]), 4).tolist()
    [0, 3, 4, 5]
    """
    _check_size(len(distances), target)
    far, group = _as_array(distances), _as_array(classes)
    kinds = np.unique(group)
    each = int(target * _decimal(factor) / len(kinds))
    chosen = [_take(np.flatnonzero(group == kind), far, each, heuristic) for kind in kinds]
    rest = np.setdiff1d(np.arange(len(far)), np.concatenate(chosen))
    missing = target - sum(len(rows) for rows in chosen)
    return _ascending(np.concatenate([*chosen, _take(rest, far, missing, heuristic)]))


def prune_by_sureness(
    sure: Tensor, classes: Tensor, target: int, streams: Streams, drop: Drop = "top", scope: Scope = "class"
) -> Tensor:
    """Exactly `target` rows, ascending: of n rows, each class drops the floor of its fraction 1 - target / n.

    The few rows in excess are dropped one per class, as described in the module docstring; there are always enough
    classes for that, since their fractions add up to the number. Half of 4, 3 and 3 rows: each class drops 2, 1 and 1,
    and one more has to go, of class 1 or 2. The next of class 2 is more confident (0.7) than that of class 1 (0.5).

    >>> sure = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.4, 0.8, 0.7, 0.6])
    >>> prune_by_sureness(sure, torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2]), 5, Streams(0)).tolist()
    [2, 3, 5, 6, 9]
    """
    count = len(sure)
    _check_size(count, target)
    values, group = _as_array(sure), _as_array(classes if scope == "class" else torch.zeros_like(classes))
    if drop == "random-as-released":
        return _left_by_draws(group, target, streams)
    if drop == "random":
        order = streams.draw("pruning").permutation(count)
    else:
        order = np.argsort(-values if drop == "top" else values, kind="stable")
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    dropped, following = [], []
    for kind in np.unique(group):
        rows = order[group[order] == kind]
        number, fraction = divmod((count - target) * len(rows), count)
        dropped.append(rows[:number])
        following.append(rows[number : number + 1] if fraction else rows[:0])
    more = np.concatenate(following)
    missing = count - target - sum(len(rows) for rows in dropped)
    dropped.append(more[np.argsort(place[more])][:missing])
    return _ascending(np.setdiff1d(np.arange(count), np.concatenate(dropped)))


def _left_by_draws(group: Indices, target: int, streams: Streams) -> Tensor:
    """The rows that are left if each class drops what is drawn from it with replacement, as the released code does."""
    count, generator = len(group), streams.draw("pruning")
    drawn = []
    for kind in np.unique(group):
        rows = np.flatnonzero(group == kind)
        drawn.append(rows[generator.integers(0, len(rows), (count - target) * len(rows) // count)])
    return _ascending(np.setdiff1d(np.arange(count), np.concatenate(drawn)))


def sureness(logits: Tensor, by: Sureness = "confidence") -> Tensor:
    """A model's confidence in each row; only the order has a meaning, and the most confident row has the largest value.

    Confidence is the log-odds of the largest probability against all others, which has the order of the probability
    itself and still distinguishes rows whose probability rounds to one. It is computed in double precision by numpy,
    which uses one thread.

    >>> sureness(torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.125, 0.125]]).log()).exp()
    tensor([1.0000, 3.0000], dtype=torch.float64)
    >>> -sureness(torch.tensor([[0.0, 0.0]]), "entropy")  # ln 2
    tensor([0.6931], dtype=torch.float64)
    """
    values = _as_array(bounded(logits.double()))
    rows = np.arange(len(values))
    best = values.argmax(axis=1)
    # Log-odds of each class against the best; for the best itself they are zero, and left out of the sum.
    behind = values - values[rows, best][:, None]
    ratios = np.exp(behind)
    ratios[rows, best] = 0.0
    doubt = ratios.sum(axis=1)
    if by == "confidence":
        # Below the smallest exponential the second best alone represents all others.
        behind[rows, best] = -np.inf
        with np.errstate(divide="ignore"):
            return torch.from_numpy(-np.where(doubt > 0, np.log(doubt), behind.max(axis=1)))
    # H = ln(1 + doubt) + sum of p_j (z_best - z_j), which is exact even if one probability is nearly one.
    return torch.from_numpy(-(np.log1p(doubt) - (ratios * behind).sum(axis=1) / (1 + doubt)))


def pool_outputs(task: Task, model: nn.Module, data: Dataset) -> tuple[Tensor, Tensor]:
    """A model's features and logits for every row of a pool, in evaluation mode, never using labels."""
    if not len(data):
        raise InputError("the pool to select from is empty")
    model.eval()
    features, logits = [], []
    for rows in every_row(data):
        batch = without_answers(data.batch(rows))
        with torch.inference_mode():
            output = task.forward(model, batch)
            features.append(output.features.cpu())
            logits.append(output.log_probabilities.cpu())
    return torch.cat(features), torch.cat(logits)


def _take(rows: Indices, distances: npt.NDArray[np.float64], count: int, heuristic: Heuristic) -> Indices:
    """`count` of these rows (ascending), or all if there are no more."""
    if count >= len(rows):
        return rows
    easier = {"easy": count, "hard": 0, "mixed": count // 2, "easy-as-released": count - count // 2}[heuristic]
    hard = rows[np.argsort(-distances[rows], kind="stable")][: count - easier]
    rest = np.setdiff1d(rows, hard)  # ascending again, so that equal distances are ordered by index
    easy = rest[np.argsort(distances[rest], kind="stable")][:easier]
    return np.concatenate([hard, easy])


def _decimal(value: float) -> Fraction:
    """A setting as a decimal: 0.9 is exactly nine tenths, not the nearest double."""
    return Fraction(repr(float(value)))


def _as_array(values: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = values.detach().cpu().numpy()
    return array


def _ascending(rows: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.sort(rows).astype(np.int64))


def _check_size(pool: int, target: int) -> None:
    if target < 1:
        raise InputError(f"at least one sample has to be selected, not {target:,}")
    if target > pool:
        raise InputError(f"{target:,} samples cannot be selected from a pool of {pool:,}")


def _check_outputs(embeddings: Tensor, logits: Tensor) -> None:
    if embeddings.ndim != 2 or logits.ndim != 2 or len(embeddings) != len(logits):
        raise InputError(
            "selection needs one row of embeddings and one of logits for each sample, not tables of"
            f" {tuple(embeddings.shape)} and {tuple(logits.shape)}"
        )
    if not bool(embeddings.isfinite().all()) or bool((logits.isnan() | logits.isposinf()).any()):
        raise UnusableError("the model's outputs on the pool are not all finite: nothing can be selected by them")
