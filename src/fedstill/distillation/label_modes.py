"""Label modes: whether a student is trained with the proxy labels.

    use        the objective as it is
    no-ce      the proxy data keeps its labels, the objective does not read them
    withhold   the proxy data has no labels, so that nothing could

In the two label-free controls the teacher is the only source of supervision; a student that then does much worse had
learnt from the labels. Both are the same computation, bit for bit: `no-ce` ignores the labels, `withhold` proves that
they are not used.
"""

from __future__ import annotations

from typing import Literal, get_args

from fedstill.core.dataset import Dataset
from fedstill.core.errors import InputError, UnusableError, did_you_mean
from fedstill.distillation.objective import Objective, objectives

LabelMode = Literal["use", "no-ce", "withhold"]
LABEL_MODES: tuple[LabelMode, ...] = get_args(LabelMode)


class NotAssessable(UnusableError):  # noqa: N818 - a verdict of the audit, too
    """A student trained by this objective without labels does not measure its teacher."""


def under_labels(objective: Objective, mode: LabelMode) -> Objective:
    """The objective that is trained in a label mode.

    Both controls remove the cross-entropy. `vanilla`, `self`, `multi-teacher`, `logit-mse`, `cosine`, `basic` and
    `detector`, which loses its whole task loss, set alpha to 1; `dkd` uses the teacher's most likely class as target;
    `crd` is refused; all others keep the weights of their remaining terms.

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
    """The proxy data as the training loop receives it; refused if the objective needs labels that are missing."""
    reads = under_labels(objective, mode).reads
    if mode == "withhold":
        return data.unlabelled()
    if "labels" in reads and data.labels() is None:
        raise InputError(
            f"objective {objective.name!r} reads labels, and the proxy data has none:"
            " choose `withhold`, or an objective that needs no labels"
        )
    return data
