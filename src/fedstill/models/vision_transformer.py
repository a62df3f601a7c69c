"""A small vision transformer, in the layout of timm and DeiT, whose weight files it reads.

"An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, in the tiny size of "Training data-efficient image
transformers & distillation through attention", https://arxiv.org/abs/2012.12877: 12 blocks of width 192 with 3 heads.
With 224x224 pixels, 3 channels and 1,000 classes it has 5,717,416 parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.models.builders import UnreadableShapeError, image_shape, models
from fedstill.models.classifier import Classifier
from fedstill.models.published import published

_DEVIATION = 0.02


class PatchEmbedding(nn.Module):
    """Each patch as a vector: a convolution whose stride is its kernel."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Multi-head attention with one map for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        split = self.qkv(x).reshape(samples, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(queries, keys, values)
        return self.proj(out.transpose(1, 2).reshape(samples, tokens, width))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two linear maps with GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Attention and perceptron, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn, self.mlp = SelfAttention(width, heads), FeedForward(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Images to the vector of the class token."""

    def __init__(self, channels: int, places: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patch_embed = PatchEmbedding(channels, width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, places + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.cls_token, std=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=_DEVIATION)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=_DEVIATION)
                nn.init.zeros_(part.bias)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch_embed(images)
        whole = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        return self.norm(self.blocks(whole + self.pos_embed))[:, 0]  # type: ignore[no-any-return]


def patch_of(height: int, width: int) -> int:
    """The largest of 16, 8, 4, 2 and 1 pixels that divides both sides and leaves at least 16 patches.

    >>> [patch_of(side, side) for side in (224, 64, 32, 28, 8)]
    [16, 16, 8, 4, 2]
    """
    fitting = (side for side in (16, 8, 4, 2) if height % side == width % side == 0 and height * width >= 16 * side**2)
    return next(fitting, 1)


@published(head="head")
@models.register("vit-tiny")
def vit_tiny(shape: tuple[int, ...], classes: int, *, patch: int = 0, depth: int = 12) -> Classifier:
    """Vision transformer of width 192 with 12 blocks and 3 heads, for large images (5.7 M with 1,000 classes).

    `patch` is the side of a patch in pixels; 0: 16, or less where there would be fewer than 16 patches.
    """
    channels, height, breadth = image_shape(shape)
    patch = patch or patch_of(height, breadth)
    if patch < 1 or height % patch or breadth % patch:
        raise UnreadableShapeError(f"images whose sides are multiples of {patch} pixels (patch={patch})")
    places = (height // patch) * (breadth // patch)
    extractor = VisionTransformer(channels, places, patch, width=192, depth=depth, heads=3)
    head = nn.Linear(192, classes)
    nn.init.trunc_normal_(head.weight, std=_DEVIATION)
    nn.init.zeros_(head.bias)
    return Classifier(extractor, head, 192)
