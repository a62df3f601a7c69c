"""A journal that grows while it is read: only new lines are read, and of long ones every second point is kept."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import Any

from fedstill.core.earlier_records import current_round
from fedstill.live.bounded_files import (
    MOST,
    Stamp,
    finite,
    mapping_of,
    read_part,
    section_of,
    short_name_of,
    short_text,
    stamp_of,
    whole,
)

_log = logging.getLogger(__name__)
JOURNAL = "journal.jsonl"
_POINTS = 2000  # of a curve; of more, every second one is dropped
_FAILURES = 20  # the last ones are shown
_HEAD = 64  # bytes by which a file that was written anew is recognised
_NAMES = 40  # metrics of one run


@dataclass
class WatchedCourse:
    """What is known of a run's rounds."""

    round: int = 0
    lines: int = 0
    damaged: int = 0  # lines that are no rounds
    rounds: list[int] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=dict)  # by metric and round; nan: not finite
    best: float | None = None
    best_round: int = 0
    last: float | None = None
    failed: int = 0  # replies that did not count
    skipped: int = 0
    failures: deque[str] = field(default_factory=lambda: deque(maxlen=_FAILURES))
    bytes: int = 0
    non_finite: int = 0  # rounds whose model is not finite
    _stride: int = 1

    def add(self, record: Mapping[str, Any]) -> None:
        self.round, self.lines = whole(record.get("round")), self.lines + 1
        test = section_of(record, "evaluation", "test")
        further = section_of(record, "evaluation", "further", "test")
        self._count(record)
        measured = {short_name_of(name): finite(value) for name, value in {**test, **further}.items()}
        if section_of(record, "evaluation").get("finite") is False:
            self.non_finite += 1
        accuracy = measured.get("accuracy")
        if accuracy is not None:
            self.last = accuracy
            if self.best is None or accuracy > self.best:
                self.best, self.best_round = accuracy, self.round
        losses = [number for value in section_of(record, "loss").values() if (number := finite(value)) is not None]
        if losses:
            measured["training loss"] = finite(sum(losses))
        if measured and self.lines % self._stride == 0:
            self._keep(measured)

    def _count(self, record: Mapping[str, Any]) -> None:
        failures = record.get("failures")
        for one in failures if isinstance(failures, list) else []:
            self.failed += 1
            why = section_of(one)
            told = short_text(why.get("detail")) or short_text(why.get("reason"))
            self.failures.append(f"round {self.round}, client {whole(why.get('client'))}: {told}")
        if reason := short_text(record.get("skipped")):
            self.skipped += 1
            self.failures.append(f"round {self.round} was skipped: {reason}")
        traffic = section_of(record, "bytes")
        self.bytes += whole(traffic.get("up")) + whole(traffic.get("down"))

    def _keep(self, measured: Mapping[str, float | None]) -> None:
        for name in measured:
            if name not in self.values and len(self.values) < _NAMES:
                self.values[name] = [None] * len(self.rounds)
        self.rounds.append(self.round)
        for name, values in self.values.items():
            value = measured.get(name)
            values.append(nan if value is None and name in measured else value)
        if len(self.rounds) > _POINTS:
            self._stride *= 2
            self.rounds = self.rounds[1::2]
            self.values = {name: values[1::2] for name, values in self.values.items()}

    def curve(self, name: str = "accuracy", most: int = _POINTS) -> list[list[float | None]]:
        """Rounds and values of a metric, at most so many, the last one among them; None: the value is not finite."""
        pairs = [
            (round, value)
            for round, value in zip(self.rounds, self.values.get(name, ()), strict=False)
            if value is not None
        ]
        step = max(1, -(-len(pairs) // most))
        first = (len(pairs) - 1) % step
        return [[round, None if isnan(value) else float(f"{value:.5g}")] for round, value in pairs[first::step]]


class JournalReader:
    """Reads what has been added since the last look; from the beginning where the file is another one, or shorter."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.course = WatchedCourse()
        self.stamp: Stamp | None = None
        self._place = 0
        self._head = b""
        self._skips = False  # within a line that is too long to be a round

    @property
    def behind(self) -> bool:
        """Whether there is more to read than one look allows."""
        return self.stamp is not None and self.stamp[1] - self._place > MOST

    def look(self) -> bool:
        """Whether something was new."""
        stamp = stamp_of(self.path)
        if stamp == self.stamp and not self.behind:
            return False
        head = read_part(self.path, 0, _HEAD)
        if stamp is None or self._is_another(stamp, head):
            self.course, self._place, self._head, self._skips = WatchedCourse(), 0, b"", False
        self.stamp = stamp
        self._head = self._head or head
        if stamp is not None:
            self._read()
        return True

    def _is_another(self, stamp: Stamp, head: bytes) -> bool:
        replaced = self.stamp is not None and stamp[0] != self.stamp[0]
        return replaced or stamp[1] < self._place or not head.startswith(self._head)

    def _read(self) -> None:
        data = read_part(self.path, self._place)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == MOST:  # no line of a journal is as long
            self._place, self._skips = self._place + len(data), True
            return
        self._place += end
        for line in data[:end].splitlines():
            if self._skips:
                self._skips = False
                self.course.damaged += 1
            elif line.strip():
                self._add(line)

    def _add(self, line: bytes) -> None:
        record = mapping_of(line)
        try:
            current = current_round(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # of an earlier format, and damaged
            _log.debug("a line of a journal cannot be read: %r", error)
            current = {}
        if whole(current.get("round")):
            self.course.add(current)
        else:
            self.course.damaged += 1
