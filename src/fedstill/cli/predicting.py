"""`fedstill predict`: what a run's model says of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.cli.screen import print_json, table
from fedstill.core.numbers import share
from fedstill.runtime.prediction import Prediction
from fedstill.runtime.prediction import predict as predictions


def predict(
    path: Path,
    files: Sequence[Path],
    which: str,
    client: int | None,
    architecture: str | None,
    device: str,
    plugins: Sequence[Path],
    as_json: bool,
) -> None:
    said = predictions(
        path, files, which=which, client=client, architecture=architecture, device=device, plugins=plugins
    )
    if said[0].labels_points:
        _tell_parts(path, said, as_json)
        return
    if as_json:
        answers = [{"file": str(one.file), "class": one.label, "probability": one.probability} for one in said]
        print_json({"run": str(path), "predictions": answers})
        return
    rows = [(str(one.file), one.label, share(one.probability)) for one in said]
    table("", ("file", "class", "probability"), rows, right=(2,))


def _tell_parts(path: Path, said: Sequence[Prediction], as_json: bool) -> None:
    """Of models that label every point: how much of each cloud is what, and with --json, which point is what."""
    if as_json:
        answers = [
            {
                "file": str(one.file),
                "counts": one.counts,
                "labels": one.point_labels.tolist(),
                "points": one.inputs.tolist(),
            }
            for one in said
        ]
        print_json({"run": str(path), "classes": list(said[0].classes), "predictions": answers})
        return
    rows = [
        (str(one.file), name, f"{number:,}", share(number / len(one.inputs)))
        for one in said
        for name, number in one.counts.items()
        if number
    ]
    table("", ("file", "part", "points", "share"), rows, right=(2, 3))
