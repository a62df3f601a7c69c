"""How much of the labels a student may see.

    use        the objective as it is
    no-ce      the proxy data keeps its labels, the objective does not read them
    withhold   the proxy data has no labels, so that nothing could

The two controls leave the teacher as the only thing to learn from; a student that then does much worse had learnt
from the labels. They are one computation, and the same bits: `no-ce` says so, `withhold` proves it.
"""

from __future__ import annotations

from typing import Literal, get_args

from fedstill.core.dataset import Dataset
from fedstill.core.errors import InputError, UnusableError, did_you_mean
from fedstill.distillation.objective import Objective, objectives

LabelMode = Literal["use", "no-ce", "withhold"]
LABEL_MODES: tuple[LabelMode, ...] = get_args(LabelMode)


class NotAssessable(UnusableError):  # noqa: N818 - a verdict of the audit, too
    """A student trained by this objective without labels says nothing of its teacher."""


def under_labels(objective: Objective, mode: LabelMode) -> Objective:
    """The objective that is really trained in a label mode.

    In both controls the cross-entropy is gone; `vanilla`, `self`, `multi-teacher`, `logit-mse`, `cosine`, `basic` and
    `detector`, which loses all of its task's loss, set alpha to 1, `dkd` takes the teacher's most likely class for its
    target, `crd` is refused, and all others keep the weights of their remaining terms.

    >>> from fedstill.distillation.logits import Vanilla
    >>> free = under_labels(Vanilla(), "no-ce")
    >>> free.hard_label_weight, free.settings.alpha, sorted(free.reads)
    (0.0, 1.0, [])
    """
    if mode not in LABEL_MODES:
        raise InputError(f"unknown label mode {mode!r}: {did_you_mean(mode, LABEL_MODES)}")
    if mode == "use":
        return objective
    if not objective.assessable:
        other = f"{objective.name}+kl"
        instead = f"objective {other!r}, or " if other in objectives else ""
        raise NotAssessable(
            f"objective {objective.name!r} is not assessable without labels, since nothing else trains the classifier:"
            f" choose {instead}label mode 'use'"
        )
    return objective.label_free()


def proxy_under_labels(data: Dataset, objective: Objective, mode: LabelMode) -> Dataset:
    """The proxy data as the training loop gets it; refused where the objective needs labels that are not there."""
    reads = under_labels(objective, mode).reads
    if mode == "withhold":
        return data.unlabelled()
    if "labels" in reads and data.labels() is None:
        raise InputError(
            f"objective {objective.name!r} reads labels, and the proxy data has none:"
            " choose `withhold`, or an objective that needs no labels"
        )
    return data
