"""`fedstill show`: a run's rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.cli.experiments import run_printed, show_result
from fedstill.cli.screen import console, print_json, sparkline, table
from fedstill.core.numbers import share, size
from fedstill.core.plugins import use_plugins
from fedstill.core.records import RoundRecord
from fedstill.runtime.result import Run
from fedstill.runtime.round_outcome import by_reason
from fedstill.tasks.measures import detects, measure_of

_ROWS = 20


def show(path: Path, plugins: Sequence[Path], as_json: bool) -> None:
    use_plugins(plugins)
    run = Run(path)
    journal = run.journal
    if as_json:
        print_json(run_printed(run) | {"journal": [record.to_dict() for record in journal]})
        return
    together = detects(run.experiment.architectures[0])  # its terms are too many for one line
    rows = [
        (
            str(record.round),
            share(record.accuracy),
            " ".join(f"{value:.4f}" for value in _losses(record, together)) or "-",
            f"{len(record.accepted)}/{len(record.sampled)}",
            f"↑{size(record.bytes.up)} ↓{size(record.bytes.down)}",
            _trouble(record),
        )
        for record in _thinned(journal)
    ]
    terms = list(dict.fromkeys(name for record in journal for name in record.loss))
    loss = "training loss" if len(terms) < 2 or together else ", ".join(terms)
    measure = measure_of(run.experiment.architectures[0])
    table("", ("round", measure, loss, "replies", "traffic", "trouble"), rows, right=(0, 1, 2, 3))
    curve = [record.accuracy for record in journal if record.accuracy is not None]
    if curve:
        console.print(f"\n{measure} {sparkline(curve)}  {share(min(curve))} … {share(max(curve))}\n")
    if run.finished:
        show_result(run)
    else:
        rounds = run.config.get("rounds", run.experiment.rounds)
        console.print(f"not finished: {len(journal)} of {rounds} rounds; run the same command again to go on")


def _losses(record: RoundRecord, together: bool) -> list[float]:
    """A round's terms, or their sum."""
    terms = list(record.loss.values())
    return [sum(terms)] if together and terms else terms


def _thinned(journal: list[RoundRecord]) -> list[RoundRecord]:
    """At most a screenful: the first, the last, and evenly between."""
    if len(journal) <= _ROWS:
        return journal
    picks = sorted({number * (len(journal) - 1) // (_ROWS - 1) for number in range(_ROWS)})
    return [journal[number] for number in picks]


def _trouble(record: RoundRecord) -> str:
    if record.skipped:
        return f"skipped: {record.skipped}"
    failures = [by_reason(record.failures)] if record.failures else []
    finite = record.evaluation is None or record.evaluation.finite
    return ", ".join([*failures, *([] if finite else ["not finite"])])
