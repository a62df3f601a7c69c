"""Dispatch an exchange's requests and validate the replies: the same for rounds, surveys and evaluation on site."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from fedstill.core.message import Message
from fedstill.core.participation_protocols import DropoutEvent, RoundParticipation
from fedstill.core.protocols import Engine, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.runtime.client_store import Store
from fedstill.runtime.reply_validation import validate_reply
from fedstill.runtime.round_outcome import RoundOutcome
from fedstill.runtime.spool import Spool

_log = logging.getLogger(__name__)


class AlwaysAvailable:
    """No client has a battery or drops out: as in evaluation, which charges nothing."""

    def before(self, who: Profile) -> Failure | None:
        """Why a client is sent no request."""
        return None

    def during(self, who: Profile, request: Message) -> Failure | None:
        """Why a client that was sent a request does not finish its work, which is then not computed."""
        return None

    def after(self, request: Message, result: Reply | Failure) -> Failure | None:
        """Why a result that was computed does not reach the server."""
        return None


@dataclass(frozen=True)
class Availability(AlwaysAvailable):
    """Batteries and dropout in one round; whatever a client does is charged.

    A client that drops out during its work, or before its reply arrives, does so in the exchange that does the work.
    """

    participation: RoundParticipation
    events: Mapping[int, DropoutEvent]  # by client
    auxiliary: bool = False  # a step around the exchange that does the work

    def before(self, who: Profile) -> Failure | None:
        if self.participation.battery_empty(who.id):
            return Failure(who, "battery", "its battery is empty")
        if (event := self.events.get(who.id)) is not None and event.when == "before":
            return Failure(who, "dropped", "before it was sent a request")
        return None

    def during(self, who: Profile, request: Message) -> Failure | None:
        """Nothing is computed for a client that drops out, but the finished fraction of its work is charged."""
        event = self.events.get(who.id)
        if event is None or event.when != "during" or self.auxiliary:
            return None
        work = event.fraction * self.participation.expected_work(who)
        ran_out = self.participation.charge(who, request.nbytes, work, 0)
        if ran_out is not None:
            return Failure(who, "battery", ran_out, work)
        return Failure(who, "dropped", f"after {event.fraction:.0%} of its work", work)

    def after(self, request: Message, result: Reply | Failure) -> Failure | None:
        who, up = result.profile, result.message.nbytes if isinstance(result, Reply) else 0
        if (ran_out := self.participation.charge(who, request.nbytes, result.work, up)) is not None:
            return Failure(who, "battery", ran_out, result.work)
        if who.id in self.events and not self.auxiliary:
            return Failure(who, "dropped", "its reply did not arrive", result.work)
        return None


def dispatch(
    engine: Engine,
    exchange: Exchange,
    server: Tensors,
    cohort: Sequence[Profile],
    context: RoundContext,
    store: Store,
    outcome: RoundOutcome,
    *,
    availability: AlwaysAvailable | None = None,
    norm_limit: float | None = None,
    spool: Spool | None = None,
    keep_state: bool = False,
) -> list[Reply]:
    """Send the cohort its requests and validate what comes back: the accepted replies, sorted by client id.

    Failures, traffic and work are added to `outcome`. Only with `keep_state` do clients' states change.
    """
    requests: dict[int, Message] = {}
    limits = availability or AlwaysAvailable()

    def jobs() -> Iterator[tuple[Profile, Message, Tensors]]:
        latest: Message | None = None
        for who in cohort:
            if (failure := limits.before(who)) is not None:
                outcome.failures.append(failure)
            elif (request := exchange.request(server, who, context)) is not None:
                # Most methods send all clients the same: one object, whose size and encoding are then known.
                request = latest if latest is not None and request.is_same(latest) else request
                latest = requests[who.id] = request
                outcome.traffic.send(request, exchange.first_contact_prefix)
                if (failure := limits.during(who, request)) is not None:
                    outcome.failures.append(failure)
                    outcome.work.append(failure.work)
                else:
                    yield replace(who, kept=store.kept(who.id)), request, store.load(who.id)

    def validated(result: Reply | Failure) -> Reply | Failure:
        who, request = result.profile, requests[result.profile.id]
        if (failure := limits.after(request, result)) is not None:
            return failure
        if isinstance(result, Reply):
            outcome.traffic.up += result.message.nbytes
            expected = exchange.expect(server, who, request)
            optional = [line.name for line in exchange.egress if line.optional]
            wrong = validate_reply(result.message, request, expected, norm_limit, exchange.update_prefix, optional)
            if wrong is not None:
                return Failure(who, "refused", wrong, result.work)
        return result

    accepted: list[Reply] = []
    earlier = len(outcome.failures)
    with closing(engine.dispatch(exchange, jobs(), context)) as results:
        for result in map(validated, results):
            outcome.work.append(result.work)
            if isinstance(result, Failure):
                outcome.failures.append(result)
                continue
            if keep_state:
                store.take(result, context.round)
            accepted.append(spool.keep(result) if spool is not None and exchange.spill_to_disk else result)
    accepted.sort(key=lambda reply: reply.profile.id)
    where = f"round {context.round + 1}, {exchange.name}"
    _log.debug("%s: %d requests, %d replies accepted", where, len(requests), len(accepted))
    for failure in outcome.failures[earlier:]:
        _log.info("%s: client %d %s: %s", where, failure.profile.id, failure.reason, failure.detail)
    outcome.sampled |= set(requests)
    if not exchange.auxiliary:
        outcome.replied |= {reply.profile.id for reply in accepted}
    losses = {reply.profile.id: _total_loss(reply) for reply in accepted}
    outcome.reported_losses.update({client: loss for client, loss in losses.items() if loss is not None})
    return accepted


def _total_loss(reply: Reply) -> float | None:
    """The training loss that a client reports, if it does."""
    terms = reply.message.part("loss/")
    return float(sum(float(value) for value in terms.values())) if terms else None
