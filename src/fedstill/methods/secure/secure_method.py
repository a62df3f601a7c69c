"""A method whose server sees sums over clients and nothing of a single one: `secure: true`.

*Practical Secure Aggregation for Privacy-Preserving Machine Learning*, Bonawitz et al., 2017,
https://eprint.iacr.org/2017/281

Any method works whose exchanges declare that sums suffice (`Exchange.summed`, `Exchange.finish`). With `fixed-point`
the same whole numbers are sent without masks: it protects nobody, and gives the bits of a run with masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from fedstill.core.errors import InputError
from fedstill.core.message import part
from fedstill.core.noise import ReplyNoise, StepNoise
from fedstill.core.protocols import Exchange, Method, Profile
from fedstill.core.sum_noise import SumNoise
from fedstill.core.sums import HALF, declares_sums
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.secure.sum_settings import LEAST, MaskSettings, SumSettings
from fedstill.methods.secure.summed_exchange import FACTS, SummedExchange, formats
from fedstill.methods.wrappers.choices import aggregations
from fedstill.methods.wrappers.wrapper import Wrapped


@aggregations.register("fixed-point", behaviour=2)
class FixedPointSums(SumSettings):
    """For simulations: the numbers of secure aggregation without masks, which hide nothing."""

    added_later: ClassVar[frozenset[str]] = frozenset({"threshold", "least"})

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        return _secured(method, self, cohort)

    def exchanges(self, exchange: Exchange, most: int) -> Sequence[Exchange]:
        return (SummedExchange(exchange, self, most),)


@aggregations.register("masked", behaviour=2)
class MaskedSums(MaskSettings):
    """Secure aggregation: updates are masked, and the server sees their sum only."""

    def around(self, method: Method, clients: int, cohort: int) -> Method:
        if find_spec("cryptography") is None:
            raise InputError("secure=true needs the package cryptography: install fedstill[secure]")
        if cohort < LEAST:
            raise InputError(
                f"secure aggregation needs at least {LEAST} clients in a round, and {cohort} are sampled: of two, each"
                " finds the other's update by subtracting its own; sample more, or set secure=false"
            )
        return _secured(method, self, cohort)

    def exchanges(self, exchange: Exchange, most: int) -> Sequence[Exchange]:
        from fedstill.methods.secure.protocol import protected  # which needs cryptography

        return protected(exchange, self, most)


def _secured(method: Method, settings: SumSettings, cohort: int) -> Method:
    for exchange in method.every_exchange():
        if exchange.summed is None:
            raise InputError(
                f"secure aggregation shows the server only sums, and {methods.name_of(_plain(method))} needs single"
                f" replies in `{exchange.name}`: choose {', '.join(able())}, or set secure=false"
            )
    if settings.masks and settings.least > cohort:
        raise InputError(
            f"secure.least is {settings.least}, and {cohort} clients are sampled at most, so that every round would be"
            f" skipped: set it to {cohort} or less"
        )
    if method.sum_noise is not None:
        _check_noise(method, method.sum_noise, settings, cohort)
    return SecureMethod(method, settings, cohort)


def _check_noise(method: Method, noise: SumNoise, settings: SumSettings, cohort: int) -> None:
    """Refuse settings with which the noise in the sums would not be what it is accounted for."""
    if settings.norm is not None:
        raise InputError(
            "secure.norm keeps a client out of the sum by its own data, and privacy clips it in its place: leave"
            " secure.norm out"
        )
    model = method.task.build(method.task.architectures[0]).state_dict()
    numbers = sum(tensor.numel() for tensor in model.values())
    noise.check(formats(settings), numbers, cohort)


def _plain(method: Method) -> type[Method]:
    return type(method.inner) if isinstance(method, Wrapped) else type(method)


def able() -> list[str]:
    """The methods whose server rule needs nothing but sums."""
    kinds = {name: methods[name] for name in methods}
    return [name for name, kind in kinds.items() if declares_sums(kind) and not kind.pooled]


class SecureMethod(Wrapped):
    """A method whose exchanges show the server sums."""

    def __init__(self, inner: Method, settings: SumSettings, cohort: int) -> None:
        super().__init__(inner)
        self.secure, self.cohort = settings, cohort
        self.egress = tuple(line for exchange in self.every_exchange() for line in exchange.egress)

    def wrap(self, exchange: Exchange) -> Exchange:
        raise NotImplementedError("one exchange becomes several: see `exchanges`")

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return self._all(self.inner.exchanges(server, round))

    def every_exchange(self) -> Sequence[Exchange]:
        return self._all(self.inner.every_exchange())

    def _all(self, exchanges: Sequence[Exchange]) -> Sequence[Exchange]:
        return [one for exchange in exchanges for one in self.secure.exchanges(exchange, self.cohort)]

    def check_profiles(self, profiles: Sequence[Profile]) -> None:
        """Refuse weights with which a sum could overflow, before any work."""
        super().check_profiles(profiles)
        form = formats(self.secure)["update"]
        weights = [one.sum_weight(who) for one in self.inner.every_exchange() for who in profiles]
        heaviest = max(weights, default=0)
        if heaviest * form.largest * self.cohort >= HALF:
            raise InputError(
                f"a sum over {self.cohort} clients of weights up to {heaviest}, of changes up to"
                f" secure.clip={form.clip:g} in steps of 2^-{form.bits}, could exceed 64 bits: set secure.bits lower"
            )

    @property
    def reply_noise(self) -> ReplyNoise | None:
        return self.inner.reply_noise

    def step_noise(self, who: Profile) -> StepNoise | None:
        return self.inner.step_noise(who)

    @property
    def clients_in_a_sum(self) -> int:
        return self.secure.needed(self.cohort) if self.secure.masks else 1

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        """What the sums of the round tell beside the model."""
        told: dict[str, Any] = {name.replace("/", ", "): float(one) for name, one in part(server, FACTS).items()}
        return {**self.inner.metrics(server), **{f"sum: {name}": value for name, value in told.items()}}
