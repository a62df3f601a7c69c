"""`fedstill data ...`: data sets before anybody trains on them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.download_bar import download_bar
from fedstill.cli.options import DataName, Json, Plugin, Root, SeedOfDraw, named, one_of
from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import count as counted
from fedstill.core.plugins import use_plugins

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.data.check import CheckReport


def data_list(data_root: Root = None, plugin: Plugin = None, json: Json = False) -> None:
    """List known data sets and which are on this machine."""
    from fedstill.data.catalogue import available

    use_plugins(plugin or [])
    entries = available(data_root)
    if json:
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


def data_check(
    name: DataName,
    path: Annotated[Path | None, typer.Option(help="File or folder of the data set, if not in --data-root.")] = None,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Show counts and shapes of a data set, and all its problems."""
    from fedstill.data.catalogue import check

    use_plugins(plugin or [])
    report = check(name, path, data_root)
    if json:
        print_json(asdict(report))
    else:
        _show_report(report)
    if not report.usable:
        raise typer.Exit(2)  # the data cannot be used as it is


def _show_report(report: CheckReport) -> None:
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


def data_show(
    name: DataName,
    class_: Annotated[
        str | None, typer.Option("--class", help="Class or room type to show; default: a few of each.")
    ] = None,
    count: Annotated[int, typer.Option(help="Number of samples per class, or of scenes in total.")] = 6,
    out: Annotated[
        Path | None, typer.Option(help="Picture to write (.png), or a page (.html) for clouds and scenes.")
    ] = None,
    up: Annotated[
        str, typer.Option(help="Which axis of a cloud points up: x, y or z.", autocompletion=one_of("x", "y", "z"))
    ] = "z",
    turn: Annotated[float, typer.Option(help="Degrees by which to rotate clouds about that axis.")] = 0.0,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Draw a few samples of a data set."""
    from fedstill.data.lookup import load
    from fedstill.data.point_labels import kind_names
    from fedstill.report.pictures.samples import show

    use_plugins(plugin or [])
    bundle = load(name, data_root)
    path = show(bundle, class_, count, out, up, turn)
    if json:
        every = bundle.classes if bundle.kind == "scene" else kind_names(bundle)
        print_json({"data": name, "classes": every if class_ is None else [class_], "picture": str(path)})
        return
    console.print(f"drawn in {path}", soft_wrap=True)


def data_add(
    name: Annotated[str, typer.Argument(help="Name to give it: lower-case letters, digits, - _ and .", metavar="NAME")],
    path: Annotated[Path, typer.Argument(help="File or folder of the data.", metavar="PATH")],
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Name a file or folder of your own, to use it as --data NAME."""
    from fedstill.data.catalogue import add

    bundle = add(name, path, data_root)
    if json:
        sizes = {split: len(data) for split, data in bundle.splits().items()}
        print_json({"name": name, "path": str(path), "sizes": sizes, "classes": list(bundle.classes)})
        return
    what = "scenes with boxes" if bundle.kind == "scene" else "samples"
    console.print(
        f"{name}: {len(bundle.train):,} training and {len(bundle.test):,} test {what}"
        f" of {len(bundle.classes)} classes; use it with --data {name}",
    )


def data_get(
    name: Annotated[str, typer.Argument(help="Name of a public data set, e.g. mnist or bloodmnist.", metavar="NAME")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept the licence without being asked.")] = False,
    mirror: Annotated[
        str | None, typer.Option(help="Address that has the same files, e.g. of your institution.")
    ] = None,
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Download a public data set.

    Its licence and citation are shown first; nothing is downloaded before you accept the licence.
    """
    from fedstill.data.downloads import download_of, fetch
    from fedstill.data.roots import data_root as place

    wanted = download_of(name)
    if not json:
        console.print(f"{name}\nlicence: {wanted.licence}\nplease cite: {wanted.citation}", soft_wrap=True)
    if not yes and not (place(data_root) / name).exists():
        if json or not console.is_terminal:
            raise InputError(f"read the licence of {name} ({wanted.licence}), then say --yes")
        typer.confirm("Download it?", abort=True)
    with download_bar(quiet=json) as progress:
        path = fetch(name, data_root, mirror, progress)
    if json:
        print_json({"name": name, "path": str(path), "licence": wanted.licence, "citation": wanted.citation})
        return
    console.print(f"{name} is in {path}; use it with --data {name}", soft_wrap=True)


def data_partition(
    name: DataName,
    partition: Annotated[
        str,
        typer.Option(
            help="How data is split among clients, e.g. iid or dirichlet:alpha=0.1.", autocompletion=named("partitions")
        ),
    ] = "iid",
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; default: 10, or the number of sites with --partition sites.")
    ] = None,
    seed: SeedOfDraw = 0,
    out: Annotated[Path | None, typer.Option(help="Picture to write (.png or .svg).")] = None,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Show how many samples of each class every client would hold."""
    from fedstill.core.dataset import has_boxes
    from fedstill.core.streams import Streams
    from fedstill.data.lookup import load
    from fedstill.data.partitions import partition as cut
    from fedstill.data.point_labels import groups_of, has_point_labels, kind_names, partition_labels, shape_kinds
    from fedstill.report.pictures.class_table import draw_partition, partition_text
    from fedstill.runtime.assemble import named_part

    use_plugins(plugin or [])
    if out is not None and out.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"cannot draw {out}: name a .png or .svg file")
    bundle = load(name, data_root)
    labels = bundle.train.labels()
    if labels is None:
        raise InputError(f"{name} has no labels, so there is nothing to show")
    given = named_part(partition)
    settings = dict(given) if isinstance(given, dict) else {"name": given}
    chosen = str(settings.pop("name"))
    column, count = partition_labels(chosen, bundle.train, len(bundle.classes))
    sites = bundle.sites if chosen == "sites" else 0
    if clients is not None and sites not in (0, clients):
        raise InputError(f"{name} has {sites} sites, and --clients is {clients}: leave --clients out")
    shards = cut(chosen, column, clients or sites or 10, count, Streams(seed), settings, groups=groups_of(bundle.train))
    titles = bundle.site_names if sites else ()
    boxes = has_boxes(bundle.train)
    shown, names = (labels, bundle.classes) if boxes else (shape_kinds(bundle.train), kind_names(bundle))
    counts, scenes = shards.table(shown, len(names)), shards.sizes() if boxes else None
    if out is not None:
        draw_partition(counts, names, out, f"{name}, {partition}, seed {seed}", scenes, titles)
    if json:
        by = "box" if boxes else "kind" if has_point_labels(bundle.train) else "class"
        held = ({} if scenes is None else {"scenes": scenes.tolist()}) | ({"sites": titles} if titles else {})
        print_json({"by": by, "classes": names, "table": counts.tolist(), "picture": str(out) if out else None, **held})
        return
    if has_point_labels(bundle.train):
        console.print(f"{name} labels every point: counted here are whole clouds, by what they show")
    if boxes:
        twice = len(shards.order) - len(shards.order.unique())
        also = "; scenes lie with several clients" if twice else ""
        console.print(f"{name} has boxes: counted are these, by class{also}")
    console.print(partition_text(counts, names, console.width, scenes, titles))
    if out is not None:
        console.print(f"drawn in {out}")
