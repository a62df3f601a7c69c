"""The commands that use a finished run's model; `app` registers them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.options import Architecture, Device, Json, Plugin, Root, RunFolder

WhichModel = Annotated[str, typer.Option("--which", help="last, best or selected.")]
Own = Annotated[int | None, typer.Option("--client", help="A client's own model, where the method has such.")]


def predict(
    run: RunFolder,
    files: Annotated[list[Path], typer.Argument(help="Pictures, or .npy arrays.", metavar="FILE...")],
    which: WhichModel = "last",
    client: Own = None,
    architecture: Architecture = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Classify files with a run's model."""
    from fedstill.cli import runs

    runs.predict(run, files, which, client, architecture, device, plugin or [], json)


def detect(
    run: RunFolder,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Scans (.ply .obj .npy .npz .txt ...) in metres with z up, or folders of them.", metavar="SCAN..."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the boxes (.json).")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to turn the scans on, with their boxes.")] = None,
    least: Annotated[float, typer.Option(help="The score that a box must have, from 0 to 1.")] = 0.3,
    which: WhichModel = "last",
    client: Own = None,
    architecture: Architecture = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Find objects in scans of your own, in metres with z up, with a run's detector."""
    from fedstill.cli import detecting

    detecting.detect(run, files, out, html, least, which, client, architecture, device, plugin or [], json)


def export(
    run: RunFolder,
    file: Annotated[Path, typer.Argument(help="What to write: .onnx, or .pt2 for torch.export.", metavar="FILE")],
    which: WhichModel = "last",
    client: Own = None,
    architecture: Architecture = None,
    int8: Annotated[bool, typer.Option("--int8", help="8-bit weights (.onnx), with their accuracy measured.")] = False,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Write a run's model as a file for other runtimes, checked against PyTorch."""
    from fedstill.cli import exporting

    exporting.export(run, file, which, client, architecture, int8, data_root, plugin or [], json)


def latency(
    runs: Annotated[list[Path], typer.Argument(help="Runs' folders; of two, teacher first.", metavar="RUN...")],
    which: WhichModel = "last",
    architecture: Annotated[
        list[str] | None,
        typer.Option(help="Where clients have different models, which; one for all runs, or one each; repeatable."),
    ] = None,
    passes: Annotated[int, typer.Option(help="Timed passes for each figure.")] = 100,
    seconds: Annotated[float, typer.Option(help="End a setting early after so long, with 5 passes or more.")] = 20.0,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Parameters, bytes and milliseconds of models, in PyTorch and in onnxruntime."""
    from fedstill.cli import exporting

    exporting.latency(runs, which, architecture or [], passes, seconds, data_root, plugin or [], json)
