"""The section `detection` of an experiment: what detectors read, how they are evaluated, what metrics are called."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import Field, field_validator

from fedstill.core.sections import HasSections, Section, sections
from fedstill.detection.point_features import FeatureName, listed_features

ProtocolName = Literal["published", "strict"]  # see `proposals.py`
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)

MAIN = {"map_25": "mAP@0.25", "map_50": "mAP@0.5", "ar_25": "AR@0.25", "ar_50": "AR@0.5"}
MEASURES = MAIN | {f"{name}_{metric}": f"{name} {title}" for name in PROTOCOLS for metric, title in MAIN.items()}


@sections.register("detection")
class DetectionSection(Section):
    """The settings of the inputs and of the evaluation of detectors."""

    about: ClassVar[str] = "what detectors read and how they are evaluated; left out, as in published tables"
    task: ClassVar[str] = "detection"

    protocol: ProtocolName = Field(
        "published",
        description="which boxes count in mAP and AR, and so select the best round: published, every class of each box"
        " with points, as VoteNet and 3DETR are evaluated; strict, only the most likely class of each box; the figures"
        " of the other one are recorded beside them",
    )
    features: tuple[FeatureName, ...] = Field(
        (),
        description="what detectors read of each point beside its coordinates: colour, height (above the floor of the"
        " scene), or both as colour,height",
    )

    added_later: ClassVar[frozenset[str]] = frozenset({"features"})

    _listed = field_validator("features", mode="before")(listed_features)

    def point_features(self) -> tuple[str, ...]:
        return self.features


def protocol_of(experiment: HasSections) -> ProtocolName:
    """The protocol of an experiment's main figures."""
    section = experiment.section("detection")
    assert section is None or isinstance(section, DetectionSection)
    return "published" if section is None else section.protocol
