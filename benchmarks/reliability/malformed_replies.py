"""Malformed replies: the server must refuse each with a reason, unless it is a valid message.

In each kind of experiment, one client's reply in the first round is corrupted in any exchange, and the run continues to
its end. The server must refuse a reply that does not have the form of an honest one, and record this in one line of the
journal. Models, client states and fleet must then equal those of a run without that reply. A reply with the right form
may be accepted, whatever its values; it must not stop the server.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.reliability.corruptions import BYTES, TENSORS, fits
from benchmarks.reliability.experiments import EXPERIMENTS, experiment, write_data
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
_NOT_COMPARED = (
    "timing.json",
    ".lock",
    "journal.jsonl",
    "result.json",
    "checkpoint.safetensors",
    "checkpoint-previous.safetensors",
)
Corrupt = Callable[[Reply], Reply | Failure]


class CorruptingEngine(InProcess):
    """An in-process engine that corrupts one reply; the results of equal requests are cached."""

    def __init__(self) -> None:
        self.cache: dict[tuple[Any, ...], Reply | Failure] = {}
        self.target: tuple[str, int] | None = None  # exchange and client
        self.corrupt: Corrupt | None = None
        self.honest: dict[tuple[str, int], Reply] = {}  # of the first round

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        for who, request, state in jobs:
            outcome = self._answer(exchange, who, request, state, context)
            place = (exchange.name, who.id)
            if context.round == 0 and isinstance(outcome, Reply):
                self.honest[place] = outcome
                if place == self.target and self.corrupt is not None:
                    outcome = self.corrupt(outcome)
            yield outcome

    def _answer(
        self, exchange: Exchange, who: Profile, request: Message, state: Tensors, context: RoundContext
    ) -> Reply | Failure:
        key = (exchange.name, context.round, who.id, who.last_round, digest(request), digest(state))
        if key not in self.cache:
            self.cache[key] = answer(self.factory, exchange, who, request, state, context)
        return self.cache[key]


@dataclass(frozen=True)
class Case:
    """One corruption in one experiment."""

    experiment: str
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.experiment}, {self.kind} (number {self.number})"


@dataclass
class Verdict:
    """The outcome of one case."""

    outcome: str  # refused, accepted, or stopped the server
    faults: list[str] = field(default_factory=list)


class Stage:
    """One experiment, run repeatedly with one corrupted reply."""

    def __init__(self, name: str, data: str) -> None:
        self.plan = make_plan(make_experiment(experiment(name, data)))
        self.engine = CorruptingEngine()
        self.without: dict[tuple[str, int], dict[str, Any]] = {}
        journal, _ = self.run()  # records the honest replies
        dropped = {one.client for one in journal[0].failures}
        self.places = sorted(place for place in self.engine.honest if place[1] not in dropped)

    def run(self, target: tuple[str, int] | None = None, corrupt: Corrupt | None = None) -> tuple[Any, dict[str, Any]]:
        """Run the experiment; return its journal and all other results."""
        self.engine.target, self.engine.corrupt = target, corrupt
        with TemporaryDirectory(prefix="fedstill-replies-") as folder:
            run = execute(self.plan, self.engine, Path(folder))
            return run.journal(), results_of(run)

    def without_reply(self, target: tuple[str, int]) -> dict[str, Any]:
        """Results of the run without that reply."""
        if target not in self.without:
            gone: Corrupt = lambda reply: Failure(reply.profile, "refused", "", reply.work)  # noqa: E731
            self.without[target] = self.run(target, gone)[1]
        return self.without[target]

    def judge(self, case: Case) -> Verdict:
        rng = Random(f"{SEED} {case}")
        target = rng.choice(self.places)
        corrupted: list[Message | None] = []

        def corrupt(reply: Reply) -> Reply | Failure:
            try:
                changed = _corrupted(case.kind, rng, reply.message)
            except MessageError as error:
                corrupted.append(None)
                return Failure(reply.profile, "refused", " ".join(str(error).split()), reply.work)
            corrupted.append(changed)
            return Reply(reply.profile, changed, reply.state, reply.work)

        try:
            journal, left = self.run(target, corrupt)
        except BaseException as error:
            return Verdict("stopped the server", [f"{target}: {type(error).__name__}: {error}"])
        honest, changed = self.engine.honest[target].message, corrupted[0]
        reason = refused(journal[0], target[1])
        if reason is None:
            right = changed is not None and fits(changed, honest)
            return Verdict("accepted", [] if right else [f"{target}: accepted, although it is not a valid reply"])
        differs = unequal(left, self.without_reply(target))
        if differs and changed is not None and fits(changed, honest):
            return Verdict("accepted", [])  # it was accepted, and its consequences were refused later in the round
        faults = [] if reason and "\n" not in reason else [f"{target}: refused without a reason"]
        faults += [f"{target}: refused, but {name} differs" for name in differs]
        return Verdict("refused", faults)


def _corrupted(kind: str, rng: Random, honest: Message) -> Message:
    """The corrupted reply, as decoded by the server."""
    if kind in TENSORS:
        return Message(TENSORS[kind](rng, honest))
    return Message.decode(BYTES[kind](rng, honest.encode()))


def refused(record: RoundRecord, client: int) -> str | None:
    """The reason in the journal for which a client's reply was refused; None if it was not."""
    sites = record.evaluation.sites if record.evaluation is not None else None
    on_site = (sites.failures or ()) if sites is not None else ()
    surveys = [survey.failures for survey in record.surveys or ()]
    failures = [one for ones in (record.failures, on_site, *surveys) for one in ones]
    return next((one.detail for one in failures if (one.client, one.reason) == (client, "refused")), None)


