"""Records that no run has written, with whatever a test wants in them."""

from __future__ import annotations

from typing import Any

from fedstill.core.records import RoundRecord, RunResult, round_record_class, run_result_class

METRICS = {"accuracy": 0.5, "class_accuracy": 0.5, "loss": 0.5, "constant": 0.5}


def round_record(
    round: int = 1, clients: int = 1, *, test: Any = METRICS, finite: bool = True, **more: Any
) -> RoundRecord:
    """A round with all clients; without `test` metrics it is not evaluated."""
    everyone = tuple(range(clients))
    evaluation = {
        "finite": finite,
        "test": test,
        "validation": {},
        "extra_models": {},
        "negative_variances": 0.0,
    }
    given = {
        "round": round,
        "sampled": everyone,
        "accepted": everyone,
        "failures": (),
        "bytes": {"up": 1024 * clients, "down": 2048 * clients},
        "work": 100.0,
        "loss": {"cross-entropy": 2.0 / round},
        "method_metrics": {},
        **({} if test is None else {"evaluation": evaluation}),
    }
    return round_record_class().model_validate({**given, **more})


def personal_metrics(**more: float) -> dict[str, float]:
    """Of clients' own models, all alike unless a test says so."""
    accuracies = dict.fromkeys(("mean", "min", "max", "class_mean", "own_mean"), 0.5)
    return {"clients": 4, **accuracies, "std": 0.0, "own_std": 0.0, "loss": 0.5, "non_finite": 0, **more}


def run_result(**more: Any) -> RunResult:
    given = {
        "method": "fedavg",
        "data": "digits",
        "model": "cnn",
        "partition": "iid",
        "clients": 4,
        "seed": 0,
        "rounds": 1,
        "accuracy": {"last": 0.5, "best": 0.5},
        "class_accuracy": {"last": 0.5, "best": 0.5},
        "round_of": {"last": 1, "best": 1},
        "shares": "shared model",
        "extra_models": {},
        "method_metrics": {},
        "teachers": (),
        "bytes": {"up": 1024, "down": 2048},
        "failures": 0,
        "skipped": 0,
        "finite": True,
        "sha256": "abcdef0123456789" * 4,
        "model_last": "",
    }
    return run_result_class().model_validate({**given, **more})
