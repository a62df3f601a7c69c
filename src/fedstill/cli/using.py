"""The commands that use a finished run's model; `app` registers them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import named
from fedstill.cli.completion import runs as offer_runs
from fedstill.cli.options import Architecture, Device, Json, OwnModel, Plugin, Root, RunFolder, Which


def predict(
    run: RunFolder,
    files: Annotated[list[Path], typer.Argument(help="Pictures, clouds, meshes, or .npy arrays.", metavar="FILE...")],
    which: Which = "last",
    client: OwnModel = None,
    architecture: Architecture = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Classify files with a run's model."""
    from fedstill.cli import predicting

    predicting.predict(run, files, which, client, architecture, device, plugin or [], json)


def export(
    run: RunFolder,
    file: Annotated[Path, typer.Argument(help="What to write: .onnx, or .pt2 for torch.export.", metavar="FILE")],
    which: Which = "last",
    client: OwnModel = None,
    architecture: Architecture = None,
    int8: Annotated[bool, typer.Option("--int8", help="8-bit weights (.onnx), with their accuracy measured.")] = False,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Write a run's model as a file for other runtimes, checked."""
    from fedstill.cli import export as exporting

    exporting.export(run, file, which, client, architecture, int8, data_root, plugin or [], json)


def latency(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Runs' folders; of two, teacher first.", metavar="RUN...", autocompletion=offer_runs),
    ],
    which: Which = "last",
    architecture: Annotated[
        list[str] | None,
        typer.Option(
            help="Where clients have different models, which; one for all runs, or one each; repeatable.",
            autocompletion=named("models"),
        ),
    ] = None,
    passes: Annotated[int, typer.Option(help="Timed passes for each figure.")] = 100,
    seconds: Annotated[float, typer.Option(help="End a setting early after so long, with 5 passes or more.")] = 20.0,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Parameters, bytes and milliseconds of runs' models."""
    from fedstill.cli import export as exporting

    exporting.latency(runs, which, architecture or [], passes, seconds, data_root, plugin or [], json)
