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
from fedstill.core.protocols import (
    Engine,
    Exchange,
    Failure,
    Method,
    Participation,
    Profile,
    Reply,
    RoundContext,
    RoundParticipation,
)
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.runtime.checkpoint import Progress
from fedstill.runtime.client_store import Store
from fedstill.runtime.dispatch import Availability, dispatch
from fedstill.runtime.round_outcome import Outcome, by_reason, failure_records
from fedstill.runtime.spool import Spool


class EveryClientFailedError(RunError):
    """Not one client of an exchange could answer: the experiment is at fault, or something they all depend on."""


@dataclass(frozen=True)
class Federation:
    """The parts of a run, and how they play one round."""

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
        since = torch.full((len(self.profiles),), -1)
        return Progress(
            round=0,
            server=_in_order(self.method.start(self.streams)),
            fleet=_in_order(self.participation.start(self.profiles, self.streams.at("fleet"))),
            clients={**store.versions(), "since": since},
        )

    def run_round(self, progress: Progress, store: Store) -> tuple[Progress, Outcome]:
        """Sample a cohort; for each exchange dispatch requests, validate replies and aggregate.

        A round with too few replies is skipped: nothing that was aggregated or staged in it counts, but what it cost
        the devices does.
        """
        server, outcome = progress.server, Outcome()
        book = self.participation.attend(progress.fleet, self.profiles, self._turn(progress.round, "select"))
        self._survey(book, server, progress, store, outcome)
        cohort = self._known(book.cohort(), progress)
        outcome.fates.update(book.fates([who.id for who in cohort]))
        for place, exchange in enumerate(self.method.exchanges(server, progress.round)):
            context = self._turn(progress.round, exchange.name)
            server = exchange.prepare(server, context)
            before = len(outcome.lost)
            replies = self._dispatch(exchange, server, cohort, context, store, outcome, book)
            while not place and (others := book.stand_ins(outcome.missing)):
                asked = self._known(others.values(), progress)
                outcome.fates.update(book.fates([who.id for who in asked], standing_in=True))
                replies += self._dispatch(exchange, server, asked, context, store, outcome, book)
                cohort = sorted([*cohort, *asked], key=lambda who: who.id)
            replies.sort(key=lambda reply: reply.profile.id)
            outcome.losses.update(_mean_losses(replies))
            if (
                exchange.min_replies is None
            ):  # where one is asked for all, its misfortune is no fault of the experiment's
                _stop_if_all_failed(outcome.lost[before:], replies)
            least = self.min_replies if exchange.min_replies is None else exchange.min_replies
            if len(replies) < least:
                gone = failure_records(outcome.lost[before:])
                why = f" ({by_reason(gone)})" if gone else ""
                outcome.skipped = f"{len(replies)} of {len(cohort)} replies{why}, and {least} are needed"
                outcome.told.clear()
                fleet = self._after(book, outcome)
                outcome.heard.clear()
                store.discard()
                return replace(progress, round=progress.round + 1, fleet=fleet), outcome
            server = exchange.aggregate(server, replies, replace(context, failures=tuple(outcome.lost)))
            self.spool.clear()
            cohort = [who for who in cohort if who.id not in outcome.gone]
        since = progress.clients["since"].clone()
        since[sorted(outcome.heard)] = progress.round
        clients = {**store.versions(), "since": since}
        fleet = self._after(book, outcome)
        after = replace(progress, round=progress.round + 1, server=_in_order(server), fleet=fleet, clients=clients)
        return after, outcome

    def _after(self, book: RoundParticipation, outcome: Outcome) -> Tensors:
        """The fleet after the round, of which the journal is told."""
        self.spool.clear()
        fleet = book.end(sorted(outcome.heard - outcome.gone), outcome.told)
        outcome.attended = book.record()
        return _in_order(fleet)

    def _known(self, clients: Iterable[int], progress: Progress) -> list[Profile]:
        """Clients as the server knows them, by id."""
        since = progress.clients["since"]
        return [
            replace(self.profiles[client], last_round=int(since[client]) if since[client] >= 0 else None)
            for client in sorted(clients)
        ]

    def _turn(self, round: int, exchange: str) -> RoundContext:
        return RoundContext.of(self.streams, round, self.rounds, len(self.profiles), exchange)

    def _survey(
        self, book: RoundParticipation, server: Tensors, progress: Progress, store: Store, outcome: Outcome
    ) -> None:
        """Ask what participation wants to know before it chooses; who does not answer is chosen without."""
        for exchange, clients in book.surveys(self.method.models(server)):
            context = self._turn(progress.round, exchange.name)
            asked = Outcome()
            replies = self._dispatch(
                exchange, book.fleet, self._known(clients, progress), context, store, asked, book, survey=True
            )
            if progress.round == 0:  # later only those are asked that were not heard before
                _stop_if_all_failed(asked.lost, replies)
            outcome.was_asked(exchange.name, asked)
            book.fleet = exchange.aggregate(book.fleet, replies, context)

    def _dispatch(
        self,
        exchange: Exchange,
        server: Tensors,
        cohort: Sequence[Profile],
        context: RoundContext,
        store: Store,
        outcome: Outcome,
        book: RoundParticipation,
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
            availability=Availability(book, outcome.fates),
            norm_limit=self.norm_limit,
            spool=self.spool,
            keep_state=not survey,
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


def _stop_if_all_failed(lost: Sequence[Failure], replies: Sequence[Reply]) -> None:
    """A client that fails is a client's misfortune; if every one does, the experiment is at fault."""
    if lost and not replies and all(one.reason == "failed" for one in lost):
        raise EveryClientFailedError(f"every client failed; client {lost[0].profile.id} says: {lost[0].detail}")
