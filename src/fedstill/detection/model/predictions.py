"""What a detector says of a batch of scenes, and what its loss needs to know of how it was said."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """What one layer of the decoder says: a class and a box for each query, (scenes, queries, ...).

    Boxes are centre, full sizes and heading, in the coordinates of the cloud (`detection/boxes/box_geometry.py`).
    """

    log_probabilities: Tensor  # (..., classes + 1), "no object" last
    boxes: Tensor  # (..., 7)
    bin_logits: Tensor  # (..., bins) of the heading; no bins where all boxes have heading 0
    bin_residuals: Tensor  # (..., bins): from the middle of each bin, in units of half its width


@dataclass(frozen=True)
class TokenPredictions:
    """What is said of each token alone, (scenes, tokens, ...): does it lie on an object, where is that, what is it."""

    positions: Tensor  # (..., 3)
    objectness: Tensor  # (...), logits
    votes: Tensor  # (..., 3): where the centre of the object is
    log_probabilities: Tensor  # (..., classes)


@dataclass(frozen=True)
class Predictions:
    """All layers of the decoder, the last of which is the answer; the others are there to be taught as well."""

    layers: tuple[Layer, ...]
    tokens: TokenPredictions
    queries: Tensor  # (scenes, queries, width): what the last layer makes of each query
    features: Tensor  # (scenes, width): the mean over what the encoder makes of the tokens
    extent: Tensor  # (scenes, 3): the size of the cloud, the unit of centres and sizes in losses
