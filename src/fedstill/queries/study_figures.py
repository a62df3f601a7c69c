"""Outcomes of clients' queries as study metrics: each run beside its local-only baseline.

A client's model is compared with its model before the query. Peer methods record that themselves; for others (FedAvg,
say) it comes from a local-only run with the same clients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

import torch

from fedstill.core.streams import Streams
from fedstill.methods import methods
from fedstill.queries.outcomes import Answers, answered
from fedstill.queries.peers import PeerMethod
from fedstill.queries.probe import probed
from fedstill.queries.probe_rule import RULES, ProbeRule
from fedstill.queries.query import Answered, Queries, averaged, queries_of
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.result import Run
from fedstill.studies.extensions import FiguresOf, Finished, PlannedRun, StudyFigures, study_figures
from fedstill.studies.run_figures import Figures
from fedstill.studies.study_plan import Job

ALONE = "local-only"
PREFIX = "query."  # prefix of these metrics among others of a run
Held = TypeVar("Held")
_GROUND = ("data", "model", "models", "points", "augmentation", "partition", "clients", "seed", "validation")


@dataclass(frozen=True)
class Fates:
    """The outcomes of the clients in a run. If the state before is unknown, only the state after is used."""

    by_client: Mapping[int, Answered]  # clients with a query
    known: bool  # whether gain and forgetting are defined

    def means(self) -> dict[str, float]:
        """Means over clients with a query."""
        return dict(averaged(list(self.by_client.values())))

    def each(self, client: int) -> dict[str, float]:
        return self.by_client[client].metrics()


def fates_of(run: Run, alone: Run | None = None, queries: Queries | None = None) -> Fates | None:
    """The outcomes of a run's queries; None without queries or without a record of them.

    `queries` replaces those of the run, if its method trains the same whatever the query.
    """
    found = run.answers()
    if queries is not None and not issubclass(methods[run.experiment.method.name], PeerMethod):
        found = _asking(found, queries, Streams(run.experiment.seed))
    itself = run.experiment.method.name == ALONE
    local: Answers = found if itself or alone is None else alone.answers()
    told = [bool(one["before"]) or (not itself and alone is not None and who in local) for who, one in found.items()]
    known = bool(told) and all(told)
    every = answered(found, local if known else found)
    asked = {int(who): fate for who, fate in zip(found, every, strict=True) if fate.query}
    return Fates(asked, known) if asked else None


def _asking(found: Answers, queries: Queries, streams: Streams) -> Answers:
    """The same clients with the queries that they would then have."""
    return {
        who: {**one, "query": list(queries.of(int(who), torch.tensor(one["counts"]), streams))}
        for who, one in found.items()
    }


def figures_of_queries(run: Run, alone: Run | None = None, queries: Queries | None = None) -> Figures:
    """The metrics that a study stores; a local-only run is the baseline, and has no gain."""
    fates = fates_of(run, alone, queries)
    if fates is None:
        return {}
    means, known = fates.means(), fates.known
    asked = [float(fate.after[fate.asked].double().mean()) for fate in fates.by_client.values()]
    figures: Figures = {
        "accuracy": means["accuracy"],
        "before": means["before"] if known or run.experiment.method.name == ALONE else None,
        "gain": means["gain"] if known else None,
        "forgetting": means["forgetting"] if known else None,
        "uniform": means["uniform"],
        "recall": fmean(asked),
        "clients": len(fates.by_client),
        "rounds": run.result.rounds,
        "bytes": bytes_per_client(run),
    }
    if run.experiment.method.name == ALONE and (seen := probed(run)) is not None:
        figures |= {"probe_error": seen.error}
        for rule in RULES:
            by = seen.by(ProbeRule(rule))
            figures |= {f"probe_{rule}_{name}": value for name, value in by.figures().items()}
    return {f"{PREFIX}{name}": None if value is None else round(value, 6) for name, value in figures.items()}


def bytes_per_client(run: Run) -> float:
    """The mean upload and download of a client over all rounds, over those that ever took part."""
    took_part = {client for record in run.journal for client in record.sampled}
    sent = run.result.bytes
    return float(sent.up + sent.down) / max(1, len(took_part))


def ground(experiment: Experiment) -> str:
    """The settings that two runs must share to have the same clients."""
    return experiment.model_dump_json(include=set(_GROUND))


class Companions(Generic[Held]):
    """Local-only runs, as baselines for runs with the same clients."""

    def __init__(self) -> None:
        self.by_ground: defaultdict[str, list[tuple[Sequence[str], Held]]] = defaultdict(list)

    def add(self, experiment: Experiment, held: Held, labels: Sequence[str] = ()) -> None:
        """Add a run if it is a local-only one; others are ignored."""
        if experiment.method.name == ALONE:
            self.by_ground[ground(experiment)].append((labels, held))

    def of(self, experiment: Experiment, labels: Sequence[str] = ()) -> Held | None:
        """The baseline with the most similar labels, the first of equals; queries may differ, since it ignores them."""
        found = self.by_ground.get(ground(experiment), [])
        if not found:
            return None
        alike = [sum(own == word for own, word in zip(labels, words, strict=False)) for words, _ in found]
        return found[alike.index(max(alike))][1]


def beside(run: Run) -> Run | None:
    """A finished local-only run with the same clients in the same folder of runs, if a baseline is needed."""
    if run.experiment.method.name == ALONE or all(one["before"] for one in run.answers().values()):
        return None
    wanted = ground(run.experiment)
    for config in sorted(run.path.parent.glob(f"{ALONE}-*/config.json")):
        other = Run(config.parent)
        if other.finished and other.answers() and ground(other.experiment) == wanted and _same_data(run, other):
            return other
    return None


def _same_data(one: Run, other: Run) -> bool:
    return bool(one.config["fingerprint"] == other.config["fingerprint"])


def _figures(planned: Sequence[PlannedRun]) -> FiguresOf:
    """Each run with queries beside the local-only run with the same clients."""
    alone = Companions[Job]()
    for one in planned:
        alone.add(one.job.experiment, one.job, one.labels)

    def figures(one: PlannedRun, run: Run, finished: Finished) -> Figures:
        queries = queries_of(one.experiment)
        if queries is None:
            return {}
        before = alone.of(one.job.experiment, one.labels)
        return figures_of_queries(run, None if before is None else finished(before), queries)

    return figures


study_figures.register("queries")(
    StudyFigures(
        _figures,
        {
            "query.accuracy": (
                "accuracy on clients' own classes, by their samples, and those asked for, by one each",
                "%",
                100,
            ),
            "query.before": ("the same before anybody asked", "%", 100),
            "query.gain": ("gain in recall of classes asked for", "%", 100),
            "query.forgetting": ("mean change in recall of clients' own classes, losses only", "%", 100),
            "query.uniform": ("mean recall of clients' own classes and those asked for", "%", 100),
            "query.recall": ("recall of classes asked for", "%", 100),
            "query.bytes": ("traffic of a client, up and down, all rounds together", "MiB", 1 / 2**20),
            "query.rounds": ("rounds", "", 1),
            "query.clients": ("clients that asked", "", 1),
            **{
                f"query.probe_{rule}_{name}": (f"{what}, by the rule {rule}", "%", 100)
                for rule in RULES
                for name, what in {
                    "precision": "classes known to models, by noise, of which their clients have samples",
                    "recall": "classes of clients' samples that are known to their models, by noise",
                    "precision_recognised": "classes known to models, by noise, that they recognise",
                    "recall_recognised": "classes that models recognise (recall of 50 % or more) that the probe finds",
                }.items()
            },
            "query.probe_error": ("mean squared error of class shares guessed from noise", "", 1),
        },
    )
)
