"""One round, from top to bottom: sample a cohort, dispatch requests, validate replies, aggregate.

No method, engine or policy has a loop of its own over rounds. `run.py` evaluates and commits what a round gives.

fleet --survey, sample--> cohort --prepare, request--> Message --engine.dispatch--> Client.reply
  ^                         ^ replacement clients                                      |
  '---- rest, charge -------'---- validate against `expect`, refuse, record <----------'
                      | accepted replies, sorted by client id
                   aggregate --> next exchange of the round, or the end of it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fedstill.core.errors import RunError
from fedstill.core.participation_protocols import Participation, RoundParticipation
from fedstill.core.protocols import Engine, Exchange, Failure, Method, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.sums import SkipRound
from fedstill.core.task import Tensors
from fedstill.runtime.checkpoint import Progress
from fedstill.runtime.client_store import Store
from fedstill.runtime.dispatch import Availability, dispatch
from fedstill.runtime.round_outcome import RoundOutcome, by_reason, failure_records
from fedstill.runtime.spool import Spool

LAST_ROUND = "since"  # the name in checkpoints of the round of each client's last accepted reply


class EveryClientFailedError(RunError):
    """All clients of an exchange failed with an error of their own."""


@dataclass(frozen=True)
class Federation:
    """The parts of a run, and how they run one round."""

    method: Method
    participation: Participation
    engine: Engine
    profiles: Sequence[Profile]
    streams: Streams
    rounds: int
    min_replies: int = 1
    norm_limit: float | None = None
    spool: Spool = field(default_factory=Spool)

    def begin(self, store: Store) -> Progress:
        """The state before the first round."""
        return Progress(
            round=0,
            server=_in_order(self.method.start(self.streams)),
            fleet=_in_order(self.participation.start(self.profiles, self.streams.at("fleet"))),
            clients={**store.versions(), LAST_ROUND: torch.full((len(self.profiles),), -1)},
        )

    def run_round(self, progress: Progress, store: Store) -> tuple[Progress, RoundOutcome]:
        """Sample a cohort; for each exchange dispatch requests, validate replies and aggregate.

        A round with too few replies is skipped: nothing that was aggregated or staged in it counts, but devices are
        charged for it.
        """
        server, outcome = progress.server, RoundOutcome()
        context = self._context(progress.round, "select")
        participation = self.participation.begin_round(progress.fleet, self.profiles, context)
        self._survey(participation, server, progress, store, outcome)
        cohort = self._sample(participation.cohort(), progress)
        outcome.dropout_events.update(participation.dropout_events([who.id for who in cohort]))
        for place, exchange in enumerate(self.method.exchanges(server, progress.round)):
            context = self._context(progress.round, exchange.name)
            server = exchange.prepare(server, context)
            earlier = len(outcome.failures)
            replies = self._dispatch(exchange, server, cohort, context, store, outcome, participation)
            while not place and (replacements := participation.replacements(outcome.replaceable)):
                added = self._sample(replacements.values(), progress)
                events = participation.dropout_events([who.id for who in added], replacing=True)
                outcome.dropout_events.update(events)
                replies += self._dispatch(exchange, server, added, context, store, outcome, participation)
                cohort = sorted([*cohort, *added], key=lambda who: who.id)
            replies.sort(key=lambda reply: reply.profile.id)
            outcome.losses.update(_mean_losses(replies))
            failures = outcome.failures[earlier:]
            if exchange.min_replies is None:  # an exchange with a limit of its own may fail for every client
                stop_if_all_failed(failures, replies)
            outcome.skipped = self._too_few(exchange, replies, cohort, failures)
            if outcome.skipped is not None:
                return self._skip(progress, store, outcome, participation)
            try:
                server = exchange.aggregate(server, replies, replace(context, failures=tuple(outcome.failures)))
            except SkipRound as why:
                outcome.skipped = str(why)
                return self._skip(progress, store, outcome, participation)
            self.spool.clear()
            cohort = [who for who in cohort if who.id not in outcome.failed]
        last_round = progress.clients[LAST_ROUND].clone()
        last_round[sorted(outcome.replied)] = progress.round
        after = replace(
            progress,
            round=progress.round + 1,
            server=_in_order(server),
            fleet=self._end(participation, outcome),
            clients={**store.versions(), LAST_ROUND: last_round},
        )
        return after, outcome

    def _too_few(
        self, exchange: Exchange, replies: Sequence[Reply], cohort: Sequence[Profile], failures: Sequence[Failure]
    ) -> str | None:
        """Why the round is skipped: it has fewer replies than are needed. None: it has enough."""
        needed = self.min_replies if exchange.min_replies is None else exchange.min_replies
        if len(replies) >= needed:
            return None
        why = f" ({by_reason(failure_records(failures))})" if failures else ""
        return f"{len(replies)} of {len(cohort)} replies{why}, and {needed} are needed"

    def _skip(
        self, progress: Progress, store: Store, outcome: RoundOutcome, participation: RoundParticipation
    ) -> tuple[Progress, RoundOutcome]:
        """The run after a round that does not count."""
        outcome.reported_losses.clear()
        fleet = self._end(participation, outcome)
        outcome.replied.clear()
        store.discard()
        server = self.method.skipped(progress.server) if outcome.sampled else progress.server
        return replace(progress, round=progress.round + 1, server=_in_order(server), fleet=fleet), outcome

    def _end(self, participation: RoundParticipation, outcome: RoundOutcome) -> Tensors:
        """The fleet after the round; what participation records of it goes into the outcome."""
        self.spool.clear()
        fleet = participation.end(outcome.accepted, outcome.reported_losses)
        outcome.participation = participation.record()
        return _in_order(fleet)

    def _sample(self, clients: Iterable[int], progress: Progress) -> list[Profile]:
        """The profiles of these clients, each with the round of its last accepted reply, sorted by id."""
        last = progress.clients[LAST_ROUND]
        return [
            replace(self.profiles[client], last_round=int(last[client]) if last[client] >= 0 else None)
            for client in sorted(clients)
        ]

    def _context(self, round: int, exchange: str) -> RoundContext:
        return RoundContext.of(self.streams, round, self.rounds, len(self.profiles), exchange)

    def _survey(
        self,
        participation: RoundParticipation,
        server: Tensors,
        progress: Progress,
        store: Store,
        outcome: RoundOutcome,
    ) -> None:
        """Run the exchanges that client sampling needs first; a client that fails in one can still be sampled."""
        for exchange, clients in participation.surveys(self.method.models(server)):
            context = self._context(progress.round, exchange.name)
            cohort, survey = self._sample(clients, progress), RoundOutcome()
            replies = self._dispatch(
                exchange, participation.fleet, cohort, context, store, survey, participation, survey=True
            )
            if progress.round == 0:  # later surveys reach only clients without an accepted reply so far
                stop_if_all_failed(survey.failures, replies)
            outcome.add_survey(exchange.name, survey)
            participation.fleet = exchange.aggregate(participation.fleet, replies, context)

    def _dispatch(
        self,
        exchange: Exchange,
        server: Tensors,
        cohort: Sequence[Profile],
        context: RoundContext,
        store: Store,
        outcome: RoundOutcome,
        participation: RoundParticipation,
        *,
        survey: bool = False,
    ) -> list[Reply]:
        """Send the cohort its requests and validate what comes back: the accepted replies, sorted by client id."""
        return dispatch(
            self.engine,
            exchange,
            server,
            cohort,
            context,
            store,
            outcome,
            availability=Availability(participation, outcome.dropout_events, exchange.auxiliary),
            norm_limit=self.norm_limit,
            spool=self.spool,
            keep_state=not (survey or exchange.auxiliary),
        )


def _in_order(state: Tensors) -> Tensors:
    """By name, as a checkpoint would give it back: nothing may depend on whether the run was resumed."""
    return dict(sorted(state.items()))


def _mean_losses(replies: Sequence[Reply]) -> Mapping[str, float]:
    """The clients' training losses by term, weighted by samples."""
    total = sum(reply.profile.samples for reply in replies)
    means: dict[str, float] = {}
    for reply in replies:
        for name, value in reply.message.part("loss/").items():
            means[name] = means.get(name, 0.0) + float(value) * reply.profile.samples / total
    return means


def stop_if_all_failed(failures: Sequence[Failure], replies: Sequence[Reply]) -> None:
    """An error at one client is that client's; one at every client is the experiment's, and no later round mends it."""
    if failures and not replies and all(one.reason == "failed" or one.declined for one in failures):
        raise EveryClientFailedError(
            f"every client failed; client {failures[0].profile.id} reports: {failures[0].detail}"
        )
