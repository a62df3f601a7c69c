"""Client-level differential privacy that holds against the server: noise in the integers of secure aggregation.

*The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation*, Kairouz, Liu and Steinke,
2021, https://arxiv.org/abs/2102.06387

    x_i = round(2^b u_i min(1, C' / ||u_i||)) + noise_i     noise_i: discrete Gaussian of deviation 2^b s in each number
    w  <- server rule( w + (1/m) 2^-b sum_i x_i )            the sum modulo 2^64, by secure aggregation
    s   = z C / sqrt(h)                                      h = fewest clients in a sum - assumed colluders

C' is C less what rounding can add, so that no client's part of the sum is longer than C. Nobody sees a part: the server
sees sums of at least as many clients as the threshold, which clients check before they help to unmask one. Of these at
least h add their noise and keep it to themselves, so that every sum contains noise of deviation z C or more that its
reader does not know. A sum of discrete Gaussians is not one, but it is as private as one of the same variance up to a
term below exp(-pi^2 s^2 4^b) (theorem 1 there), which is zero in any precision for s 2^b > 10: this is checked.

**Guarantee.** As with `client-level`: with respect to replacing one client's whole data set by any other, for what

    epsilon          the public sees: the models of all rounds, with the noise of all clients that are in the sums
    epsilon_sites    another client sees: the same, and it knows its own noise (or that of all assumed colluders)
    epsilon_server   the server sees, together with the assumed colluders: in each round a sum of as few clients as the
                     threshold allows, in skipped rounds too

**Assumed public:** identities, who took part, who failed. A client that cannot train, or whose update is not finite,
adds noise to zero. The results of evaluation at the sites are sums without noise, and not counted.

Sampling amplifies nothing here: the server and the clients of a round know who takes part. A discrete Gaussian is as
private as a continuous one (theorem 4 of Canonne et al., 2020), and is accounted for as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import sqrt
from typing import ClassVar, Literal

import torch
from pydantic import Field

from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.kinds import running
from fedstill.core.message import Message, part, under
from fedstill.core.noise import ReplyNoise
from fedstill.core.protocols import Abstain, Client, Exchange, Method, Profile, RoundContext, Shape
from fedstill.core.streams import Streams
from fedstill.core.sum_noise import SumNoise
from fedstill.core.sums import Summand, Sums
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.wrappers.choices import Privacy, privacies
from fedstill.methods.wrappers.privacy import SEEN, check_private, floating
from fedstill.methods.wrappers.privacy_accounting import replies_epsilon
from fedstill.methods.wrappers.wrapper import Wrapped

MEMBERS = "privacy/members"  # number of clients in the sum of each published round


@privacies.register("distributed")
class Distributed(Privacy):
    """Differential privacy against the server: each client adds its share of discrete noise to a masked sum."""

    in_sums: ClassVar[bool] = True

    clip: float = Field(1.0, gt=0, description="C: norm to which updates are clipped")
    noise: float = Field(
        1.0,
        ge=0,
        description="z: standard deviation of the noise in the sum of the fewest clients that are honest, in units of"
        " clip",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta of (epsilon, delta) privacy; must be below 1 / clients")
    colluding: int = Field(
        0, ge=0, description="clients that are assumed to tell the server their own noise; more noise makes up for it"
    )
    randomness: Literal["named", "system"] = Field(
        "named",
        description="named: reproducible noise, for simulations; it does not protect against anyone who knows the seed;"
        " system: from the operating system",
    )

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        """The method with noise in its sums, in which `cohort` clients are at least."""
        averaging = check_private(method, self.delta, clients)
        if self.colluding >= cohort:
            raise InputError(
                f"privacy.colluding is {self.colluding}, and a sum can be of {cohort} clients: nobody would be left"
                " whose noise is secret; assume fewer, or raise secure.least"
            )
        return DistributedPrivate(averaging, self, cohort)

    def on_site(self) -> Privacy:
        return self.model_copy(update={"randomness": "system"})


class DistributedPrivate(Wrapped):
    """A method of the FedAvg family whose clients add noise to their part of the sum."""

    inner: FedAvg

    def __init__(self, inner: FedAvg, privacy: Distributed, fewest: int) -> None:
        """In every sum there are `fewest` clients or more."""
        super().__init__(inner)
        self.privacy, self.fewest = privacy, fewest
        how = (
            f"the update cut to norm {privacy.clip:g}, with discrete noise of deviation {self.sum_noise.deviation:.4g}"
        )
        self.egress = (
            Egress("model/parameters/*", "parameters", f"the weights of the locally trained model, {how}"),
            Egress("model/buffers/*", "statistics", f"BatchNorm's running means and variances, {how}"),
        )

    @property
    def sum_noise(self) -> SumNoise:  # type: ignore[override]
        honest = self.fewest - self.privacy.colluding
        deviation = self.privacy.noise * self.privacy.clip / sqrt(honest)
        return SumNoise(self.privacy.clip, deviation, self.privacy.randomness == "system")

    @property
    def reply_noise(self) -> ReplyNoise | None:
        """The least noise in what the server sees of a round, which is a sum."""
        privacy = self.privacy
        return ReplyNoise(privacy.noise, privacy.clip, privacy.colluding) if privacy.noise else None

    def wrap(self, exchange: Exchange) -> Exchange:
        return self

    def start(self, streams: Streams) -> Tensors:
        return {**self.inner.start(streams), MEMBERS: torch.zeros(0, dtype=torch.int64)}

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        try:
            trained: Tensors = self.inner.reply(client, request, context).part(MODEL)
        except Abstain:  # an update of zero: its absence would reveal something about its data
            trained = request.part(MODEL)
        return Message(under(MODEL, floating(trained)))

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        sent = under(MODEL, floating(part(state, MODEL)))
        return {name: what for name, what in self.inner.expect(state, who, request).items() if name in sent}

    @property
    def summed(self) -> Sequence[Summand] | None:  # type: ignore[override]
        return self.inner.summed

    def sum_weight(self, who: Profile) -> int:
        return 1

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        reply = self.inner.mean_reply(state, sums)
        mean = {**part(state, MODEL), **reply.message.part(MODEL)}  # counters are the server's own
        for name in self.variances:
            mean[name] = mean[name].clamp(min=0)
        merged = self.inner.aggregate(state, [replace(reply, message=Message(under(MODEL, mean)))], context)
        members = torch.cat([state[MEMBERS], torch.tensor([sums.clients])])
        return {**merged, MEMBERS: members, **({SEEN: state[SEEN]} if SEEN in state else {})}

    def aggregate(self, state: Tensors, replies: Sequence[object], context: RoundContext) -> Tensors:
        raise TypeError("noise is in whole numbers: this method is finished from sums")

    def skipped(self, server: Tensors) -> Tensors:
        """Nothing was published; a server that does not follow the protocol may have seen a sum."""
        inner = self.inner.skipped(server)
        return {**inner, SEEN: inner.get(SEEN, torch.tensor(0)) + 1}

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        """The privacy spent so far against each reader; without noise there are no such numbers."""
        inner = self.inner.metrics(server)
        if not self.privacy.noise:
            return inner
        members = server[MEMBERS].tolist()
        rounds = len(members) + int(server.get(SEEN, 0))
        return {
            **inner,
            "epsilon": self.epsilon([float(count) for count in members]),
            "epsilon_sites": self.epsilon([float(count - max(1, self.privacy.colluding)) for count in members]),
            "epsilon_server": self.epsilon([float(self.fewest - self.privacy.colluding)] * rounds),
            "delta": self.privacy.delta,
        }

    def epsilon(self, secret: Sequence[float]) -> float:
        """The epsilon of sums, given how many shares of noise are secret in each."""
        share = self.sum_noise.deviation / self.privacy.clip
        return replies_epsilon([share * sqrt(count) for count in secret], self.privacy.delta)

    @cached_property
    def variances(self) -> tuple[str, ...]:
        """The names of running variances, which noise must not make negative."""
        return tuple(running(self.task.build(self.task.architectures[0]), "running_var").values())
