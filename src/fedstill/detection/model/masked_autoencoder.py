"""Masked autoencoding of point patches: self-supervised pre-training of a detector's encoder on unlabelled scenes.

After "Masked Autoencoders for Point Cloud Self-supervised Learning", Pang et al., 2022,
https://arxiv.org/abs/2203.06604. A patch is the set of points in a token's ball. Most patches are hidden; the encoder
receives the tokens of the others, and a light decoder, given the positions of the hidden ones, predicts their points.
The decoder is discarded afterwards. With a `reach` above 1 the points of a larger ball are predicted, as many as
before: less of the patch itself and more of the object it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.detection.model.attention import EncoderLayer
from fedstill.detection.model.detector import Detector
from fedstill.detection.model.published_detector import PublishedDetector
from fedstill.detection.model.tokens import above_the_floor
from fedstill.detection.point_features import split_columns
from fedstill.models.kernels import ball_query, check_clouds, group, rows_at


@dataclass(frozen=True)
class Reconstruction:
    """Hidden patches of a batch, predicted and true, relative to their centres, in units of the radius.

    `there` marks the true points that are not repetitions of others (batch, hidden, points).
    """

    said: Tensor  # (batch, hidden, points, 3)
    truth: Tensor  # (batch, hidden, points, 3)
    there: Tensor
    features: Tensor  # (batch, width): the mean of the encoder's features over visible tokens

    def distance(self) -> Tensor:
        """The mean Chamfer distance of hidden patches."""
        return chamfer(self.said, self.truth, self.there).mean()


class MaskedAutoencoder(nn.Module):
    """A detector's tokens and encoder, which are trained, with a mask token, a decoder and a head of their own.

    The detector's prompts and heads are not used and not trained. BatchNorm statistics are those of all patches, so
    that they fit the detector, which receives all of them; the encoder's layers receive visible tokens only.
    """

    def __init__(self, detector: Detector, hidden: float = 0.6, layers: int = 2, reach: float = 1.0) -> None:
        super().__init__()
        sizes = detector.sizes
        if isinstance(detector, PublishedDetector) and detector.masked:
            raise InputError(
                "masked autoencoding shows the encoder some tokens only, which a masked encoder would downsample:"
                " choose kind=supervised, or a model with another encoder"
            )
        self.detector, self.hidden, self.reach = detector, round(hidden * sizes.tokens), reach
        if not 0 < self.hidden < sizes.tokens:
            raise InputError(f"some tokens must be hidden and some seen: {self.hidden} of {sizes.tokens} cannot be")
        self.points = sizes.neighbours
        self.mask = nn.Parameter(torch.empty(sizes.width))
        nn.init.normal_(self.mask, std=0.02)
        self.enter = nn.Sequential(nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.width))
        self.position = nn.Linear(detector.position_features, sizes.width)
        self.decoder = nn.ModuleList(
            EncoderLayer(sizes.width, sizes.heads, sizes.feedforward, 0.0) for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(sizes.width), nn.Linear(sizes.width, 3 * self.points))

    def forward(self, points: Tensor, noise: Tensor) -> Reconstruction:
        """`noise` (batch, tokens) determines the mask: the tokens with the lowest numbers are hidden."""
        check_clouds(split_columns(points)[0])
        low, extent = self.detector.bounds(points)
        positions, features = self.detector.describe(points, low, extent)
        order = noise.argsort(dim=1, stable=True)
        hidden, seen = order.split([self.hidden, order.shape[1] - self.hidden], dim=1)
        encoded = rows_at(features, seen)
        for layer in self.detector.encoder:
            encoded = layer(encoded, None)
        told = torch.cat([self.mask.expand(*hidden.shape, -1), self.enter(encoded)], dim=1)
        told = told + self.position(self.detector.whereabouts(rows_at(positions, order), low, extent))
        for layer in self.decoder:
            told = layer(told, None)
        said = self.head(told[:, : self.hidden]).unflatten(2, (self.points, 3))
        truth, there = self.patches(points, rows_at(positions, hidden))
        return Reconstruction(said, truth, there, encoded.mean(dim=1))

    @torch.no_grad()
    def patches(self, points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
        """The reconstruction targets at these positions: points around them, and which are not repetitions.

        At a reach of 1 they are the points from which the tokens are made, without their features.
        """
        tokens = self.detector.tokens
        points, _ = split_columns(above_the_floor(points, tokens.floor) if tokens.floor else points)
        index = ball_query(points, centres, self.reach * tokens.ball.radius, self.points)
        there = index != index[..., :1]
        there[..., 0] = True
        return (group(points, index) - centres.unsqueeze(2)) / tokens.ball.radius, there


def chamfer(said: Tensor, truth: Tensor, there: Tensor | None = None) -> Tensor:
    """The Chamfer distance of sets of points (..., n, 3) and (..., m, 3): (...).

    The mean squared distance of each point to the nearest one of the other set, in both directions. `there` (..., m)
    marks the true points that count; the others must be copies of such.

    >>> chamfer(torch.tensor([[0.0, 0, 0], [1, 0, 0]]), torch.tensor([[0.0, 0, 2]])).item()  # (4 + 5) / 2 + 4
    8.5
    """
    with torch.no_grad():
        # The nearest points are found first, so that gradients need not pass through the table of all distances.
        x, y, z = (said[..., :, None, axis] - truth[..., None, :, axis] for axis in range(3))
        squares = x.square_().add_(y.square_()).add_(z.square_())
        to_truth, to_said = squares.min(dim=-1).indices, squares.min(dim=-2).indices
    ours = (said - _points_at(truth, to_truth)).square().sum(dim=-1).mean(dim=-1)
    theirs = (truth - _points_at(said, to_said)).square().sum(dim=-1)
    if there is None:
        return ours + theirs.mean(dim=-1)
    return ours + (theirs * there).sum(dim=-1) / there.sum(dim=-1)


def _points_at(points: Tensor, index: Tensor) -> Tensor:
    return points.gather(-2, index.unsqueeze(-1).expand(*index.shape, 3))
