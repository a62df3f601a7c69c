"""kill -9 at any instant, then the same command again: the files are those of a command that was never killed.

Real `fedstill` processes are killed from outside. Half of the kills come at an instant drawn over the life that the
process has still ahead of it (most of a small job's life is its start), the other half a few milliseconds after some
change in its folder, drawn as well: so commits and endings are hit, too, which are short. After a few kills a job may
end; what it left is compared file by file, and it begins anew in an empty folder.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from benchmarks.machine import cores
from benchmarks.reliability.jobs import OUT, Job, make_jobs
from benchmarks.reliability.process import TEMPORARY, Process
from benchmarks.reliability.traces import PLACES, contents, differences, held_locks, landed, look, progress
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from fedstill.core.records import RoundRecord
from fedstill.runtime.run_folder import RunFolder

SEED = 12
IN_A_ROW = 4  # kills at most, before a job may end
_LIMIT = 600.0  # seconds for a command that nobody kills
_GRACE = 30.0  # seconds in which workers notice that they are alone
_AFTER = 0.02  # seconds at most between a change and the kill that waits for it
_WORKER = "a worker"
_ENDED = "its worker process ended with code -9"
HEAD = ("job", "kills", *PLACES, _WORKER, "ended", "files", "different", "left behind", "still running")


@dataclass
class Tally:
    """What became of one job."""

    name: str
    landed: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    compared: int = 0  # files
    different: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    survivors: int = 0

    @property
    def kills(self) -> int:
        return self.landed.total()

    def numbers(self) -> list[int]:
        """In the order of the table's head."""
        places = [self.landed[place] for place in (*PLACES, _WORKER)]
        bad = [len(self.different), len(self.left_behind), self.survivors]
        return [self.kills, *places, self.ended, self.compared, *bad]


@dataclass(frozen=True)
class Whole:
    """How a job goes that nobody kills."""

    files: Mapping[str, bytes]
    journals: Mapping[str, Sequence[Mapping[str, Any]]]  # by run
    seconds: float
    begun: float  # seconds until it first changed something
    staffed: float  # seconds during which it had workers
    changes: int
    commits: Mapping[str, int]  # by run

    def rounds(self, run: str) -> int:
        return self.commits.get(run, 0)

    @property
    def all_rounds(self) -> int:
        return max(1, sum(self.commits.values()))


class Trial:
    """One job, killed again and again."""

    def __init__(self, job: Job, folder: Path, seed: int = SEED) -> None:
        self.job, self.folder = job, folder
        self.draw = random.Random(f"{seed} {job.name}")
        self.tally = Tally(job.name)
        self.orphaned: list[Process] = []

    def run(self, kills: int) -> Tally:
        whole = self.undisturbed()
        for number in range(4 * kills + 5):
            if self.tally.kills >= kills:
                break
            place = self.folder / str(number)
            self.episode(place, whole, min(IN_A_ROW, kills - self.tally.kills))
            if not self.tally.different:
                shutil.rmtree(place)
        if self.tally.kills < kills:
            self.tally.different.append(f"only {self.tally.kills} kills of {kills} have hit anybody")
        return self.tally

    def undisturbed(self) -> Whole:
        place = self.folder / "whole"
        out, begun, changes = place / OUT, 0.0, 0
        before, manned = look(out), list[float]()
        with Process(place, self.job.words) as process:
            while process.alive and process.age < _LIMIT:
                if (now := look(out)) != before:
                    before, changes, begun = now, changes + 1, begun or process.age
                if _WORKER in self.job.targets and process.workers():
                    manned.append(process.age)
                sleep(0.002)
            seconds = process.age
            process.wait(1.0)
        if process.code:
            raise DifferenceError(f"{self.job.name} does not end well by itself: {process.last_words}")
        runs = [RunFolder(path.parent) for path in sorted(out.glob("*/journal.jsonl"))]
        journals = {run.path.name: run.journal() for run in runs}
        commits = {name: len(journal) for name, journal in journals.items()}
        if self.job.epochs:
            commits = {"encoder.partial": self.job.epochs}
        staffed = manned[-1] - manned[0] if manned else 0.0
        return Whole(contents(out), journals, seconds, begun, staffed, changes, commits)

    def episode(self, place: Path, whole: Whole, kills: int) -> None:
        """Some kills, then to the end, and compare."""
        goal = self.tally.kills + (1 if self.job.recorded else kills)
        while self.tally.kills < goal:
            if self.attempt(place, whole, kill=True):
                break
        else:
            if not self.job.recorded:
                self.attempt(place, whole, kill=False)
        self.tally.ended += 1
        self.compare(place, whole)

    def attempt(self, place: Path, whole: Whole, kill: bool) -> bool:
        """Start the command, and kill it, or one of its workers; True if nobody was hit, and it has ended."""
        out, target = place / OUT, self.draw.choice(self.job.targets)
        before = look(out)
        again = self.job.again if (out / "failures").is_dir() else ()
        with Process(place, (*self.job.words, *again)) as process:
            hit = kill and self.comes(process, out, whole, target == _WORKER) and process.kill(target, self.draw)
            process.wait(_LIMIT)
        self.orphaned.append(process)
        dead = hit and target != _WORKER
        if dead and process.code == 0:  # it was leaving already, and a kill changes nothing then
            return True
        if hit:
            where = landed(before, look(out), out, whole.rounds) if dead else _WORKER
            self.tally.landed[where] += 1
        fine = (-9,) if dead else (0, 1) if hit and self.job.again else (0,)
        if process.code not in fine:
            self.tally.different.append(f"{place.name}: ended with code {process.code}: {process.last_words}")
        return not hit

    def comes(self, process: Process, out: Path, whole: Whole, worker: bool) -> bool:
        """Wait for the instant of the kill; False where the command ends before."""
        left = 1 - progress(out, whole.rounds) / whole.all_rounds
        if worker:
            while process.alive and not process.workers():
                sleep(0.01)
            _until(process, process.age + self.draw.uniform(0, whole.staffed))
        elif self.draw.random() < 0.5:
            _until(process, self.draw.uniform(0.0, whole.begun + (whole.seconds - whole.begun) * left))
        else:
            wanted, delay = self.draw.randint(1, max(1, round(whole.changes * left))), self.draw.uniform(0, _AFTER)
            before = look(out)
            while process.alive and wanted:
                if (now := look(out)) != before:
                    before, wanted = now, wanted - 1
                sleep(0.001)
            sleep(delay)
        return process.alive

    def compare(self, place: Path, whole: Whole) -> None:
        tally, out = self.tally, place / OUT
        tally.survivors += sum(process.survivors(_GRACE) for process in self.orphaned)
        self.orphaned.clear()
        found = contents(out)
        tally.compared += len(found)
        unequal, hidden = differences(found, whole.files)
        if self.job.recorded:
            unequal = [trouble for run in whole.journals if (trouble := unexplained(out / run, whole.journals[run]))]
        tally.different += [f"{place.name}: {name}" for name in unequal]
        lying = [path.name for path in (place / TEMPORARY).glob("fedstill*")]  # torch, too, keeps things there
        tally.left_behind += [f"{place.name}: {name}" for name in (*hidden, *lying, *held_locks(out))]


