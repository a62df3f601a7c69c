"""The proxy data that a student is trained on, as the label mode allows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field

from fedstill.core.dataset import Dataset, Subset
from fedstill.core.errors import InputError
from fedstill.core.numbers import count
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle
from fedstill.data.data_kinds import data_kinds
from fedstill.data.point_labels import shape_kinds
from fedstill.data.splits import split_validation
from fedstill.distillation.label_modes import LabelMode, proxy_under_labels
from fedstill.distillation.objective import Objective


class DistillationSettings(Settings):
    labels: LabelMode = Field(
        "use", description="use: train with labels; no-ce: without the cross-entropy; withhold: no labels at all"
    )
    proxy: str | None = Field(None, description="data set to distil on; unset: the training split")
    share: float = Field(1.0, gt=0, le=1, description="fraction of the proxy data to use, stratified by class")
    same_model: bool = Field(False, description="allow a student with the teacher's architecture")


def proxy_data(
    settings: DistillationSettings,
    objective: Objective,
    train: Dataset,
    bundle: Bundle,
    load: Callable[[str], Bundle],
    streams: Streams,
) -> tuple[Dataset, str]:
    """The proxy data: the training split, another data set, or a fraction of either; possibly unlabelled.

    A fraction is drawn evenly from the classes if they are known, and contains the same rows in every label mode. The
    returned text is the fingerprint of another data set, for the run's identity.
    """
    data, fingerprint = train, ""
    if settings.proxy is not None:
        other = load(settings.proxy)
        fingerprint = other.fingerprint()
        of_points = data_kinds[bundle.kind].points
        if other.kind == bundle.kind and of_points:
            other = other.with_points(min(bundle.shape[0], other.shape[0])).with_features(bundle.features)
        if other.kind != bundle.kind or (not of_points and other.shape != bundle.shape):
            raise InputError(
                f"the proxy {settings.proxy} holds {other.kind}s of shape {other.shape}, and {bundle.name} holds"
                f" {bundle.kind}s of shape {bundle.shape}"
            )
        if other.classes and other.classes != bundle.classes and "labels" in objective.reads:
            raise InputError(
                f"the objective {objective.name} reads labels, and those of the proxy {settings.proxy} are of"
                f" other classes than {bundle.name}'s: choose --labels withhold, or an objective that needs no labels"
            )
        # Labels of another data set may refer to other classes: they must not be used as if they were these.
        data = other.train if other.classes == bundle.classes else other.train.unlabelled()
    if round(settings.share * len(data)) < 2:
        raise InputError(
            f"a share of {settings.share:g} of the proxy's {count(len(data), 'sample')} makes no batch of two: raise"
            " method.share, or choose another proxy"
        )
    if settings.share < 1:
        kinds = torch.zeros(len(data), dtype=torch.int64) if data.labels() is None else shape_kinds(data)
        _, taken = split_validation(kinds, settings.share, streams.at("proxy"))
        data = Subset(data, taken)
    return proxy_under_labels(data, objective, settings.labels), fingerprint
