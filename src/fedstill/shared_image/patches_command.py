"""`fedstill patches show` and `fedstill patches embed`: patches of one shared image, and their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.extensions import Commands, commands
from fedstill.cli.options import Device, Json, OwnModel, Picture, Plugin, Root, SeedOfDraw, Which, run_folders
from fedstill.cli.screen import console, print_json
from fedstill.core.errors import InputError
from fedstill.core.plugins import use_plugins

if TYPE_CHECKING:  # avoids importing torch for `--help`
    from fedstill.runtime.result import Run
    from fedstill.shared_image.proxy_choice import Chosen

patches_app = Commands(name="patches", help="Patches of one shared image or cloud, used as proxy data.")
commands.register("patches")(patches_app)

_PIXELS, _POINTS = 32, 512


@patches_app.callback()
def _patches() -> None:
    """Patches of one shared image or cloud, used as proxy data."""


@patches_app.command(name="show")
def patches_show(
    source: Annotated[
        str,
        typer.Argument(
            help="An image (image:FILE, china, flower, skimage:NAME, noise:512x512) or a cloud (cloud:FILE, heads:0).",
            metavar="SOURCE",
        ),
    ],
    size: Annotated[
        int | None, typer.Option(help="Side of a patch in pixels (default 32), or its number of points (512).")
    ] = None,
    count: Annotated[int, typer.Option(help="Number of patches.")] = 64,
    seed: SeedOfDraw = 0,
    grey: Annotated[bool, typer.Option("--grey", help="One channel, for greyscale data.")] = False,
    out: Picture = Path("patches.png"),
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Draw the first patches of a source, next to it."""
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
            help="Folders of runs to compare.",
            metavar="RUN...",
            autocompletion=run_folders,
        ),
    ],
    out: Picture = Path("embedding.png"),
    patches: Annotated[bool, typer.Option("--patches", help="Draw the patches instead of dots.")] = False,
    which: Which = "last",
    client: OwnModel = None,
    seed: SeedOfDraw = 0,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Map embeddings of selected samples, coloured by class."""
    from fedstill.runtime.result import Run
    from fedstill.shared_image.proxy_choice import chosen_by
    from fedstill.shared_image.proxy_maps import MOST, check_picture, draw_maps

    if len(runs) > MOST:
        raise InputError(f"name one to {MOST} runs, not {len(runs)}")
    if seed < 0:
        raise InputError(f"--seed must be at least 0, not {seed}")
    check_picture(out)
    use_plugins(plugin or [])
    found = [Run(path) for path in runs]
    names = found[0].task.classes
    for run in found:
        if run.task.classes != names:
            raise InputError(f"{run.path} and {found[0].path} know different classes: draw them one by one")
    every = [chosen_by(run, which, client, data_root, device) for run in found]
    draw_maps(every, names, out, patches, seed)
    if json:
        print_json(
            {
                "picture": str(out),
                "maps": [_as_dict(run, one, names) for run, one in zip(found, every, strict=True)],
            }
        )
        return
    console.print(f"drawn in {out}", soft_wrap=True)


def _as_dict(run: Run, one: Chosen, names: Sequence[str]) -> dict[str, object]:
    counts = one.classes.bincount(minlength=len(names)).tolist()
    return {
        "run": str(run.path),
        "shared": one.shared,
        "round": one.rounds,
        "accuracy": one.accuracy,
        "samples": len(one.rows),
        "pool": one.pool,
        "predicted": {name: count for name, count in zip(names, counts, strict=True) if count},
    }
