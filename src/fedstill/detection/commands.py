"""`fedstill detect` and `fedstill pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import named
from fedstill.cli.extensions import commands
from fedstill.cli.options import (
    Architecture,
    Device,
    DryRun,
    Html,
    Json,
    OwnModel,
    Plugin,
    Quiet,
    Root,
    RunFolder,
    Seed,
    Set,
    Which,
)


@commands.register("detect")
def detect(
    run: RunFolder,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Scans (.ply .obj .npy .npz .txt ...) in metres with z up, or folders of them.", metavar="SCAN..."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the boxes (.json).")] = None,
    html: Html = None,
    least: Annotated[float, typer.Option(help="The score that a box must have, from 0 to 1.")] = 0.3,
    which: Which = "last",
    client: OwnModel = None,
    architecture: Architecture = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Find objects in scans of your own with a run's detector."""
    from fedstill.detection import detect_command

    detect_command.detect(run, files, out, html, least, which, client, architecture, device, plugin or [], json)


@commands.register("pretrain")
def pretrain(
    data: Annotated[
        str,
        typer.Argument(
            help="Scenes to learn from, e.g. rooms-unlabelled.", metavar="DATA", autocompletion=named("datasets")
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Whose encoder: a detector, by name; else detr3d-lite.", autocompletion=named("models")),
    ] = None,
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
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Pre-train a detector's encoder on scenes without labels."""
    from fedstill.detection import pretrain_command

    given = {"data": data, "model": model, "epochs": epochs, "rows": rows, "seed": seed}
    chosen = pretrain_command.assemble(given, set_ or [], plugin or [])
    if dry_run:
        pretrain_command.show_plan(chosen, data_root, json)
    else:
        pretrain_command.run(chosen, out, overwrite, data_root, device, quiet, json)
