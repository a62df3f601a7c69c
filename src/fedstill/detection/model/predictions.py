"""A detector's outputs on a batch of scenes, including intermediate ones that the loss needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """The outputs of one layer of the decoder: a class and a box for each query, (scenes, queries, ...).

    Boxes are centre, full sizes and heading, in the coordinates of the cloud (`detection/boxes/box_geometry.py`).
    """

    log_probabilities: Tensor  # (..., classes + 1), "no object" last
    boxes: Tensor  # (..., 7)
    bin_logits: Tensor  # (..., bins) of the heading; no bins where all boxes have heading 0
    bin_residuals: Tensor  # (..., bins): from the middle of each bin, in units of half its width


@dataclass(frozen=True)
class TokenPredictions:
    """The outputs per token, (scenes, tokens, ...): whether it lies on an object, its centre and its class."""

    positions: Tensor  # (..., 3)
    objectness: Tensor  # (...), logits
    votes: Tensor  # (..., 3): where the centre of the object is
    log_probabilities: Tensor  # (..., classes)


@dataclass(frozen=True)
class Predictions:
    """All layers of the decoder; the last one is the prediction, the others have auxiliary losses."""

    layers: tuple[Layer, ...]
    tokens: TokenPredictions | None  # None: tokens predict nothing, and have no loss
    queries: Tensor  # (scenes, queries, width): the last layer's features of each query
    features: Tensor  # (scenes, width): the mean of the encoder's features over tokens
    extent: Tensor  # (scenes, 3): the size of the cloud, the unit of centres and sizes in losses
    places: Tensor | None = None  # (scenes, queries, 3): where each query starts, if queries are chosen among tokens
