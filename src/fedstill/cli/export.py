"""`fedstill predict`, `export` and `latency`: what a finished run's model is used for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.options import (
    Architecture,
    Device,
    Json,
    OwnModel,
    Plugin,
    Root,
    RunFolder,
    TrainedModel,
    Which,
    named,
    paired,
    run_folders,
)
from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import MISSING, share, size

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.export.export_run import Outcome
    from fedstill.export.latency import Measured
    from fedstill.runtime.prediction import Prediction


def predict(
    run: TrainedModel,
    files: Annotated[
        list[Path],
        typer.Argument(help="Images, clouds, meshes, signals, tables or .npy arrays.", metavar="FILE..."),
    ],
    which: Which = "last",
    client: OwnModel = None,
    architecture: Architecture = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Classify files with a run's model, or with one exported as ONNX."""
    from fedstill.runtime.prediction import predict as predict_files

    predictions = predict_files(
        run, files, which=which, client=client, architecture=architecture, device=device, plugins=plugin or []
    )
    if predictions[0].labels_points:
        _show_parts(run, predictions, json)
        return
    if predictions[0].several:
        _show_several(run, predictions, json)
        return
    if json:
        answers = [{**_source(one), "class": one.label, "probability": one.probability} for one in predictions]
        print_json({"run": str(run), "predictions": answers})
        return
    rows = [(one.name, one.label, share(one.probability)) for one in predictions]
    table("", ("file", "class", "probability"), rows, right=(2,))


def _source(one: Prediction) -> dict[str, Any]:
    """What was classified: a file, or a row of one."""
    return {"file": str(one.file)} if one.row is None else {"file": str(one.file), "row": one.row}


def _show_several(run: Path, predictions: Sequence[Prediction], json: bool) -> None:
    """The probability of each class, of which a file has any number."""
    if json:
        answers = [{**_source(one), "classes": list(one.found), "probabilities": one.by_class} for one in predictions]
        print_json({"run": str(run), "predictions": answers})
        return
    names = predictions[0].classes
    rows = [(one.name, one.label, *(share(one.by_class[name]) for name in names)) for one in predictions]
    table("", ("file", "classes", *names), rows, right=range(2, 2 + len(names)))


def export(
    run: RunFolder,
    file: Annotated[Path, typer.Argument(help="File to write: .onnx, or .pt2 for torch.export.", metavar="FILE")],
    which: Which = "last",
    client: OwnModel = None,
    architecture: Architecture = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise weights to 8 bits (.onnx only), and measure the accuracy.")
    ] = False,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Export a run's model to ONNX or torch.export, and check it."""
    from fedstill.export.export_run import export as write

    outcome = write(
        run,
        file,
        which=which,
        client=client,
        architecture=architecture,
        int8=int8,
        data_root=data_root,
        plugins=plugin or [],
    )
    if json:
        print_json(_as_dict(run, outcome))
    else:
        _show_export(outcome)


def latency(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs; to compare two, the teacher first.", metavar="RUN...", autocompletion=run_folders
        ),
    ],
    which: Which = "last",
    architecture: Annotated[
        list[str] | None,
        typer.Option(
            help="Model, if clients have different ones: one for all runs, or one per run; repeatable.",
            autocompletion=named("models"),
        ),
    ] = None,
    passes: Annotated[int, typer.Option(help="Number of timed forward passes per measurement.")] = 100,
    seconds: Annotated[
        float, typer.Option(help="Stop a measurement after this many seconds, but not before 5 passes.")
    ] = 20.0,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Measure the parameters, size and latency of runs' models."""
    from fedstill.core.plugins import use_plugins
    from fedstill.export.latency import Protocol, measure, ratios
    from fedstill.export.subject import Subject
    from fedstill.runtime.result import Run

    chosen = paired(runs, architecture or [], "--architecture")
    if not 1 <= len(chosen) <= 9:
        raise InputError(f"name one to nine runs, not {len(chosen)}")
    if passes < 1 or seconds <= 0:
        raise InputError(f"measuring takes at least one pass and some time, not {passes} and {seconds:g} s")
    use_plugins(plugin or [])
    subjects = [Subject(Run(run), which, None, data_root, name) for run, name in chosen]
    measured = measure(subjects, Protocol(passes=passes, seconds=seconds))
    compared = ratios(*measured) if len(measured) == 2 else None
    if json:
        print_json({"runs": [one.to_dict() for one in measured], "ratios": compared})
        return
    _show_sizes(measured)
    _show_times(measured)
    if len(measured) == 2:
        console.print("\nratio: the first run's median over the second's")
    if measured[0].onnx_bytes is None:
        console.print("onnxruntime is not here: pip install 'fedstill[export]' to measure it too")


