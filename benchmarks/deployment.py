"""Cost of remote clients: seconds and bytes of the same rounds on four engines.

FedAvg with three clients and on-site evaluation: in one process, in two workers, in two client processes of Flower's
simulation on Ray, and deployed over TLS with a key for each site. After each round of any engine, the same round runs
in this process, so that both meet the same load on the machine. All four engines must end with the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from benchmarks.machine import load
from benchmarks.processes import JobError
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, between
from fedstill.engines import InProcess
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.launch import launch
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.result import Run
from fedstill.runtime.run import Attempt, opened
from fedstill.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from benchmarks.deployed import Deployment

CLIENTS, WORKERS, SEED = 3, 2, 1
MODELS = ("cnn", "resnet20")  # of few tensors and of many
ENGINES = ("in-process", "processes", "flower-ray")
DEPLOYED = "deployment"
COUNTED = 2  # rounds whose bytes are counted, after the first; they differ only in the number of polls
HEAD = ("model", "engine", "s a round", "/ in-process", "start, s", "messages", "up", "down", "wire / messages")
PARTS = ("model", "s a round", "requests", "polls", "server CPU", "verifying", "sites CPU", "signing", "in-process")


def measure(size: Size, folder: Path) -> Findings:
    what = f"round of {CLIENTS} clients, deployment / in-process"
    if missing := [module for module in ("flwr", "ray") if not find_spec(module)]:
        note = f"{' and '.join(missing)} not installed: pip install 'fedstill[flower,ray]'"
        return Findings([Row(what, "not measured", note=note)])
    findings = Findings()
    costs, parts = [HEAD], [PARTS]
    for model in MODELS if size.rounds > 2 else MODELS[:1]:
        try:
            bench = Bench(model, size.rounds, folder / model)
        except JobError as error:
            findings.rows.append(Row(what, "failed", note=str(error)))
            continue
        check(model, bench.digests())
        costs += bench.costs()
        parts.append(bench.parts())
        findings.rows += bench.rows()
    findings.tables["Cost of a deployment (bytes of one round; up: from the sites)"] = costs
    findings.tables["Parts of a deployed round (requests and seconds of one round)"] = parts
    return findings


def check(model: str, digests: Mapping[str, str]) -> None:
    """Refuse to compare the times of engines that end with different models.

    >>> check("cnn", {"in-process": "0123456789", "deployment": "0123456789"})
    >>> check("cnn", {"in-process": "0123456789", "deployment": "abcdefghij"})
    Traceback (most recent call last):
    benchmarks.report.DifferenceError: cnn: engines end with different models: in-process 01234567, deployment abcdefgh
    """
    if len(set(digests.values())) > 1:
        listed = ", ".join(f"{engine} {digest[:8]}" for engine, digest in digests.items())
        raise DifferenceError(f"{model}: engines end with different models: {listed}")


@dataclass
class Measured:
    """One run, and the comparison rounds in this process; the first round, which warms up, is left out."""

    run: Run
    rounds: list[float]
    beside: list[float]
    start: float  # seconds until the first round could begin
    grown: list[Mapping[str, float]]  # by round: increments of the other counters

    def each(self, what: str) -> float:
        return median(one.get(what, 0.0) for one in self.grown)

    @property
    def messages(self) -> float:
        """Bytes of a round's messages, of training and evaluation, in both directions."""
        return median(
            sum(traffic.up + traffic.down for traffic in (record.bytes, record.evaluation.sites))
            for record in self.run.journal[1:]
        )


