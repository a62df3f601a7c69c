"""`fedstill distill`: teachers, a student and an objective, as an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstill.cli.flags import Flags
from fedstill.cli.pairing import paired
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.plugins import use_plugins
from fedstill.distillation.label_modes import LABEL_MODES
from fedstill.runtime.assemble import make_experiment, named_part
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.launch import distillation


def sources(
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


def assemble(
    teachers: list[dict[str, Any]],
    student: str,
    objective: str,
    labels: str,
    proxy: str | None,
    flags: Flags,
) -> Experiment:
    use_plugins(flags.plugin or ())
    if flags.rounds is not None and flags.rounds < 1:
        raise InputError(f"--epochs is at least 1, not {flags.rounds}")
    if labels not in LABEL_MODES:
        raise InputError(f"--labels: unknown choice {labels!r}: {did_you_mean(labels, LABEL_MODES)}")
    given = distillation(teachers, student, named_part(objective), labels)
    if proxy is not None:
        given["method"]["proxy"] = proxy
    return make_experiment(flags.over(given))
