"""The result of a finished run: its figures, traffic and digest."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from fedstill.core.message import digest
from fedstill.core.records import RoundRecord, RunResult, TrafficRecord
from fedstill.core.task import Tensors
from fedstill.runtime.checkpoint import Progress
from fedstill.runtime.client_store import Store
from fedstill.runtime.plan import Plan


def summary(plan: Plan, progress: Progress, sha256: str, model_last: str) -> RunResult:
    """The figures that are reported of a finished run."""
    journal = progress.journal
    evaluations = {record.round: record.evaluation for record in journal if record.evaluation is not None}
    rounds = {"last": max(evaluations), **{which: leader.round for which, leader in progress.leaders.items()}}
    last = evaluations[rounds["last"]]
    tests = {which: evaluations[number].test for which, number in rounds.items()}
    return RunResult(
        method=plan.experiment.method.name,
        data=plan.experiment.data,
        model=plan.experiment.model,
        partition=plan.experiment.partition.name,
        clients=plan.experiment.clients,
        seed=plan.experiment.seed,
        rounds=progress.round,
        accuracy={which: metrics.get("accuracy") for which, metrics in tests.items()},
        class_accuracy={which: metrics.get("class_accuracy") for which, metrics in tests.items()},
        round_of=rounds,
        shares=plan.method.shares,
        extra_models={name: metrics["accuracy"] for name, metrics in last.extra_models.items()},
        personal=last.personal,
        by_site=last.by_site,
        batchnorm=last.batchnorm,
        method_metrics=journal[-1].method_metrics,
        teachers=tuple(plan.teachers),
        ceiling=plan.ceiling,
        bytes=total_traffic(journal),
        failures=sum(len(record.failures) for record in journal),
        skipped=sum(record.skipped is not None for record in journal),
        finite=all(evaluation.finite for evaluation in evaluations.values()),
        sha256=sha256,
        model_last=model_last,
    )


def total_traffic(journal: Sequence[RoundRecord]) -> TrafficRecord:
    return TrafficRecord(
        up=sum(record.bytes.up for record in journal),
        down=sum(record.bytes.down for record in journal),
        first_contact=sum(record.bytes.first_contact or 0 for record in journal) or None,
    )


def run_digest(models: dict[str, Tensors], store: Store | None) -> str:
    """One hash over the shared models by architecture and, where there are personal models, all client state."""
    whole = sha256()
    for architecture in sorted(models):
        whole.update(f"{architecture} {digest(models[architecture])}\n".encode())
    if store is not None:
        for client in store.holders():
            whole.update(f"client {client} {store.digest(client)}\n".encode())
    return whole.hexdigest()
