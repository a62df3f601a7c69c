"""Cures for dropout: what a server can make of a round in which some replies are missing.

A cure goes around a method's merge (see `cured.py`) and is state of the server alone; clients and messages are as they
would be without it. `friends` puts another client's model in the place of a missing one, `mimic` corrects those that
came. Which methods they are sound around is read off the method's merge:

| method | friends | mimic |
|---|---|---|
| fedavg, fedprox, moon, ditto, fine-tuned, fedavgm, fedadam, fedyogi, fedadagrad | yes | yes |
| scaffold | yes; a substitute leaves the control variates alone | yes; they are the client's own account |
| fedbn | yes, of what is shared | yes, of what is shared |
| fednova | yes; a substitute is normalised by the friend's steps | no: a correction is of no steps, and grows |
| feddyn | no | no |
| fedmedian, trimmed-mean, krum, multi-krum, clipped-mean | no | no |

FedNova divides an update by its steps and multiplies the mean by their mean. A correction, which is an update of all,
would pass through that as well, and come out longer in every round in which steps differ (Jensen's inequality).

FedDyn's server keeps the mean of what clients remember of their own updates. It would count a substitute, or a
correction, of which no client knows.

In a robust method everybody has one vote. A substitute would be a second one; and to Krum two equal replies are the
nearest of neighbours, whoever sent them. What replies are corrected by is a mean, which one liar can move anywhere.

Methods that exchange no models, or none that all start from, have nothing to substitute or to correct. Under
client-level privacy each client must count once, and not by what it sent before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.core.task import Tensors
from fedstill.methods.adaptive import FedAdagrad, FedAdam, FedYogi
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fedavgm import FedAvgM
from fedstill.methods.fedbn import FedBn
from fedstill.methods.fednova import FedNova
from fedstill.methods.fine_tuned import FineTuned
from fedstill.methods.scaffold import Scaffold
from fedstill.methods.wrappers.friend_substitution import FriendSubstitution
from fedstill.methods.wrappers.mimic import MimiC
from fedstill.methods.wrappers.privacy import Private

Rule = Callable[..., Tensors]  # a method's `aggregate`
MOST_CLIENTS = 5_000  # whose pairs are kept: two tensors of 100 MB in the server's state and in every checkpoint

# The servers' rules that are rules of the mean of the clients' models.
MEANS: frozenset[Rule] = frozenset(
    {
        FedAvg.aggregate,
        FedAvgM.aggregate,
        FedAdam.aggregate,
        FedYogi.aggregate,
        FedAdagrad.aggregate,
        FedBn.aggregate,
        FineTuned.aggregate,
        Scaffold.aggregate,
    }
)


class Mitigation(Settings):
    """What is done about clients that drop out, where the method itself does nothing."""

    aggregates: ClassVar[frozenset[Rule]] = frozenset()  # the servers' rules that it is sound around

    def around(self, method: Method, clients: int) -> Method:
        """The method with its merge cured, for so many clients in all."""
        return method

    def suits(self, kind: type[Method]) -> bool:
        """Whether it is sound around a method of this kind."""
        return issubclass(kind, FedAvg) and kind.aggregate in self.aggregates and not kind.pooled

    def curable(self, method: Method) -> FedAvg:
        """The method, if it is one that this is sound around."""
        name = mitigations.name_of(type(self))
        if isinstance(method, Private):
            raise InputError(
                f"client-level privacy counts every client once, and cure={name} does not: leave `cure` out, or"
                " `privacy`"
            )
        if isinstance(method, FedAvg) and self.suits(type(method)):
            return method
        called = methods.name_of(type(method))
        able = ", ".join(one for one in methods if self.suits(methods[one]))
        raise InputError(
            f"cure={name} is for methods whose server takes a mean of its clients' models, and with {called} it is not"
            f" sound: choose {able}, or cure=none"
        )


mitigations: Registry[type[Mitigation]] = Registry("cure for dropout")


@mitigations.register("none")
class NoCure(Mitigation):
    """Who is missing is missing."""


@mitigations.register("friends")
class Friends(Mitigation):
    """The model of the client that is most like it stands for a client that dropped out."""

    aggregates = frozenset[Rule]({*MEANS, FedNova.aggregate})

    def around(self, method: Method, clients: int) -> Method:
        curable = self.curable(method)
        if clients > MOST_CLIENTS:
            raise InputError(
                f"cure=friends compares all clients with one another, and {clients:,} are too many: {MOST_CLIENTS:,} at"
                " most, or cure=mimic"
            )
        return FriendSubstitution(curable, clients)


@mitigations.register("mimic")
class Mimic(Mitigation):
    """Each reply is corrected by how its client differed from all when it was last heard."""

    aggregates = MEANS

    def around(self, method: Method, clients: int) -> Method:
        return MimiC(self.curable(method))
