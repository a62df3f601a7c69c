"""`normalise=dataset`: the training data's mean and standard deviation by channel, as numbers in the model's name."""

from __future__ import annotations

import torch

from fedstill.core.dataset import Dataset, every_row
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.models.model_settings import model_mapping, model_name
from fedstill.runtime.experiment import Experiment

_DIGITS = 4
_LEAST = 10.0**-_DIGITS  # of a deviation: an empty channel has none


def with_statistics(experiment: Experiment, bundle: Bundle) -> Experiment:
    """The experiment with numbers in place of `normalise=dataset`; the configuration records them.

    They are those of all training data, before a share of it is held out for validation.
    """
    names = [name for name in (experiment.model, *experiment.models) if name is not None]
    if not any(model_mapping(name).get("normalise") == "dataset" for name in names):
        return experiment
    if bundle.kind != "image":
        raise InputError(f"normalise=dataset is for images, and {bundle.name} holds {bundle.kind}s: leave it out")
    numbers = channel_statistics(bundle.train)

    def filled(name: str) -> str:
        given = model_mapping(name)
        return str(model_name({**given, "normalise": numbers} if given.get("normalise") == "dataset" else given))

    model = None if experiment.model is None else filled(experiment.model)
    return experiment.model_copy(
        update={"model": model, "models": {filled(name): count for name, count in experiment.models.items()}}
    )


def channel_statistics(data: Dataset) -> list[float]:
    """Means and then standard deviations of the channels, on the scale 0..1, in four digits."""
    total, squares, count = torch.zeros(()).double(), torch.zeros(()).double(), 0
    for rows in every_row(data):
        images = data.batch(rows)["inputs"].double().add_(1).div_(2)
        total = total + images.sum(dim=(0, 2, 3))
        squares = squares + images.square().sum(dim=(0, 2, 3))
        count += images.shape[0] * images.shape[2] * images.shape[3]
    mean = total / count
    deviation = (squares / count - mean.square()).clamp(min=0).sqrt().clamp(min=_LEAST)
    return [round(value, _DIGITS) for value in (*mean.tolist(), *deviation.tolist())]
