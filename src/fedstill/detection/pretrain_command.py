"""`fedstill pretrain`: pre-train an encoder on scenes, or import one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.extensions import commands
from fedstill.cli.options import Device, DryRun, Json, Plugin, Quiet, Root, Seed, Set, Track, named
from fedstill.cli.run import print_plan
from fedstill.cli.screen import CANNOT_RUN, console, print_json, sparkline
from fedstill.core.errors import InputError
from fedstill.core.numbers import size
from fedstill.core.plugins import use_plugins
from fedstill.runtime.tracked import check_track

if TYPE_CHECKING:  # avoids importing torch for `--help`
    from fedstill.detection.pretrain import Pretrained
    from fedstill.detection.pretraining import Pretraining


@commands.register("pretrain")
def pretrain(
    data: Annotated[
        str,
        typer.Argument(
            help="Scenes to pre-train on, e.g. rooms-pretraining.", metavar="DATA", autocompletion=named("datasets")
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Name of the detector; default: detr3d-lite.", autocompletion=named("models")),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Training task: masked (no labels), supervised (detection in labelled scenes that no client has), or"
            " imported (none: the encoder in --weights); default: masked."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Safetensors file to start from: its tensors with the names of the encoder's."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Use only this many scenes, the first ones.")] = None,
    seed: Seed = None,
    set_: Set = None,
    out: Annotated[
        Path, typer.Option(help="File for the weights (.safetensors); their settings go into a .json next to it.")
    ] = Path("encoder.safetensors"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that was made with other settings.")
    ] = False,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    track: Track = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Pre-train a detector's encoder on scenes, or import one.

    Pre-training needs no labels; with --kind supervised it uses boxes.
    """
    from fedstill.detection.pretraining import make_pretraining

    use_plugins(plugin or [])
    given = {"data": data, "model": model, "epochs": epochs, "rows": rows, "seed": seed, "kind": kind}
    given["weights"] = None if weights is None else str(weights)
    chosen = make_pretraining({key: value for key, value in given.items() if value is not None}, set_ or [])
    if dry_run:
        check_track(track)
        _show_plan(chosen, data_root, json)
    else:
        _run_and_show(chosen, out, overwrite, data_root, device, quiet, json, track)


def _show_plan(settings: Pretraining, data_root: Path | None, as_json: bool) -> None:
    """The resolved settings; what cannot run here is shown, too, with exit code 2."""
    from fedstill.detection.pretrain import resolved

    try:
        settings, scenes = resolved(settings, data_root)
        status = f"found: {scenes:,} scenes to learn from"
    except InputError as error:
        status = f"{CANNOT_RUN}: {error}"
    print_plan(settings, status, as_json, "pretraining")


def _run_and_show(
    settings: Pretraining,
    out: Path,
    overwrite: bool,
    data_root: Path | None,
    device: str,
    quiet: bool,
    as_json: bool,
    track: Sequence[str] | None,
) -> None:
    from fedstill.detection.pretrain import pretrain_encoder
    from fedstill.detection.pretrain_progress import PretrainDisplay

    display = PretrainDisplay(quiet or as_json)
    try:
        made = pretrain_encoder(
            settings,
            out,
            data_root=data_root,
            device=device,
            overwrite=overwrite,
            observers=[display],
            track=track,
            tell=display.warn,
        )
    finally:
        display.close()
    if as_json:
        print_json({"file": str(made.file), "fresh": made.fresh, **made.record})
    else:
        _show(made)


def _show(made: Pretrained) -> None:
    from fedstill.detection.pretrain_progress import loss_text

    settings, losses = made.record["pretraining"], made.losses
    kind = settings.get("kind", "masked")  # files of earlier releases do not have it
    console.print(
        f"{settings['model']}, the encoder, on {settings['data']}: {made.record['scenes']:,} scenes, "
        f"{len(losses)} epochs, seed {settings['seed']}, {made.record['seconds']:.0f} s"
        + ("" if made.fresh else " (made before: nothing was done)"),
    )
    if losses:
        console.print(f"{loss_text(settings['kind'], losses[0])} → {losses[-1]:.4f}  {sparkline(losses)}")
    if made.probe:
        scores = [100 * score for score in made.probe.values()]
        console.print(f"linear probe, mean recall {scores[0]:.1f} → {scores[-1]:.1f} %  {sparkline(scores)}")
    if kind == "supervised":
        console.print(f"it learnt from the boxes of {settings['data']}: no client may have these scenes")
    if "imported" in made.record:
        console.print(made.record["imported"], soft_wrap=True)
    console.print(
        f"{made.file}, {size(made.file.stat().st_size)}, sha256 {made.record['sha256'][:16]}…\n"
        f"start a run from it with --set initial.file={made.file}",
        soft_wrap=True,
    )
