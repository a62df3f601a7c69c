"""Attacks: what some clients do to a federation, simulated.

An attack is a wrapper around a method's exchanges, so that every method can be tried against it. The attackers are
drawn once from a stream of their own; everybody else behaves.
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


@attacks.register("none")
class NoAttack(Attack):
    """Everybody behaves."""
