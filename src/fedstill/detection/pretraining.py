"""The configuration of a pre-training of a detector's encoder: validated and hashable, like an experiment's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, ValidationError, field_serializer, field_validator, model_validator

from fedstill.cli.extensions import documented_settings
from fedstill.core.errors import InputError
from fedstill.core.settings import Settings
from fedstill.core.training import Training
from fedstill.detection.point_features import FeatureName, listed_features
from fedstill.models import models
from fedstill.runtime.assemble import assign, assignments, overlay, place_of, sections_in
from fedstill.runtime.experiment import BEHAVIOUR, Choice, choose, sentence
from fedstill.runtime.identity import identity_from, parts_of_names
from fedstill.tasks.task_choice import task_name

_TRAINING: dict[str, Any] = {
    "epochs": 1,
    "optimiser": "adamw",
    "weight_decay": 0.05,
    "clip": 1.0,
    "schedule": "cosine",
    "warmup": 2,
    "batch": 16,
}


@documented_settings.register("a pre-training")
class Pretraining(Settings):
    """One pre-training, completely described: equal settings on equal data give equal bits."""

    data: str = Field(min_length=1, description="scenes, by name, npz:FILE or folder:FOLDER")
    model: str = Field("detr3d-lite", description="name of a detector")
    epochs: int = Field(60, ge=1, le=100_000, description="passes over the scenes")
    rows: int | None = Field(
        None, ge=2, description="number of scenes to use, the first ones; unset: all training scenes"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of every random draw")
    points: int | None = Field(None, ge=1, description="points per scene; unset: the model's default")
    hidden: float = Field(0.6, gt=0, lt=1, description="fraction of patches that are masked")
    reach: float = Field(
        1.0, gt=0, description="radius of the region to reconstruct around a patch, relative to the patch's radius"
    )
    layers: int = Field(2, ge=1, description="layers of the decoder, which is discarded afterwards")
    augmentation: Choice = Field(
        default_factory=lambda: choose("augmentation", "scenes"),
        description="augmentation of scenes, redrawn in every epoch",
    )
    training: Training = Field(default_factory=lambda: Training(**_TRAINING), description="a turn is an epoch")
    kind: Literal["masked", "supervised", "imported"] = Field(
        "masked",
        description="training task: reconstruct masked patches without labels, or detect the boxes of labelled scenes;"
        " imported: none, the encoder is the one in `weights`",
    )
    weights: str | None = Field(
        None, description="a safetensors file to start from: its tensors with names and shapes of the encoder's"
    )
    probe_every: int | None = Field(
        None, ge=0, description="epochs between scores of the linear probe; unset: ten scores in all; 0: none"
    )

    features: tuple[FeatureName, ...] = Field(
        (), description="what the encoder reads of each point beside its coordinates: colour, height, or both"
    )

    added_later: ClassVar[frozenset[str]] = frozenset({"kind", "weights", "probe_every", "features"})

    _listed = field_validator("features", mode="before")(listed_features)

    @field_validator("augmentation", mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Choice:
        return choose("augmentation", value)

    @field_serializer("augmentation")
    def _flatten(self, choice: Choice) -> dict[str, Any]:
        return {"name": choice.name, **choice.settings.model_dump(mode="json")}

    @field_validator("training")
    @classmethod
    def _one_pass(cls, training: Training) -> Training:
        if training.epochs != 1:
            raise ValueError("leave epochs out here: how many there are is said by --epochs")
        if own := [*training.own(), *(["precision"] if training.precision != "fp32" else [])]:
            raise ValueError(f"a pre-training has the built-in optimisers, loss and precision: leave {own[0]} out")
        return training

    @model_validator(mode="after")
    def _weights_to_import(self) -> Self:
        if self.kind == "imported" and self.weights is None:
            raise ValueError("an imported encoder needs a file of weights: give --weights")
        return self

    def probe_epochs(self) -> range:
        """The numbers of finished epochs after which the encoder is scored by the linear probe."""
        last = 0 if self.kind == "imported" else self.epochs
        every = max(1, last // 10) if self.probe_every is None else self.probe_every
        return range(last % every, last + 1, every) if every else range(0)

    def digest(self, fingerprint: str) -> str:
        """The digest of settings, data and the kernel's behaviour.

        Of imported weights the fingerprint has the content; the score of the probe changes no weight.
        """
        own = {name: value for name, value in self.hashed().items() if name not in ("weights", "probe_every")}
        augmentation = {"name": self.augmentation.name, **self.augmentation.settings.hashed()}
        facts = {
            "pretraining": {**own, "training": self.training.hashed(), "augmentation": augmentation},
            "data": fingerprint,
            "behaviour": BEHAVIOUR,
            "plugins": [],
        }
        return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()

    def identity(self, fingerprint: str) -> str:
        """The identity of a pre-training: configuration, data and behaviour; not the location of its file."""
        parts, unknown = parts_of_names([("model", self.model), ("augmentation", self.augmentation.name)])
        return identity_from(self.digest(fingerprint), parts, bool(unknown))


def make_pretraining(given: Mapping[str, Any], texts: Sequence[str] = ()) -> Pretraining:
    """Validate the settings, with `key=value` settings over them; errors are one sentence.

    An unset learning rate takes the model's default; supervised, the same holds for all settings of training.

    >>> make_pretraining({"data": "rooms"}, ["hidden=0.75", "training.batch=8"]).training.batch
    8
    """
    given = {"augmentation": "scenes", **given}
    for key, value in assignments(texts, "training.rate=0.001"):
        given = assign(given, _path(given, key), value)
    model = given.get("model", Pretraining.model_fields["model"].default)
    builder: Any = models[str(model)]
    if task_name(str(model)) != "detection":
        able = ", ".join(name for name in models if task_name(name) == "detection")
        raise InputError(f"model {model!r} is no detector, and has no encoder of patches: choose one of {able}")
    usual = builder.defaults["training"]
    supervised = given.get("kind") == "supervised"  # trained as in any other run
    own = {"training": {**_TRAINING, **(usual if supervised else {"rate": usual["rate"]})}}
    try:
        return Pretraining.model_validate(overlay(own, given))
    except ValidationError as error:
        raise InputError(sentence(error, Pretraining.model_fields)) from None


def _path(given: Mapping[str, Any], key: str) -> list[str]:
    """The dotted path of a setting, or of a name that only one section has."""
    if "." in key or key in Pretraining.model_fields:
        return key.split(".")
    return place_of(key, sections_in(given, ["augmentation"]), Pretraining)


class PretrainingObserver(Protocol):
    """An observer of a pre-training; `note` and `warn` are as those of a run."""

    def start(self, settings: Pretraining, losses: Sequence[float]) -> None:
        """Called at the start, or when resuming after epochs with these losses."""

    def epoch(self, loss: float) -> None:
        """Called after an epoch was committed."""

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...
