"""The experiment: a validated, hashable configuration of one run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    create_model,
    field_serializer,
    field_validator,
    model_validator,
)

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.registry import Registry
from fedstill.core.renamed import FORMER_SETTINGS
from fedstill.core.sections import Section, sections
from fedstill.core.settings import Settings, is_mapping
from fedstill.core.training import Training
from fedstill.data.augmentation import augmentations
from fedstill.data.data_settings import data_name, identity_name
from fedstill.data.partitions import partitions
from fedstill.distillation import objectives
from fedstill.methods import methods
from fedstill.methods.wrappers.choices import aggregations, attacks, mitigations, privacies
from fedstill.models.model_settings import model_name
from fedstill.participation import dropouts, policies
from fedstill.runtime.round_ranking import Ranking

# Of the kernel: raised whenever every configuration would give other numbers than before. What changes the numbers of
# one part alone raises that part's version (see `Registry.register`).
BEHAVIOUR = 4

# The sections of a configuration in which a part is chosen by name and brings settings of its own.
PARTS: dict[str, Registry[Any]] = {
    "method": methods,
    "partition": partitions,
    "participation": policies,
    "dropout": dropouts,
    "augmentation": augmentations,
    "attack": attacks,
    "privacy": privacies,
    "mitigation": mitigations,
    "objective": objectives,
    "secure": aggregations,
}
Which = Literal["last", "best", "selected"]
WHICH: tuple[Which, ...] = get_args(Which)
_TYPE_NAME = re.compile(r"[\[(]|-float$|-int$")  # what pydantic puts into a path beside the names of fields
DEFAULT_PARTS = {
    "partition": "iid",
    "participation": "everyone",
    "dropout": "none",
    "attack": "none",
    "privacy": "none",
    "mitigation": "none",
}


class Choice(Settings):
    """A part chosen by name, with its own settings; written as `name`, or as `{name: ..., setting: ...}`."""

    name: str
    settings: SerializeAsAny[Settings]


def spelt_out(section: str, value: Any) -> Any:
    """A part's bare name, or a number where that is the short form, as a mapping.

    >>> spelt_out("partition", "iid"), spelt_out("dropout", 0.4)
    ({'name': 'iid'}, {'name': 'independent', 'rate': 0.4})
    """
    if section == "dropout" and isinstance(value, int | float) and not isinstance(value, bool):
        return {"name": "independent", "rate": value}
    if section == "secure" and isinstance(value, bool):
        value = "masked" if value else None
    if section not in PARTS:
        return value
    value = {"name": value} if isinstance(value, str) else value
    if not is_mapping(value) or not isinstance(value.get("name"), str):
        return value
    return {**value, "name": PARTS[section].current(value["name"])}


def choose(section: str, value: Any) -> Choice:
    """Look the part up and validate its settings with its own settings class."""
    if isinstance(value, Choice):
        return value
    registry = PARTS[section]
    value = spelt_out(section, value)
    given = dict(value) if is_mapping(value) else {"name": value}
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"{section} needs the name of a {registry.what}: {did_you_mean(str(name), registry)}")
    kind = settings_of(registry[name])
    try:
        return Choice(name=name, settings=kind.model_validate(given))
    except ValidationError as error:
        raise InputError(sentence(error, kind.model_fields, f"{section}.")) from None


def settings_of(part: Any) -> type[Settings]:
    """The settings class of a registered part: its `Options`, or the part itself where it is one."""
    options: type[Settings] = part if isinstance(part, type) and issubclass(part, Settings) else part.Options
    return options


def _usual(section: str, description: str) -> Any:
    """A section with a default part."""
    return Field(default_factory=lambda: _default_choice(section), description=description)


@cache
def _default_choice(section: str) -> Choice:
    """Looked up and validated once: studies make thousands of experiments, and a choice is immutable."""
    return choose(section, DEFAULT_PARTS[section])


class TeacherSource(Settings):
    """Where a teacher comes from: a run; a file of weights and a model; or a function of the user's own."""

    run: str | None = Field(None, description="a run's folder")
    file: str | None = Field(None, description="weights file (.safetensors)")
    call: str | None = Field(None, description="module:function that returns a torch module")
    model: str | None = Field(
        None,
        description="name of the model, for a weights file; or which model of a run with several (unset: the first)",
    )
    which: Which = Field("last", description="which of a run's models")
    sha256: str | None = Field(None, description="SHA-256 of its weights; computed when it is loaded")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.run is None and self.file is None and self.call is None and self.model is not None:
            return self  # a model of the user's own, which has its weights
        if (self.run is None) == (self.file is None and self.call is None):
            raise ValueError("a teacher is a run, or a file of weights, or a function: name one of them")
        if self.file is not None and self.call is None and self.model is None:
            raise ValueError("a file of weights needs the name of its model")
        return self

    def facts(self) -> dict[str, Any]:
        """The fields that enter a run's identity: the weights, not their location."""
        return self.model_dump(mode="json", exclude={"run", "file"} if self.sha256 else set())


