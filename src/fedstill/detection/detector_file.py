"""Detectors as files: boxes decoded, probabilities instead of logits, and back to what a detector returns."""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

from fedstill.detection.model import Layer, Predictions, TokenPredictions
from fedstill.detection.point_features import FeatureName, features_of, split_columns
from fedstill.models.portable.file_form import FileForm

LEAST = 0.3  # the lowest score of detections that are shown
OUTPUTS = {
    "boxes": "(batch, queries, 7): centre x y z, full sizes along the box's own axes, and heading in radians,"
    " counter-clockwise about z seen from above",
    "objectness": "(batch, queries): the probability that a box contains an object of any class",
    "class_probabilities": "(batch, queries, classes): of each class; they sum to objectness",
    "query_positions": "(batch, queries, 3): where each query starts; not needed to use the boxes",
}


_MEANINGS: dict[FeatureName, str] = {
    "colour": "; then red, green and blue of each point, from -0.5 to 0.5 (0..255 divided by 255, minus 0.5)",
    "height": "; then the height of each point above the floor, which is the 0.99th percentile of z of these points",
}
_BOUNDS: dict[FeatureName, tuple[tuple[float, ...], tuple[float, ...]]] = {  # of random inputs
    "colour": ((-0.5,) * 3, (0.5,) * 3),
    "height": ((0.0,), (2.5,)),
}


class WrittenDetector(nn.Module):
    """A detector that returns the outputs of a file."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        predictions: Predictions = self.model(inputs)
        last = predictions.layers[-1]
        probabilities = last.log_probabilities.exp()
        places = torch.zeros_like(last.boxes[..., :3]) if predictions.places is None else predictions.places
        return last.boxes, 1 - probabilities[..., -1], probabilities[..., :-1], places


class ReadDetector(nn.Module):
    """A file's outputs as those of a detector: of the last layer only, and without tokens and features."""

    def __init__(self, exported: nn.Module) -> None:
        super().__init__()
        self.exported = exported

    def forward(self, points: Tensor) -> Predictions:
        boxes, objectness, probabilities, places = self.exported(points)
        every = torch.cat([probabilities, 1 - objectness.unsqueeze(-1)], dim=-1)
        none = boxes[..., :0]
        coordinates, _ = split_columns(points)
        smallest = torch.finfo(every.dtype).tiny
        return Predictions(
            (Layer(every.clamp(min=smallest).log(), boxes, none, none),),
            TokenPredictions(places[:, :0], places[:, :0, 0], places[:, :0], probabilities[:, :0]),
            queries=none,
            features=none[:, 0],
            extent=coordinates.amax(dim=1) - coordinates.amin(dim=1),
            places=places,
        )


def detector_form(shape: tuple[int, ...], overlap: float) -> FileForm:
    """The form of detectors; suppression is left to the user of a file, who is given its thresholds."""
    suppression = {
        "class": "the class with the highest probability",
        "score": "that probability",
        "least_score": LEAST,
        "overlap": overlap,
        "rule": "of two boxes of the same class with an IoU above overlap, the one with the lower score is removed",
    }
    features = features_of(shape[1])
    return FileForm(
        task="detection",
        axes=("points", "columns" if features else "coordinates"),
        meaning=f"points (x, y, z) in metres with z up, not normalised: {shape[0]} of a scan's points, drawn at random;"
        " of a smaller scan some twice" + "".join(_MEANINGS[name] for name in features),
        outputs=OUTPUTS,
        write=WrittenDetector,
        read=ReadDetector,
        about={"points": str(shape[0]), "suppression": json.dumps(suppression)}
        | ({"features": json.dumps(features)} if features else {}),
        low=(-2.0, -2.0, 0.0, *(bound for name in features for bound in _BOUNDS[name][0])),
        high=(2.0, 2.0, 2.5, *(bound for name in features for bound in _BOUNDS[name][1])),
        chosen="query_positions",
    )
