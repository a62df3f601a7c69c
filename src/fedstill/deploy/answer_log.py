"""One answer per question: what this site has answered, in every run, on its own disk.

A question's place is its run, round, exchange and attempt. The first request for a place is answered; the same request
gets the same bytes again, so that a lost connection or a restarted server costs nothing; another request for that place
is refused. Bytes are kept for the last round that was answered, digests for all.

    answers/<run>.jsonl        one line per answer: its place, digest of the request and of the reply
    answers/<run>/<sha256>     the bytes of a reply of the last round

A line is the commit: the reply's bytes and the site's new state are on disk before it, and the reply leaves after it.
A process that is killed in between has answered nothing, and computes the same answer again. A last line that a power
failure cut is dropped for the same reason. Reading changes nothing, since `fedstill deploy policy check` reads while a
site is writing; what a kill left behind is cleared away before the first line is written.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError, RunError
from fedstill.core.files import append_line, disk_trouble, read_file, sweep_temporaries, write_atomically
from fedstill.core.message import Message, digest
from fedstill.core.noise import StepNoise
from fedstill.deploy.egress_log import Place

_log = logging.getLogger(__name__)

Header = dict[str, str | int | float]

_IDENTIFYING = ("run", "exchange", "round", "attempt", "client", "since", "kept", "state")


class OtherRequestError(InputError):
    """The place of a question has been taken by another request, or lies in the past."""


class TakenError(OtherRequestError):
    """Another request took that very place: the server may name a further attempt, if the policy accepts one."""


@dataclass(frozen=True)
class QuestionPlace:
    """Where a question stands: rounds are counted from 0."""

    run: str
    round: int
    exchange: str
    attempt: int = 0

    def __str__(self) -> str:
        again = f", attempt {self.attempt + 1}" if self.attempt else ""
        return f"round {self.round + 1}, {self.exchange}{again}"


@dataclass(frozen=True)
class LoggedAnswer:
    """A line of the log."""

    round: int
    exchange: str
    attempt: int
    request: str  # digest of what was asked
    reply: str  # sha256 of the reply's bytes; empty where the site failed or abstained
    header: Header  # sent with it
    withheld: tuple[str, ...] = ()  # patterns that the policy took out of it
    noise: float | None = None  # in units of the clip; 0: none in what was learnt from data; None: nothing of the kind
    steps: StepNoise | None = None  # the noisy steps of training behind it; None: there were none

    @property
    def counts(self) -> bool:
        """Whether something left that may depend on the data: a reply, or that there is none, which a request can seek.

        What this site withheld by its policy does not.
        """
        return bool(self.reply) or self.header.get("status") != "refused"


@dataclass(frozen=True)
class Used:
    """What this site has given so far, over all of its runs."""

    rounds: int
    answers: int  # replies, and failures to reply
    noise: tuple[float, ...]  # of each reply with something learnt from the data
    steps: tuple[StepNoise | None, ...]  # of training behind each of these replies; None: without noise


class AnswerLog:
    """The answers of one site, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, list[LoggedAnswer]] = {}
        self._swept = False
        for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            self.runs[path.stem] = _read(path)

    @property
    def used(self) -> Used:
        """Rounds and answers over all runs; a round that was answered in part counts."""
        given = [(run, one) for run, one in self._all() if one.counts]
        learnt = [(one.noise, one.steps) for _, one in given if one.reply and one.noise is not None]
        noise, steps = tuple(one for one, _ in learnt), tuple(one for _, one in learnt)
        return Used(len({(run, one.round) for run, one in given if one.reply}), len(given), noise, steps)

    def check_holds(self, departed: Mapping[Place, int]) -> None:
        """Refuse to answer where replies left of which nothing is known here: each could be asked for again.

        A place that was answered again after a reset has two answers.
        """
        known = Counter((run.partition("~")[0], one.round, one.exchange, one.attempt) for run, one in self._all())
        for (run, round, exchange, attempt), times in departed.items():
            if known[run, round, exchange, attempt] < times:
                raise InputError(
                    f"the log of what left has {QuestionPlace(run, round, exchange, attempt)} of run {run}, and"
                    f" {self.folder} does not: it was deleted, or comes from a backup; restore the latest one, since"
                    " without it a server could ask for the same again"
                )

    def unlogged(self, known: Set[Place]) -> int:
        """How many replies are here of whose place the log of what left has no line."""
        replies = ((run.partition("~")[0], one) for run, one in self._all() if one.reply)
        return len({(run, one.round, one.exchange, one.attempt) for run, one in replies} - known)

    def _all(self) -> Iterator[tuple[str, LoggedAnswer]]:
        return ((run, one) for run, lines in self.runs.items() for one in lines)

    def begun(self, place: QuestionPlace) -> bool:
        """Whether an answer was given in that round already."""
        return any(one.round == place.round and one.reply for one in self.runs.get(place.run, ()))

    def find(self, place: QuestionPlace, request: str, withheld: tuple[str, ...] = ()) -> tuple[Message, Header] | None:
        """What was answered to this request already; None: nothing yet. Refuses another request for its place."""
        lines = self.runs.get(place.run, [])
        last = max((one.round for one in lines), default=-1)
        if place.round < last:
            raise OtherRequestError(
                f"this site has answered round {last + 1} of this run, and is asked for round {place.round + 1} again:"
                " the server must go on in the run's own folder; if that was lost, or restored from a backup, it needs"
                " `fedstill deploy reset` here"
            )
        held = next((one for one in lines if _place(one, place.run) == place), None)
        if held is None:
            return None
        if held.request != request:
            raise TakenError(f"this site has answered another request for {place}")
        if not held.reply:
            return None  # it failed then: the same request may be tried again
        if held.withheld != withheld:
            raise OtherRequestError(f"this site's policy has changed since it answered {place}")
        return self._reply(place.run, held), dict(held.header)

    def _reply(self, run: str, held: LoggedAnswer) -> Message:
        path = self.folder / run / held.reply
        try:
            data = read_file(path)
        except OSError as error:
            raise RunError(f"the reply that this site gave before is missing in {path}: {error.strerror}") from None
        if sha256(data).hexdigest() != held.reply:
            raise RunError(f"the reply that this site gave before is damaged in {path}")
        return Message(Message.decode(data))

    def add(
        self,
        place: QuestionPlace,
        request: str,
        message: Message | None,
        header: Mapping[str, str | int | float],
        withheld: tuple[str, ...] = (),
        noise: float | None = None,
        steps: StepNoise | None = None,
    ) -> LoggedAnswer:
        """Commit an answer, before it leaves; without a message, that this request was not answered with one."""
        reply = ""
        if message is not None:
            data = message.encode()
            reply = sha256(data).hexdigest()
            write_atomically(self._made(place.run) / reply, data)
        made = LoggedAnswer(
            place.round, place.exchange, place.attempt, request, reply, dict(header), withheld, noise, steps
        )
        lines = self.runs.setdefault(place.run, [])
        append_line(self._made() / f"{place.run}.jsonl", f"{json.dumps(asdict(made), sort_keys=True)}\n".encode())
        earlier = {one.reply for one in lines if one.round < place.round}
        lines[:] = [*(one for one in lines if _place(one, place.run) != place), made]
        current = {one.reply for one in lines if one.round == place.round}
        for path in (self.folder / place.run).glob("*") if earlier else ():
            if path.name in earlier - current:
                path.unlink(missing_ok=True)
        return made

    def _sweep(self) -> None:
        """Clear away what a process that was killed left half-written; only who may write here does that."""
        if self._swept or not self.folder.is_dir():
            return
        for folder in (self.folder, *(one for one in self.folder.iterdir() if one.is_dir())):
            sweep_temporaries(folder)
        for path in self.folder.glob("*.jsonl"):
            whole, newline, rest = read_file(path).rpartition(b"\n")
            if rest:
                _log.warning("the last line of %s is incomplete and was never acted on: it is removed", path)
                write_atomically(path, whole + newline)
        self._swept = True

    def _made(self, run: str = "") -> Path:
        self._sweep()
        folder = self.folder / run
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_trouble(folder, error) from error
        return folder

    def given(self, run: str) -> int:
        """The number of answers in a run, which can be set aside; refuses a run in which there is none."""
        if run not in self.runs or "~" in run:  # the latter were set aside already
            raise InputError(f"this site has answered nothing in a run {run!r}: {_known(self.runs)}")
        return len(self.runs[run])

    def reset(self, run: str) -> int:
        """Let a run's rounds be asked for again, by this site's operator; gives the number of answers set aside.

        The answers still count as given: the lines are kept under another name.
        """
        self.given(run)
        self._sweep()
        path = self.folder / f"{run}.jsonl"
        lines = self.runs.pop(run)
        number = 1 + max((int(one.stem.rpartition("~")[2]) for one in self.folder.glob(f"{run}~*.jsonl")), default=0)
        path.rename(self.folder / f"{run}~{number}.jsonl")
        shutil.rmtree(self.folder / run, ignore_errors=True)
        self.runs[f"{run}~{number}"] = lines
        return len(lines)


