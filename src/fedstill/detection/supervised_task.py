"""Supervised pre-training of an encoder: detection in scenes with boxes, without prompts."""

from __future__ import annotations

from dataclasses import dataclass

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.detection.detection_task import Detection
from fedstill.detection.model import Detector


@dataclass(frozen=True)
class Supervised(Detection):
    """Detection with a detector that does not use its prompts, so that the encoder is useful without them.

    Prompts are added to a finished encoder (prefix tuning). The heads are trained too, and discarded afterwards.
    """

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> Detector:
        detector = super().build(architecture, state, streams)
        if not isinstance(detector, Detector):
            raise InputError(f"model {architecture!r} is no detector: it has no encoder to pre-train")
        detector.prompted = False
        return detector
