"""The commands that train something; `app` registers them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import named, one_of, runs
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import (
    Data,
    Device,
    DryRun,
    Experiment,
    Json,
    Out,
    Plugin,
    Preset,
    Quiet,
    Root,
    Seed,
    Set,
    Variant,
    Which,
)


@with_flags()
def run(
    experiment: Experiment,
    flags: Flags,
    out: Out = Path("runs"),
    engine: Annotated[
        str, typer.Option(help="in-process, processes, flower-ray or wire.", autocompletion=named("engines"))
    ] = "in-process",
    workers: Annotated[int, typer.Option(help="Processes of the engines processes and flower-ray.")] = 2,
    data_root: Root = None,
    device: Device = "cpu",
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run an experiment, go on with it, or show a finished one."""
    from fedstill.cli import plans
    from fedstill.cli import run as experiments

    chosen = flags.assemble(experiment)
    if dry_run:
        plans.show_plan(chosen, data_root, json)
    else:
        experiments.run(chosen, out, engine, workers, data_root, device, quiet, json)


def study(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe, its file, or a results file (.json) to draw again.", autocompletion=named("studies")
        ),
    ],
    seed: Annotated[
        list[int] | None, typer.Option(help="Seeds, in place of those that the recipe has; repeatable.")
    ] = None,
    set_: Set = None,
    out: Out = Path("runs"),
    workers: Annotated[int | None, typer.Option(help="Worker processes, at most one for each core.")] = None,
    executor: Annotated[
        str, typer.Option(help="local, or ray for many machines.", autocompletion=one_of("local", "ray"))
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster: HOST:PORT or auto; else one is made.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="What the table shows, e.g. accuracy, best, personal; repeatable.", autocompletion=named("metrics")
        ),
    ] = None,
    table: Annotated[Path | None, typer.Option(help="Write the table as Markdown.")] = None,
    results: Annotated[Path | None, typer.Option(help="Write, or extend, a small file of all figures (.json).")] = None,
    data_root: Root = None,
    device: Device = "cpu",
    preset: Preset = None,
    variant: Variant = None,
    plugin: Plugin = None,
    dry_run: DryRun = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run a grid of experiments, or go on with it; show its table."""
    from fedstill.cli import study as studies

    wanted = studies.Wanted(metric or [], table, results, json, quiet)
    if recipe.endswith(".json"):
        _only_drawn(context)
        studies.show_results(Path(recipe), wanted)
        return
    settings = [*(set_ or []), *([f"seed={list(seed)}"] if seed else [])]
    made = studies.assemble(recipe, preset, variant, settings, plugin or [], data_root, device)
    act = studies.show_plan if dry_run else studies.run
    act(made, out, workers, retry_failed, wanted, executor, address)


_OF_RESULTS = {"recipe", "metric", "table", "quiet", "json"}  # what counts where a results file is drawn again


def _only_drawn(context: typer.Context) -> None:
    """Refuse what would change nothing."""
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name not in _OF_RESULTS and source is not None and source.name == "COMMANDLINE":
            from fedstill.core.errors import InputError

            raise InputError(f"a results file is only drawn again: leave {one.opts[0]} out, or name the recipe")


def distill(
    student: Annotated[str, typer.Option(help="The student's model, by name.", autocompletion=named("models"))],
    teacher: Annotated[
        list[Path] | None, typer.Option(help="A run's folder; repeat it for several.", autocompletion=runs)
    ] = None,
    teacher_file: Annotated[Path | None, typer.Option(help="Or weights of your own (.safetensors).")] = None,
    teacher_model: Annotated[
        list[str] | None,
        typer.Option(
            help="The model of --teacher-file, by name; or, where a run has several, which; repeatable.",
            autocompletion=named("models"),
        ),
    ] = None,
    teacher_call: Annotated[str | None, typer.Option(help="Or module:function that makes a torch module.")] = None,
    which: Which = "last",
    objective: Annotated[
        str, typer.Option(help="E.g. vanilla, or dkd:temperature=4.", autocompletion=named("objectives"))
    ] = "vanilla",
    labels: Annotated[
        str, typer.Option(help="use, no-ce or withhold.", autocompletion=one_of("use", "no-ce", "withhold"))
    ] = "use",
    proxy: Annotated[
        str | None,
        typer.Option(help="Data to distil on; else the training split.", autocompletion=named("datasets")),
    ] = None,
    data: Data = None,
    epochs: Annotated[int | None, typer.Option("--epochs", "--rounds", help="How many epochs.")] = None,
    seed: Seed = None,
    set_: Set = None,
    out: Out = Path("runs"),
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Distil a teacher into a student, or go on with it, or show it."""
    from fedstill.cli import distill as distilling
    from fedstill.cli import plans
    from fedstill.cli import run as experiments

    sources = distilling.sources(teacher or [], teacher_file, teacher_model or [], teacher_call, which)
    flags = Flags(data=data, rounds=epochs, seed=seed, set_=set_, plugin=plugin)
    chosen = distilling.assemble(sources, student, objective, labels, proxy, flags)
    if dry_run:
        plans.show_plan(chosen, data_root, json)
    else:
        experiments.run(chosen, out, "in-process", 1, data_root, device, quiet, json)


def demo(
    preset: Annotated[
        str | None, typer.Option(help="tiny: see only whether everything works.", autocompletion=one_of("tiny"))
    ] = None,
    out: Out = Path("demo"),
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """The main job at a small scale: teachers, students, audit, report."""
    from fedstill.cli import demo as demonstration

    demonstration.demo(preset, out, workers, quiet, json)
