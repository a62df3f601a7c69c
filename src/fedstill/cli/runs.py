"""`fedstill show` and `fedstill predict`: looking at runs and using them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstill.cli.experiments import show_result, told_of
from fedstill.cli.screen import console, print_json, sparkline, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import share, size
from fedstill.federation.launch import use_plugins
from fedstill.federation.predicting import Prediction
from fedstill.federation.predicting import predict as predictions
from fedstill.federation.result import Run
from fedstill.tasks.measures import detects, measure_of

_ROWS = 20


def show(path: Path, plugins: Sequence[Path], as_json: bool) -> None:
    use_plugins(plugins)
    run = Run(path)
    journal = run.journal
    if as_json:
        print_json((run.to_dict() if run.finished else {"run": str(path)}) | told_of(run) | {"journal": journal})
        return
    together = detects(run.experiment.architectures[0])  # its terms are too many for one line
    rows = [
        (
            str(record["round"] + 1),
            share(record.get("metrics", {}).get("accuracy")),
            " ".join(f"{value:.4f}" for value in _losses(record, together)) or "-",
            f"{len(record['accepted'])}/{len(record['asked'])}",
            f"↑{size(record['bytes']['up'])} ↓{size(record['bytes']['down'])}",
            _trouble(record),
        )
        for record in _thinned(journal)
    ]
    terms = list(dict.fromkeys(name for record in journal for name in record["loss"]))
    loss = "training loss" if len(terms) < 2 or together else ", ".join(terms)
    measure = measure_of(run.experiment.architectures[0])
    table("", ("round", measure, loss, "replies", "traffic", "trouble"), rows, right=(0, 1, 2, 3))
    curve = [record["metrics"]["accuracy"] for record in journal if record.get("metrics")]
    if curve:
        console.print(f"\n{measure} {sparkline(curve)}  {share(min(curve))} … {share(max(curve))}\n", highlight=False)
    if run.finished:
        show_result(run)
    else:
        rounds = run.config["experiment"]["rounds"]
        console.print(f"not finished: {len(journal)} of {rounds} rounds; run the same command again to go on")


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
    use_plugins(plugins)
    said = predictions(path, files, which=which, client=client, architecture=architecture, device=device)
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


def paired(runs: Sequence[Path], architectures: Sequence[str], option: str) -> list[tuple[Path, str | None]]:
    """Each run with the architecture that is meant: one for all, one each, or of a single run as many as are named.

    >>> [(run.name, model) for run, model in paired([Path("a"), Path("b")], ["cnn"], "--architecture")]
    [('a', 'cnn'), ('b', 'cnn')]
    """
    names: Sequence[str | None] = architectures or [None]
    if len(names) == 1 or len(runs) == 1:
        return [(run, name) for run in runs for name in names]
    if len(names) != len(runs):
        raise InputError(f"{option} is given {len(names)} times for {len(runs)} runs: give it once, or once for each")
    return list(zip(runs, names, strict=True))


def _losses(record: dict[str, Any], together: bool) -> list[float]:
    """A round's terms, or their sum."""
    terms = list(record["loss"].values())
    return [sum(terms)] if together and terms else terms


def _thinned(journal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most a screenful: the first, the last, and evenly between."""
    if len(journal) <= _ROWS:
        return journal
    picks = sorted({number * (len(journal) - 1) // (_ROWS - 1) for number in range(_ROWS)})
    return [journal[number] for number in picks]


def _trouble(record: dict[str, Any]) -> str:
    if record["skipped"]:
        return f"skipped: {record['skipped']}"
    reasons = [lost["reason"] for lost in record["lost"]]
    told = [f"{reasons.count(reason)} {reason}" for reason in sorted(set(reasons))]
    return ", ".join([*told, *([] if record.get("finite", True) else ["not finite"])])
