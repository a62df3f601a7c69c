"""`fedstill run`, `egress` and `show`: one experiment before, while and after it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.extensions import run_summaries
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import (
    Device,
    DryRun,
    ExperimentName,
    Json,
    Metric,
    Out,
    Plugin,
    Quiet,
    Root,
    RunFolders,
    Track,
    named,
)
from fedstill.cli.runs import show_comparison
from fedstill.cli.screen import CANNOT_RUN, console, errors, print_json, sparkline, table
from fedstill.core.numbers import count, share, size

if TYPE_CHECKING:  # help need not wait for torch
    from rich.console import Console

    from fedstill.core.records import PersonalMetrics, RoundRecord
    from fedstill.core.settings import Settings
    from fedstill.runtime.experiment import Experiment
    from fedstill.runtime.result import Run

_ROWS = 20  # rounds in the table of `show`


@with_flags()
def run(
    experiment: ExperimentName,
    flags: Flags,
    out: Out = Path("runs"),
    engine: Annotated[
        str,
        typer.Option(
            help="Where clients run: in-process, processes, flower-ray or wire.", autocompletion=named("engines")
        ),
    ] = "in-process",
    workers: Annotated[int, typer.Option(help="Number of processes, for the engines processes and flower-ray.")] = 2,
    metric: Annotated[
        str | None, typer.Option(help="Metric that ranks rounds, e.g. auc; the same as --set select_by=NAME.")
    ] = None,
    data_root: Root = None,
    device: Device = "cpu",
    track: Track = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run an experiment, resume it, or show its result."""
    chosen = _ranked_by(flags, metric).assemble(experiment)
    if dry_run:
        from fedstill.cli.plan_view import show_plan

        show_plan(chosen, data_root, json, track, device, out, engine, workers)
    else:
        run_and_show(chosen, out, engine, workers, data_root, device, quiet, json, track)


def _ranked_by(flags: Flags, metric: str | None) -> Flags:
    """The flags with the metric that ranks rounds among the settings."""
    from fedstill.runtime.round_ranking import check_metric_name

    if metric is None:
        return flags
    return replace(flags, set_=[*(flags.set_ or ()), f"select_by={check_metric_name(metric)}"])


@with_flags()
def egress(experiment: ExperimentName, flags: Flags, data_root: Root = None, json: Json = False) -> None:
    """Show what leaves a client in a round, with measured sizes."""
    from fedstill.runtime.egress_manifest import egress_manifest
    from fedstill.runtime.plan import make_plan

    manifest = egress_manifest(make_plan(flags.assemble(experiment), data_root))
    if json:
        print_json(manifest)
        return
    console.print(f"What leaves a client in a round of {manifest['method']} ({manifest['model']}):\n")
    manifest_table(manifest, console)
    console.print(f"\nWhat a client receives at first contact: {size(manifest['arrives_bytes'])}.")
    for part in ("participation", "evaluation"):
        console.print(f"{part.capitalize()}: {manifest[part]}.")


def show(runs: RunFolders, metric: Metric = None, plugin: Plugin = None, json: Json = False) -> None:
    """Show a run's rounds and figures, or compare several runs."""
    from fedstill.core.plugins import use_plugins
    from fedstill.runtime.result import Run

    use_plugins(plugin or [])
    if len(runs) > 1 or next(runs[0].glob("*/config.json"), None) is not None:
        show_comparison(runs, json, metric)
    else:
        _show_run(Run(runs[0]), json, metric)


def _show_run(found: Run, json: bool, metric: str | None) -> None:
    from fedstill.cli.metrics_view import measured_rounds
    from fedstill.tasks.task_choice import measure_of

    journal = found.journal
    if json:
        print_json(run_to_dict(found) | {"journal": [record.to_dict() for record in journal]})
        return
    measure, scores = measured_rounds(found, metric, measure_of(found.experiment.architectures[0]))
    _rounds_table(found, measure, scores)
    curve = [score for score in scores.values() if score is not None]
    if curve:
        console.print(f"\n{measure} {sparkline(curve)}  {share(min(curve))} … {share(max(curve))}\n")
    for why in found.stale:
        console.print(f"stale: {why}")
    if found.finished:
        show_result(found)
        for text in found.cautions:
            console.print(f"caution: {text}", soft_wrap=True)
    else:
        rounds = found.config.get("rounds", found.experiment.rounds)
        console.print(f"not finished: {len(journal)} of {rounds} rounds; run the same command again to go on")


