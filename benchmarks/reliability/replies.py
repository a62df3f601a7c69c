"""Replies that are spoilt on their way: each is refused with a reason, or is one that a client might have meant.

In every kind of experiment one client's reply in the first round is spoilt, in whichever exchange; then the run goes
on to its end. What does not look like an honest reply must be refused, in one line of the journal, and nothing else
may differ from a run in which that reply never came: not the models, not what others keep, not the fleet. What does
look like one may count, whatever it says; the server must live with it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.reliability.lies import BYTES, TENSORS, fits
from benchmarks.reliability.worlds import WORLDS, experiment, write_data
from benchmarks.report import Findings, Row
from benchmarks.sizes import Size
from fedstill.core.client import answer
from fedstill.core.message import Message, MessageError, digest
from fedstill.core.protocols import Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.records import RoundRecord
from fedstill.core.task import Tensors
from fedstill.engines import InProcess
from fedstill.runtime import checkpoint
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

SEED = 12
_TIMES = (
    "timing.json",
    ".lock",
    "journal.jsonl",
    "result.json",
    "checkpoint.safetensors",
    "checkpoint-previous.safetensors",
)
Spoil = Callable[[Reply], Reply | Failure]


class Spoiling(InProcess):
    """Clients in this process, one of which has its reply spoilt; what was computed once is not computed again."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Reply | Failure] = {}
        self.target: tuple[str, int] | None = None  # exchange and client
        self.spoil: Spoil | None = None
        self.honest: dict[tuple[str, int], Reply] = {}  # of the first round

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        for who, request, state in jobs:
            outcome = self._answer(exchange, who, request, state, context)
            place = (exchange.name, who.id)
            if context.round == 0 and isinstance(outcome, Reply):
                self.honest[place] = outcome
                if place == self.target and self.spoil is not None:
                    outcome = self.spoil(outcome)
            yield outcome

    def _answer(
        self, exchange: Exchange, who: Profile, request: Message, state: Tensors, context: RoundContext
    ) -> Reply | Failure:
        key = (exchange.name, context.round, who.id, who.last_round, digest(request), digest(state))
        if key not in self.known:
            self.known[key] = answer(self.factory, exchange, who, request, state, context)
        return self.known[key]


@dataclass(frozen=True)
class Case:
    """One lie: in which world, told how."""

    world: str
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.world}, {self.kind} (number {self.number})"


@dataclass
class Verdict:
    """What became of one lie."""

    outcome: str  # refused, accepted, or what must not be
    faults: list[str] = field(default_factory=list)


class Stage:
    """One experiment, played again and again with one reply spoilt."""

    def __init__(self, world: str, data: str) -> None:
        self.plan = make_plan(make_experiment(experiment(world, data)))
        self.engine = Spoiling()
        self.without: dict[tuple[str, int], dict[str, Any]] = {}
        journal, _ = self.played()  # learns what is asked for
        dropped = {one.client for one in journal[0].failures}
        self.places = sorted(place for place in self.engine.honest if place[1] not in dropped)

    def played(self, target: tuple[str, int] | None = None, spoil: Spoil | None = None) -> tuple[Any, dict[str, Any]]:
        """Play it: the journal, and all that it leaves behind."""
        self.engine.target, self.engine.spoil = target, spoil
        with TemporaryDirectory(prefix="fedstill-replies-") as folder:
            run = execute(self.plan, self.engine, Path(folder))
            return run.journal(), left_behind(run)

    def silent(self, target: tuple[str, int]) -> dict[str, Any]:
        """What is left behind where that reply never came."""
        if target not in self.without:
            gone: Spoil = lambda reply: Failure(reply.profile, "refused", "", reply.work)  # noqa: E731
            self.without[target] = self.played(target, gone)[1]
        return self.without[target]

    def judge(self, case: Case) -> Verdict:
        luck = Random(f"{SEED} {case}")
        target = luck.choice(self.places)
        told: list[Message | None] = []

        def spoil(reply: Reply) -> Reply | Failure:
            try:
                lie = _told(case.kind, luck, reply.message)
            except MessageError as error:
                told.append(None)
                return Failure(reply.profile, "refused", " ".join(str(error).split()), reply.work)
            told.append(lie)
            return Reply(reply.profile, lie, reply.state, reply.work)

        try:
            journal, left = self.played(target, spoil)
        except BaseException as error:
            return Verdict("stopped the server", [f"{target}: {type(error).__name__}: {error}"])
        honest, lie = self.engine.honest[target].message, told[0]
        reason = refused(journal[0], target[1])
        if reason is None:
            right = lie is not None and fits(lie, honest)
            return Verdict("accepted", [] if right else [f"{target}: accepted, although it is no reply"])
        differs = unequal(left, self.silent(target))
        if differs and lie is not None and fits(lie, honest):
            return Verdict("accepted", [])  # it counted, and what came of it was refused later in the round
        faults = [] if reason and "\n" not in reason else [f"{target}: refused without a reason"]
        faults += [f"{target}: refused, and yet {name} differs" for name in differs]
        return Verdict("refused", faults)