class Bench:
    """All measurements of one model."""

    def __init__(self, model: str, rounds: int, folder: Path) -> None:
        self.model, self.folder = model, folder
        folder.mkdir()
        experiment = fedavg(model, rounds + 1)
        self.engines = {name: self._simulated(experiment, name) for name in ENGINES}
        self.load = load()
        self.engines[DEPLOYED], deployment = self._deployed(experiment, "timed", counted=False)
        self.signature = deployment.signature()
        self.wire, _ = self._deployed(fedavg(model, COUNTED + 1), "counted", counted=True)

    def _simulated(self, experiment: Experiment, engine: str) -> Measured:
        out = self.folder / engine

        def run(beside: Beside) -> Run:
            return launch(experiment, out=out, engine=engine, workers=WORKERS, observers=[beside])

        return measured(make_plan(experiment), run, self.folder / f"beside-{engine}")

    def _deployed(self, experiment: Experiment, name: str, counted: bool) -> tuple[Measured, Deployment]:
        from benchmarks.deployed import Deployment

        plan = make_plan(experiment)
        made = Deployment(self.folder / name, plan)
        known = experiment.model_copy(update={"data": "elsewhere"})

        def run(beside: Beside) -> Run:
            return made.run(known, [beside], counted)

        return measured(plan, run, self.folder / f"beside-{name}", made.read, made.halted), made

    def digests(self) -> dict[str, str]:
        return {name: one.run.sha256 for name, one in self.engines.items()}

    def ratio(self, engine: str) -> Ratio:
        return Ratio.of(self.engines[engine].rounds, self.engines[engine].beside)

    def costs(self) -> list[tuple[str, ...]]:
        lines = []
        for name, one in self.engines.items():
            times = (f"{median(one.rounds):.3g}", str(self.ratio(name)), f"{one.start:.2g}", f"{one.messages:,.0f}")
            up, down = self.wire.each("up"), self.wire.each("down")
            wire = (f"{up:,.0f}", f"{down:,.0f}", f"{(up + down) / self.wire.messages:.3g}")
            lines.append((self.model, name, *times, *(wire if name == DEPLOYED else ("", "", ""))))
        return lines

    def parts(self) -> tuple[str, ...]:
        one = self.engines[DEPLOYED]
        requests, polls = one.each("requests"), one.each("polls")
        seconds = (one.each("server"), one.each("verifying"), one.each("sites"), (requests + polls) * self.signature)
        texts = (f"{median(one.rounds):.3g}", f"{requests:.0f}", f"{polls:.0f}", *(f"{each:.3g}" for each in seconds))
        return (self.model, *texts, f"{median(one.beside):.3g}")

    def rows(self) -> list[Row]:
        note = f"digits, {self.model}; load {self.load}; the same model on all"
        return [
            Row(f"round of {CLIENTS} clients, {name} / in-process", self.ratio(name), note=note)
            for name in self.engines
            if name != "in-process"
        ]


def fedavg(model: str, rounds: int) -> Experiment:
    return make_experiment(
        {
            "method": "fedavg",
            "data": "digits",
            "model": model,
            "clients": CLIENTS,
            "rounds": rounds,
            "seed": SEED,
            "evaluation": "on-site",
            "training": {"epochs": 1, "batch": 32},
        }
    )


def measured(
    plan: Simulation,
    start_run: Callable[[Beside], Run],
    folder: Path,
    read: Callable[[], Mapping[str, float]] = lambda: {"server": process_time()},
    halted: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Measured:
    with opened(plan, folder) as place, InProcess() as engine:
        beside = Beside(Attempt(plan, engine, place), read, halted)
        began = perf_counter()
        run = start_run(beside)
    if run.result.failures or run.result.skipped:
        raise DifferenceError(f"{run.path.name}: a client failed, which does not happen in one process")
    rounds = RunFolder(run.path).timing()["rounds"][1:]
    start = beside.ends[0] - began - median(rounds)
    return Measured(run, rounds, between(beside.seconds), start, beside.grown[1:])


class Beside:
    """An observer that runs the same round in this process after each round of the run."""

    def __init__(
        self,
        attempt: Attempt,
        read: Callable[[], Mapping[str, float]],
        halted: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.attempt, self.read, self.halted = attempt, read, halted
        self.ends: list[float] = []
        self.seconds: list[float] = []
        self.grown: list[Mapping[str, float]] = []
        self.since: Mapping[str, float] = {}

    def start(self, experiment: Any, journal: Sequence[dict[str, Any]]) -> None:
        self.since = self.read()

    def round(self, record: dict[str, Any]) -> None:
        self.ends.append(perf_counter())
        self.grown.append({name: value - self.since.get(name, 0.0) for name, value in self.read().items()})
        with self.halted():
            began = perf_counter()
            progress = self.attempt.round()
            self.seconds.append(perf_counter() - began)
            self.attempt.keep(progress, self.seconds[-1])
        self.since = self.read()

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def finish(self) -> None:
        pass
