"""The commands below `fedstill patches`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import runs as offer_runs
from fedstill.cli.extensions import commands
from fedstill.cli.options import Device, Json, OwnModel, Picture, Plugin, Root, SeedOfDraw, Which
from fedstill.cli.plain import Commands

patches_app = Commands(name="patches", help="Patches of one shared image or cloud, to distil on.")

_PIXELS, _POINTS = 32, 512


commands.register("patches")(patches_app)


@patches_app.callback()
def _patches() -> None:
    """Patches of one shared image or cloud, to distil on."""


@patches_app.command(name="show")
def patches_show(
    source: Annotated[
        str,
        typer.Argument(
            help="An image (image:FILE, china, flower, skimage:NAME, noise:512x512) or a cloud (cloud:FILE, heads:0).",
            metavar="SOURCE",
        ),
    ],
    size: Annotated[int | None, typer.Option(help="Pixels of a side; of clouds, points. Else 32 or 512.")] = None,
    count: Annotated[int, typer.Option(help="How many patches.")] = 64,
    seed: SeedOfDraw = 0,
    grey: Annotated[bool, typer.Option("--grey", help="One channel, as for data without colours.")] = False,
    out: Picture = Path("patches.png"),
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Draw the first patches of a source, beside it."""
    from fedstill.cli.screen import console, print_json
    from fedstill.core.errors import InputError
    from fedstill.shared_image.patch_settings import PatchSettings
    from fedstill.shared_image.patch_sheet import draw_patches
    from fedstill.shared_image.patch_sources import is_cloud_source
    from fedstill.shared_image.patches import make_patches

    if count < 1 or seed < 0 or (size is not None and size < 2):
        raise InputError("--count must be at least 1, --seed at least 0 and --size at least 2")
    settings = PatchSettings(count=max(count, PatchSettings().count), seed=seed)
    if is_cloud_source(source):
        pool = make_patches(source, (size or _POINTS, 3), "cloud", settings, data_root)
    else:
        side = size or _PIXELS
        pool = make_patches(source, (1 if grey else 3, side, side), "image", settings, data_root)
    draw_patches(pool, source, count, out)
    if json:
        print_json(
            {
                "source": source,
                "source_digest": pool.source_digest,
                "fingerprint": pool.fingerprint(),
                "patches": count,
                "picture": str(out),
            }
        )
        return
    console.print(f"drawn in {out}; pool {pool.fingerprint()[:16]}…", soft_wrap=True)


@patches_app.command(name="embed")
def patches_embed(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Runs' folders: early, late, or of different experiments.", metavar="RUN...", autocompletion=offer_runs
        ),
    ],
    out: Picture = Path("embedding.png"),
    patches: Annotated[bool, typer.Option("--patches", help="Draw the patches themselves at their places.")] = False,
    which: Which = "last",
    client: OwnModel = None,
    seed: SeedOfDraw = 0,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Map the shared samples that runs' models choose, by what they make of them: coloured by predicted class."""
    from fedstill.shared_image import embed_command

    embed_command.embed(runs, out, patches, which, client, seed, data_root, device, plugin or [], json)