def _until(process: Process, age: float) -> None:
    while process.alive and process.age < age:
        sleep(min(0.01, max(0.0, age - process.age)))


def unexplained(run: Path, whole: Sequence[RoundRecord]) -> str | None:
    """What cannot be put down to one client that was lost with its worker; None if all can."""
    journal = RunFolder(run).journal()
    if RunFolder(run).result() is None or len(journal) != len(whole):
        return f"{run.name} has no result"
    trouble = _besides_a_loss(journal, whole)
    return None if trouble is None else f"{run.name} {trouble}"


def _besides_a_loss(journal: Sequence[RoundRecord], whole: Sequence[RoundRecord]) -> str | None:
    """The rounds before a failure must be those of a run without one.

    >>> from fedstill.core.records import FailureRecord, TrafficRecord
    >>> same = dict(sampled=(), accepted=(), bytes=TrafficRecord(up=0, down=0), loss={}, method_metrics={})
    >>> first, second = (RoundRecord(round=number, failures=(), work=0.0, **same) for number in (1, 2))
    >>> failure = FailureRecord(client=0, reason="failed", detail=_ENDED)
    >>> hurt = second.model_copy(update={"failures": (failure,)})
    >>> _besides_a_loss([first, hurt], [first, second])
    >>> _besides_a_loss([first.model_copy(update={"work": 1.0}), hurt], [first, second])
    'differs before the loss'
    """
    losses = [(record.round, one.detail) for record in journal for one in record.failures]
    if any(detail != _ENDED for _, detail in losses) or len(losses) > 1:
        return f"tells of other losses: {losses}"
    before = losses[0][0] - 1 if losses else len(whole)  # how many rounds
    return None if list(journal[:before]) == list(whole[:before]) else "differs before the loss"


def shares(kills: int, jobs: int) -> list[int]:
    """Kills by job.

    >>> shares(8, 3)
    [3, 3, 2]
    """
    each, more = divmod(kills, jobs)
    return [each + (number < more) for number in range(jobs)]


def measure(size: Size, folder: Path) -> Findings:
    jobs = make_jobs(folder / "materials")

    def tried(job: Job, kills: int) -> Tally:
        tally = Trial(job, folder / job.name.replace(", ", "-").replace(" ", "-")).run(kills)
        print(f"  {job.name}: {tally.kills} kills, {len(tally.different)} differences", file=sys.stderr, flush=True)
        return tally

    with ThreadPoolExecutor(cores()) as lanes:
        tallies = list(lanes.map(tried, jobs, shares(size.kills, len(jobs))))
    return findings(tallies)


def findings(tallies: Sequence[Tally]) -> Findings:
    lines = [(tally.name, *map(str, tally.numbers())) for tally in tallies]
    sums = [sum(column) for column in zip(*(tally.numbers() for tally in tallies), strict=True)]
    total = dict(zip(HEAD[1:], sums, strict=True))
    made = Findings(tables={"Where kills have hit": [HEAD, *lines, ("all", *map(str, sums))]})
    made.rows = [
        Row("kill -9", str(total["kills"])),
        Row("files compared with those of commands that nobody killed", str(total["files"])),
        Row("of them different", str(total["different"])),
        Row("files, locks or processes left behind", str(total["left behind"] + total["still running"])),
    ]
    made.differences = [f"{tally.name}, {what}" for tally in tallies for what in (*tally.different, *tally.left_behind)]
    made.differences += [f"{tally.name}: {tally.survivors} processes live on" for tally in tallies if tally.survivors]
    return made
