"""An object detector for scenes: tokens, an encoder with prompts, queries, a decoder, heads.

After "An End-to-End Transformer Model for 3D Object Detection", Misra et al., 2021, https://arxiv.org/abs/2109.08141,
with prefix prompts in the encoder. Two things differ from that paper, because small data sets do not suffice for a
decoder to learn where to attend: each token itself predicts whether it lies on an object, its class, and its centre;
and queries start at the centres that the most object-like tokens vote for, with the encoder's features of those tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.streams import Streams
from fedstill.detection.model.attention import DecoderLayer, DropoutKind, EncoderLayer
from fedstill.detection.model.detector_sizes import DetectorSizes
from fedstill.detection.model.predictions import Layer, Predictions, TokenPredictions
from fedstill.detection.model.tokens import Tokens
from fedstill.detection.point_features import split_columns
from fedstill.models.kernels import check_clouds, farthest_points, rows_at, sorting
from fedstill.models.surgery import freeze

Part = Literal["encoder", "prompts", "heads"]

_ENCODER = ("tokens", "encoder", "downsampling", "fourier")
PROMPT_SCALE = 0.1  # standard deviation of new prompts
_FAR = 1e4  # metres; positions farther away are clamped
_LARGEST = 5.0  # bound of the absolute logarithm of sizes: from 7 mm to 150 m


def part_of(name: str) -> Part:
    """The part of a detector to which a tensor of its state belongs, by its name.

    The encoder begins at the points, and includes the fixed frequencies of positions, which never change.

    >>> [part_of(name) for name in ("parameters/encoder.0.norm1.bias", "parameters/prompts", "buffers/fourier")]
    ['encoder', 'prompts', 'encoder']
    """
    child = name.split("/", 1)[1].split(".", 1)[0]
    if child in _ENCODER:
        return "encoder"
    return "prompts" if child == "prompts" else "heads"


class Detector(nn.Module):
    """Maps clouds (batch, points, 3 + channels), in metres with z up, to `Predictions`.

    The `channels` after the coordinates are features of points, such as colour, which only tokens read.
    """

    fourier: Tensor
    dropout_kind: DropoutKind = nn.Dropout

    def __init__(self, sizes: DetectorSizes, classes: int, name: str, channels: int = 0) -> None:
        super().__init__()
        self.sizes, self.classes, self.channels = sizes, classes, channels
        self.prompted = True  # False: the encoder works without its prompts, as in pre-training
        width, layer = sizes.width, (sizes.width, sizes.heads, sizes.feedforward, sizes.dropout)
        self.tokens = self._make_tokens()
        self.encoder = nn.ModuleList(EncoderLayer(*layer, self.dropout_kind) for _ in range(sizes.encoder_layers))
        # Prompts are keys and values of one layer each, (layers, 2, heads, length, width of a head).
        shape = sizes.encoder_layers, 2, sizes.heads, sizes.prompts, width // sizes.heads
        self.prompts = nn.Parameter(torch.empty(shape))
        nn.init.normal_(self.prompts, std=PROMPT_SCALE)
        # All clients need the same frequencies, whatever their initial weights: otherwise aggregated models would be
        # meaningless. Hence they are drawn from their own stream, named by the model.
        waves = Streams(0).draw("detector", name, "fourier").standard_normal((3, width // 2))
        self.register_buffer("fourier", torch.from_numpy(waves).float())
        self._make_decoder()

    def _make_tokens(self) -> Tokens:
        width = self.sizes.width
        return Tokens(
            self.sizes.ball,
            (width // 2, width // 2, width),
            self.sizes.floor,
            places=self.position_features,
            channels=self.channels,
        )

    def _make_decoder(self) -> None:
        """All modules after the encoder."""
        sizes, width, classes = self.sizes, self.sizes.width, self.classes
        self.projection = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.token_head = _mlp(width, 1 + 3 + classes)
        self.position = nn.Linear(self.position_features, width)
        layer = (width, sizes.heads, sizes.feedforward, sizes.dropout)
        self.decoder = nn.ModuleList(DecoderLayer(*layer) for _ in range(sizes.decoder_layers))
        self.norm = nn.LayerNorm(width)
        self.class_head = _mlp(width, classes + 1)
        self.box_head = _mlp(width, 6 + (2 * sizes.angle_bins if sizes.angle_bins > 1 else 0))

    @property
    def position_features(self) -> int:
        """The number of features of a position; see `whereabouts`."""
        return self.sizes.width + 3

    def forward(self, points: Tensor) -> Predictions:
        check_clouds(split_columns(points)[0])
        low, extent = self.bounds(points)
        positions, encoded = self.encode(points, low, extent)
        told = self.projection(encoded)
        output_of = self._tokens(told, positions)
        chosen = chosen_tokens(output_of.objectness, output_of.votes, self.sizes.candidates, self.sizes.queries)
        places = rows_at(output_of.votes, chosen).detach()
        at = self.position(self.whereabouts(places, low, extent))
        placed = told + self.position(self.whereabouts(positions, low, extent))
        queries = rows_at(told, chosen) + at
        states = []
        for layer in self.decoder:
            queries = layer(queries, at, placed, placed)
            states.append(self.norm(queries))
        layers = tuple(self._layer(state, places) for state in states)
        return Predictions(layers, output_of, states[-1], encoded.mean(dim=1), extent, places)

    def bounds(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest coordinates of each cloud (batch, 3), and its extent."""
        coordinates, _ = split_columns(points)
        low, high = coordinates.amin(dim=1), coordinates.amax(dim=1)
        return low, (high - low).clamp(min=1e-3)

    def encode(self, points: Tensor, low: Tensor, extent: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of tokens (batch, tokens, 3), and the encoder's features of them (batch, tokens, width)."""
        positions, features = self.describe(points, low, extent)
        for layer, prompts in zip(self.encoder, self.prompts, strict=True):
            features = layer(features, prompts if self.prompted else None)
        return positions, features

    def describe(self, points: Tensor, low: Tensor, extent: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of tokens, and the encoder's inputs: features of the points around each, and its position."""
        positions, features = self.tokens(points)
        return positions, features + self.tokens.position(self.whereabouts(positions, low, extent))

    def whereabouts(self, positions: Tensor, low: Tensor, extent: Tensor) -> Tensor:
        """Position features (batch, places, width + 3): waves, and metres from the centre of the floor.

        Waves distinguish positions; differences of positions, which determine boxes, are linear in metres.
        """
        middle = low + extent * extent.new_tensor([0.5, 0.5, 0.0])
        return torch.cat([self.waves(positions, low, extent), positions - middle.unsqueeze(1)], dim=-1)

    def waves(self, positions: Tensor, low: Tensor, extent: Tensor) -> Tensor:
        """Sines and cosines of positions within their scene (batch, places, width)."""
        within = (positions - low.unsqueeze(1)) / extent.unsqueeze(1)
        phases = 2 * math.pi * within @ self.fourier
        return torch.cat([phases.sin(), phases.cos()], dim=-1)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *more: Any) -> None:
        """Load a state with any number of prompts: it is a setting of the method, not of the architecture."""
        given = state.get(f"{prefix}prompts")
        own = self.prompts.shape
        if given is not None and given.dim() == 5 and given.shape == (*own[:3], given.shape[3], own[4]) != own:
            self.prompts = nn.Parameter(torch.empty_like(given), self.prompts.requires_grad)
        super()._load_from_state_dict(state, prefix, *more)

    def slow_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of tokens and encoder, which usually have a lower learning rate than the rest."""
        for part in self._encoder_parts():
            yield from part.parameters()

    def freeze_encoder(self) -> None:
        """Freeze tokens and encoder, with their BatchNorm statistics; prompts and the rest are trained."""
        for part in self._encoder_parts():
            freeze(part)

    def _encoder_parts(self) -> list[nn.Module]:
        return [self.tokens, self.encoder]

    def _tokens(self, told: Tensor, positions: Tensor) -> TokenPredictions:
        objectness, offsets, logits = self.token_head(told).split([1, 3, self.classes], dim=-1)
        return TokenPredictions(positions, objectness.squeeze(-1), positions + offsets, F.log_softmax(logits, dim=-1))

    def _layer(self, state: Tensor, places: Tensor) -> Layer:
        log_probabilities = F.log_softmax(self.class_head(state), dim=-1)
        bins = self.sizes.angle_bins if self.sizes.angle_bins > 1 else 0
        offsets, sizes, logits, residuals = self.box_head(state).split([3, 3, bins, bins], dim=-1)
        heading = headings(logits, residuals) if bins else torch.zeros_like(offsets[..., :1])
        boxes = torch.cat([places + offsets, sizes.clamp(-_LARGEST, _LARGEST).exp(), heading], dim=-1)
        return Layer(log_probabilities, boxes, logits, residuals)


@torch.no_grad()
def chosen_tokens(objectness: Tensor, votes: Tensor, candidates: int, queries: int) -> Tensor:
    """The tokens that become queries (batch, queries): farthest-point sampling among the most object-like, these first.

    Non-finite weights must not stop a run here: evaluation detects them.
    """
    likely = sorting(objectness.nan_to_num(-math.inf), descending=True)[:, :candidates]
    places = rows_at(votes, likely).nan_to_num(0.0, _FAR, -_FAR).clamp(-_FAR, _FAR)
    return likely.gather(1, farthest_points(places, queries))


def headings(logits: Tensor, residuals: Tensor) -> Tensor:
    """The angle of the most likely bin, (..., 1): bin k is around k times its width; from -pi to pi."""
    width = 2 * math.pi / logits.shape[-1]
    best = logits.argmax(dim=-1, keepdim=True)
    angle = best * width + residuals.gather(-1, best) * (width / 2)
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def _mlp(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))
