"""The commands and their options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill._version import __version__
from fedstill.cli.auditing import audit_command
from fedstill.cli.data_app import data_app
from fedstill.cli.deploy_app import deploy_app
from fedstill.cli.fleet_app import fleet_app
from fedstill.cli.options import (
    Clients,
    Cut,
    Data,
    Device,
    Experiment,
    Json,
    Model,
    Out,
    Plugin,
    Preset,
    Query,
    Root,
    RunFolder,
    Seed,
    Set,
    Variant,
)
from fedstill.cli.patches_app import patches_app
from fedstill.cli.using import detect, export, latency, predict
from fedstill.core.errors import FedstillError

app = typer.Typer(
    name="fedstill",
    help="Federated learning and knowledge distillation.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
app.add_typer(fleet_app, name="fleet")
app.add_typer(patches_app, name="patches")


@app.command()
def run(
    experiment: Experiment,
    data: Data = None,
    model: Model = None,
    partition: Cut = None,
    participation: Annotated[str | None, typer.Option(help="Who takes part, e.g. random:fraction=0.1.")] = None,
    dropout: Annotated[str | None, typer.Option(help="Who is lost, e.g. 0.4, or bursty:rate=0.4,replace=true.")] = None,
    clients: Clients = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    seed: Seed = None,
    query: Query = None,
    set_: Set = None,
    out: Out = Path("runs"),
    engine: Annotated[str, typer.Option(help="in-process, processes, flower-ray or wire.")] = "in-process",
    workers: Annotated[int, typer.Option(help="Processes of the engines processes and flower-ray.")] = 2,
    data_root: Root = None,
    device: Device = "cpu",
    preset: Preset = None,
    variant: Variant = None,
    plugin: Plugin = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the experiment and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
    json: Json = False,
) -> None:
    """Run an experiment, go on with an interrupted one, or show a finished one."""
    from fedstill.cli import experiments

    flags = experiments.Flags(
        data, model, partition, participation, clients, rounds, seed, set_ or [], query or [], dropout
    )
    chosen = experiments.assemble(experiment, flags, preset, variant, plugin or [])
    if dry_run:
        experiments.show_plan(chosen, data_root, json)
    else:
        experiments.run(chosen, out, engine, workers, data_root, device, quiet, json)


@app.command()
def study(
    recipe: Annotated[str, typer.Argument(help="A recipe, its file, or a results file (.json) to draw again.")],
    set_: Set = None,
    out: Out = Path("runs"),
    workers: Annotated[int | None, typer.Option(help="Worker processes, at most one for each core.")] = None,
    executor: Annotated[str, typer.Option(help="local, or ray for many machines.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster: HOST:PORT or auto; else one is made.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="What the table shows, e.g. accuracy, best, personal; repeatable.")
    ] = None,
    table: Annotated[Path | None, typer.Option(help="Write the table as Markdown.")] = None,
    results: Annotated[Path | None, typer.Option(help="Write, or extend, a small file of all figures (.json).")] = None,
    data_root: Root = None,
    device: Device = "cpu",
    preset: Preset = None,
    variant: Variant = None,
    plugin: Plugin = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be run and stop.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
    json: Json = False,
) -> None:
    """Run a grid of experiments, or go on with it, and show its table."""
    from fedstill.cli import studies

    wanted = studies.Wanted(metric or [], table, results, json, quiet)
    if recipe.endswith(".json"):
        studies.show_results(Path(recipe), wanted)
        return
    made = studies.assemble(recipe, preset, variant, set_ or [], plugin or [], data_root, device)
    act = studies.show_plan if dry_run else studies.run
    act(made, out, workers, retry_failed, wanted, executor, address)


@app.command()
def query(
    run: RunFolder,
    client: Annotated[int | None, typer.Option(help="Who asks.")] = None,
    class_: Annotated[
        list[str] | None, typer.Option("--class", help="For which class, by number or name; repeatable.")
    ] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask nobody: only show what all models seem to know.")] = False,
    method: Annotated[str, typer.Option(help="qkt, qkt-light or naive-kd.")] = "qkt",
    set_: Set = None,
    out: Out = Path("runs"),
    html: Annotated[Path | None, typer.Option(help="The page with its figures; else in the new run's folder.")] = None,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Let a client of a finished run ask the others' models for a class it lacks."""
    from fedstill.cli import asking

    if probe:
        asking.probe(run, set_ or [], data_root, plugin or [], json)
        return
    if client is None or not class_:
        from fedstill.core.errors import InputError

        raise InputError("say who asks and for what, e.g. --client 3 --class 7; or --probe to see what all models know")
    asking.query(run, client, class_, method, set_ or [], out, html, data_root, plugin or [], json)