def request_digest(request: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    """The digest of a request: its tensors, and the place and the site's state in its header."""
    said = json.dumps({name: header.get(name, 0 if name == "attempt" else None) for name in _IDENTIFYING})
    return sha256(f"{said}\n{digest(request)}".encode()).hexdigest()


def _place(one: LoggedAnswer, run: str) -> QuestionPlace:
    return QuestionPlace(run, one.round, one.exchange, one.attempt)


def _known(runs: Mapping[str, Any]) -> str:
    names = [run for run in runs if "~" not in run]
    return f"its runs are {', '.join(names)}" if names else "it has answered in none"


def _read(path: Path) -> list[LoggedAnswer]:
    """The lines of a run's log, the last for each place; one that is being written, or was cut, counts for nothing."""
    whole, _, _ = read_file(path).rpartition(b"\n")
    found: dict[tuple[int, str, int], LoggedAnswer] = {}
    for line in whole.splitlines():
        try:
            told = json.loads(line)
            steps = StepNoise(**told["steps"]) if told.get("steps") else None  # which earlier versions did not write
            one = LoggedAnswer(**{**told, "withheld": tuple(told["withheld"]), "steps": steps})
            found[one.round, one.exchange, one.attempt] = one
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RunError(
                f"the log of answers {path} is damaged: without it this site cannot know what it has answered; restore"
                " it from a backup"
            ) from error
    return list(found.values())
