"""Client-level differential privacy, as a wrapper around a method's exchange.

*Learning Differentially Private Recurrent Language Models*, McMahan et al., 2018, https://arxiv.org/abs/1710.06963

    u_i = (w_i - w) min(1, C / ||w_i - w||)           over weights and running statistics together
    w  <- server rule( w + (1/m) (sum_i u_i + z C g) )         g: standard normal

**Guarantee.** All shared models of a run together are (epsilon, delta)-differentially private with respect to replacing
one client's whole data set by any other; the journal contains both numbers. The method's own aggregation receives the
noisy mean in place of every reply, so any server rule (momentum, Adam) is post-processing and costs no further privacy.

**Assumed public:** the clients' identities and sample counts, who took part in which round, and who failed. Steps,
losses and counters, which ordinary replies contain, do not leave a client. A client that cannot train sends a zero
update, since its absence would reveal something about its data; a client whose code fails is visibly missing.

**Trust model.** With `where: server` the server is trusted: it sees the clipped updates and adds the noise itself. With
`where: client` each client adds its share of the noise, with deviation z C / sqrt(cohort), and a round with m replies
has noise z sqrt(m / cohort), which is accounted for. The guarantee still concerns the published models: a server that
inspects single replies, or clients that collude or omit their noise, learn more than epsilon states.

**Malicious clients.** The server clips again. With `where: server` no client moves the sum by more than C. With `where:
client` the server can only clip what is longer than C plus plausible honest noise (an honest reply exceeds this with
probability below 10^-21).

**Readers.** `epsilon` is against the public. `epsilon_sites` is against another client: it knows its own share of the
noise, and whether it was drawn, so that sampling amplifies nothing against it. `epsilon_server` is against the server.

A skipped round publishes nothing and is not counted, except against the server, which may have seen replies. Privacy
amplification by sampling is counted only with `sampling: secret`, and only in rounds in which the whole cohort replied:
after a failure the remaining clients are not a uniform sample.

BatchNorm's running statistics are clipped and noised like weights. A variance that noise made negative is set to zero,
so that its square root exists; models without BatchNorm avoid this problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite, sqrt
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.kinds import running
from fedstill.core.message import Message, part, under
from fedstill.core.noise import ReplyNoise, from_operating_system, named
from fedstill.core.protocols import Abstain, Client, Exchange, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods.adaptive import FedAdagrad, FedAdam, FedYogi
from fedstill.methods.base import MODEL, methods
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fedavgm import FedAvgM
from fedstill.methods.wrappers.choices import Privacy, privacies
from fedstill.methods.wrappers.privacy_accounting import check_library, epsilon, replies_epsilon
from fedstill.methods.wrappers.wrapper import Wrapped

NOISE, DRAWN = "privacy/noise", "privacy/drawn"  # per published round: see `privacy_accounting.epsilon`
SEEN = "privacy/seen"  # number of skipped rounds, whose replies the server saw all the same; absent: none
SLACK = 10.0  # a normal vector is longer than sqrt(dimensions) + t with probability below exp(-t^2 / 2)

# The server rules that use only the mean of the replied models.
Rule = Callable[..., Tensors]  # a method's `rule`
MEANS: frozenset[Rule] = frozenset({FedAvg.rule, FedAvgM.rule, FedAdam.rule, FedYogi.rule, FedAdagrad.rule})


@privacies.register("client-level")
class ClientLevel(Privacy):
    """Client-level differential privacy: clipped updates and Gaussian noise."""

    clip: float = Field(1.0, gt=0, description="C: norm to which updates are clipped")
    noise: float = Field(
        1.0, ge=0, description="z: standard deviation of the noise on the sum of updates, in units of clip"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta of (epsilon, delta) privacy; must be below 1 / clients")
    where: Literal["server", "client"] = Field("server", description="who adds the noise")
    sampling: Literal["known", "secret"] = Field(
        "known",
        description="secret: cohorts are drawn uniformly from all clients and are not disclosed (journal and"
        " seed are kept private), so that sampling amplifies privacy",
    )
    randomness: Literal["named", "system"] = Field(
        "named",
        description="named: reproducible noise, for simulations; it does not protect against anyone who knows the seed;"
        " system: from the operating system",
    )

    @property
    def needs_even_chances(self) -> bool:
        return self.sampling == "secret"

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        return Private(check_private(method, self.delta, clients), self, clients, cohort)

    def on_site(self) -> Privacy:
        return self.model_copy(update={"randomness": "system"})


def check_private(method: Method, delta: float, clients: int) -> FedAvg:
    """The method, if each client can be hidden in what it shares; otherwise an error."""
    found = averaging(method)
    if found.settings.weighting != "uniform":
        raise InputError("under client-level privacy every client must count alike: set method.weights=uniform")
    if found.settings.buffers == "recalibrate":
        raise InputError(
            "method.buffers=recalibrate sends statistics of the clients' data that privacy does not cover: set"
            " method.buffers=average"
        )
    if delta >= 1 / clients:
        raise InputError(
            f"privacy.delta is {delta:g}: with {clients} clients it must be below {1 / clients:g}, or a run that gives"
            " one client away would still pass as private"
        )
    check_library()
    return found


def averaging(method: Method) -> FedAvg:
    """The method, if it shares only the mean of its clients' models; otherwise an error."""
    if isinstance(method, FedAvg) and averages(type(method)):
        return method
    able = ", ".join(name for name in methods if averages(methods[name]))
    raise InputError(
        f"client-level privacy is for methods that share nothing but the mean of their clients' models, and"
        f" {methods.name_of(type(method))} is not one: choose {able}, or privacy=none"
    )