@app.command()
def distill(
    student: Annotated[str, typer.Option(help="The student's model, by name.")],
    teacher: Annotated[list[Path] | None, typer.Option(help="A run's folder; repeat it for several.")] = None,
    teacher_file: Annotated[Path | None, typer.Option(help="Or weights of your own (.safetensors).")] = None,
    teacher_model: Annotated[
        list[str] | None,
        typer.Option(help="The model of --teacher-file, by name; or, where a run has several, which; repeatable."),
    ] = None,
    teacher_call: Annotated[str | None, typer.Option(help="Or module:function that makes a torch module.")] = None,
    teacher_checkpoint: Annotated[str, typer.Option(help="Of a run: last, best or selected.")] = "last",
    objective: Annotated[str, typer.Option(help="E.g. vanilla, or dkd:temperature=4.")] = "vanilla",
    labels: Annotated[str, typer.Option(help="use, no-ce or withhold.")] = "use",
    proxy: Annotated[str | None, typer.Option(help="Data to distil on; else the training split.")] = None,
    data: Data = None,
    epochs: Annotated[int | None, typer.Option("--epochs", "--rounds", help="How many epochs.")] = None,
    seed: Seed = None,
    set_: Set = None,
    out: Out = Path("runs"),
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the experiment and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
    json: Json = False,
) -> None:
    """Distil a teacher into a student, go on with an interrupted distillation, or show a finished one."""
    from fedstill.cli import distilling, experiments

    sources = distilling.sources(teacher or [], teacher_file, teacher_model or [], teacher_call, teacher_checkpoint)
    flags = experiments.Flags(data=data, rounds=epochs, seed=seed, set_=set_ or [])
    chosen = distilling.assemble(sources, student, objective, labels, proxy, flags, plugin or [])
    if dry_run:
        experiments.show_plan(chosen, data_root, json)
    else:
        experiments.run(chosen, out, "in-process", 1, data_root, device, quiet, json)


@app.command()
def pretrain(
    data: Annotated[str, typer.Argument(help="Scenes to learn from, e.g. rooms-unlabelled.", metavar="DATA")],
    model: Annotated[str | None, typer.Option(help="Whose encoder: a detector, by name; else detr3d-lite.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How many epochs.")] = None,
    rows: Annotated[int | None, typer.Option(help="Only the first so many scenes.")] = None,
    seed: Seed = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="The weights (.safetensors); a .json beside them says how.")] = Path(
        "encoder.safetensors"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that was made otherwise.")] = False,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
    json: Json = False,
) -> None:
    """Pre-train a detector's encoder on scenes without labels, to start runs from, or go on with it."""
    from fedstill.cli import pretraining

    given = {"data": data, "model": model, "epochs": epochs, "rows": rows, "seed": seed}
    pretraining.run(given, set_ or [], out, overwrite, data_root, device, plugin or [], quiet, json)


@app.command(name="list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(help="One shelf, e.g. methods, objectives, models, datasets, recipes or studies."),
    ] = None,
    traffic: Annotated[bool, typer.Option("--traffic", help="What a client of each method sends, measured.")] = False,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Everything that can be chosen by name, with a sentence each."""
    from fedstill.cli import listing

    (listing.show_traffic if traffic else listing.show)(what, plugin or [], json)


@app.command()
def show(run: RunFolder, json: Json = False) -> None:
    """A run's rounds as a table and a curve."""
    from fedstill.cli import runs

    runs.show(run, json)


@app.command()
def egress(
    experiment: Experiment,
    data: Data = None,
    model: Model = None,
    set_: Set = None,
    data_root: Root = None,
    preset: Preset = None,
    variant: Variant = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """What leaves a client in this experiment, with measured sizes."""
    from fedstill.cli import experiments

    flags = experiments.Flags(data=data, model=model, set_=set_ or [])
    experiments.egress(experiments.assemble(experiment, flags, preset, variant, plugin or []), data_root, json)


for command in (predict, detect, export, latency):
    app.command()(command)


@app.command()
def clean(
    out: Out = Path("runs"),
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Free checkpoints of finished runs.")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Remove unfinished runs.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove all runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")] = False,
    json: Json = False,
) -> None:
    """Show what runs take on disk, and free it."""
    from fedstill.cli import cleaning

    cleaning.clean(out, checkpoints, unfinished, everything, yes, json)


app.command(name="audit")(audit_command)


@app.command()
def report(
    sources: Annotated[
        list[Path], typer.Argument(help="A study's results (.json), its folder, or folders of runs.", metavar="SOURCE")
    ],
    out: Annotated[Path | None, typer.Option(help="The page (.html); else beside the results.")] = None,
    data: Annotated[str | None, typer.Option(help="Of a study on several data sets, which is meant.")] = None,
    data_root: Root = None,
) -> None:
    """Write one HTML page about a study and its audit, or about some runs, with all figures also as files."""
    from fedstill.cli import reporting

    reporting.report(sources, out, data, data_root)


@app.command()
def demo(
    out: Out = Path("demo"),
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
) -> None:
    """Are students as good as they seem? Six teachers, four objectives, built-in heads, an audit and a report."""
    from fedstill.cli import demonstration

    demonstration.demo(out, workers, quiet)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"fedstill {__version__}")
        raise typer.Exit


# Typer brings its own copy of click or uses the installed one, depending on its release.
_USAGE_ERROR: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
_INTERRUPTED = 130  # as shells count it: 128 and the number of SIGINT


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 failed while running, 2 bad input, 3 found by an audit, 130 interrupted."""
    try:
        code = app(standalone_mode=False)
        if code == _INTERRUPTED:  # typer has made a return value of the interrupt
            raise KeyboardInterrupt
    except FedstillError as error:
        _complain(str(error), error.exit_code)
    except _USAGE_ERROR as error:
        _complain(error.format_message(), 2)
    except (typer.Abort, KeyboardInterrupt):
        _complain("interrupted: run the same command again to go on", _INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has had enough (`| head`): not an error.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(text: str, code: int) -> None:
    print(f"fedstill: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(code)