def print_plan(settings: Settings, status: str, as_json: bool, called: str = "experiment") -> None:
    """Settings as a recipe has them, and whether they can be run; exits with code 2 where they cannot."""
    import yaml

    content = settings.model_dump(mode="json")
    if as_json:
        print_json({called: content, "status": status})
    else:
        console.print(yaml.safe_dump({called: content}, sort_keys=False).rstrip())
        console.print(f"# {status}")
    if status.startswith(CANNOT_RUN):
        raise typer.Exit(2)


def run_and_show(
    experiment: Experiment,
    out: Path,
    engine: str,
    workers: int,
    data_root: Path | None,
    device: str,
    quiet: bool,
    as_json: bool,
    track: Sequence[str] | None = None,
) -> None:
    """Run an experiment with live progress, and print its result."""
    from fedstill.cli.progress import RunDisplay
    from fedstill.runtime.launch import launch

    display = RunDisplay(quiet or as_json)
    try:
        done = launch(
            experiment,
            out=out,
            engine=engine,
            workers=workers,
            data_root=data_root,
            device=device,
            observers=[display],
            track=track,
            tell=display.warn,
            measure=errors.is_terminal and not display.quiet,
        )
    finally:
        display.close()
    print_run(done, as_json, display.begun())


def print_run(run: Run, as_json: bool, begun: str = "") -> None:
    if as_json:
        print_json(run_to_dict(run))
    else:
        show_result(run, begun)


def run_to_dict(run: Run) -> dict[str, Any]:
    """A run as `--json` prints it, in every command; of one that is not finished, its folder and measure."""
    from fedstill.report.command import missing_reference
    from fedstill.tasks.task_choice import measure_of

    measure = measure_of(run.experiment.architectures[0])
    if not run.finished:
        return {"run": str(run.path), "measure": measure}
    sections = {name: run_summaries[name].section(run) for name in run_summaries}
    printed = run.printed(measure=measure, **sections).to_dict()
    if (command := missing_reference(run)) is not None:
        printed["reference"]["command"] = command
    return printed


def show_result(run: Run, begun: str = "") -> None:
    """A finished run's figures; `begun` says how much of it was there before."""
    from fedstill.cli.metrics_view import show_metrics
    from fedstill.runtime.batchnorm_check import check_sentence
    from fedstill.runtime.run_checks import baseline_sentence, skipped_files

    result = run.result
    console.print(
        f"{result.method} on {result.data}: {result.model}, {count(result.clients, 'client')},"
        f" {result.partition}, seed {result.seed}, {count(result.rounds, 'round')}",
        style="bold",
    )
    heads, rows = _scores(run)
    table("", ("model", "round", *heads), rows, right=range(1, len(heads) + 2))
    show_metrics(run)
    _show_teachers(run)
    for name, accuracy in result.extra_models.items():
        console.print(f"{name}: {share(accuracy)}")
    if result.personal is not None:
        _show_personal(run, result.personal)
    if result.by_site:
        _show_sites(result.by_site)
    for name in run_summaries:
        run_summaries[name].show(run)
    for name, value in result.method_metrics.items():
        console.print(f"{name}: {value:.4g}")
    if result.failures or result.skipped:
        _show_failures(run)
    if result.batchnorm is not None:
        console.print(check_sentence(result.batchnorm), soft_wrap=True)
    for note in skipped_files(run.checks):
        console.print(note, soft_wrap=True)
    if (baseline := baseline_sentence(run.checks)) is not None:
        console.print(baseline, soft_wrap=True)
    _show_reference(run)
    if not result.finite:
        console.print("some rounds had models that are not finite: they are never `best`", style="bold")
    if begun:
        console.print(begun)
    console.print(
        f"traffic ↑{size(result.bytes.up)} ↓{size(result.bytes.down)}, {run.seconds:.1f} s,"
        f" sha256 {result.sha256[:16]}…\n{run.path}",
        soft_wrap=True,
    )


def _show_reference(run: Run) -> None:
    from fedstill.report.command import reference_sentence

    if (said := reference_sentence(run)) is not None:
        console.print(said, soft_wrap=True)


