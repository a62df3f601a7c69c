"""Pre-norm transformer layers, with an explicit attention that accepts prompts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DropoutKind = type[nn.Dropout]


class PromptedAttention(nn.Module):
    """Multi-head attention; `prompts` are further keys and values, prepended after the projections.

    "Prefix-Tuning: Optimizing Continuous Prompts for Generation", https://arxiv.org/abs/2101.00190: a layer's attention
    can be trained without changing its weights.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        prompts: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(batch, queries, width); `prompts` are (2, heads, length, width / heads), keys and values.

        `mask` (batch, queries, keys) is true where a query attends to a key; all attend to all prompts.
        """
        asked, known, told = (
            self._apart(self.query(queries)),
            self._apart(self.key(keys)),
            self._apart(self.value(values)),
        )
        if prompts is not None:
            ahead, said = prompts.unsqueeze(1).expand(-1, keys.shape[0], -1, -1, -1)
            known, told = torch.cat([ahead, known], dim=2), torch.cat([said, told], dim=2)
        if mask is not None:
            mask = F.pad(mask, (known.shape[2] - mask.shape[2], 0), value=True).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(asked, known, told, attn_mask=mask)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _apart(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], self.heads, -1).transpose(1, 2)


class Feedforward(nn.Sequential):
    """Two linear maps for each row."""

    def __init__(self, width: int, hidden: int, dropout: nn.Dropout) -> None:
        super().__init__(nn.Linear(width, hidden), nn.ReLU(), dropout, nn.Linear(hidden, width))


class EncoderLayer(nn.Module):
    """Tokens attend to each other and to the layer's prompts."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, kind: DropoutKind = nn.Dropout) -> None:
        super().__init__()
        self.attention, self.feedforward = PromptedAttention(width, heads), Feedforward(width, hidden, kind(dropout))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = kind(dropout)

    def forward(self, tokens: Tensor, prompts: Tensor | None, mask: Tensor | None = None) -> Tensor:
        rows = self.norm1(tokens)
        tokens = tokens + self.dropout(self.attention(rows, rows, rows, prompts, mask))
        out: Tensor = tokens + self.dropout(self.feedforward(self.norm2(tokens)))
        return out


class DecoderLayer(nn.Module):
    """Queries attend to each other, then to the tokens; positions are part of queries and keys."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, kind: DropoutKind = nn.Dropout) -> None:
        super().__init__()
        self.among, self.across = PromptedAttention(width, heads), PromptedAttention(width, heads)
        self.feedforward = Feedforward(width, hidden, kind(dropout))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = kind(dropout)

    def forward(self, queries: Tensor, at: Tensor, placed: Tensor, values: Tensor) -> Tensor:
        """`at` is the embedding of the queries' positions, `placed` are tokens with the embedding of theirs.

        In 3DETR `values` are the tokens without positions. Small detectors have them in the values, too: a box is where
        the tokens of its object are.
        """
        rows = self.norm1(queries)
        queries = queries + self.dropout(self.among(rows + at, rows + at, rows))
        queries = queries + self.dropout(self.across(self.norm2(queries) + at, placed, values))
        out: Tensor = queries + self.dropout(self.feedforward(self.norm3(queries)))
        return out
