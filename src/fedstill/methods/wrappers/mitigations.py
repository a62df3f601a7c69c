"""Dropout mitigation: how a server aggregates a round in which some replies are missing.

A mitigation wraps a method's `aggregate` and is state of the server alone; clients and messages are as they would be
without it. `friend-substitution` puts another client's model in the place of a missing one, `mimic` corrects those that
arrived. Which methods they are sound around depends on the method's `aggregate`:

| method | friend-substitution | mimic |
|---|---|---|
| fedavg, fedprox, moon, ditto, fine-tuned, fedavgm, fedadam, fedyogi, fedadagrad | yes | yes |
| scaffold | yes; a substitute leaves the control variates alone | yes; they are computed by the client |
| fedbn | yes, of what is shared | yes, of what is shared |
| fednova | yes; a substitute is normalised by the friend's steps | no: a correction is of no steps, and grows |
| feddyn | no | no |
| fedmedian, trimmed-mean, krum, multi-krum, clipped-mean | no | no |

FedNova divides an update by its steps and multiplies the mean by their mean. A correction, which contains the mean
update, would be scaled as well, and grow in every round in which steps differ (Jensen's inequality).

FedDyn's server keeps the mean of what clients remember of their own updates. It would count a substitute, or a
correction, that no client has in its own state.

In a robust method every client counts once. A substitute would be a second vote; and to Krum two equal replies are the
nearest of neighbours, from any sender. MimiC corrects by a mean, which one malicious client can move anywhere.

Methods that exchange no models, or none that all start from, have nothing to substitute or to correct. Under
client-level privacy each client must count once, and not by what it sent before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.core.task import Tensors
from fedstill.methods.adaptive import FedAdagrad, FedAdam, FedYogi
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fedavgm import FedAvgM
from fedstill.methods.fedbn import FedBn
from fedstill.methods.fednova import FedNova
from fedstill.methods.fine_tuned import FineTuned
from fedstill.methods.scaffold import Scaffold
from fedstill.methods.wrappers.choices import Mitigation, mitigations
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


class MeanMitigation(Mitigation):
    """One that is sound around servers' rules of a mean of the clients' models."""

    aggregates: ClassVar[frozenset[Rule]]  # those rules

    def suits(self, kind: type[Method]) -> bool:
        """Whether it is sound around a method of this kind."""
        return issubclass(kind, FedAvg) and kind.aggregate in self.aggregates and not kind.pooled

    def suited(self, method: Method) -> FedAvg:
        """The method, if it is one that this is sound around."""
        name = mitigations.name_of(type(self))
        if isinstance(method, Private):
            raise InputError(
                f"client-level privacy counts every client once, and mitigation={name} does not: leave `mitigation`"
                " out, or `privacy`"
            )
        if isinstance(method, FedAvg) and self.suits(type(method)):
            return method
        called = methods.name_of(type(method))
        able = ", ".join(one for one in methods if self.suits(methods[one]))
        raise InputError(
            f"mitigation={name} is for methods whose server takes a mean of its clients' models, and with {called} it"
            f" is not sound: choose {able}, or mitigation=none"
        )


@mitigations.register("friend-substitution")
class FriendMitigation(MeanMitigation):
    """A client that dropped out is represented by the model of the client most like it."""

    aggregates = frozenset[Rule]({*MEANS, FedNova.aggregate})

    def around(self, method: Method, clients: int) -> Method:
        suited = self.suited(method)
        if clients > MOST_CLIENTS:
            raise InputError(
                f"mitigation=friend-substitution compares all clients with one another, and {clients:,} are too many:"
                f" {MOST_CLIENTS:,} at most, or mitigation=mimic"
            )
        return FriendSubstitution(suited, clients)


@mitigations.register("mimic")
class MimicMitigation(MeanMitigation):
    """Each reply is corrected by how its client differed from the mean when it last replied."""

    aggregates = MEANS

    def around(self, method: Method, clients: int) -> Method:
        return MimiC(self.suited(method))
