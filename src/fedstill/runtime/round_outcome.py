"""The outcome of one round: clients sampled and accepted, failures, traffic, and its record in the journal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedstill.core.message import Message
from fedstill.core.participation_protocols import DropoutEvent
from fedstill.core.protocols import BLAMELESS, Failure
from fedstill.core.records import FailureRecord, SurveyRecord, TrafficRecord
from fedstill.runtime.reply_validation import NOT_FINITE


@dataclass
class Traffic:
    """Measured bytes of one round; `first_contact` is the part of `down` that clients get at first contact only."""

    up: int = 0
    down: int = 0
    first_contact: int = 0

    def send(self, request: Message, first_contact_prefix: str | None) -> None:
        """Count a request, and by how much it would be shorter without what is sent at first contact."""
        self.down += request.nbytes
        if first_contact_prefix is not None:
            later = {name: tensor for name, tensor in request.items() if not name.startswith(first_contact_prefix)}
            self.first_contact += request.nbytes - Message(later).nbytes

    def record(self) -> TrafficRecord:
        return TrafficRecord(up=self.up, down=self.down, first_contact=self.first_contact or None)


@dataclass
class RoundOutcome:
    """What became of one round's requests.

    `work` is what each client computed, of one that dropped out during its work the finished fraction. Fractions are
    added up only in the end and exactly, since a running sum would depend on the order of replies.
    """

    dropout_events: dict[int, DropoutEvent] = field(default_factory=dict)  # by client
    sampled: set[int] = field(default_factory=set)
    replied: set[int] = field(default_factory=set)  # whose reply was accepted in some exchange
    failures: list[Failure] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    work: list[float] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)  # mean training loss by term
    reported_losses: dict[int, float] = field(default_factory=dict)  # total training loss by client
    surveys: list[SurveyRecord] = field(default_factory=list)  # those in which a client failed
    skipped: str | None = None
    participation: Mapping[str, Any] = field(default_factory=dict)  # what participation adds to the record

    @property
    def failed(self) -> set[int]:
        return {failure.profile.id for failure in self.failures}

    @property
    def accepted(self) -> list[int]:
        """Clients whose replies to all requests of the round were accepted."""
        return sorted(self.replied - self.failed)

    @property
    def replaceable(self) -> list[int]:
        """Clients that failed by dropout or an empty battery, whom replacement clients can stand for."""
        return sorted(failure.profile.id for failure in self.failures if failure.reason in BLAMELESS)

    def record(self) -> dict[str, Any]:
        """The round's part of its record: nothing in it depends on time, engine or the order of replies."""
        return {
            "sampled": sorted(self.sampled),
            "accepted": self.accepted,
            "failures": failure_records(self.failures),
            "skipped": self.skipped,
            "bytes": self.traffic.record(),
            "work": math.fsum(self.work),
            "loss": self.losses,
            "surveys": self.surveys or None,
            **self.participation,
        }

    def add_survey(self, name: str, survey: RoundOutcome) -> None:
        """Add a survey's traffic, work and failures."""
        self.traffic.up += survey.traffic.up
        self.traffic.down += survey.traffic.down
        self.traffic.first_contact += survey.traffic.first_contact
        self.work += survey.work
        if survey.failures:
            failures = failure_records(survey.failures)
            self.surveys.append(SurveyRecord(name=name, sampled=len(survey.sampled), failures=failures))


def failure_records(failures: Iterable[Failure]) -> tuple[FailureRecord, ...]:
    """Failures as the journal records them, sorted by client."""
    return tuple(
        FailureRecord(client=one.profile.id, reason=one.reason, detail=one.detail)
        for one in sorted(failures, key=lambda one: one.profile.id)
    )


def by_reason(failures: Sequence[FailureRecord]) -> str:
    """The number of failures for each reason.

    >>> refused = FailureRecord(client=0, reason="refused", detail="w holds numbers that are not finite")
    >>> by_reason([refused, FailureRecord(client=1, reason="dropped", detail="")])
    '1 dropped, 1 refused as not finite'
    """
    counts = Counter(one.reason for one in failures)
    notes = {"refused": " as not finite"} if only_not_finite(failures) else {}
    return ", ".join(f"{counts[reason]} {reason}{notes.get(reason, '')}" for reason in sorted(counts))


def only_not_finite(failures: Iterable[FailureRecord]) -> bool:
    """Whether replies were refused, and every one of them for numbers that are not finite."""
    refused = [one.detail for one in failures if one.reason == "refused"]
    return bool(refused) and all(detail.endswith(NOT_FINITE) for detail in refused)
