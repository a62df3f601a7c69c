"""Sections that slices add to an experiment, e.g. `queries` or `fleet`; each is a settings class of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from fedstill.core.registry import Registry
from fedstill.core.settings import Settings

if TYPE_CHECKING:
    from fedstill.core.protocols import Method


class Section(Settings):
    """Settings of a section that a slice adds. The planner calls its hooks; none of them has to do anything."""

    about: ClassVar[str] = ""  # what the section says, for the reference
    participation: ClassVar[Literal["", "devices", "clusters"]] = ""  # what it is to participation (see there)
    for_many: ClassVar[bool] = False  # True: about several clients, so that it is left out where one holds all data
    task: ClassVar[str] = ""  # the task that it is for, where it is for one only: others refuse it
    simulated: ClassVar[str] = ""  # what of it only a simulation has, where that is so: deployments refuse it

    def point_features(self) -> tuple[str, ...]:
        """The features of points that the experiment reads beside their coordinates."""
        return ()

    def check_experiment(self, clients: int, classes: tuple[str, ...], method: type[Method]) -> None:
        """Refuse what cannot work in this experiment, before any work."""

    def changes(self, method: type[Method]) -> bool:
        """Whether a run of that method depends on this section; otherwise runs that differ in it alone are one run."""
        return True

    def written(self, name: str) -> tuple[list[str], list[str]]:
        """How this section, of that name, is written on the command line: options, and what follows `--set`."""
        return [], [f"{name}={json.dumps(self.model_dump(mode='json', exclude_defaults=True))}"]


class HasSections(Protocol):
    """An experiment, as far as slices read their own sections in it."""

    def section(self, name: str) -> Section | None: ...


sections: Registry[type[Section]] = Registry("section of an experiment")
