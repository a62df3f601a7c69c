"""The wrappers that an experiment selects by name: attack, privacy and dropout mitigation; `none` wraps nothing.

Implementations are declared here; each module is imported when one of its names is first looked up.
"""

from __future__ import annotations

from fedstill.core.protocols import Method
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams


class Attack(Settings):
    """An attack: which clients attack, and how."""

    def around(self, method: Method, clients: int, streams: Streams) -> Method:
        """The method with these attackers among its clients."""
        return method


attacks: Registry[type[Attack]] = Registry("attack")
attacks.declare("fedstill.methods.wrappers.attacks", "sign-flip", "noise", "nan", "huge", "label-flip")


@attacks.register("none")
class NoAttack(Attack):
    """All clients are honest."""


class Privacy(Settings):
    """A privacy mechanism that limits what the result reveals about any single client."""

    @property
    def needs_even_chances(self) -> bool:
        """Whether it requires that all clients take part with equal probability."""
        return False

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        """The method with private exchanges; `cohort` of `clients` are sampled in a round."""
        return method

    def on_site(self) -> Privacy:
        """The variant for real sites, where the protecting noise must be unpredictable to others."""
        return self


privacies: Registry[type[Privacy]] = Registry("privacy")
privacies.declare("fedstill.methods.wrappers.privacy", "client-level")


@privacies.register("none")
class NoPrivacy(Privacy):
    """No clipping and no noise."""


class Mitigation(Settings):
    """How the server compensates for clients that drop out."""

    def around(self, method: Method, clients: int) -> Method:
        """The method with its aggregation wrapped, for this total number of clients."""
        return method


mitigations: Registry[type[Mitigation]] = Registry("dropout mitigation")
mitigations.rename("friends", "friend-substitution")
mitigations.declare("fedstill.methods.wrappers.mitigations", "friend-substitution", "mimic")


@mitigations.register("none")
class NoMitigation(Mitigation):
    """No mitigation: missing replies are left out."""
