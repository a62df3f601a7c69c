"""`fedstill detect`: run a detector on the user's own scans."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from math import degrees
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.extensions import commands
from fedstill.cli.options import Architecture, Device, Html, Json, OwnModel, Plugin, TrainedModel, Which
from fedstill.cli.screen import console, errors, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.files import writable_file, write_atomically

if TYPE_CHECKING:  # avoids importing torch for `--help`
    from fedstill.detection.scans import Scan

UNITS = "metres with z up; sizes are full, along a box's own axes; heading in radians, counter-clockwise from above"


@commands.register("detect")
def detect(
    run: TrainedModel,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Scans (.ply .pcd .las .laz .bin .npy .png ...) in metres with z up, or folders of them.",
            metavar="SCAN...",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="File for the boxes (.json).")] = None,
    html: Html = None,
    least: Annotated[float, typer.Option(help="Lowest score of a box to keep, from 0 to 1.")] = 0.3,
    which: Which = "last",
    client: OwnModel = None,
    architecture: Architecture = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Detect objects in your own scans.

    The detector is that of a run, or one that was exported as ONNX.
    """
    from fedstill.detection.scans import detect as find
    from fedstill.runtime.prediction import trained

    if not 0 <= least <= 1:
        raise InputError(f"--least is a score from 0 to 1, not {least:g}")
    for written in filter(None, (out, html)):
        writable_file(written)
    # All detections: pages can show those with low scores, and scans without detections report the nearest ones.
    every = find(run, files, which=which, client=client, architecture=architecture, device=device, plugins=plugin or [])
    found = trained(run)
    content = {
        "run": str(run),
        "model": found.architecture(architecture, client),
        "which": which if client is None else f"client {client}",
        "least": least,
        "units": UNITS,
        "scenes": [_as_dict(scan, least) for scan in every],
    }
    if out is not None:
        write_atomically(out, _text(content).encode())
    if html is not None:
        from fedstill.detection.scan_page import write_detected_page

        write_detected_page(found, every, least, html, shlex.join(["fedstill", *sys.argv[1:]]))
    for scan in every:
        if scan.warning:
            errors.print(f"warning: {scan.warning}", soft_wrap=True)
    if json:
        print_json(content)
        return
    _show(every, least)
    for written in filter(None, (out, html)):
        console.print(str(written), soft_wrap=True)


def _text(content: dict[str, Any]) -> str:
    """JSON with one line per box."""
    head = "".join(f" {_json(key)}: {_json(value)},\n" for key, value in content.items() if key != "scenes")
    scenes = []
    for scene in content["scenes"]:
        rest = _json({key: value for key, value in scene.items() if key != "boxes"}).removesuffix("}")
        boxes = ",\n".join(f"   {_json(box)}" for box in scene["boxes"])
        scenes.append(f'  {rest}, "boxes": [\n{boxes}\n  ]}}')
    return f'{{\n{head} "scenes": [\n' + ",\n".join(scenes) + "\n ]\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_dict(scan: Scan, least: float) -> dict[str, Any]:
    return {
        "file": str(scan.file),
        "points": len(scan.points),
        "boxes": scan.sure(least),
        **({"warning": scan.warning} if scan.warning else {}),
    }


def _show(every: Sequence[Scan], least: float) -> None:
    """One line per box by descending score; for scans without any, the detections with the highest scores."""
    found = [(scan, box) for scan in every for box in scan.sure(least)]
    turned = any(box["heading"] for _, box in found)
    several = len(every) > 1
    if found:
        heads = ("file",) * several + ("class", "score", "centre x y z (m)", "size x y z (m)") + ("heading",) * turned
        rows = [
            (
                *((scan.file.name,) if several else ()),
                box["class"],
                f"{box['score']:.2f}",
                _numbers(box["centre"]),
                _numbers(box["size"]),
                *((f"{degrees(box['heading']):.0f}°",) if turned else ()),
            )
            for scan, box in found
        ]
        table("", heads, rows, right=range(1 + several, len(heads)))
    for scan in every:
        if not scan.sure(least):
            console.print(f"{scan.file}: {_nothing(scan, least)}", soft_wrap=True)


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:6.2f}" for value in values)


def _nothing(scan: Scan, least: float) -> str:
    surest = scan.sure(0.0)[:1]
    near = f"; the surest was a {surest[0]['class']} with {surest[0]['score']:.2f}" if surest else ""
    return f"nothing with a score of at least {least:g}{near}"
