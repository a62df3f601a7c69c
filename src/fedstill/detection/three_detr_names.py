"""The names of 3DETR's public checkpoints, and ours for the same tensors.

`tensors_of_3detr` renames the encoder of a state of 3DETR or 3DETR-m, so that `pretrain --kind imported` takes it:

    pre_encoder.mlp_module.layer{i}.conv.weight          tokens.level.linear{i + 1}.weight, a matrix
    pre_encoder.mlp_module.layer{i}.bn.bn.*              tokens.level.norm{i + 1}.*
    encoder.layers.{i}.self_attn.in_proj_weight, _bias   encoder.{i}.attention.query, .key, .value: one third each
    encoder.layers.{i}.self_attn.out_proj.*              encoder.{i}.attention.out.*
    encoder.layers.{i}.linear1.*, linear2.*              encoder.{i}.feedforward.0.*, feedforward.3.*
    encoder.layers.{i}.norm1.*, norm2.*                  encoder.{i}.norm1.*, norm2.*
    encoder.interim_downsampling.mlp_module.layer{i}.*   downsampling.linear{i + 1}.*, norm{i + 1}.*  (3DETR-m)
    pos_embedding.gauss_B                                fourier

Their convolutions before BatchNorm have no bias, where ours have one: it is zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

_OWN_MARK = "pre_encoder.mlp_module."
_LEVELS = {"pre_encoder.mlp_module": "tokens.level", "encoder.interim_downsampling.mlp_module": "downsampling"}
_CONVOLUTION = re.compile(r"(.+)\.layer(\d+)\.conv\.weight")
_NORM = re.compile(r"(.+)\.layer(\d+)\.bn\.bn\.(\w+)")
_PACKED = re.compile(r"encoder\.layers\.(\d+)\.self_attn\.in_proj_(weight|bias)")
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(self_attn\.out_proj|linear1|linear2|norm1|norm2)\.(weight|bias)")
_PARTS = {"self_attn.out_proj": "attention.out", "linear1": "feedforward.0", "linear2": "feedforward.3"}


def is_of_3detr(names: Mapping[str, Tensor]) -> bool:
    """Whether tensors have the names of 3DETR's public code, without prefixes."""
    return any(name.startswith(_OWN_MARK) for name in names)


def tensors_of_3detr(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under our names; those of other parts than the encoder keep theirs.

    >>> found = tensors_of_3detr({"encoder.layers.2.self_attn.in_proj_bias": torch.arange(6.0)})
    >>> {name: tensor.tolist() for name, tensor in found.items()}["encoder.2.attention.key.bias"]
    [2.0, 3.0]
    """
    return {ours: tensor for name, theirs in state.items() for ours, tensor in _renamed(name, theirs)}


def _renamed(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What one of their tensors is with us: packed projections are three, a weight before BatchNorm brings a bias."""
    if (found := _CONVOLUTION.fullmatch(name)) and found[1] in _LEVELS:
        linear = f"{_LEVELS[found[1]]}.linear{int(found[2]) + 1}"
        yield f"{linear}.weight", tensor.flatten(1) if tensor.shape[2:].numel() == 1 else tensor
        yield f"{linear}.bias", torch.zeros(tensor.shape[:1], dtype=tensor.dtype)
    elif (found := _NORM.fullmatch(name)) and found[1] in _LEVELS:
        yield f"{_LEVELS[found[1]]}.norm{int(found[2]) + 1}.{found[3]}", tensor
    elif (found := _PACKED.fullmatch(name)) and len(tensor) % 3 == 0:
        for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
            yield f"encoder.{found[1]}.attention.{part}.{found[2]}", third.contiguous()
    elif found := _LAYER.fullmatch(name):
        yield f"encoder.{found[1]}.{_PARTS.get(found[2], found[2])}.{found[3]}", tensor
    else:
        yield "fourier" if name == "pos_embedding.gauss_B" else name, tensor
