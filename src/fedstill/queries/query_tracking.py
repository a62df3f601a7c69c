"""A query in trackers: its epochs, what it changed, and the client's new model."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.queries.query_result import experiment_of
from fedstill.runtime.result import Run
from fedstill.tracking.tracker import TrackedRun
from fedstill.tracking.tracking import RunFollower, Tracking, run_files

if TYPE_CHECKING:
    from fedstill.queries.transfer import Asked


def track_query(tracking: Tracking | None, asked: Asked, kept: Run | None = None) -> None:
    """Hand a query that has ended to trackers, with the run that keeps its model, if any.

    A query that is repeated is the same one, and its epochs are not logged again.
    """
    if tracking is None:
        return
    experiment = experiment_of(asked.run, asked.client, asked.fate.query, asked.settings)
    facts = f"{json.dumps(experiment.hashed(), sort_keys=True)} {asked.run.sha256}"
    name = f"query-{experiment.data}-{blake2b(facts.encode(), digest_size=8).hexdigest()}"
    settings = {**experiment.model_dump(mode="json"), "run": str(asked.run.path), "client": asked.client}
    classes = ", ".join(asked.classes[number] for number in asked.fate.query)
    tracked = TrackedRun(Path(name).name, "query", settings={**settings, "classes": classes})
    follower = RunFollower(tracking, tracked)
    phases = {phase: number for number, phase in enumerate(dict.fromkeys(phase for phase, _, _ in asked.epochs))}
    for step, (phase, epochs, accuracy) in enumerate(asked.epochs, 1):
        follower.log(step, {"query/accuracy": accuracy, "query/phase": phases[phase], "query/phase_epochs": epochs})
    ended = {f"query/{name}": float(value) for name, value in asked.fate.metrics().items() if name != "accuracy"}
    traffic = {f"traffic/{way}": float(size) for way, size in asked.traffic.items()}
    follower.log(len(asked.epochs) + 1, {**ended, **traffic, "query/teachers": float(len(asked.teachers))})
    if kept is not None:
        follower.save(run_files(kept.path))
    follower.close("finished")
