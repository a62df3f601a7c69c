"""Federated distillation with a single shared image.

*Federated Learning with a Single Shared Image*, Soni, Saeed and Asano, 2024, https://arxiv.org/abs/2406.12658

FedDF whose proxy data is a pool of patches that clients and server each cut from the same image. The server's current
model selects the most useful patches before each round (see `proxy_selection.py`). All parties have the image
beforehand, so that only indices are sent down and logits up.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fedstill.core.dataset import SharedSamples
from fedstill.methods.base import methods
from fedstill.shared_image.ensemble_settings import EnsembleSettings
from fedstill.shared_image.feddf import FedDF
from fedstill.shared_image.patch_settings import PatchSettings
from fedstill.shared_image.proxy_selection import Selection


class SingleImageSettings(EnsembleSettings):
    image: str = Field("china", description="the shared image: image:FILE, china, flower, noise:512x512, or cloud:FILE")
    patches: PatchSettings = Field(
        default_factory=lambda: PatchSettings(count=20_000), description="how patches are cut from it"
    )
    selection: Selection | None = Field(default_factory=Selection, description="which patches are used in a round")
    initialise: float = Field(0.2, gt=0, le=1, description="fraction of rounds in which clients also send weights")


@methods.register("single-image", behaviour=2)
class SingleImage(FedDF):
    """FedDF on patches of a single shared image, selected anew in each round."""

    Options = SingleImageSettings
    settings: SingleImageSettings

    @classmethod
    def shared_samples(cls, settings: Any) -> SharedSamples:
        return SharedSamples(f"patches:{settings.image}", settings.patches)