def results_of(run: RunFolder) -> dict[str, Any]:
    """All results of a run except refusals, their reasons and the bytes of refused replies."""
    files: dict[str, Any] = {
        path.relative_to(run.path).as_posix(): path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file() and path.name not in _NOT_COMPARED
    }
    found, _ = checkpoint.candidates(run.path)
    for part in ("server", "fleet", "clients"):
        files[f"{part} state"] = digest(getattr(found[0], part))
    for record in run.journal():
        kept = {name: value for name, value in record.to_dict().items() if name not in ("failures", "bytes", "surveys")}
        kept.get("evaluation", {}).pop("sites", None)
        files[f"round {record.round}"] = json.dumps(kept)
    return files


def unequal(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def cases(number: int) -> list[Case]:
    """This many cases, over all corruptions and all experiments."""
    names, kinds = list(EXPERIMENTS), [*TENSORS, *BYTES]
    return [Case(names[n % len(names)], kinds[(n // len(names) + n) % len(kinds)], n) for n in range(number)]


def measure(size: Size, folder: Path) -> Findings:
    data = write_data(folder)
    verdicts: dict[Case, Verdict] = {}
    every = cases(size.malformed_replies)
    for name in dict.fromkeys(case.experiment for case in every):
        stage = Stage(name, data)
        verdicts |= {case: stage.judge(case) for case in every if case.experiment == name}
        print(f"  {name}: {sum(case.experiment == name for case in verdicts)} replies", file=sys.stderr, flush=True)
    return findings(verdicts)


def findings(verdicts: dict[Case, Verdict]) -> Findings:
    by_experiment: dict[str, Counter[str]] = {}
    for case, verdict in verdicts.items():
        by_experiment.setdefault(case.experiment, Counter())[verdict.outcome] += 1
    total = sum(by_experiment.values(), Counter())
    outcomes = ("refused", "accepted", "stopped the server")
    lines = [(name, *(str(count[outcome]) for outcome in outcomes)) for name, count in by_experiment.items()]
    made = Findings(tables={"Malformed replies": [("experiment", *outcomes), *lines]})
    kinds = len({case.kind for case in verdicts})
    made.rows = [
        Row("malformed replies", str(total.total()), note=f"{kinds} kinds, in {len(by_experiment)} experiments"),
        Row("refused with a reason, no other difference", str(total["refused"])),
        Row("accepted: valid messages", str(total["accepted"])),
        Row("that stopped the server", str(total["stopped the server"])),
    ]
    made.differences = [f"{case}: {fault}" for case, verdict in verdicts.items() for fault in verdict.faults]
    return made
