"""The result of a query as a run: the client's new model, the queried peers, and the changes in recall."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.core.files import digest_of, disk_trouble, writable_folder, write_atomically
from fedstill.core.kinds import state_of
from fedstill.core.message import Message
from fedstill.core.records import RunResult, TrafficRecord, run_result_class
from fedstill.core.task import Tensors
from fedstill.methods import methods
from fedstill.models.own_models import plain
from fedstill.queries.peers import PeerMethod
from fedstill.queries.query_records import QueryRecord
from fedstill.runtime.experiment import Experiment, experiment_class
from fedstill.runtime.result import Run
from fedstill.runtime.run import described
from fedstill.runtime.run_folder import RunFolder, pack_models
from fedstill.runtime.run_summary import run_digest

WEIGHTS = "model.safetensors"  # the new model once more, under torch's names, for programs without Fedstill

if TYPE_CHECKING:
    from fedstill.queries.transfer import Asked, Queried


def keep(asked: Asked, out: Path) -> Run:
    """Store the client's new model as a run, which can be shown, exported and used like any other."""
    plan, experiment = asked.plan, experiment_of(asked.run, asked.client, asked.fate.query, asked.settings)
    models: dict[str, Tensors] = {plan.profiles[asked.client].architecture: state_of(asked.model)}
    packed, facts = pack_models(models), json.dumps(experiment.hashed(), sort_keys=True)
    identity = blake2b(f"{facts} {asked.run.sha256} {digest_of(packed)}".encode(), digest_size=8).hexdigest()
    folder = RunFolder(
        writable_folder(out)
        / plan.folder_name.replace(plan.experiment.method.name, "query", 1).replace(plan.identity, identity)
    )
    scores = plan.task.summarise(plan.task.score([asked.model], plan.bundle.test))
    metrics = asked.fate.metrics()
    try:
        changed = {"identity": identity, "experiment": experiment.model_dump(mode="json"), "rounds": experiment.rounds}
        folder.create({**described(plan), **changed})
        folder.save_models("last", packed)
        if asked.offered:
            write_atomically(folder.path / WEIGHTS, Message(plain(asked.model).state_dict()).encode())
        folder.save_result(_result(asked, experiment, dict(scores), metrics, models, packed))
    except OSError as error:
        raise disk_trouble(folder.path, error) from error
    return Run(folder.path)


def experiment_of(run: Queried, client: int, classes: Sequence[int], settings: dict[str, Any]) -> Experiment:
    given, wanted = run.experiment.model_dump(mode="json"), {client: tuple(classes)}
    return experiment_class().model_validate({**given, "method": settings, "rounds": 1, "queries": {"by_hand": wanted}})


def settings_of(method: PeerMethod) -> dict[str, Any]:
    return {"name": methods.name_of(type(method)), **method.settings.model_dump(mode="json")}


def _result(
    asked: Asked,
    experiment: Experiment,
    scores: dict[str, float],
    metrics: dict[str, float],
    models: dict[str, Tensors],
    packed: bytes,
) -> RunResult:
    query = QueryRecord(
        run=str(asked.run.path),
        client=asked.client,
        classes=asked.fate.query,
        teachers=tuple(asked.teachers),
        before=tuple(asked.fate.before.tolist()),
        after=tuple(asked.fate.after.tolist()),
        epochs=tuple(asked.epochs),
        collapsed=asked.fate.collapsed,
        choice=asked.choice,
        offered=asked.offered or None,
        unmeasured=asked.unmeasured or None,
    )
    sections: dict[str, Any] = {"query": query}
    return run_result_class()(
        method=experiment.method.name,
        data=experiment.data,
        model=next(iter(models)),
        partition=experiment.partition.name,
        clients=experiment.clients,
        seed=experiment.seed,
        rounds=1,
        accuracy={"last": scores["accuracy"]},
        class_accuracy={"last": scores["class_accuracy"]},
        round_of={"last": 1},
        shares=f"model of client {asked.client}",
        extra_models={},
        method_metrics=dict(metrics),
        teachers=(),
        bytes=TrafficRecord(**asked.traffic),
        failures=0,
        skipped=0,
        finite=scores.get("non_finite", 0.0) == 0.0,
        sha256=run_digest(models, None),
        model_last=digest_of(packed),
        **sections,
    )