class Initial(Settings):
    """Weights to start from: all of a model's, or some, e.g. a pre-trained encoder's."""

    file: str = Field(description="weights file (.safetensors)")
    sha256: str | None = Field(None, description="SHA-256 of the weights; computed when they are loaded")

    def facts(self) -> dict[str, Any]:
        """The fields that enter a run's identity: the weights, not their location."""
        return self.model_dump(mode="json", exclude={"file"} if self.sha256 else set())


class Experiment(Settings):
    """The complete configuration of one run: equal experiments on equal data give equal bits.

    Slices add sections of their own (see `core.sections`), so instances are of the class that `experiment_class` gives.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"check_statistics", "secure", "select_by", "site_metrics"})

    method: Choice = Field(description="what is sent, what is learned at the clients, how replies are aggregated")
    data: str = Field(
        "digits", min_length=1, description="a data set, npz:FILE or folder:FOLDER, with its settings behind it"
    )
    model: str | None = Field(
        None, description="name of the model, with its settings behind it; unset: the default for the kind of data"
    )
    models: dict[str, int] = Field(
        default_factory=dict,
        description="clients with different models: the number of clients with each, assigned in order of client id",
    )
    initial: Initial | None = Field(None, description="weights to start from; unset: random initialisation")
    points: int | None = Field(None, ge=1, description="points per cloud; unset: the model's default")
    augmentation: Choice | None = Field(
        None, description="augmentation of training batches; unset: the default for model and data"
    )
    partition: Choice = _usual("partition", "how the training samples are split among clients")
    participation: Choice = _usual("participation", "which clients are sampled in a round")
    dropout: Choice = _usual(
        "dropout", "which clients drop out in a round; a number alone is each client's probability"
    )
    attack: Choice = _usual("attack", "what dishonest clients do, in simulations")
    privacy: Choice = _usual("privacy", "differential privacy: noise that is added to updates")
    mitigation: Choice = _usual("mitigation", "how the server compensates for clients that drop out")
    objective: Choice | None = Field(None, description="distillation loss, for students")
    secure: Choice | None = Field(
        None,
        description="secure aggregation, by which the server sees only sums: true; or fixed-point, for simulations: the"
        " same numbers without masks; unset: none",
    )
    teachers: tuple[TeacherSource, ...] = Field((), description="teachers of a student")
    clients: int = Field(10, ge=1, le=10_000_000, description="number of clients")
    rounds: int = Field(10, ge=1, le=1_000_000, description="number of rounds; in distillation, of epochs")
    seed: int = Field(0, ge=0, lt=2**63, description="of every random draw")
    training: Training = Field(Training(), description="local training, shared by every method")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="fraction of the training data (of each client, with on-site evaluation) for selecting a round",
    )
    evaluation: Literal["central", "on-site"] = Field(
        "central", description="where models are evaluated: on the server's test data, or at the sites, which send sums"
    )
    check_statistics: bool = Field(
        False,
        description="with on-site evaluation, ask sites at the end for what re-estimated BatchNorm statistics would"
        " gain; central evaluation always measures it",
    )
    select_by: Ranking = Field(
        "accuracy", description="metric that ranks rounds: the best on test data, the selected on the validation share"
    )
    site_metrics: bool = Field(
        False,
        description="with on-site evaluation, ask sites for counts of scores by class, which AUC and calibration error"
        " need; central evaluation always has them",
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations; the last round is always evaluated")
    min_replies: int = Field(1, ge=1, description="with fewer accepted replies the round is skipped")
    norm_limit: float | None = Field(
        None, gt=0, description="refuse replies whose distance (L2 norm) from the model sent is larger; unset: no limit"
    )

    @model_validator(mode="after")
    def _every_client_has_a_model(self) -> Self:
        if self.models and (sum(self.models.values()) != self.clients or min(self.models.values()) < 1):
            raise ValueError(f"models are for {sum(self.models.values())} clients, and there are {self.clients}")
        if self.models and self.model not in (None, next(iter(self.models))):
            raise ValueError("leave model out where models are given: the first of them stands for all")
        return self

    def section(self, name: str) -> Section | None:
        """A section that a slice brings; None where the experiment does not have it."""
        held: Section | None = self.__dict__.get(name)
        return held

    def sections(self) -> dict[str, Section]:
        """The sections of slices that this experiment has, by name."""
        held = {name: self.section(name) for name in sections}
        return {name: section for name, section in held.items() if section is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its values: the class is made anew in each process, from the slices that are there."""
        return _restored, (self.__getstate__(),)

    @property
    def architectures(self) -> tuple[str, ...]:
        """Every client's model."""
        if not self.models:
            return (str(self.model),) * self.clients
        return tuple(model for model, count in self.models.items() for _ in range(count))

    @field_validator("data", mode="before")
    @classmethod
    def _one_text(cls, value: Any) -> Any:
        return data_name(value)

    @field_validator("model", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return model_name(value)

    @field_validator("models", mode="before")
    @classmethod
    def _one_name_each(cls, value: Any) -> Any:
        return {model_name(name): count for name, count in value.items()} if is_mapping(value) else value

    @field_validator(*PARTS, mode="before")
    @classmethod
    def _choose(cls, value: Any, info: ValidationInfo) -> Choice | None:
        absent = value is None or (value is False and info.field_name == "secure")
        return None if absent else choose(str(info.field_name), value)

    @field_serializer(*PARTS)
    def _flatten(self, choice: Choice | None) -> dict[str, Any] | None:
        return None if choice is None else {"name": choice.name, **choice.settings.model_dump(mode="json")}

    def hashed(self) -> dict[str, Any]:
        """The settings as identities of runs have always had them: everything by its first name."""
        said = super().hashed() | {"training": self.training.hashed(), "data": identity_name(self.data)}
        for section, registry in PARTS.items():
            chosen: Choice | None = self.__dict__[section]
            if chosen is not None:
                said[section] = {"name": registry.first(chosen.name), **chosen.settings.hashed()}
        said |= {name: section.hashed() for name, section in self.sections().items()}
        for name in sections:  # those of later releases are in identities only where they are set
            if self.section(name) is None and name not in _ABSENT:
                said.pop(name, None)
        return said | {former: said.pop(now) for former, now in FORMER_SETTINGS.items()}

    def digest(self, fingerprint: str, rounds: bool = True) -> str:
        """Configuration, data and the kernel's behaviour; not engine, workers or folder. See `runtime.identity`."""
        said = {**_ABSENT, **self.hashed()} | {"teachers": [teacher.facts() for teacher in self.teachers]}
        said["dropout"].pop("file", None)  # what a trace says is in the fingerprint, wherever it lies
        if self.initial is not None:
            said["initial"] = self.initial.facts()
        if not rounds:
            said.pop("rounds")
        facts = {"experiment": said, "data": fingerprint, "behaviour": BEHAVIOUR, "plugins": []}
        return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


# Sections that all identities speak of, whether the slice that brings them is here or not.
_ABSENT = dict.fromkeys(("clusters", "fleet", "queries"))


@cache
def experiment_class() -> type[Experiment]:
    """The class of experiments with every section that slices bring."""
    added: dict[str, Any] = {
        name: (sections[name] | None, Field(None, description=sections[name].about)) for name in sections
    }
    made: type[Experiment] = create_model("Experiment", __base__=Experiment, __module__=__name__, **added)
    made.__doc__ = Experiment.__doc__
    return made


def _restored(state: dict[Any, Any]) -> Experiment:
    made = experiment_class().__new__(experiment_class())
    made.__setstate__(state)
    return made


def _beside(fields: Iterable[str], above: Iterable[str]) -> Iterable[str]:
    """The names of the settings that a wrong one was written beside, some sections further down.

    >>> "rate" in _beside(experiment_class().model_fields, ["training"])
    True
    """
    for step in above:
        held = fields.get(step) if isinstance(fields, Mapping) else None
        kinds = [held.annotation, *get_args(held.annotation)] if held is not None else []
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)
        fields = fields if inner is None else inner.model_fields  # a place in a list, say, leads no further
    return fields


def sentence(error: ValidationError, fields: Iterable[str], prefix: str = "") -> str:
    """The first thing that is wrong, as one sentence that names the field."""
    # Of a field with alternatives every branch complains; the last is the one for several values.
    complaints = error.errors()
    first = complaints[-1] if isinstance(complaints[0]["input"], list | tuple) else complaints[0]
    path = [str(part) for part in first["loc"] if not _TYPE_NAME.search(str(part))]
    where = prefix + ".".join(path)
    if first["type"] == "extra_forbidden":
        near = list(_beside(fields, path[:-1]))
        known = did_you_mean(path[-1], near) if near else "this part has no settings"
        return f"unknown setting {where!r}: {known}"
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        choices = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        return f"{where}: unknown choice {first['input']!r}: {did_you_mean(first['input'], choices)}"
    what = first["msg"].removeprefix("Value error, ")
    said = not isinstance(first["input"], str | int | float) or what.startswith(f"unknown choice {first['input']!r}")
    value = f" (got {first['input']!r})" if path and not said else ""
    return f"{where.rstrip('.') or 'the experiment'}: {what[0].lower()}{what[1:]}{value}"
