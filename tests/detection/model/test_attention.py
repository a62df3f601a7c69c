"""Attention with prompts, against loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedstill.detection.model.attention import PromptedAttention


def by_hand(layer: PromptedAttention, queries: Tensor, others: Tensor, prompts: Tensor) -> Tensor:
    """One query, head and key after the other."""
    out = torch.zeros(len(queries), layer.query.out_features)
    wide = layer.query.out_features // layer.heads
    for row, query in enumerate(queries):
        for head in range(layer.heads):
            part = slice(head * wide, (head + 1) * wide)
            asked = layer.query(query)[part]
            known = [*prompts[0, head], *(layer.key(other)[part] for other in others)]
            told = [*prompts[1, head], *(layer.value(other)[part] for other in others)]
            weights = torch.stack([asked @ one / math.sqrt(wide) for one in known]).softmax(0)
            out[row, part] = sum(weight * one for weight, one in zip(weights, told, strict=True))
    return layer.out(out)


def test_attention_with_prompts_against_loops() -> None:
    layer = PromptedAttention(6, 2)
    queries, others, prompts = torch.randn(2, 3, 6), torch.randn(2, 4, 6), torch.randn(2, 2, 5, 3)
    found = layer(queries, others, others, prompts)
    for row in range(2):
        torch.testing.assert_close(found[row], by_hand(layer, queries[row], others[row], prompts))
    none = torch.zeros(2, 2, 0, 3)
    torch.testing.assert_close(layer(queries, others, others)[0], by_hand(layer, queries[0], others[0], none))
