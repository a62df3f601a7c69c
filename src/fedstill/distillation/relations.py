"""Objectives that compare relations between samples of a batch; the feature widths may differ."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.distillation.intermediate import Intermediate
from fedstill.distillation.numerics import inverse, unit
from fedstill.distillation.objective import Lesson, Terms, objectives


def similarity(student: Tensor, teacher: Tensor) -> Tensor:
    """|G_s - G_t||^2 / batch^2, where G is the matrix of inner products between samples, each row of length one.

    >>> same, apart = torch.ones(2, 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> round(similarity(same, apart).item(), 4)  # rows (1, 1) / sqrt(2) and (1, 0): 2 (2 - sqrt(2)) / 4
    0.2929
    """
    ours, theirs = (unit(features @ features.T) for features in (student, teacher))
    return F.mse_loss(ours, theirs)


def distances(student: Tensor, teacher: Tensor) -> Tensor:
    """Smooth L1 between pairwise distances in units of their mean over the batch; mean over pairs of distinct samples.

    >>> line, corner = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    >>> round(distances(line, line * 7).item(), 4), distances(line, corner).item() > 0
    (0.0, True)
    """
    pairs = len(student) * (len(student) - 1)
    ours, theirs = (_relative_distances(features) for features in (student, teacher))
    return F.smooth_l1_loss(ours, theirs, reduction="sum") / max(pairs, 1)  # the diagonal is zero in both


def angles(student: Tensor, teacher: Tensor) -> Tensor:
    """Smooth L1 between the cosines of the angles at j of triplets i, j, k; mean over triplets of distinct samples.

    >>> line, corner = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    >>> round(angles(line, corner).item(), 4)  # at the middle -1 against 0, at the ends 1 against 1/sqrt(2)
    0.1953
    """
    batch = len(student)
    ours, theirs = (_cosines(features) for features in (student, teacher))
    return F.smooth_l1_loss(ours, theirs, reduction="sum") / max(batch * (batch - 1) * (batch - 2), 1)


def _distances(features: Tensor) -> Tensor:
    # Computed from differences: inner products would lose the distance of near neighbours to rounding. The gradient
    # of `cdist` at distance zero is zero.
    return torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")


def _relative_distances(features: Tensor) -> Tensor:
    between = _distances(features)
    return between * inverse(between.sum() / max(len(features) * (len(features) - 1), 1))


def _cosines(features: Tensor) -> Tensor:
    """The cosine between i - j and k - j at [j, i, k]; zero unless all three differ.

    (i - j)(k - j) = ik - ij - jk + jj: a tensor of all differences would be `width` times as large. Features are
    centred first, so that a common offset does not cost precision.
    """
    centred = features - features.mean(dim=0)
    inner = centred @ centred.T
    products = inner.unsqueeze(0) - inner.unsqueeze(2) - inner.unsqueeze(1) + inner.diagonal().view(-1, 1, 1)
    scale = inverse(_distances(features))
    itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
    return (products * scale.unsqueeze(2) * scale.unsqueeze(1)).masked_fill(itself, 0.0)


@objectives.register("sp")
class SimilarityPreserving(Intermediate):
    """Similarity-preserving distillation: (1-a-b) CE + a T^2 KL + b ||G_s - G_t||^2 / batch^2.

    *Similarity-Preserving Knowledge Distillation*, Tung and Mori, 2019, https://arxiv.org/abs/1907.09682

    The division by batch^2 is the paper's; the benchmark's table omits it. The reference weight is 3000, on this same
    term.
    """

    name = "sp"

    def from_features(self, lesson: Lesson) -> Terms:
        return {"similarity": self.beta(reference=3000) * similarity(*lesson.features)}


@objectives.register("rkd")
class Relational(Intermediate):
    """Relational distillation (RKD): (1-a-b) CE + a T^2 KL + b (distances + angles).

    *Relational Knowledge Distillation*, Park et al., 2019, https://arxiv.org/abs/1904.05068

    Means are over tuples of distinct samples, as in the paper. Two samples have one distance, which is its own mean,
    and no angle: a batch of two has no relational signal. The reference weights are 25 for distances and 50 for angles,
    over *all* batch^2 pairs and batch^3 triplets, where a sample compared with itself adds nothing; `beta: reference`
    therefore scales both means by the fraction of distinct tuples.
    """

    name = "rkd"

    def from_features(self, lesson: Lesson) -> Terms:
        batch = len(lesson.student.features)
        others, third = (batch - 1) / batch, max(batch - 2, 0) / batch
        return {
            "distances": self.beta(reference=25 * others) * distances(*lesson.features),
            "angles": self.beta(reference=50 * others * third) * angles(*lesson.features),
        }