def _show_sizes(measured: Sequence[Measured]) -> None:
    rows = [
        (
            str(number),
            one.model,
            f"{one.parameters:,}",
            size(one.bytes),
            MISSING if one.onnx_bytes is None else size(one.onnx_bytes),
        )
        for number, one in enumerate(measured, start=1)
    ]
    for number, one in enumerate(measured, start=1):
        console.print(f"{number}  {one.run}", soft_wrap=True)
    console.print()
    table("", ("", "model", "parameters", "in memory", "ONNX"), rows, right=(2, 3, 4))
    console.print()


def _show_times(measured: Sequence[Measured]) -> None:
    """A line for each runtime, batch and number of threads, two columns for each run."""
    pair = len(measured) == 2
    columns = ["milliseconds", "batch", "threads"]
    for number in range(1, len(measured) + 1):
        mark = f" {number}" if len(measured) > 1 else ""
        columns += [f"median{mark}", f"p95{mark}"]
    rows = []
    for each in zip(*(one.latency for one in measured), strict=True):
        first = each[0]
        row = [first.runtime, str(first.batch), str(first.threads)]
        for one in each:
            row += [_milliseconds(one.median), _milliseconds(one.p95)]
        rows.append([*row, f"{each[0].median / each[1].median:.2f}"] if pair else row)
    seed = [one.seed for one in measured]
    row = [f"pytorch, mean of {seed[0].passes}", str(seed[0].batch), "1"]
    for one_seed in seed:
        row += [_milliseconds(one_seed.mean), ""]
    rows.append([*row, f"{seed[0].mean / seed[1].mean:.2f}"] if pair else row)
    names = [*columns, "ratio"] if pair else columns
    table("", names, rows, right=tuple(range(1, len(names))))
    inputs = " and ".join(sorted({one.inputs for one in measured}))
    fewest = min(one.passes for each in measured for one in each.latency)
    console.print(f"\nat least {fewest} passes each, in turns, on {inputs}")


def _milliseconds(value: float) -> str:
    """Three digits that count.

    >>> _milliseconds(0.1234), _milliseconds(12.34), _milliseconds(1234.5)
    ('0.123', '12.3', '1234')
    """
    return (
        f"{value:.3f}"
        if value < 1
        else f"{value:.2f}"
        if value < 10
        else f"{value:.1f}"
        if value < 100
        else f"{value:.0f}"
    )


def _show_parts(path: Path, predictions: Sequence[Prediction], as_json: bool) -> None:
    """Of models that label every point: how much of each cloud is what, and with --json, which point is what."""
    if as_json:
        answers = [
            {
                "file": str(one.file),
                "counts": one.counts,
                "labels": one.point_labels.tolist(),
                "points": one.inputs.tolist(),
            }
            for one in predictions
        ]
        print_json({"run": str(path), "classes": list(predictions[0].classes), "predictions": answers})
        return
    rows = [
        (str(one.file), name, f"{number:,}", share(number / len(one.inputs)))
        for one in predictions
        for name, number in one.counts.items()
        if number
    ]
    table("", ("file", "part", "points", "share"), rows, right=(2, 3))


def _show_export(outcome: Outcome) -> None:
    written, int8 = outcome.file, outcome.int8
    console.print(f"{written.path}  {size(written.bytes)}", soft_wrap=True)
    inputs = "test and random inputs" if outcome.inputs == "test data" else "random inputs (the test data are not here)"
    console.print(
        f"agrees with PyTorch within {written.difference:.1e} on {written.samples} {inputs}"
        + (f", except {written.chosen_otherwise} with other queries" if written.chosen_otherwise else "")
        + (", before its weights became 8-bit" if int8 else ""),
        soft_wrap=True,
    )
    if int8:
        rows = [
            ("float", size(int8.float_bytes), share(int8.float_accuracy)),
            ("8-bit", size(written.bytes), share(int8.accuracy)),
        ]
        table("", ("weights", "size", "test accuracy"), rows, right=(1, 2))


def _as_dict(run: Path, outcome: Outcome) -> dict[str, object]:
    file, int8 = outcome.file, outcome.int8
    return {
        "run": str(run),
        "file": str(file.path),
        "bytes": file.bytes,
        "difference": file.difference,
        "samples": file.samples,
        "chosen_otherwise": file.chosen_otherwise,
        "inputs": outcome.inputs,
        "int8": None
        if int8 is None
        else {"float_bytes": int8.float_bytes, "float_accuracy": int8.float_accuracy, "accuracy": int8.accuracy},
    }
