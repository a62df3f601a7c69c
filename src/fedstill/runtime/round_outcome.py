"""What became of one round: who was asked, heard and lost, what was sent, and what the journal says of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedstill.core.message import Message
from fedstill.core.protocols import BLAMELESS, DropoutEvent, Failure
from fedstill.runtime.reply_validation import NOT_FINITE


@dataclass
class Traffic:
    """Measured bytes of one round; of those that went down, `once` are what clients get at first contact only."""

    up: int = 0
    down: int = 0
    once: int = 0

    def send(self, request: Message, once: str | None) -> None:
        """Count a request; what goes once is what the request would be shorter by without it."""
        self.down += request.nbytes
        if once is not None:
            again = Message({name: tensor for name, tensor in request.items() if not name.startswith(once)})
            self.once += request.nbytes - again.nbytes

    def record(self) -> dict[str, int]:
        return {"up": self.up, "down": self.down, **({"once": self.once} if self.once else {})}


@dataclass
class Outcome:
    """What became of one round's requests.

    `work` is what each client did, lost or not: of one that was lost on the way the share that it had done. Shares are
    not whole numbers, and are added up only in the end and exactly, since a running sum would depend on who came first.
    """

    fates: dict[int, DropoutEvent] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    heard: set[int] = field(default_factory=set)  # whose reply was accepted in some exchange
    lost: list[Failure] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    work: list[float] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)
    told: dict[int, float] = field(default_factory=dict)  # the loss that each client reported
    surveys: list[dict[str, Any]] = field(default_factory=list)  # those in which somebody was lost
    skipped: str | None = None
    attended: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gone(self) -> set[int]:
        return {lost.profile.id for lost in self.lost}

    @property
    def missing(self) -> list[int]:
        """Those that others could stand in for."""
        return sorted(lost.profile.id for lost in self.lost if lost.reason in BLAMELESS)

    def record(self) -> dict[str, Any]:
        """The journal's view: nothing in it depends on time, engine or the order of arrival."""
        return {
            "asked": sorted(self.asked),
            "accepted": sorted(self.heard - self.gone),
            "lost": failure_records(self.lost),
            "skipped": self.skipped,
            "bytes": self.traffic.record(),
            "work": math.fsum(self.work),
            "loss": self.losses,
            **({"surveys": self.surveys} if self.surveys else {}),
            **({"fleet": dict(self.attended)} if self.attended else {}),
        }

    def was_asked(self, name: str, survey: Outcome) -> None:
        """Add what a survey cost, and who was lost in it."""
        self.traffic.up += survey.traffic.up
        self.traffic.down += survey.traffic.down
        self.traffic.once += survey.traffic.once
        self.work += survey.work
        if survey.lost:
            self.surveys.append({"name": name, "asked": len(survey.asked), "lost": failure_records(survey.lost)})


def failure_records(lost: Iterable[Failure]) -> list[dict[str, Any]]:
    """Who was lost, as the journal tells it."""
    return [
        {"client": one.profile.id, "reason": one.reason, "detail": one.detail}
        for one in sorted(lost, key=lambda one: one.profile.id)
    ]


def by_reason(lost: Sequence[Mapping[str, Any]]) -> str:
    """How many were lost why, of those that the journal tells of.

    >>> by_reason([{"reason": "refused", "detail": "w holds numbers that are not finite"}, {"reason": "dropped"}])
    '1 dropped, 1 refused as not finite'
    """
    counts = Counter(one["reason"] for one in lost)
    notes = {"refused": " as not finite"} if only_not_finite(lost) else {}
    return ", ".join(f"{counts[reason]} {reason}{notes.get(reason, '')}" for reason in sorted(counts))


def only_not_finite(lost: Iterable[Mapping[str, Any]]) -> bool:
    """Whether replies were refused, and every one of them for numbers that are not finite."""
    refused = [one["detail"] for one in lost if one["reason"] == "refused"]
    return bool(refused) and all(detail.endswith(NOT_FINITE) for detail in refused)
