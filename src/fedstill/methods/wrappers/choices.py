"""The wrappers that an experiment selects by name: attack, privacy, dropout mitigation, secure aggregation.

`none` wraps nothing.

Implementations are declared here; each module is imported when one of its names is first looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fedstill.core.protocols import Exchange, Method
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

    in_sums: ClassVar[bool] = False  # True: its noise is in the whole numbers of secure aggregation
    with_sums: ClassVar[bool] = False  # True: it does not mind whether the server sees replies or sums

    @property
    def needs_even_chances(self) -> bool:
        """Whether it requires that all clients take part with equal probability."""
        return False

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        """The method with private exchanges; `cohort` of `clients` are sampled in a round.

        Where its noise is in sums, `cohort` is the fewest clients of one.
        """
        return method

    def on_site(self) -> Privacy:
        """The variant for real sites, where the protecting noise must be unpredictable to others."""
        return self


privacies: Registry[type[Privacy]] = Registry("privacy")
privacies.declare("fedstill.methods.wrappers.privacy", "client-level")
privacies.declare("fedstill.methods.wrappers.distributed_privacy", "distributed")
privacies.declare("fedstill.methods.wrappers.record_privacy", "record-level")


@privacies.register("none")
class NoPrivacy(Privacy):
    """No clipping and no noise."""


class Aggregation(Settings):
    """How much the server sees of the replies whose sum it needs."""

    def needed(self, clients: int) -> int:
        """The fewest clients of a sum if so many are asked."""
        return clients

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        """The method with exchanges that show the server sums; at most `cohort` of `clients` are in one."""
        return method

    def exchanges(self, exchange: Exchange, most: int) -> Sequence[Exchange]:
        """The exchanges that take the place of one outside a method's, such as evaluation; `most` clients are in it."""
        return (exchange,)


aggregations: Registry[type[Aggregation]] = Registry("way of secure aggregation")
aggregations.declare("fedstill.methods.secure.secure_method", "masked", "fixed-point")


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
