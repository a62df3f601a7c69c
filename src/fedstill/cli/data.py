"""`fedstill data ...`: data sets before anybody trains on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from fedstill.cli.screen import console, print_json, table
from fedstill.core.dataset import has_boxes
from fedstill.core.errors import InputError
from fedstill.core.numbers import count as counted
from fedstill.core.plugins import use_plugins
from fedstill.core.streams import Streams
from fedstill.data.catalogue import add, available, check, load
from fedstill.data.partitions import partition as cut
from fedstill.data.point_labels import has_point_labels, kind_names, partition_labels, shape_kinds
from fedstill.report.pictures.class_table import draw_partition, partition_text
from fedstill.runtime.assemble import named_part


def show_available(root: Path | None, plugins: Sequence[Path], as_json: bool) -> None:
    use_plugins(plugins)
    entries = available(root)
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    table(
        "",
        ("name", "what it is", "where"),
        [(entry.name, entry.summary, entry.where) for entry in entries if entry.found],
    )
    if missing := [entry.name for entry in entries if not entry.found]:
        console.print(f"\nknown, and not here: {', '.join(missing)}")
        console.print("`fedstill list datasets` says what these are, `fedstill data check NAME` how to come by one")


def show_check(name: str, path: Path | None, root: Path | None, plugins: Sequence[Path], as_json: bool) -> None:
    """Exit code 0 if the data can be used as it is, 2 if it cannot."""
    use_plugins(plugins)
    report = check(name, path, root)
    if as_json:
        print_json(asdict(report))
    else:
        console.print(f"{report.name} ({report.where})", style="bold", soft_wrap=True)
        if report.sizes:
            shape = "x".join(map(str, next(iter(report.shapes.values()))))
            low, high = report.range or (0, 0)
            whole = report.counted == "samples"
            console.print(
                f"{report.kind}s of shape {shape}, {report.dtype} from {low:g} to {high:g},"
                f" {len(report.classes)} classes" + ("" if whole else f" of {report.counted}"),
            )
            columns = ("class" if whole else f"{report.counted} of", *report.sizes)
            rows = [
                (label, *(f"{report.counts[split][number]:,}" for split in report.sizes))
                for number, label in enumerate(report.classes)
            ]
            rows.append(("all" if whole else f"{report.kind}s", *(f"{count:,}" for count in report.sizes.values())))
            table("", columns, rows, right=range(1, len(columns)))
        for text in report.notes:
            console.print(f"note: {text}")
        for text in report.problems:
            console.print(f"problem: {text}")
        console.print("no problems found" if report.ok else counted(len(report.problems), "problem"))
        if report.fingerprint:
            console.print(f"fingerprint {report.fingerprint[:16]}…")
    if not report.usable:
        raise typer.Exit(2)


def add_name(name: str, path: Path, root: Path | None, as_json: bool) -> None:
    bundle = add(name, path, root)
    if as_json:
        sizes = {split: len(data) for split, data in bundle.splits().items()}
        print_json({"name": name, "path": str(path), "sizes": sizes, "classes": list(bundle.classes)})
        return
    what = "scenes with boxes" if bundle.kind == "scene" else "samples"
    console.print(
        f"{name}: {len(bundle.train):,} training and {len(bundle.test):,} test {what}"
        f" of {len(bundle.classes)} classes; use it with --data {name}",
    )


def show_samples(
    name: str,
    wanted: str | None,
    count: int,
    out: Path | None,
    up: str,
    turn: float,
    root: Path | None,
    plugins: Sequence[Path],
    as_json: bool,
) -> None:
    from fedstill.report.pictures.samples import show  # here, because drawing takes a second that listing need not wait

    use_plugins(plugins)
    bundle = load(name, root)
    path = show(bundle, wanted, count, out, up, turn)
    if as_json:
        every = bundle.classes if bundle.kind == "scene" else kind_names(bundle)
        print_json({"data": name, "classes": every if wanted is None else [wanted], "picture": str(path)})
        return
    console.print(f"drawn in {path}", soft_wrap=True)


def show_partition(
    name: str,
    partition: str,
    clients: int,
    seed: int,
    out: Path | None,
    root: Path | None,
    plugins: Sequence[Path],
    as_json: bool,
) -> None:
    use_plugins(plugins)
    if out is not None and out.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"cannot draw {out}: name a .png or .svg file")
    bundle = load(name, root)
    labels = bundle.train.labels()
    if labels is None:
        raise InputError(f"{name} has no labels, so there is nothing to show")
    given = named_part(partition)
    settings = dict(given) if isinstance(given, dict) else {"name": given}
    chosen = str(settings.pop("name"))
    column, count = partition_labels(chosen, bundle.train, len(bundle.classes))
    shards = cut(chosen, column, clients, count, Streams(seed), settings)
    boxes = has_boxes(bundle.train)
    shown, names = (labels, bundle.classes) if boxes else (shape_kinds(bundle.train), kind_names(bundle))
    counts, scenes = shards.table(shown, len(names)), shards.sizes() if boxes else None
    if out is not None:
        draw_partition(counts, names, out, f"{name}, {partition}, seed {seed}", scenes)
    if as_json:
        by = "box" if boxes else "kind" if has_point_labels(bundle.train) else "class"
        held = {} if scenes is None else {"scenes": scenes.tolist()}
        print_json({"by": by, "classes": names, "table": counts.tolist(), "picture": str(out) if out else None, **held})
        return
    if has_point_labels(bundle.train):
        console.print(f"{name} labels every point: counted here are whole clouds, by what they show")
    if boxes:
        twice = len(shards.order) - len(shards.order.unique())
        also = "; scenes lie with several clients" if twice else ""
        console.print(f"{name} has boxes: counted are these, by class{also}")
    console.print(partition_text(counts, names, console.width, scenes))
    if out is not None:
        console.print(f"drawn in {out}")
