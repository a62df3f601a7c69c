"""The sites and the descriptions of their data, from which a server without data plans a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from fedstill._version import __version__
from fedstill.core.dataset import has_several_labels
from fedstill.core.errors import InputError
from fedstill.core.passed_objects import is_passed
from fedstill.core.plugins import loaded_plugins
from fedstill.core.settings import Settings
from fedstill.data.bundle import Bundle
from fedstill.data.data_kinds import data_kinds
from fedstill.data.point_labels import has_point_labels
from fedstill.methods import methods
from fedstill.methods.wrappers.choices import Privacy
from fedstill.runtime.assemble import make_experiment, overlay
from fedstill.runtime.experiment import BEHAVIOUR, Experiment

PROTOCOL = 5
LEAST_POINTS = 32  # of a cloud: all sites' clouds are cut to the smallest


def _known_kind(name: str) -> str:
    if name not in data_kinds:
        raise ValueError(f"{name!r} is no kind of data that is known here")
    return name


class SiteFacts(Settings):
    """A site's description of its data; nothing else about it leaves before the first round."""

    samples: int = Field(ge=0, le=10**12)  # for training; those kept to select a round by are not counted
    classes: tuple[str, ...] = Field(min_length=1, max_length=100_000)
    kind: Annotated[str, AfterValidator(_known_kind)]
    shape: tuple[Annotated[int, Field(ge=1, le=10**6)], ...] = Field(min_length=1, max_length=3)
    labelled: bool
    point_labels: bool
    several_labels: bool = False
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _enough_points(self) -> Self:
        if data_kinds[self.kind].points and self.shape[0] < LEAST_POINTS:
            raise ValueError(f"its clouds have {self.shape[0]} points, and {LEAST_POINTS} are the least")
        return self

    @classmethod
    def of(cls, bundle: Bundle) -> SiteFacts:
        return cls(
            samples=len(bundle.train),
            classes=bundle.classes,
            kind=bundle.kind,
            shape=bundle.shape,
            labelled=bundle.train.labels() is not None,
            point_labels=has_point_labels(bundle.train),
            several_labels=has_several_labels(bundle.train),
            fingerprint=bundle.fingerprint(),
        )

    @classmethod
    def read(cls, text: str) -> SiteFacts:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            what = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise InputError(f"its description of its data is invalid: {what}") from None

    @property
    def label_space(self) -> tuple[Any, ...]:
        """What must be equal at all sites; clouds may have different numbers of points."""
        return (
            self.classes,
            self.kind,
            self.point_labels,
            self.several_labels,
            self.shape[1:] if data_kinds[self.kind].points else self.shape,
        )


def other_label_spaces(facts: Mapping[int, SiteFacts]) -> dict[int, str]:
    """The sites whose label space differs from that of most sites, each with the difference; ties go to the first."""
    common, _ = Counter(one.label_space for _, one in sorted(facts.items())).most_common(1)[0]
    return {
        site: f"its data has another label space: {_differ(one.label_space, common)}"
        for site, one in facts.items()
        if one.label_space != common
    }


def _differ(own: tuple[Any, ...], common: tuple[Any, ...]) -> str:
    if own[0] != common[0]:
        return f"its classes are {_some(own[0])}, the others' {_some(common[0])}"
    several = own[3], common[3]
    if several[0] != several[1]:
        each = [("any number of classes" if one else "one class") for one in several]
        return f"its samples have {each[0]}, the others' {each[1]}"
    shape, usual = own[4], common[4]
    remedy = ""
    if own[1] == common[1] == "image":
        remedy = f": set its data's size={usual[1]} and channels={usual[0]}"
    return f"it has {own[1]}s of shape {shape}, the others {common[1]}s of shape {usual}{remedy}"


def _some(classes: Sequence[str]) -> str:
    return ", ".join(classes[:4]) + (f" and {len(classes) - 4} more" if len(classes) > 4 else "")


def for_sites(experiment: Experiment, sites: int, called: str) -> Experiment:
    """The experiment as it is run on real sites, whose data is `called` that; what only simulations can is refused."""
    name = experiment.method.name
    if methods[name].pooled:
        raise InputError(
            f"{name} needs all data in one place, and a deployment has it at its sites: use `fedstill run`"
        )
    if why := methods[name].refused_on_site(experiment.method.settings):
        raise InputError(why)
    if experiment.attack.name != "none":
        raise InputError("attacks are simulated, and this is a deployment: leave `attack` out")
    if experiment.secure is not None and not getattr(experiment.secure.settings, "masks", False):
        raise InputError("secure=fixed-point hides nothing and is for simulations: set secure=true")
    if any(one.simulated for one in experiment.sections().values()) or experiment.dropout.name == "trace":
        raise InputError("batteries and traces are simulated, and this is a deployment: leave `fleet` and `trace` out")
    if passed := [f"training.{setting}" for setting, name in experiment.training.own().items() if is_passed(name)]:
        raise InputError(
            f"{passed[0]} was passed as an object, which is not sent to sites: register it in a plugin file that the"
            " server and every site use (--plugin), and choose it by its name"
        )
    privacy = experiment.privacy.settings
    assert isinstance(privacy, Privacy)
    given = experiment.model_dump(mode="json", exclude_unset=True)
    private = {"name": experiment.privacy.name, **privacy.on_site().model_dump(mode="json")}
    fixed = {"data": called, "clients": sites, "evaluation": "on-site", "partition": "sites", "privacy": private}
    return make_experiment(overlay({key: value for key, value in given.items() if value is not None}, fixed))


def experiment_digest(experiment: Experiment) -> str:
    """What both ends know an experiment by: its settings, the plugins it may use, and the behaviour of this version."""
    return whole_experiment_digest(experiment)[:16]


def whole_experiment_digest(experiment: Experiment) -> str:
    """The same at full length, for which nobody finds two experiments."""
    facts = {
        "experiment": experiment.hashed(),
        "plugins": sorted(loaded_plugins().values()),
        "behaviour": BEHAVIOUR,
    }
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str | int]:
    return {"protocol": PROTOCOL, "fedstill": __version__, "behaviour": BEHAVIOUR}


def plugins() -> str:
    """The plugin files in use, by their contents: both ends must have the same, each from its own disk."""
    return json.dumps(sorted(loaded_plugins().values()))
