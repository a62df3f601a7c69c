"""`fedstill detect`: what a run's detector finds in scans of one's own."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from math import degrees
from pathlib import Path
from typing import Any

from fedstill.cli.screen import console, errors, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder, write_atomically
from fedstill.detection.scans import Scan
from fedstill.detection.scans import detect as find
from fedstill.runtime.result import Run

UNITS = "metres with z up; sizes are full, along a box's own axes; heading in radians, counter-clockwise from above"


def detect(
    path: Path,
    files: Sequence[Path],
    out: Path | None,
    html: Path | None,
    least: float,
    which: str,
    client: int | None,
    architecture: str | None,
    device: str,
    plugins: Sequence[Path],
    as_json: bool,
) -> None:
    if not 0 <= least <= 1:
        raise InputError(f"--least is a score from 0 to 1, not {least:g}")
    for written in filter(None, (out, html)):
        _check(written)
    # All that there is: pages show what is less sure if asked, and where nothing is found it is said what came nearest.
    every = find(path, files, which=which, client=client, architecture=architecture, device=device, plugins=plugins)
    run = Run(path)
    told = {
        "run": str(path),
        "model": run.architecture(architecture, client),
        "which": which if client is None else f"client {client}",
        "least": least,
        "units": UNITS,
        "scenes": [_told(scan, least) for scan in every],
    }
    if out is not None:
        write_atomically(out, _text(told).encode())
    if html is not None:
        from fedstill.detection.scan_page import write_detected_page

        write_detected_page(run, every, least, html, shlex.join(["fedstill", *sys.argv[1:]]))
    for scan in every:
        if scan.warning:
            errors.print(f"warning: {scan.warning}", soft_wrap=True)
    if as_json:
        print_json(told)
        return
    _show(every, least)
    for written in filter(None, (out, html)):
        console.print(str(written), soft_wrap=True)


def _check(path: Path) -> None:
    """Refuse, before any work, what cannot be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it")
    writable_folder(path.parent)


def _text(told: dict[str, Any]) -> str:
    """JSON with a line for each box."""
    head = "".join(f" {_json(key)}: {_json(value)},\n" for key, value in told.items() if key != "scenes")
    scenes = []
    for scene in told["scenes"]:
        rest = _json({key: value for key, value in scene.items() if key != "boxes"}).removesuffix("}")
        boxes = ",\n".join(f"   {_json(box)}" for box in scene["boxes"])
        scenes.append(f'  {rest}, "boxes": [\n{boxes}\n  ]}}')
    return f'{{\n{head} "scenes": [\n' + ",\n".join(scenes) + "\n ]\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _told(scan: Scan, least: float) -> dict[str, Any]:
    return {
        "file": str(scan.file),
        "points": len(scan.points),
        "boxes": scan.sure(least),
        **({"warning": scan.warning} if scan.warning else {}),
    }


def _show(every: Sequence[Scan], least: float) -> None:
    """A line for each box, surest first; and of scans without any, what the detector came nearest to."""
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
