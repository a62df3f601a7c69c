"""Runs in MLflow: a database and a folder below the runs, or the store that the user has named."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.files import file_digest, writable_folder
from fedstill.core.logs import only_from
from fedstill.tracking.flat_metrics import finite, flattened, metric_name
from fedstill.tracking.tracker import Status, TrackedRun, Tracker
from fedstill.tracking.tracker_registry import package, trackers

EXPERIMENT = "fedstill"
STEP = "step"  # a metric that every step has, whose latest value says what is kept
_RUN, _GROUP, _FILES = "fedstill.run", "fedstill.group", "fedstill.files"
_KEY = "fedstill.key"  # a digest by which a run is found: MLflow's queries cannot hold every name
_ENDED = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_MOST, _LONGEST = 100, 500  # parameters in one call, characters of one, in any release
_MOST_METRICS = 1000  # in one call; a large fleet has more


@trackers.register("mlflow")
class MLflow(Tracker):
    """Runs in MLflow: a database in OUT/mlflow, $MLFLOW_TRACKING_URI, or the URI that is named."""

    requires = ("mlflow",)

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.ids: dict[str, str] = {}
        self.parents: dict[str, str] = {}

    def prepare(self, out: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # a server that is away is reported at once
        client = package("mlflow.tracking", "mlflow").MlflowClient
        self.entities = package("mlflow.entities", "mlflow")
        uri = self.where or os.environ.get("MLFLOW_TRACKING_URI", "")
        artifacts = None
        if not uri:
            package("sqlalchemy", "mlflow")
            package("alembic", "mlflow")
            folder = writable_folder(out / "mlflow").resolve()
            uri, artifacts = f"sqlite:///{folder}/mlflow.db", (folder / "artifacts").as_uri()
        try:
            with only_from(logging.WARNING, ("mlflow", "alembic")):  # which report each table of a new database
                self.client = client(tracking_uri=uri)
                name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
                found = self.client.get_experiment_by_name(name)
                if found is not None and found.lifecycle_stage != "active":
                    raise ValueError(f"its experiment {name} was deleted, restore it or set MLFLOW_EXPERIMENT_NAME")
                self.experiment = found.experiment_id if found else self.client.create_experiment(name, artifacts)
        except Exception as error:
            why = " ".join(str(error).split()).partition(". ")[0]
            raise InputError(f"MLflow cannot use the store {uri}: {why[:200]}") from error

    def open(self, run: TrackedRun) -> int:
        found = self._found(run.name, run.group)
        if found is None:
            about = {
                "fedstill.kind": run.kind,
                **{metric_name(f"fedstill.label.{axis}"): one for axis, one in run.labels.items()},
            }
            found = self._create(run.name, run.group, about)
        if not found.data.params:  # also where its process was killed before it had described the run
            self._describe(found.info.run_id, run)
        self.ids[run.key] = found.info.run_id
        if found.info.status != "RUNNING" and found.info.status != "FINISHED":
            self.client.update_run(found.info.run_id, status="RUNNING")
        return int(found.data.metrics.get(STEP, 0))

    def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
        now = int(1000 * time())
        values = finite(metrics) | {STEP: float(step)}  # the step comes last: an unfinished one does not count
        made = [self.entities.Metric(name, value, now, step) for name, value in values.items()]
        for begin in range(0, len(made), _MOST_METRICS):
            self.client.log_batch(self.ids[run.key], metrics=made[begin : begin + _MOST_METRICS])

    def save(self, run: TrackedRun, files: Mapping[str, Path]) -> None:
        digest = sha256(" ".join(f"{name} {file_digest(path)}" for name, path in files.items()).encode()).hexdigest()
        run_id = self.ids[run.key]
        if self.client.get_run(run_id).data.tags.get(_FILES) == digest:
            return
        for path in files.values():
            self.client.log_artifact(run_id, str(path))
        self.client.set_tag(run_id, _FILES, digest)

    def close(self, run: TrackedRun, status: Status) -> None:
        if (run_id := self.ids.pop(run.key, None)) is not None:
            self.client.set_terminated(run_id, _ENDED[status])

    def _found(self, name: str, group: str) -> Any:
        """The run that was tracked before, by this process or another."""
        query = f"tags.`{_KEY}` = '{_digest(name, group)}'"
        return next(iter(self.client.search_runs([self.experiment], query, max_results=1)), None)

    def _create(self, name: str, group: str, about: Mapping[str, str]) -> Any:
        tags = {_RUN: name, _GROUP: group, _KEY: _digest(name, group), **about}
        if group:
            tags["mlflow.parentRunId"] = self._parent(group)
        return self.client.create_run(self.experiment, tags=tags, run_name=name)

    def _parent(self, group: str) -> str:
        """The run that stands for a study, below which MLflow shows those of its cells."""
        if group not in self.parents:
            found = self._found(group, "")
            if found is None:
                found = self._create(group, "", {"fedstill.kind": "study"})
                self.client.set_terminated(found.info.run_id, "FINISHED")
            self.parents[group] = found.info.run_id
        return self.parents[group]

    def _describe(self, run_id: str, run: TrackedRun) -> None:
        make = self.entities.Param
        settings = [
            make(metric_name(name), str(value)[:_LONGEST])
            for name, value in flattened(run.settings)
            if value is not None
        ]
        for begin in range(0, len(settings), _MOST):
            self.client.log_batch(run_id, params=settings[begin : begin + _MOST])


def _digest(name: str, group: str) -> str:
    return sha256(f"{group}/{name}".encode()).hexdigest()
