"""Dropout mitigation: how a server aggregates a round in which some replies are missing.

A mitigation wraps a method's `aggregate` and only adds server state; clients and messages are unchanged.
`friend-substitution` replaces a missing model by another client's; `mimic` corrects the replies that arrived. Whether a
mitigation is valid depends on the method's `aggregate`:

| method | friend-substitution | mimic |
|---|---|---|
| fedavg, fedprox, moon, ditto, fine-tuned, fedavgm, fedadam, fedyogi, fedadagrad | yes | yes |
| scaffold | yes; a substitute leaves the control variates alone | yes; they are computed by the client |
| fedbn | yes, of what is shared | yes, of what is shared |
| fednova | yes; a substitute is normalised by the friend's steps | no: a correction is of no steps, and grows |
| feddyn | no | no |
| fedmedian, trimmed-mean, krum, multi-krum, clipped-mean | no | no |

FedNova divides an update by its steps and multiplies the mean by the mean number of steps. A correction, which contains
the mean update, would be scaled as well, and would grow in every round in which steps differ (Jensen's inequality).

FedDyn's server stores the mean of the clients' local regularisation states. It would include a substitute or a
correction that no client has in its own state.

In a robust method every client counts once. A substitute would be a second vote, and Krum would score two equal replies
as nearest neighbours, from any client. MimiC corrects by a mean, which one malicious client can move arbitrarily.

Methods that exchange no models, or no common starting model, have nothing to substitute or correct. Under client-level
privacy each client must count once, independently of its earlier replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fedbn import FedBn
from fedstill.methods.fednova import FedNova
from fedstill.methods.fine_tuned import FineTuned
from fedstill.methods.scaffold import Scaffold
from fedstill.methods.wrappers.choices import Mitigation, mitigations
from fedstill.methods.wrappers.friend_substitution import FriendSubstitution
from fedstill.methods.wrappers.mimic import MimiC
from fedstill.methods.wrappers.privacy import MEANS, Private, Rule

MOST_CLIENTS = 5_000  # limit for pairwise tables: two tensors of 100 MB in the server state and in every checkpoint

# What applies such a rule to replies, and adds nothing that depends on more than their mean.
AGGREGATES: frozenset[Callable[..., Tensors]] = frozenset(
    {FedAvg.aggregate, FedBn.aggregate, FineTuned.aggregate, Scaffold.aggregate}
)


class MeanMitigation(Mitigation):
    """A mitigation that is valid for server rules based on the mean of the clients' models."""

    rules: ClassVar[frozenset[Rule]]  # those rules

    def suits(self, kind: type[Method]) -> bool:
        """Whether the mitigation is valid for methods of this class."""
        if not issubclass(kind, FedAvg) or kind.pooled:
            return False
        return kind.aggregate in AGGREGATES and kind.rule in self.rules

    def suited(self, method: Method) -> FedAvg:
        """The method, if the mitigation is valid for it; otherwise an error."""
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
    """A dropped client is represented by the model of the most similar client that replied."""

    rules = frozenset[Rule]({*MEANS, FedNova.rule})

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
    """Each reply is corrected by its client's last known difference from the mean update."""

    rules = MEANS

    def around(self, method: Method, clients: int) -> Method:
        return MimiC(self.suited(method))