def _scores(run: Run) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The names of a run's measures, and a row of them for each of its models and each way of measuring them."""
    from fedstill.tasks.task_choice import measures_of, variants_of

    result = run.result
    measures = measures_of(run.experiment.architectures[0])
    metrics = {record.round: record.metrics for record in run.journal} if measures else {}
    rows = []
    for which, accuracy in result.accuracy.items():
        held = metrics.get(result.round_of[which], {})
        figures = [held.get(name) for name in measures] if measures else [accuracy, result.class_accuracy[which]]
        rows.append((which, str(result.round_of[which]), *map(share, figures)))
        for variant in variants_of(run.experiment.architectures[0]):
            if any(f"{variant}_{name}" in held for name in measures):
                beside = (share(held.get(f"{variant}_{name}")) for name in measures)
                rows.append((f"{which}, {variant}", str(result.round_of[which]), *beside))
    return tuple(measures.values()) if measures else ("accuracy", "class accuracy"), rows


def _show_teachers(run: Run) -> None:
    from fedstill.tasks.task_choice import ACCURACY, measure_of

    result, measure = run.result, measure_of(run.experiment.architectures[0])
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


def _show_personal(run: Run, personal: PersonalMetrics) -> None:
    own = f" on the whole test set, {share(personal.own_mean)} on each client's own mix of classes"
    where = " on each site's own test data" if run.experiment.evaluation == "on-site" else own
    spread = f"{share(personal.mean)} ± {share(personal.std)}"
    console.print(f"personal models of {personal.clients} clients: {spread}{where}")
    if personal.non_finite:
        console.print(f"{personal.non_finite} of them are not finite: they count as chance", style="bold")


def _show_sites(by_site: Mapping[str, Mapping[str, float]]) -> None:
    from fedstill.audit.statistics import share_interval

    rows = []
    for name, metrics in by_site.items():
        low, high = share_interval(metrics["accuracy"], metrics["samples"])
        figures = (share(metrics["accuracy"]), f"{share(low)} to {share(high)}", share(metrics["class_accuracy"]))
        rows.append((name, f"{metrics['samples']:,.0f}", *figures))
    table("", ("site", "test samples", "accuracy", "95 % interval", "class accuracy"), rows, right=range(1, 5))


def _show_failures(run: Run) -> None:
    from fedstill.runtime.round_outcome import by_reason, only_not_finite

    failures = [one for record in run.journal for one in record.failures]  # none where a site was sent the result
    why = f" ({by_reason(failures)})" if failures else ""
    console.print(f"{run.result.failures} failures{why}, {run.result.skipped} rounds skipped")
    if only_not_finite(failures) and run.experiment.attack.name == "none":
        console.print("training diverged: lower training.rate", style="bold")


def manifest_table(manifest: Mapping[str, Any], where: Console) -> None:
    """What a data officer reads: everything that leaves, its kind, its receiver and its measured size."""
    rows = [
        (line["name"], line["kind"], line["to"], str(line["tensors"]), size(line["bytes"]), _what_and_when(line))
        for line in manifest["leaves"]
    ]
    table("", ("name", "kind", "to", "tensors", "size", "what it is"), rows, right=(3, 4), where=where)


def _what_and_when(line: Mapping[str, Any]) -> str:
    """What leaves, and in which rounds where it is not in all."""
    from fedstill.core.egress import EVERY_ROUND

    return str(line["why"]) if line["when"] == EVERY_ROUND else f"{line['why']}; {line['when']}"


def _rounds_table(run: Run, measure: str, scores: Mapping[int, float | None]) -> None:
    from fedstill.tasks.task_choice import detects

    journal = run.journal
    together = detects(run.experiment.architectures[0])  # its terms are too many for one line
    rows = [
        (
            str(record.round),
            share(scores[record.round]),
            " ".join(f"{value:.4f}" for value in _losses(record, together)) or "-",
            f"{len(record.accepted)}/{len(record.sampled)}",
            f"↑{size(record.bytes.up)} ↓{size(record.bytes.down)}",
            _trouble(record),
        )
        for record in _thinned(journal)
    ]
    terms = list(dict.fromkeys(name for record in journal for name in record.loss))
    loss = "training loss" if len(terms) < 2 or together else ", ".join(terms)
    table("", ("round", measure, loss, "replies", "traffic", "trouble"), rows, right=(0, 1, 2, 3))


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
    from fedstill.runtime.round_outcome import by_reason

    if record.skipped:
        return f"skipped: {record.skipped}"
    failures = [by_reason(record.failures)] if record.failures else []
    finite = record.evaluation is None or record.evaluation.finite
    return ", ".join([*failures, *([] if finite else ["not finite"])])
