"""Masked autoencoding as a task: reconstruct the hidden patches of scenes, without labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset, every_row
from fedstill.core.errors import InputError
from fedstill.core.kinds import load_state
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Tensors
from fedstill.detection.model import Detector
from fedstill.detection.model.masked_autoencoder import MaskedAutoencoder, Reconstruction
from fedstill.tasks.classification import Classification

_EVALUATION_BATCH = 16  # scenes
_NOISE = "noise"  # the column that determines which patches are hidden


@dataclass(frozen=True)
class Masked(Classification):
    """Reconstruction of the hidden patches of scenes, for a detector's encoder in a masked autoencoder.

    The mask comes with each batch as a column of noise, drawn along with the augmentation: every time a scene is used
    other patches are hidden.
    """

    terms: tuple[str, ...] = ("chamfer",)
    headlines: tuple[str, ...] = ("accuracy", "chamfer")
    hidden: float = 0.6
    layers: int = 2
    reach: float = 1.0
    tokens: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Also refuses, before any work, what cannot be built.
        object.__setattr__(self, "tokens", self.build(self.architectures[0]).detector.sizes.tokens)

    def build(
        self, architecture: str, state: Tensors | None = None, streams: Streams | None = None
    ) -> MaskedAutoencoder:
        streams = streams or Streams(0)
        detector = super().build(architecture, None, streams)
        if not isinstance(detector, Detector):
            raise InputError(f"model {architecture!r} is no detector: it has no encoder of patches to pre-train")
        with streams.ambient("masked", "initialise"):
            model = MaskedAutoencoder(detector, self.hidden, self.layers, self.reach)
        if state is not None:
            load_state(model, state)
        return model.to(self.device)

    @property
    def augments(self) -> bool:
        return True

    def augment(self, batch: Batch, generator: np.random.Generator) -> Batch:
        batch = super().augment(batch, generator)
        return {**batch, _NOISE: self.noise(len(batch["inputs"]), generator)}

    def noise(self, scenes: int, generator: np.random.Generator) -> Tensor:
        """The noise that determines which tokens of this many scenes are hidden."""
        return torch.from_numpy(generator.random((scenes, self.tokens), dtype=np.float32))

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        found: Reconstruction = model(batch["inputs"].to(self.device), batch[_NOISE].to(self.device))
        return Output(found.said, found.features, {"chamfer": found.distance()})

    def score(self, models: Iterable[nn.Module], data: Dataset) -> Mapping[str, Tensor]:
        """Sums of distances over scenes; the mask depends only on a scene's row."""
        total, scenes = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
        for model in models:
            model.eval()
            for number, rows in enumerate(every_row(data, _EVALUATION_BATCH)):
                noise = self.noise(len(rows), Streams(0).draw("masked", "score", number))
                with torch.inference_mode():
                    terms = self.forward(model, {**data.batch(rows), _NOISE: noise}).terms
                total += terms["chamfer"].double().cpu() * len(rows)
                scenes += len(rows)
        return {"chamfer": total, "scenes": scenes}

    def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
        distance = float(scores["chamfer"] / scores["scenes"])
        return {"accuracy": -distance, "chamfer": distance}

    def scored(self, scores: Mapping[str, Tensor]) -> int:
        return int(scores["scenes"])

    def on_mix(self, scores: Mapping[str, Tensor], counts: Tensor) -> float:
        """There are no classes to weight."""
        return self.summarise(scores)["accuracy"]
