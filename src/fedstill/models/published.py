"""Weight files of public model zoos: the names of torchvision and timm, translated to those of models here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.kinds import COUNTERS

Builder = TypeVar("Builder", bound=Callable[..., Any])

_HEAD, _EXTRACTOR = "head", "extractor"
_PREFIXES = ("module.", "model.", "_orig_mod.")  # of parallel, packed and compiled models
_PLACES = "pos_embed"  # of a transformer: one row per patch and one for the class token, which depend on the image size


def published(head: str) -> Callable[[Builder], Builder]:
    """Declare that a builder's models have the layers of a public model, whose last layer is called `head`."""

    def note(builder: Builder) -> Builder:
        builder.public_head = head  # type: ignore[attr-defined]
        return builder

    return note


def is_public(tensors: Mapping[str, Tensor]) -> bool:
    """Whether these are named as in torch's files, not by kind as in ours."""
    return bool(tensors) and not any("/" in name for name in tensors)


def from_public(
    tensors: Mapping[str, Tensor], builder: Callable[..., Any], own: Mapping[str, Tensor], model: str, file: str
) -> dict[str, Tensor]:
    """The tensors under the names of a model with the state `own`; a head for other classes is left out.

    Files of models that are not published have the names of `state_dict`.
    """
    head: str | None = getattr(builder, "public_head", None)
    tensors = _without_prefix(tensors)
    kinds = {name.split("/", 1)[1]: name for name in own}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        ours = name if head is None else _translated(name, head)
        if ours not in kinds:
            raise InputError(_misfit(file, model, f"it has no {name!r}", name))
        found[kinds[ours]] = _fitting(tensor, own[kinds[ours]], name)
    own_head = {name for name in own if name.split("/", 1)[1].startswith(f"{_HEAD}.")}
    if head is not None and any(name in found and found[name].shape != own[name].shape for name in own_head):
        found = {name: tensor for name, tensor in found.items() if name not in own_head}
    lacking = [name for name in own if name not in found and name not in own_head and not name.startswith(COUNTERS)]
    if lacking and all(_is_statistic(name) for name in lacking):
        raise InputError(
            f"{file} lacks the running statistics of BatchNorm, such as {lacking[0].split('/', 1)[1]!r} of {model}:"
            " save its buffers too, or set norm=group"
        )
    if lacking:
        raise InputError(f"{file} lacks {lacking[0].split('/', 1)[1]!r} of {model}: it holds another model")
    return found


def _without_prefix(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Without what wrappers put before every name.

    >>> list(_without_prefix({"module.fc.weight": torch.zeros(1)}))
    ['fc.weight']
    """
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _is_statistic(name: str) -> bool:
    """Whether a tensor is one that BatchNorm counts rather than learns."""
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


def _misfit(file: str, model: str, why: str, name: str) -> str:
    if _is_statistic(name):
        return f"the weights in {file} are of a model with BatchNorm, and {model} has none: leave norm=group out"
    return f"the weights in {file} do not fit {model}: {why}"


def _translated(name: str, head: str) -> str:
    if name.startswith(f"{head}."):
        return f"{_HEAD}.{name.removeprefix(f'{head}.')}"
    return f"{_EXTRACTOR}.{name}"


def _fitting(tensor: Tensor, own: Tensor, name: str) -> Tensor:
    """In the precision of the model; places of patches are interpolated to another image size."""
    if tensor.is_floating_point() and own.is_floating_point():
        tensor = tensor.to(own.dtype)
    if name == _PLACES and tensor.shape != own.shape and tensor.ndim == 3 and tensor.shape[2] == own.shape[2]:
        return _interpolated(tensor, own.shape[1] - 1)
    return tensor


def _interpolated(places: Tensor, count: int) -> Tensor:
    """Rows of square grids, for the class token and for this many patches; other grids stay, to be refused."""
    token, grid = places[:, :1], places[:, 1:]
    before, after = (round(number**0.5) for number in (grid.shape[1], count))
    if before**2 != grid.shape[1] or after**2 != count:
        return places
    square = grid.reshape(1, before, before, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(square, size=(after, after), mode="bicubic", align_corners=False)
    return torch.cat([token, resized.permute(0, 2, 3, 1).reshape(1, count, -1)], dim=1)
