"""Settings of a model, written behind its name: `resnet18:norm=group` or `cnn:width=16`.

The text is the model's name everywhere: in experiments and their identities, in files, and for clients with different
models. Beside the settings here, sizes of the model's builder are accepted. In YAML and Python a mapping does as well:
`{"name": "resnet18", "norm": "group"}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedstill.core.errors import InputError
from fedstill.core.settings import Settings, make_settings
from fedstill.models.classifier import Classifier, InputNorm
from fedstill.models.surgery import freeze

_BETWEEN = re.compile(r",(?=\s*\w+=)")
CHANNELS_PER_GROUP = 16
IMAGENET = (0.485, 0.456, 0.406, 0.229, 0.224, 0.225)  # means and standard deviations of its colours


class ArchitectureSettings(Settings):
    """What can be changed in every model."""

    norm: Literal["batch", "group"] = Field(
        "batch", description="normalisation: batch, or group (GroupNorm in place of BatchNorm, with as many parameters)"
    )
    freeze: tuple[str, ...] = Field((), description="layers that are not trained, by their names")
    normalise: Literal["imagenet", "dataset"] | tuple[float, ...] | None = Field(
        None,
        description="normalisation of images in the model: imagenet, dataset (the training data's mean and standard"
        " deviation by channel), or numbers on the scale 0..1, the means and then the deviations; unset: -1..1",
    )

    targets: Literal["one", "several"] = Field(
        "one", description="classes of a sample: one, or several; unset: what the data has"
    )

    added_later: ClassVar[frozenset[str]] = frozenset({"norm", "freeze", "normalise", "targets"})


def split_model(name: str) -> tuple[str, ArchitectureSettings, dict[str, Any]]:
    """A model's name without settings, the settings, and sizes of its builder.

    >>> split_model("cnn-bn:norm=group,width=16")
    ('cnn-bn', ArchitectureSettings(norm='group', freeze=(), normalise=None, targets='one'), {'width': 16})
    """
    plain, colon, rest = name.partition(":")
    given = _pairs(name, rest) if colon else {}
    chosen = {key: given.pop(key) for key in list(given) if key in ArchitectureSettings.model_fields}
    return plain, make_settings(ArchitectureSettings, chosen, f"model {plain!r}"), given


def model_mapping(name: str) -> dict[str, Any]:
    """A name with its settings as a mapping."""
    plain, colon, rest = name.partition(":")
    return {"name": plain, **(_pairs(name, rest) if colon else {})}


def model_name(given: Any) -> Any:
    """A model as text, settings sorted and without defaults; what is neither text nor mapping stays as it is.

    >>> model_name({"name": "resnet18", "norm": "group", "freeze": ["stem", "stage1"]})
    'resnet18:freeze=[stem,stage1],norm=group'
    >>> model_name("resnet18:norm=batch")
    'resnet18'
    """
    if isinstance(given, str) and given:
        given = model_mapping(given)
    if not isinstance(given, Mapping):
        return given
    chosen = dict(given)
    name = chosen.pop("name", None)
    if not isinstance(name, str) or not name:
        raise InputError("model needs a name: `fedstill list models` shows them")
    common = {key: chosen.pop(key) for key in list(chosen) if key in ArchitectureSettings.model_fields}
    settings = make_settings(ArchitectureSettings, common, f"model {name!r}")
    said = {key: getattr(settings, key) for key in common}
    chosen |= {key: value for key, value in said.items() if value != ArchitectureSettings.model_fields[key].default}
    pairs = ",".join(f"{key}={_written(value)}" for key, value in sorted(chosen.items()))
    return f"{name}:{pairs}" if pairs else name


def with_several_targets(name: str) -> str:
    """The model for samples with any number of classes.

    >>> with_several_targets("cnn-bn:norm=group")
    'cnn-bn:norm=group,targets=several'
    """
    return str(model_name({**model_mapping(name), "targets": "several"}))


def has_several_targets(name: str) -> bool:
    """Whether a model's name says that samples have any number of classes."""
    return "targets=several" in name and split_model(name)[1].targets == "several"


