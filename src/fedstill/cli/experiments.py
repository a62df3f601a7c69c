"""`fedstill run`: experiments while they run, and the figures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.cli.extensions import run_summaries
from fedstill.cli.progress import Display
from fedstill.cli.screen import console, print_json, table
from fedstill.core.numbers import count, share, size
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.launch import launch
from fedstill.runtime.result import Run
from fedstill.runtime.round_outcome import by_reason, only_not_finite
from fedstill.tasks.measures import ACCURACY, measure_of, measures_of


def run(
    experiment: Experiment,
    out: Path,
    engine: str,
    workers: int,
    data_root: Path | None,
    device: str,
    quiet: bool,
    as_json: bool,
) -> None:
    display = Display(quiet or as_json)
    try:
        done = launch(
            experiment,
            out=out,
            engine=engine,
            workers=workers,
            data_root=data_root,
            device=device,
            observers=[display],
        )
    finally:
        display.close()
    if as_json:
        print_json(run_printed(done))
    else:
        show_result(done, display.begun())


def run_printed(run: Run) -> dict[str, Any]:
    """A run as `--json` prints it, in every command; of one that is not finished, its folder and measure."""
    measure = measure_of(run.experiment.architectures[0])
    if not run.finished:
        return {"run": str(run.path), "measure": measure}
    sections = {name: run_summaries[name].section(run) for name in run_summaries}
    return run.printed(measure=measure, **sections).to_dict()


def show_result(run: Run, begun: str = "") -> None:
    """A finished run's figures; `begun` says how much of it was there before."""
    result = run.result
    console.print(
        f"{result.method} on {result.data}: {result.model}, {count(result.clients, 'client')},"
        f" {result.partition}, seed {result.seed}, {count(result.rounds, 'round')}",
        style="bold",
    )
    measure = measure_of(run.experiment.architectures[0])
    heads, rows = scores_of(run)
    table("", ("model", "round", *heads), rows, right=range(1, len(heads) + 2))
    for teacher in result.teachers:
        model = ", ".join(filter(None, (teacher.model, teacher.which)))
        console.print(
            f"teacher {teacher.name} ({model}): {measure} {share(teacher.metrics['accuracy'])}"
            + ("" if measure != ACCURACY else f", class accuracy {share(teacher.metrics['class_accuracy'])}")
            + ("; it predicts the same class for every test sample" if teacher.metrics["constant"] == 1 else ""),
        )
    if result.ceiling is not None:
        console.print(
            f"its teacher leaves the labels at most {share(result.ceiling)} of the proxy data (masking ceiling)",
        )
    for name, accuracy in result.extra_models.items():
        console.print(f"{name}: {share(accuracy)}")
    if (personal := result.personal) is not None:
        own = f" on the whole test set, {share(personal.own_mean)} on each client's own mix of classes"
        where = " on each site's own test data" if run.experiment.evaluation == "on-site" else own
        spread = f"{share(personal.mean)} ± {share(personal.std)}"
        console.print(f"personal models of {personal.clients} clients: {spread}{where}")
        if personal.non_finite:
            console.print(f"{personal.non_finite} of them are not finite: they count as chance", style="bold")
    for name in run_summaries:
        run_summaries[name].show(run)
    for name, value in result.method_metrics.items():
        console.print(f"{name}: {value:.4g}")
    if result.failures or result.skipped:
        failures = [one for record in run.journal for one in record.failures]  # none where a site was sent the result
        why = f" ({by_reason(failures)})" if failures else ""
        console.print(f"{result.failures} failures{why}, {result.skipped} rounds skipped")
        if only_not_finite(failures) and run.experiment.attack.name == "none":
            console.print("training diverged: lower training.rate", style="bold")
    if not result.finite:
        console.print("some rounds had models that are not finite: they are never `best`", style="bold")
    if begun:
        console.print(begun)
    console.print(
        f"traffic ↑{size(result.bytes.up)} ↓{size(result.bytes.down)}, {run.seconds:.1f} s,"
        f" sha256 {result.sha256[:16]}…\n{run.path}",
        soft_wrap=True,
    )


def scores_of(run: Run) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """How good a run's models are: what was measured, and a line for each of them."""
    result = run.result
    measures = measures_of(run.experiment.architectures[0])
    metrics = {record.round: record.metrics for record in run.journal} if measures else {}
    rows = []
    for which, accuracy in result.accuracy.items():
        held = metrics.get(result.round_of[which], {})
        figures = [held.get(name) for name in measures] if measures else [accuracy, result.class_accuracy[which]]
        rows.append((which, str(result.round_of[which]), *map(share, figures)))
    return tuple(measures.values()) if measures else ("accuracy", "class accuracy"), rows
