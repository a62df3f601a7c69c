"""Record-level differential privacy: each client trains by private steps, so that no reply tells much of one record.

*Deep Learning with Differential Privacy*, Abadi et al., 2016, https://arxiv.org/abs/1607.00133; the steps are in
`core.private_steps`.

**Guarantee.** All replies of a client together are (epsilon, delta)-differentially private with respect to adding or
removing one of its training records. It needs nobody's honesty but the client's own: it holds against the server, other
clients and the public alike. The journal has the largest epsilon of any client, as if every client had taken part in
every round so far.

**Assumed public:** each client's number of samples, and with it the number of its steps. Losses do not leave. A person
with several records is hidden less, and a whole client is not: see `client-level` and `distributed`.

A method's own corrections of a gradient, momentum and whatever the server does come after the noise, and cost nothing.
BatchNorm mixes records, so that the gradient of one does not exist: models need GroupNorm (`norm=group`) or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

import torch
from pydantic import Field

from fedstill.core.errors import InputError
from fedstill.core.kinds import norm_layers
from fedstill.core.message import Message
from fedstill.core.noise import StepNoise
from fedstill.core.private_steps import PrivateSteps, sampling_rate, steps_of
from fedstill.core.protocols import Client, Exchange, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.streams import Streams
from fedstill.core.sums import Summand, Sums
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, ModelSettings
from fedstill.methods.wrappers.choices import Privacy, privacies
from fedstill.methods.wrappers.privacy_accounting import check_library, steps_epsilon
from fedstill.methods.wrappers.wrapper import Wrapped
from fedstill.models.model_settings import split_model

ROUNDS = "privacy/rounds"  # in which clients may have replied
FROM_TRAINING = ("model/*", "control/*", "steps", "loss/*")  # what replies contain, if training alone makes them


@privacies.register("record-level")
class RecordLevel(Privacy):
    """Record-level differential privacy at each client: clipped gradients of single records, and Gaussian noise."""

    with_sums: ClassVar[bool] = True

    clip: float = Field(1.0, gt=0, description="C: norm to which the gradient of one record is clipped")
    noise: float = Field(
        1.0, ge=0, description="z: standard deviation of the noise on the sum of a step's gradients, in units of clip"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta of (epsilon, delta) privacy; must be below 1 / samples")
    randomness: Literal["named", "system"] = Field(
        "named",
        description="named: reproducible sampling and noise, for simulations; they do not protect against anyone who"
        " knows the seed; system: from the operating system",
    )

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        _check_method(method)
        _check_training(method)
        check_library()
        return RecordPrivate(method, self)

    def on_site(self) -> Privacy:
        return self.model_copy(update={"randomness": "system"})


def _check_method(method: Method) -> None:
    """Refuse methods whose replies contain more than what training made of records."""
    if not trains_only(type(method)):
        able = ", ".join(name for name in methods if trains_only(methods[name]))
        raise InputError(
            f"record-level privacy is for methods whose clients send what they trained and nothing else of their data,"
            f" and {methods.name_of(type(method))} is not one: choose {able}, or privacy=none"
        )
    settings = method.settings
    if isinstance(settings, ModelSettings) and settings.buffers == "recalibrate":
        raise InputError(
            "method.buffers=recalibrate sends statistics of the clients' data that privacy does not cover: set"
            " method.buffers=average"
        )


def trains_only(kind: type[Method]) -> bool:
    """Whether all that a client of a method sends comes from training one shared model."""
    lines = kind.egress if isinstance(kind.egress, tuple) else ()
    known = all(any(fnmatchcase(line.name, one) for one in FROM_TRAINING) for line in lines)
    return issubclass(kind, FedAvg) and bool(lines) and known and not (kind.personal or kind.pooled)


def _check_training(method: Method) -> None:
    training = method.training
    for architecture in method.task.architectures:
        if norm_layers(method.task.build(architecture)):
            raise InputError(
                f"record-level privacy needs the gradient of each record alone, which BatchNorm mixes with others: set"
                f" model={split_model(architecture)[0]}:norm=group"
            )
        if split_model(architecture)[1].normalise == "dataset":
            raise InputError(
                "normalise=dataset takes mean and deviation of the training data, which privacy does not cover: give"
                " numbers, or leave it out"
            )
    if training.local_update is not None:
        raise InputError("training.local_update takes its own steps, without noise: leave it out, or privacy")
    if training.class_weights == "balanced":
        raise InputError(
            "training.class_weights=balanced takes the clients' class counts, which privacy does not cover: give"
            " numbers, or leave it out"
        )
    if training.precision != "fp32":
        raise InputError("record-level privacy clips gradients in single precision: set training.precision=fp32")


class RecordPrivate(Wrapped):
    """A method whose clients train by private steps, and do not send their losses."""

    def __init__(self, inner: Method, privacy: RecordLevel) -> None:
        super().__init__(inner)
        self.privacy = privacy
        self.samples: tuple[int, ...] = ()  # of each number that some client has; known when a run is planned
        self.egress = tuple(line for line in inner.egress if not _is_loss(line.name))

    def wrap(self, exchange: Exchange) -> Exchange:
        return self

    def check_profiles(self, profiles: Sequence[Profile]) -> None:
        super().check_profiles(profiles)
        self.samples = tuple(sorted({who.samples for who in profiles if who.samples}))
        most = max(self.samples, default=1)
        if self.privacy.delta >= 1 / most:
            raise InputError(
                f"privacy.delta is {self.privacy.delta:g}: with a client of {most:,} samples it must be below"
                f" {1 / most:.2g}, or a run that gives one record away would still pass as private"
            )

    def start(self, streams: Streams) -> Tensors:
        return {**self.inner.start(streams), ROUNDS: torch.tensor(0)}

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        settings = self.privacy
        client.private = PrivateSteps(settings.clip, settings.noise, settings.randomness == "system")
        found = self.inner.reply(client, request, context)
        return Message({name: tensor for name, tensor in found.items() if not _is_loss(name)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        expected = self.inner.expect(state, who, request)
        return {name: what for name, what in expected.items() if not _is_loss(name)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return self._counted(state, self.inner.aggregate(state, replies, context))

    def skipped(self, server: Tensors) -> Tensors:
        """Clients may have replied."""
        return self._counted(server, self.inner.skipped(server))

    @staticmethod
    def _counted(state: Tensors, after: Tensors) -> Tensors:
        return {**after, ROUNDS: state[ROUNDS] + 1}

    def step_noise(self, who: Profile) -> StepNoise | None:
        settings, batch = self.privacy, self.training.batch
        if not settings.noise:
            return None
        steps = self.training.epochs * steps_of(who.samples, batch)
        return StepNoise(settings.noise, settings.clip, sampling_rate(who.samples, batch), steps)

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        """The privacy of the least private record; without noise there is no such number."""
        inner = self.inner.metrics(server)
        if not self.privacy.noise or not self.samples:
            return inner
        rounds, batch = int(server[ROUNDS]) * self.training.epochs, self.training.batch
        kinds = {(sampling_rate(samples, batch), rounds * steps_of(samples, batch)) for samples in self.samples}
        spent = [steps_epsilon(self.privacy.noise, rate, steps, self.privacy.delta) for rate, steps in sorted(kinds)]
        against = dict.fromkeys(("epsilon", "epsilon_sites", "epsilon_server"), max(spent))
        return {**inner, **against, "delta": self.privacy.delta}

    # What is needed of sums is the inner method's own.

    @property
    def summed(self) -> Sequence[Summand] | None:  # type: ignore[override]
        return self.inner.summed

    def sum_weight(self, who: Profile) -> int:
        return self.inner.sum_weight(who)

    def contribution(self, request: Message, reply: Message) -> Tensors:
        return self.inner.contribution(request, reply)

    def sum_shapes(self, state: Tensors, expected: Mapping[str, tuple[Shape, torch.dtype]]) -> dict[str, Shape]:
        return self.inner.sum_shapes(state, expected)

    def common(self, request: Message) -> Tensors:
        return self.inner.common(request)

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        return self._counted(state, self.inner.finish(state, sums, context))


def _is_loss(name: str) -> bool:
    return name.startswith("loss/")
