"""A plain PyTorch 3DETR with prefix prompts, written like most public code: the baseline of the speed comparison.

Sampling and balls are those of `reference_pointnet2.py`, neighbourhoods are materialised, layers on points are 1x1
convolutions, and attention computes all of its weights, as `nn.MultiheadAttention` does when it returns them. Weights
are copied from a `PublishedDetector`, and the results are the same except for rounding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.reference_pointnet2 import balls, pick, sample
from fedstill.detection.model import Layer, Predictions, PublishedDetector
from fedstill.detection.model.published_detector import MASKING_RADII


def attention(queries: Tensor, keys: Tensor, values: Tensor, blocked: Tensor | None) -> Tensor:
    """Of (batch x heads, rows, channels), with all weights in memory."""
    scores = torch.bmm(queries / math.sqrt(queries.shape[-1]), keys.transpose(1, 2))
    if blocked is not None:
        scores = scores.masked_fill(blocked, -math.inf)
    return torch.bmm(F.softmax(scores, dim=-1), values)


class Attention(nn.Module):
    """Multi-head attention with one packed projection."""

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.heads: int = ours.heads
        projections = [ours.query, ours.key, ours.value]
        self.weight = nn.Parameter(torch.cat([one.weight.detach() for one in projections]))
        self.bias = nn.Parameter(torch.cat([one.bias.detach() for one in projections]))
        self.out = nn.Linear(*ours.out.weight.shape)
        self.out.load_state_dict(ours.out.state_dict())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, prompts: Tensor | None, blocked: Tensor | None) -> Tensor:
        batch, rows, width = q.shape
        weights, biases = self.weight.chunk(3), self.bias.chunk(3)
        q, k, v = (self.apart(F.linear(x, w, b)) for x, w, b in zip((q, k, v), weights, biases, strict=True))
        if prompts is not None:
            k, v = (torch.cat([one.repeat(batch, 1, 1), x], dim=1) for one, x in zip(prompts, (k, v), strict=True))
        if blocked is not None:
            free = torch.zeros(batch, rows, k.shape[1] - blocked.shape[2], dtype=torch.bool)
            blocked = torch.cat([free, blocked], dim=2).repeat_interleave(self.heads, dim=0)
        mixed = attention(q, k, v, blocked).view(batch, self.heads, rows, -1)
        return self.out(mixed.transpose(1, 2).reshape(batch, rows, width))

    def apart(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        x = x.view(batch, rows, self.heads, width // self.heads).transpose(1, 2)
        return x.reshape(batch * self.heads, rows, width // self.heads)


class Level(nn.Module):
    """Set abstraction with coordinates in units of the radius."""

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.ball = ours.ball
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for linear, norm in ours.layers():
            convolution = nn.Conv2d(linear.in_features, linear.out_features, 1)
            convolution.load_state_dict({"weight": linear.weight[:, :, None, None], "bias": linear.bias})
            self.convolutions.append(convolution)
            self.norms.append(_norm(norm, nn.BatchNorm2d(norm.num_features)))

    def forward(self, points: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        centres = pick(points, sample(points, self.ball.centres))
        index = balls(points, centres, self.ball.radius, self.ball.neighbours)
        groups = (pick(points, index) - centres.unsqueeze(2)) / self.ball.radius
        if features is not None:
            groups = torch.cat([groups, pick(features, index)], dim=-1)
        x = groups.permute(0, 3, 2, 1).contiguous()
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return centres, x.max(2)[0].transpose(1, 2)


class Mlp(nn.Module):
    """Convolutions over (batch, channels, rows), as read from the layers of our module."""

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for part in ours:
            linear = getattr(part, "linear", part)
            if not isinstance(linear, nn.Linear):
                layers.append(part)
                continue
            convolution = nn.Conv1d(linear.in_features, linear.out_features, 1, bias=linear.bias is not None)
            convolution.load_state_dict(
                {name: one.view_as(convolution.state_dict()[name]) for name, one in linear.state_dict().items()}
            )
            layers.append(convolution)
            if linear is not part:
                layers += [_norm(part.norm, nn.BatchNorm1d(linear.out_features)), nn.ReLU(), nn.Dropout(part.dropout.p)]
        self.layers = nn.Sequential(*layers)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows.transpose(1, 2)).transpose(1, 2)


class ReferenceDetector(nn.Module):
    """The detector with our weights; one of axis-aligned boxes."""

    def __init__(self, ours: PublishedDetector) -> None:
        super().__init__()
        self.sizes, self.masked, self.dropout = ours.sizes, ours.masked, nn.Dropout(ours.sizes.dropout)
        self.register_buffer("fourier", ours.fourier.clone())
        self.prompts = nn.Parameter(ours.prompts.detach().clone())
        self.tokens = Level(ours.tokens.level)
        self.downsampling = Level(ours.downsampling) if ours.masked else None
        self.encoder = nn.ModuleList(_layer(layer, "attention") for layer in ours.encoder)
        self.decoder = nn.ModuleList(_layer(layer, "among", "across") for layer in ours.decoder)
        self.norm = nn.LayerNorm(ours.sizes.width)
        self.norm.load_state_dict(ours.norm.state_dict())
        self.projection, self.position = Mlp(ours.projection), Mlp(ours.query_position)
        self.heads = nn.ModuleDict({name: Mlp(head) for name, head in ours.heads.items()})

    def forward(self, points: Tensor) -> Predictions:
        low, high = points.amin(1), points.amax(1)
        extent = high - low
        positions, encoded = self.encode(points)
        memory = self.projection(encoded)
        places = pick(positions, sample(positions, self.sizes.queries))
        at = self.position(self.waves(places, low, extent))
        keys = memory + self.waves(positions, low, extent)
        queries, states = torch.zeros_like(at), []
        for layer in self.decoder:
            rows = layer["norm1"](queries)
            queries = queries + self.dropout(layer["among"](rows + at, rows + at, rows, None, None))
            rows = layer["norm2"](queries)
            queries = queries + self.dropout(layer["across"](rows + at, keys, memory, None, None))
            queries = queries + self.dropout(layer["feedforward"](layer["norm3"](queries)))
            states.append(self.norm(queries))
        found = {name: head(torch.cat(states)) for name, head in self.heads.items()}
        batch = len(states), len(points), *places.shape[1:2], -1
        classes, offsets, sizes = (found[name].view(batch) for name in ("classes", "offsets", "sizes"))
        boxes = torch.cat(
            [places + offsets.sigmoid() - 0.5, sizes.sigmoid() * extent.unsqueeze(1), sizes[..., :1] * 0], -1
        )
        none = sizes[..., :0]
        layers = tuple(map(Layer, F.log_softmax(classes, -1), boxes, none, none))
        return Predictions(layers, None, states[-1], encoded.mean(1), extent)

    def encode(self, points: Tensor) -> tuple[Tensor, Tensor]:
        positions, x = self.tokens(points, None)
        for number, layer in enumerate(self.encoder):
            blocked = torch.cdist(positions, positions) >= MASKING_RADII[number] if self.masked else None
            rows = layer["norm1"](x)
            x = x + self.dropout(layer["attention"](rows, rows, rows, self.prompts[number], blocked))
            x = x + self.dropout(layer["feedforward"](layer["norm2"](x)))
            if number == 0 and self.downsampling is not None:
                positions, x = self.downsampling(positions, x)
        return positions, x

    def waves(self, positions: Tensor, low: Tensor, extent: Tensor) -> Tensor:
        phases = 2 * math.pi * ((positions - low.unsqueeze(1)) / extent.unsqueeze(1)) @ self.fourier
        return torch.cat([phases.sin(), phases.cos()], dim=-1)


def _norm(ours: nn.Module, norm: nn.Module) -> nn.Module:
    norm.load_state_dict(ours.state_dict())
    return norm


def _layer(ours: nn.Module, *attentions: str) -> nn.ModuleDict:
    """The parts of a layer: attention of our own, the rest copied."""
    parts = {name: Attention(getattr(ours, name)) for name in attentions}
    width = parts[attentions[0]].out.out_features
    for name, part in ours.named_children():
        if name.startswith("norm"):
            parts[name] = _norm(part, nn.LayerNorm(width))
    first, _, dropout, second = ours.feedforward
    copies = nn.Linear(width, first.out_features), nn.Linear(first.out_features, width)
    for copy, linear in zip(copies, (first, second), strict=True):
        copy.load_state_dict(linear.state_dict())
    parts["feedforward"] = nn.Sequential(copies[0], nn.ReLU(), nn.Dropout(dropout.p), copies[1])
    return nn.ModuleDict(parts)
