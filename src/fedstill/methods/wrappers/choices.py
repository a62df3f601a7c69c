"""The wrappers that an experiment chooses by name: an attack, privacy, a dropout mitigation; `none` wraps nothing.

The others are declared here, and each file is imported when one of its names is first looked up.
"""

from __future__ import annotations

from fedstill.core.protocols import Method
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams


class Attack(Settings):
    """Who attacks, and how."""

    def around(self, method: Method, clients: int, streams: Streams) -> Method:
        """The method as it goes with these attackers among its clients."""
        return method


attacks: Registry[type[Attack]] = Registry("attack")
attacks.declare("fedstill.methods.wrappers.attacks", "sign-flip", "noise", "nan", "huge", "label-flip")


@attacks.register("none")
class NoAttack(Attack):
    """Everybody behaves."""


class Privacy(Settings):
    """What is done so that no single client can be told from the outcome."""

    @property
    def needs_even_chances(self) -> bool:
        """Whether it counts on every client having the same chance to take part."""
        return False

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        """The method with its exchanges made private; `cohort` of `clients` are asked in a round."""
        return method

    def on_site(self) -> Privacy:
        """The same where data are real: randomness that protects must be unknown to others."""
        return self


privacies: Registry[type[Privacy]] = Registry("privacy")
privacies.declare("fedstill.methods.wrappers.privacy", "client-level")


@privacies.register("none")
class NoPrivacy(Privacy):
    """Nothing is clipped, no noise is added."""


class Mitigation(Settings):
    """How the server compensates for clients that drop out."""

    def around(self, method: Method, clients: int) -> Method:
        """The method with its aggregation wrapped, for so many clients in all."""
        return method


mitigations: Registry[type[Mitigation]] = Registry("dropout mitigation")
mitigations.rename("friends", "friend-substitution")
mitigations.declare("fedstill.methods.wrappers.mitigations", "friend-substitution", "mimic")


@mitigations.register("none")
class NoMitigation(Mitigation):
    """Missing replies are left out."""