def _pairs(name: str, text: str) -> dict[str, Any]:
    pairs = [piece.partition("=") for piece in _BETWEEN.split(text)]
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise InputError(f"cannot read the model {name!r}: write name:key=value, e.g. resnet18:norm=group")
    return {key.strip(): _read(value.strip()) for key, _, value in pairs}


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def _read(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        pieces = [piece.strip().strip("\"'") for piece in text[1:-1].split(",") if piece.strip()]
        return [_read(piece) for piece in pieces]
    try:
        return json.loads(text)
    except ValueError:
        return text


def apply_settings(model: nn.Module, settings: ArchitectureSettings, name: str, shape: tuple[int, ...]) -> None:
    """Change a new model as its settings say."""
    if settings.normalise is not None:
        _normalise(model, settings.normalise, name, shape)
    if settings.norm == "group":
        use_group_norm(model, name)
    if settings.targets == "several" and isinstance(model, Classifier):
        model.several = True
    for beginning in settings.freeze:
        _freeze(model, beginning, name)


def _normalise(model: nn.Module, how: str | tuple[float, ...], name: str, shape: tuple[int, ...]) -> None:
    if not isinstance(model, Classifier) or len(shape) != 3:
        raise InputError(f"normalise is for images and models of fedstill, and {name!r} is another: leave it out")
    if how == "dataset":
        raise InputError(
            "normalise=dataset needs all training data in one place: give numbers, the means and then the standard"
            " deviations of the channels, e.g. normalise=[0.5,0.25]"
        )
    numbers = IMAGENET if isinstance(how, str) else how
    if len(numbers) not in (2, 2 * shape[0]) or min(numbers[len(numbers) // 2 :]) <= 0:
        given = "imagenet has three channels" if how == "imagenet" else f"{len(numbers)} numbers are given"
        raise InputError(
            f"normalise needs a mean and a standard deviation above 0 for each of {shape[0]} channels, or one of each"
            f" for all, and {given}: set channels=3 of the data, or other numbers"
        )
    half = len(numbers) // 2
    model.input_norm = InputNorm(numbers[:half], numbers[half:])


def use_group_norm(model: nn.Module, name: str) -> None:
    """Replace every BatchNorm by a GroupNorm with the same parameters, which has no running statistics.

    A group has at least 16 channels ("Group Normalization", https://arxiv.org/abs/1803.08494, table 3): groups of one
    would remove all that a layer without pixels says.
    """
    found = [(place, part) for place, part in model.named_modules() if isinstance(part, _BatchNorm)]
    if not found:
        raise InputError(f"model {name!r} has no BatchNorm: leave norm=group out")
    for place, part in found:
        group = nn.GroupNorm(groups_of(part.num_features), part.num_features, part.eps, part.affine)
        if part.affine:
            group.load_state_dict({"weight": part.weight.detach(), "bias": part.bias.detach()})
        parent, _, child = place.rpartition(".")
        setattr(model.get_submodule(parent), child, group)


def groups_of(channels: int) -> int:
    """The largest number of groups with at least 16 channels each.

    >>> [groups_of(channels) for channels in (8, 16, 64, 104, 512)]
    [1, 1, 4, 4, 32]
    """
    most = max(1, channels // CHANNELS_PER_GROUP)
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def _freeze(model: nn.Module, beginning: str, name: str) -> None:
    """Freeze layers, named as in the model or as in its extractor."""
    modules = dict(model.named_modules())
    chosen = [
        modules[place]
        for place in (beginning, f"extractor.{beginning}")
        if place in modules and any(True for _ in modules[place].parameters())
    ]
    tops = [place for place, part in modules.items() if place.count(".") <= 1 and any(True for _ in part.parameters())]
    if not chosen:
        known = ", ".join(place.removeprefix("extractor.") for place in tops if place and place != "extractor")
        raise InputError(f"model {name!r} has no layer {beginning!r} to freeze: it has {known}")
    freeze(chosen[0])
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"model {name!r} has nothing left to train: freeze fewer layers")
