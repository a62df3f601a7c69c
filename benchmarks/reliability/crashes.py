"""Crash tests: after `kill -9` and a restart, the files must equal those of an undisturbed command.

Real `fedstill` processes are killed from outside. Half of the kills come at a random instant of the remaining run time
(most of which is start-up for a small job). The other half come a few milliseconds after a random change in the output
folder, so that short phases such as commits are hit as well. After a few kills the job runs to its end, its files are
compared, and the next episode starts in an empty folder.
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

from benchmarks.machine import cores
from benchmarks.reliability.jobs import OUT, Job, make_jobs
from benchmarks.reliability.process import TEMPORARY, Process
from benchmarks.reliability.traces import PLACES, contents, differences, held_locks, landed, look, progress
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from fedstill.runtime.run_folder import RunFolder

SEED = 12
IN_A_ROW = 4  # largest number of kills before a job runs to its end
_LIMIT = 600.0  # seconds for an undisturbed command
_GRACE = 30.0  # seconds for workers to end after their parent
_AFTER = 0.02  # largest delay in seconds between a change and the kill
_WORKER = "a worker"
HEAD = ("job", "crashes", *PLACES, _WORKER, "ended", "files", "different", "left behind", "still running")


@dataclass
class CrashCounts:
    """Outcome of the crash tests of one job."""

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
        """In the order of the table's header."""
        places = [self.landed[place] for place in (*PLACES, _WORKER)]
        bad = [len(self.different), len(self.left_behind), self.survivors]
        return [self.kills, *places, self.ended, self.compared, *bad]


@dataclass(frozen=True)
class Undisturbed:
    """Files and times of an undisturbed job."""

    files: Mapping[str, bytes]
    seconds: float
    begun: float  # seconds until its first change
    with_workers: float  # seconds
    changes: int
    commits: Mapping[str, int]  # by run

    def rounds(self, run: str) -> int:
        return self.commits.get(run, 0)

    @property
    def all_rounds(self) -> int:
        return max(1, sum(self.commits.values()))


