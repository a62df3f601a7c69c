"""3DETR and 3DETR-m as published, with prefix prompts in the encoder.

"An End-to-End Transformer Model for 3D Object Detection", Misra et al., 2021, https://arxiv.org/abs/2109.08141, and the
public code of that paper:

* set abstraction of widths 64, 128 and 256, with coordinates relative to the centre in units of the radius;
* an encoder without positions. In 3DETR-m a token attends to tokens within a radius that grows from layer to layer, and
  a second set abstraction halves the number of tokens after the first layer;
* queries at positions that farthest-point sampling chooses among the encoded tokens; they start at zero and have the
  Fourier features of their positions added in every layer, as the tokens have in the keys;
* five heads of three layers with BatchNorm and dropout, which predict the boxes of all decoder layers at once: offsets
  of up to half a metre from the query, and sizes as a fraction of the scene, both through a sigmoid.

Differences, each with its reason: no dropout of attention weights, which would materialise all of them; and no head for
angles where boxes are axis-aligned, since its outputs are multiplied by zero in the public code.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.detection.model.attention import DecoderLayer
from fedstill.detection.model.detector import Detector, headings
from fedstill.detection.model.detector_sizes import PublishedSizes
from fedstill.detection.model.predictions import Layer, Predictions
from fedstill.detection.model.quick_dropout import QuickDropout
from fedstill.detection.model.tokens import Tokens, downsample
from fedstill.detection.point_features import split_columns
from fedstill.models.batchnorm import normalise
from fedstill.models.kernels import check_clouds, farthest_points, rows_at
from fedstill.models.pointnet2_levels import Ball, SetAbstraction

# Metres within which a token attends to others in each layer of a masked encoder. The public code compares distances
# with the squares of 0.4, 0.8 and 1.2.
MASKING_RADII = (0.4**2, 0.8**2, 1.2**2)
_DOWNSAMPLING = (0.4, 32)  # radius and neighbours
_SMALLEST = 0.1  # metres: the least extent of a scene, of which sizes are a fraction


class PublishedDetector(Detector):
    """Maps clouds (batch, points, 3 + channels), in metres with z up, to `Predictions`; tokens predict nothing."""

    sizes: PublishedSizes
    dropout_kind = QuickDropout

    def __init__(self, sizes: PublishedSizes, classes: int, name: str, masked: bool = False, channels: int = 0) -> None:
        self.masked = masked
        self.halved = Ball(max(sizes.tokens // 2, sizes.queries), *_DOWNSAMPLING)  # the tokens of a masked encoder
        super().__init__(sizes, classes, name, channels)
        _initialise(self.encoder)
        _initialise(self.decoder)

    def _make_tokens(self) -> Tokens:
        width = self.sizes.width
        return Tokens(self.sizes.ball, (width // 4, width // 2, width), 0.0, 0, relative=True, channels=self.channels)

    def _make_decoder(self) -> None:
        sizes, width = self.sizes, self.sizes.width
        if self.masked:
            self.downsampling = SetAbstraction(self.halved, width, (width, width, width), unit=self.halved.radius)
        self.projection = nn.Sequential(*(NormalisedLinear(width, width) for _ in range(2 if self.masked else 3)))
        self.query_position = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        layer = (width, sizes.heads, sizes.decoder_feedforward, sizes.dropout)
        self.decoder = nn.ModuleList(DecoderLayer(*layer, QuickDropout) for _ in range(sizes.decoder_layers))
        self.norm = nn.LayerNorm(width)
        bins = sizes.angle_bins if sizes.angle_bins > 1 else 0
        outputs = {"classes": self.classes + 1, "offsets": 3, "sizes": 3} | (
            {"bins": bins, "residuals": bins} if bins else {}
        )
        self.heads = nn.ModuleDict({name: _head(width, out, sizes.head_dropout) for name, out in outputs.items()})

    def forward(self, points: Tensor) -> Predictions:
        check_clouds(split_columns(points)[0])
        low, extent = self.bounds(points)
        positions, encoded = self.encode(points, low, extent)
        told = self.projection(encoded)
        places = rows_at(positions, farthest_points(positions, self.sizes.queries))
        at = self.query_position(self.waves(places, low, extent))
        placed = told + self.waves(positions, low, extent)
        queries, states = torch.zeros_like(at), []
        for layer in self.decoder:
            queries = layer(queries, at, placed, told)
            states.append(self.norm(queries))
        # BatchNorm of the heads is over all layers of the decoder together.
        layers = self._layers(torch.stack(states), places, extent)
        return Predictions(layers, None, states[-1], encoded.mean(dim=1), extent, places)

    def encode(self, points: Tensor, low: Tensor, extent: Tensor) -> tuple[Tensor, Tensor]:
        if not self.masked:
            return super().encode(points, low, extent)
        positions, features = self.describe(points, low, extent)
        for number, (layer, prompts) in enumerate(zip(self.encoder, self.prompts, strict=True)):
            radius = MASKING_RADII[min(number, len(MASKING_RADII) - 1)]
            near = torch.cdist(positions, positions) < radius
            features = layer(features, prompts if self.prompted else None, near)
            if number == 0:
                positions, features = downsample(self.downsampling, positions, features)
        return positions, features

    def describe(self, points: Tensor, low: Tensor, extent: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of tokens, and features of the points around each: the encoder is given no positions."""
        positions, features = self.tokens(points)
        return positions, features

    def _encoder_parts(self) -> list[nn.Module]:
        return [*super()._encoder_parts(), *([self.downsampling] if self.masked else [])]

    def _layers(self, states: Tensor, places: Tensor, extent: Tensor) -> tuple[Layer, ...]:
        found = {name: head(states) for name, head in self.heads.items()}
        offsets = found["offsets"].sigmoid() - 0.5
        sizes = found["sizes"].sigmoid() * extent.clamp(min=_SMALLEST).unsqueeze(1)
        none = offsets[..., :0]
        logits, residuals = found.get("bins", none), found.get("residuals", none)
        heading = headings(logits, residuals) if "bins" in found else torch.zeros_like(offsets[..., :1])
        boxes = torch.cat([places + offsets, sizes, heading], dim=-1)
        return tuple(map(Layer, F.log_softmax(found["classes"], dim=-1), boxes, logits, residuals))


class NormalisedLinear(nn.Module):
    """A linear map of rows of channels, (..., channels), with BatchNorm over all rows, ReLU and dropout."""

    def __init__(self, channels: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(channels, width, bias=False), nn.BatchNorm1d(width)
        self.dropout = QuickDropout(dropout)

    def forward(self, rows: Tensor) -> Tensor:
        mapped = normalise(self.norm, self.linear(rows).flatten(0, -2), rows.shape[0]).relu()
        out: Tensor = self.dropout(mapped.unflatten(0, rows.shape[:-1]))
        return out


def _head(width: int, out: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        NormalisedLinear(width, width, dropout), NormalisedLinear(width, width, dropout), nn.Linear(width, out)
    )


def _initialise(layers: nn.Module) -> None:
    """Xavier's initial weights, and no bias in attention; the public code packs queries, keys and values."""
    for name, parameter in layers.named_parameters():
        in_attention = any(f".{part}." in name for part in ("attention", "among", "across"))
        if parameter.dim() > 1:
            packed = in_attention and ".out." not in name
            nn.init.xavier_uniform_(parameter, gain=math.sqrt(0.5) if packed else 1.0)
        elif in_attention:
            nn.init.zeros_(parameter)
