"""Privacy: differential privacy at the level of clients, as a wrapper around a method's exchanges."""

from __future__ import annotations

from fedstill.core.protocols import Method
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings


class Privacy(Settings):
    """What is done so that no single client can be told from the outcome."""

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        """The method with its exchanges made private; `cohort` of `clients` are asked in a round."""
        return method


privacies: Registry[type[Privacy]] = Registry("privacy")


@privacies.register("none")
class NoPrivacy(Privacy):
    """Nothing is clipped, no noise is added."""