def _told(kind: str, luck: Random, honest: Message) -> Message:
    """The lie, as it would come off the wire."""
    if kind in TENSORS:
        return Message(TENSORS[kind](luck, honest))
    return Message.decode(BYTES[kind](luck, honest.encode()))


def refused(record: RoundRecord, client: int) -> str | None:
    """Why a round's journal says that a client's reply was refused; None if it does not."""
    sites = None if record.evaluation is None else record.evaluation.sites
    on_site = () if sites is None else sites.failures or ()
    failures = [*record.failures, *on_site, *(one for survey in record.surveys or () for one in survey.failures)]
    return next((one.detail for one in failures if (one.client, one.reason) == (client, "refused")), None)


def left_behind(run: RunFolder) -> dict[str, Any]:
    """All that tells what came of a run, but for who was refused, why, and the bytes that they had sent."""
    files: dict[str, Any] = {
        path.relative_to(run.path).as_posix(): path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file() and path.name not in _TIMES
    }
    found, _ = checkpoint.candidates(run.path)
    for part in ("server", "fleet", "clients"):
        files[f"{part} state"] = digest(getattr(found[0], part))
    for record in run.journal():
        left_out = {"failures": True, "bytes": True, "surveys": True, "evaluation": {"sites"}}
        files[f"round {record.round}"] = record.model_dump_json(exclude=left_out)
    return files


def unequal(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def cases(number: int) -> list[Case]:
    """So many lies, of all kinds, in all worlds."""
    worlds, kinds = list(WORLDS), [*TENSORS, *BYTES]
    return [Case(worlds[n % len(worlds)], kinds[(n // len(worlds) + n) % len(kinds)], n) for n in range(number)]


def measure(size: Size, folder: Path) -> Findings:
    data = write_data(folder)
    verdicts: dict[Case, Verdict] = {}
    every = cases(size.replies)
    for world in dict.fromkeys(case.world for case in every):
        stage = Stage(world, data)
        verdicts |= {case: stage.judge(case) for case in every if case.world == world}
        print(f"  {world}: {sum(case.world == world for case in verdicts)} replies", file=sys.stderr, flush=True)
    return findings(verdicts)


def findings(verdicts: dict[Case, Verdict]) -> Findings:
    by_world: dict[str, Counter[str]] = {}
    for case, verdict in verdicts.items():
        by_world.setdefault(case.world, Counter())[verdict.outcome] += 1
    total = sum(by_world.values(), Counter())
    outcomes = ("refused", "accepted", "stopped the server")
    lines = [(world, *(str(count[outcome]) for outcome in outcomes)) for world, count in by_world.items()]
    made = Findings(tables={"Spoilt replies": [("where", *outcomes), *lines]})
    kinds = len({case.kind for case in verdicts})
    made.rows = [
        Row("spoilt replies", str(total.total()), note=f"{kinds} kinds, in {len(by_world)} experiments"),
        Row("refused, with a reason, and nothing else differs", str(total["refused"])),
        Row("accepted, being such as a client might have meant", str(total["accepted"])),
        Row("that stopped the server", str(total["stopped the server"])),
    ]
    made.differences = [f"{case}: {fault}" for case, verdict in verdicts.items() for fault in verdict.faults]
    return made
