"""`fedstill distill`: teachers, a student and an objective, as an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.flags import Flags
from fedstill.cli.options import (
    Data,
    Device,
    DryRun,
    Json,
    Out,
    Plugin,
    Quiet,
    Root,
    Seed,
    Set,
    Track,
    Which,
    named,
    one_of,
    paired,
    run_folders,
)
from fedstill.cli.run import run_and_show
from fedstill.core.errors import InputError, did_you_mean

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.runtime.experiment import Experiment


def distill(
    student: Annotated[str, typer.Option(help="Name of the student's model.", autocompletion=named("models"))],
    teacher: Annotated[
        list[Path] | None, typer.Option(help="Folder of the teacher's run; repeatable.", autocompletion=run_folders)
    ] = None,
    teacher_file: Annotated[Path | None, typer.Option(help="Instead of a run: a weights file (.safetensors).")] = None,
    teacher_model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model of --teacher-file; or, of a run with several models, which one; repeatable.",
            autocompletion=named("models"),
        ),
    ] = None,
    teacher_call: Annotated[
        str | None, typer.Option(help="module:function that returns the teacher as a torch module.")
    ] = None,
    which: Which = "last",
    objective: Annotated[
        str,
        typer.Option(help="Distillation loss, e.g. vanilla or dkd:temperature=4.", autocompletion=named("objectives")),
    ] = "vanilla",
    labels: Annotated[
        str,
        typer.Option(
            help="use; no-ce: no cross-entropy with labels; withhold: no labels at all.",
            autocompletion=one_of("use", "no-ce", "withhold"),
        ),
    ] = "use",
    proxy: Annotated[
        str | None,
        typer.Option(
            help="Data set to distil on; default: the training split of --data.", autocompletion=named("datasets")
        ),
    ] = None,
    data: Data = None,
    epochs: Annotated[int | None, typer.Option("--epochs", "--rounds", help="Number of epochs.")] = None,
    seed: Seed = None,
    set_: Set = None,
    out: Out = Path("runs"),
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    track: Track = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Distil a teacher into a student, or resume or show that run."""
    teachers = _teachers(teacher or [], teacher_file, teacher_model or [], teacher_call, which)
    flags = Flags(data=data, rounds=epochs, seed=seed, set_=set_, plugin=plugin)
    chosen = _assemble(teachers, student, objective, labels, proxy, flags)
    if dry_run:
        from fedstill.cli.plan_view import show_plan

        show_plan(chosen, data_root, json, track, device, out)
    else:
        run_and_show(chosen, out, "in-process", 1, data_root, device, quiet, json, track)


def _teachers(
    runs: Sequence[Path], file: Path | None, models: Sequence[str], call: str | None, which: str
) -> list[dict[str, Any]]:
    """The teachers as an experiment names them: runs, or one of the user's own."""
    own = file is not None or call is not None
    if not runs and not own:
        raise InputError("name the teacher: a run with --teacher, or your own with --teacher-file or --teacher-call")
    if runs and own:
        raise InputError("teachers are either runs (--teacher) or one of your own (--teacher-file, --teacher-call)")
    if own and (len(models) > 1 or (models and file is None)):
        raise InputError(
            "--teacher-model says what one --teacher-file holds, or which of a --teacher's models is meant"
        )
    if file is not None and call is None and not models:
        raise InputError("a file of weights needs the name of its model: add --teacher-model")
    if own and which != "last":
        raise InputError("--which chooses one of a run's models: give --teacher")
    if runs:
        return [
            {"run": str(run), "which": which, "model": model} for run, model in paired(runs, models, "--teacher-model")
        ]
    return [{"file": None if file is None else str(file), "model": next(iter(models), None), "call": call}]


def _assemble(
    teachers: list[dict[str, Any]],
    student: str,
    objective: str,
    labels: str,
    proxy: str | None,
    flags: Flags,
) -> Experiment:
    from fedstill.core.plugins import use_plugins
    from fedstill.distillation.label_modes import LABEL_MODES
    from fedstill.runtime.assemble import make_experiment, named_part
    from fedstill.runtime.launch import distillation

    use_plugins(flags.plugin or ())
    if flags.rounds is not None and flags.rounds < 1:
        raise InputError(f"--epochs is at least 1, not {flags.rounds}")
    if labels not in LABEL_MODES:
        raise InputError(f"--labels: unknown choice {labels!r}: {did_you_mean(labels, LABEL_MODES)}")
    given = distillation(teachers, student, named_part(objective), labels)
    if proxy is not None:
        given["method"]["proxy"] = proxy
    return make_experiment(flags.over(given))