def averages(kind: type[Method]) -> bool:
    """Whether a method shares only the mean of its clients' models.

    This is decided by the class: a method with its own aggregation, request or uploads, with personal models (whose
    scores are not covered by noise) or with pooled data does not qualify. A method derived from FedAvg that changes
    only the local objective does.
    """
    return (
        issubclass(kind, FedAvg)
        and kind.aggregate is FedAvg.aggregate
        and kind.rule in MEANS
        and kind.request is FedAvg.request
        and kind.egress is FedAvg.egress
        and kind.exchanges is FedAvg.exchanges
        and not (kind.personal or kind.pooled)
    )


class Private(Wrapped):
    """A method of the FedAvg family whose aggregation sees only clipped and noised updates."""

    def __init__(self, inner: Method, privacy: ClientLevel, clients: int, cohort: int) -> None:
        super().__init__(inner)
        self.privacy, self.clients, self.cohort = privacy, clients, cohort
        how = f"the update cut to norm {privacy.clip:g}"
        if privacy.where == "client":
            how += f", with noise of deviation {self.share:g}"
        self.egress = (
            Egress("model/parameters/*", "parameters", f"the weights of the locally trained model, {how}"),
            Egress("model/buffers/*", "statistics", f"BatchNorm's running means and variances, {how}"),
        )

    def wrap(self, exchange: Exchange) -> Exchange:
        return self

    def start(self, streams: Streams) -> Tensors:
        nothing = {NOISE: torch.zeros(0, dtype=torch.float64), DRAWN: torch.zeros(0, dtype=torch.int64)}
        return {**self.inner.start(streams), **nothing}

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        try:
            trained = self.inner.reply(client, request, context)
        except Abstain:
            trained = request
        before = floating(request.part(MODEL))
        update = clipped(difference(trained.part(MODEL), before), self.privacy.clip)
        if self.privacy.where == "client":
            update = self.noisy(update, self.share, client.streams)
        return Message(under(MODEL, moved(before, update)))

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        sent = under(MODEL, floating(part(state, MODEL)))
        return {name: what for name, what in self.inner.expect(state, who, request).items() if name in sent}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        before = floating(part(state, MODEL))
        limit, total = self.limit(before.values()), difference(before, before)
        for reply in replies:
            for name, change in clipped(difference(reply.message.part(MODEL), before), limit).items():
                total[name] += change
        if self.privacy.where == "server":
            total = self.noisy(total, self.privacy.noise * self.privacy.clip, context.streams)
        mean = moved(before, {name: change / len(replies) for name, change in total.items()})
        for name in self.variances:
            mean[name] = mean[name].clamp(min=0)
        # Counters are the server's own; those of the clients are not sent.
        message = Message(under(MODEL, {**part(state, MODEL), **mean}))
        merged = self.inner.aggregate(state, [replace(reply, message=message) for reply in replies], context)
        return {**merged, **self.account(state, len(replies), context)}

    def account(self, state: Tensors, replies: int, context: RoundContext) -> Tensors:
        """The server's record of each published round: its noise, and how its cohort was sampled."""
        by_clients = self.privacy.where == "client"
        noise = self.privacy.noise * (sqrt(replies / self.cohort) if by_clients else 1.0)
        as_drawn = self.privacy.sampling == "secret" and replies == self.cohort and not context.failures
        drawn = self.cohort if as_drawn else self.clients
        return {
            NOISE: torch.cat([state[NOISE], torch.tensor([noise], dtype=torch.float64)]),
            DRAWN: torch.cat([state[DRAWN], torch.tensor([drawn])]),
            **({SEEN: state[SEEN]} if SEEN in state else {}),
        }

    def skipped(self, server: Tensors) -> Tensors:
        """Nothing was published; what clients sent with their own noise has been seen."""
        inner = self.inner.skipped(server)
        if self.reply_noise is None:
            return inner
        return {**inner, SEEN: inner.get(SEEN, torch.tensor(0)) + 1}

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        """The privacy spent so far; without noise there is no such number."""
        inner = self.inner.metrics(server)
        if not self.privacy.noise:
            return inner
        spent = epsilon(server[NOISE].tolist(), server[DRAWN].tolist(), self.clients, self.privacy.delta)
        metrics = {**inner, "epsilon": spent, "epsilon_sites": self.against_sites(server), "delta": self.privacy.delta}
        if self.reply_noise is None:
            return metrics
        seen = len(server[NOISE]) + int(server.get(SEEN, 0))
        spent_on_server = replies_epsilon([self.reply_noise.deviation] * seen, self.privacy.delta)
        return {**metrics, "epsilon_server": spent_on_server}

    def against_sites(self, server: Tensors) -> float:
        """The epsilon against another client, which knows its own noise, and whether it was drawn itself."""
        noise = server[NOISE].tolist()
        if self.reply_noise is not None:
            # A round's noise is z sqrt(replies / cohort). In a round with one reply, that was not the reader's own.
            replies = [round((one / self.privacy.noise) ** 2 * self.cohort) for one in noise]
            noise = [self.reply_noise.deviation * sqrt(max(1, count - 1)) for count in replies]
        return epsilon(noise, [self.clients] * len(noise), self.clients, self.privacy.delta)

    @property
    def reply_noise(self) -> ReplyNoise | None:
        if self.privacy.where == "server" or not self.privacy.noise:
            return None
        return ReplyNoise(self.privacy.noise / sqrt(self.cohort), self.privacy.clip)

    @property
    def share(self) -> float:
        """The deviation of one client's noise, such that the noise of a whole cohort adds up to z C."""
        return self.privacy.noise * self.privacy.clip / sqrt(self.cohort)

    @cached_property
    def variances(self) -> tuple[str, ...]:
        """The names of running variances, which noise must not make negative."""
        return tuple(running(self.task.build(self.task.architectures[0]), "running_var").values())

    def limit(self, model: Iterable[Tensor]) -> float:
        """The largest norm of an update that an honest client could have sent."""
        if self.privacy.where == "server":
            return self.privacy.clip
        return self.privacy.clip + self.share * (sqrt(sum(tensor.numel() for tensor in model)) + SLACK)

    def noisy(self, update: Tensors, deviation: float, streams: Streams) -> dict[str, Tensor]:
        """The tensors with noise added to every coordinate, in the order of names."""
        source = from_operating_system if self.privacy.randomness == "system" else named
        normal = source(streams)
        return {name: update[name] + deviation * normal(tuple(update[name].shape)) for name in sorted(update)}


def floating(state: Tensors) -> dict[str, Tensor]:
    """All tensors except counters."""
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}


def difference(after: Tensors, before: Tensors) -> dict[str, Tensor]:
    """The client's update, in double precision."""
    return {name: after[name].double() - tensor.double() for name, tensor in before.items()}


def moved(before: Tensors, update: Tensors) -> dict[str, Tensor]:
    """The state after an update, in its original precision; rounding follows the noise, so it reveals nothing."""
    return {name: (tensor.double() + update[name]).to(tensor.dtype) for name, tensor in before.items()}


def clipped(update: Tensors, limit: float) -> dict[str, Tensor]:
    """An update clipped to a norm over all its tensors together; one that is not finite becomes zero.

    >>> clipped({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 2.5)
    {'a': tensor([1.5000]), 'b': tensor([2.])}
    """
    norm = sqrt(sum(float(update[name].square().sum()) for name in sorted(update)))
    if not isfinite(norm):
        return {name: torch.zeros_like(change) for name, change in update.items()}
    factor = limit / norm if norm > limit else 1.0
    return {name: change * factor for name, change in update.items()}