class Trial:
    """One job that is killed repeatedly."""

    def __init__(self, job: Job, folder: Path, seed: int = SEED) -> None:
        self.job, self.folder = job, folder
        self.draw = random.Random(f"{seed} {job.name}")
        self.counts = CrashCounts(job.name)
        self.orphaned: list[Process] = []

    def run(self, kills: int) -> CrashCounts:
        whole = self.undisturbed()
        for number in range(4 * kills + 5):
            if self.counts.kills >= kills:
                break
            place = self.folder / str(number)
            self.episode(place, whole, min(IN_A_ROW, kills - self.counts.kills))
            if not self.counts.different:
                shutil.rmtree(place)
        if self.counts.kills < kills:
            self.counts.different.append(f"only {self.counts.kills} of {kills} kills hit a process")
        return self.counts

    def undisturbed(self) -> Undisturbed:
        place = self.folder / "undisturbed"
        out, begun, changes = place / OUT, 0.0, 0
        before, worker_ages = look(out), list[float]()
        with Process(place, self.job.words) as process:
            while process.alive and process.age < _LIMIT:
                if (now := look(out)) != before:
                    before, changes, begun = now, changes + 1, begun or process.age
                if _WORKER in self.job.targets and process.workers():
                    worker_ages.append(process.age)
                sleep(0.002)
            seconds = process.age
            process.wait(1.0)
        if process.code:
            raise DifferenceError(f"{self.job.name} fails without a crash: {process.last_line}")
        runs = [RunFolder(path.parent) for path in sorted(out.glob("*/journal.jsonl"))]
        commits = {run.path.name: len(run.journal()) for run in runs}
        if self.job.epochs:
            commits = {"encoder.partial": self.job.epochs}
        with_workers = worker_ages[-1] - worker_ages[0] if worker_ages else 0.0
        return Undisturbed(contents(out), seconds, begun, with_workers, changes, commits)

    def episode(self, place: Path, whole: Undisturbed, kills: int) -> None:
        """Kill the job some times, run it to its end, and compare its files."""
        goal = self.counts.kills + kills
        while self.counts.kills < goal:
            if self.attempt(place, whole, kill=True):
                break
        else:
            self.attempt(place, whole, kill=False)
        self.counts.ended += 1
        self.compare(place, whole)

    def attempt(self, place: Path, whole: Undisturbed, kill: bool) -> bool:
        """Start the command, and kill it or one of its workers; True if it ended without being killed itself."""
        out, target = place / OUT, self.draw.choice(self.job.targets)
        before = look(out)
        with Process(place, self.job.words) as process:
            hit = (
                kill and self.wait_for_kill(process, out, whole, target == _WORKER) and process.kill(target, self.draw)
            )
            process.wait(_LIMIT)
        self.orphaned.append(process)
        dead = hit and target != _WORKER
        if dead and process.code == 0:  # it was already exiting, so the kill had no effect
            return True
        if hit:
            where = landed(before, look(out), out, whole.rounds) if dead else _WORKER
            self.counts.landed[where] += 1
        if process.code != (-9 if dead else 0):
            self.counts.different.append(f"{place.name}: ended with code {process.code}: {process.last_line}")
        return not dead

    def wait_for_kill(self, process: Process, out: Path, whole: Undisturbed, worker: bool) -> bool:
        """Wait for the instant of the kill; False if the command ends before."""
        left = 1 - progress(out, whole.rounds) / whole.all_rounds
        if worker:
            while process.alive and not process.workers():
                sleep(0.01)
            _until(process, process.age + self.draw.uniform(0, whole.with_workers))
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

    def compare(self, place: Path, whole: Undisturbed) -> None:
        counts, out = self.counts, place / OUT
        counts.survivors += sum(process.survivors(_GRACE) for process in self.orphaned)
        self.orphaned.clear()
        found = contents(out)
        counts.compared += len(found)
        unequal, hidden = differences(found, whole.files)
        counts.different += [f"{place.name}: {name}" for name in unequal]
        lying = [path.name for path in (place / TEMPORARY).glob("fedstill*")]  # torch also writes to this folder
        counts.left_behind += [f"{place.name}: {name}" for name in (*hidden, *lying, *held_locks(out))]


def _until(process: Process, age: float) -> None:
    while process.alive and process.age < age:
        sleep(min(0.01, max(0.0, age - process.age)))


def shares(kills: int, jobs: int) -> list[int]:
    """Number of kills of each job.

    >>> shares(8, 3)
    [3, 3, 2]
    """
    each, more = divmod(kills, jobs)
    return [each + (number < more) for number in range(jobs)]


def measure(size: Size, folder: Path) -> Findings:
    jobs = make_jobs(folder / "inputs")

    def test(job: Job, kills: int) -> CrashCounts:
        counts = Trial(job, folder / job.name.replace(", ", "-").replace(" ", "-")).run(kills)
        print(f"  {job.name}: {counts.kills} kills, {len(counts.different)} differences", file=sys.stderr, flush=True)
        return counts

    with ThreadPoolExecutor(cores()) as threads:
        counts_by_job = list(threads.map(test, jobs, shares(size.crashes, len(jobs))))
    return findings(counts_by_job)


def findings(counts_by_job: Sequence[CrashCounts]) -> Findings:
    lines = [(counts.name, *map(str, counts.numbers())) for counts in counts_by_job]
    sums = [sum(column) for column in zip(*(counts.numbers() for counts in counts_by_job), strict=True)]
    total = dict(zip(HEAD[1:], sums, strict=True))
    made = Findings(tables={"Crashes by phase": [HEAD, *lines, ("all", *map(str, sums))]})
    made.rows = [
        Row("kill -9", str(total["crashes"])),
        Row("files compared with those of undisturbed commands", str(total["files"])),
        Row("different files", str(total["different"])),
        Row("files, locks or processes left behind", str(total["left behind"] + total["still running"])),
    ]
    made.differences = [
        f"{counts.name}, {what}" for counts in counts_by_job for what in (*counts.different, *counts.left_behind)
    ]
    made.differences += [
        f"{counts.name}: {counts.survivors} processes survived" for counts in counts_by_job if counts.survivors
    ]
    return made
