"""`fedstill patches embed`: what runs' models make of the samples they choose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.cli.screen import console, print_json
from fedstill.core.errors import InputError
from fedstill.core.plugins import use_plugins
from fedstill.runtime.result import Run
from fedstill.shared_image.proxy_choice import Chosen, chosen_by
from fedstill.shared_image.proxy_maps import MOST, check_picture, draw_maps


def embed(
    paths: Sequence[Path],
    out: Path,
    patches: bool,
    which: str,
    client: int | None,
    seed: int,
    data_root: Path | None,
    device: str,
    plugins: Sequence[Path],
    as_json: bool,
) -> None:
    if len(paths) > MOST:
        raise InputError(f"name one to {MOST} runs, not {len(paths)}")
    if seed < 0:
        raise InputError(f"--seed must be at least 0, not {seed}")
    check_picture(out)
    use_plugins(plugins)
    runs = [Run(path) for path in paths]
    names = runs[0].task.classes
    for run in runs:
        if run.task.classes != names:
            raise InputError(f"{run.path} and {runs[0].path} know different classes: draw them one by one")
    every = [chosen_by(run, which, client, data_root, device) for run in runs]
    draw_maps(every, names, out, patches, seed)
    if as_json:
        print_json(
            {
                "picture": str(out),
                "maps": [_told(run, one, names) for run, one in zip(runs, every, strict=True)],
            }
        )
        return
    console.print(f"drawn in {out}", soft_wrap=True)


def _told(run: Run, one: Chosen, names: Sequence[str]) -> dict[str, object]:
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
