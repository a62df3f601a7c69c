"""A look at a few samples of a data set."""

from __future__ import annotations

import re
from math import isfinite
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.data_kinds import data_kinds
from fedstill.report.pictures.cloud_viewer import draw_turntable
from fedstill.report.pictures.gallery import choose
from fedstill.report.pictures.sample_sheets import draw_sheet


def show(
    bundle: Bundle,
    wanted: str | None = None,
    count: int = 6,
    out: Path | None = None,
    up: str = "z",
    turn: float = 0.0,
) -> Path:
    """Draw samples of one class, or a few of every class, and say where the picture is.

    A .png is a sheet: images side by side; clouds of one class from above, from the front and from the side. An .html
    file, for clouds, can be turned with the mouse. `up` is the axis of clouds that points up, and `turn` degrees about
    it bring their front to the front. Scenes are drawn with their boxes, from above and at an angle; of them `wanted`
    may also be a type of room, and `count` is how many there are in all.
    """
    path = out or Path(_plain(bundle.name) + (f"-{_plain(wanted)}" if wanted else "") + ".png")
    kind = path.suffix.lower()
    if kind not in (".png", ".html"):
        raise InputError(f"cannot draw {path}: name a .png or .html file")
    if bundle.kind in ("array", "signal"):
        raise InputError(
            f"{bundle.name} holds numbers of shape {bundle.shape}, which are not drawn: only images and clouds"
        )
    if kind == ".html" and bundle.kind == "image":
        raise InputError(f"{bundle.name} holds images, which are drawn as .png: only clouds can be turned in .html")
    if not isfinite(turn):
        raise InputError(f"--turn must be a number of degrees, not {turn}")
    if (show_kind := data_kinds[bundle.kind].show) is not None:
        show_kind(bundle, wanted, count, path, up, turn)
        return path
    gallery = choose(bundle, wanted, count)
    if kind == ".html":
        draw_turntable(gallery, path, up, turn)
    else:
        draw_sheet(gallery, path, up, turn)
    return path


def _plain(name: str) -> str:
    """A file's name out of a data set's or a class's.

    >>> _plain("folder:data/My Shapes/"), _plain("T-shirt/top")
    ('my-shapes', 't-shirt-top')
    """
    if name.startswith(("folder:", "npz:")):
        name = Path(name.partition(":")[2]).stem
    return re.sub("[^a-z0-9._]+", "-", name.lower()).strip("-.") or "samples"
