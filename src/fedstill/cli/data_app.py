"""The commands below `fedstill data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import named, one_of
from fedstill.cli.options import DataName, Json, Plugin, Root, SeedOfDraw
from fedstill.cli.plain import Commands

data_app = Commands(name="data", help="Data sets: list, check, add, show and partition them.")


@data_app.command(name="list")
def data_list(data_root: Root = None, plugin: Plugin = None, json: Json = False) -> None:
    """The data sets that are known, and which of them are here."""
    from fedstill.cli import data

    data.show_available(data_root, plugin or [], json)


@data_app.command(name="check")
def data_check(
    name: DataName,
    path: Annotated[Path | None, typer.Option(help="Its file or folder, if not under the data root.")] = None,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Counts, classes, shapes and everything that is wrong with a data set."""
    from fedstill.cli import data

    data.show_check(name, path, data_root, plugin or [], json)


@data_app.command(name="show")
def data_show(
    name: DataName,
    class_: Annotated[
        str | None, typer.Option("--class", help="The class to show, or type of room; else a few of each.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many samples of a class, or scenes in all.")] = 6,
    out: Annotated[
        Path | None, typer.Option(help="The picture (.png), or, for clouds and scenes, a page (.html).")
    ] = None,
    up: Annotated[
        str, typer.Option(help="The axis of clouds that points up: x, y or z.", autocompletion=one_of("x", "y", "z"))
    ] = "z",
    turn: Annotated[float, typer.Option(help="Degrees to turn clouds about that axis, to see their front.")] = 0.0,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Draw a few samples of a data set."""
    from fedstill.cli import data

    data.show_samples(name, class_, count, out, up, turn, data_root, plugin or [], json)


@data_app.command(name="add")
def data_add(
    name: Annotated[str, typer.Argument(help="A name for it: small letters, digits, - _ and .", metavar="NAME")],
    path: Annotated[Path, typer.Argument(help="Its file or folder.", metavar="PATH")],
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Give a file or folder of yours a name."""
    from fedstill.cli import data

    data.add_name(name, path, data_root, json)


@data_app.command(name="partition")
def data_partition(
    name: DataName,
    partition: Annotated[
        str, typer.Option(help="Partition, e.g. iid or dirichlet:alpha=0.1.", autocompletion=named("partitions"))
    ] = "iid",
    clients: Annotated[int, typer.Option(help="How many clients.")] = 10,
    seed: SeedOfDraw = 0,
    out: Annotated[Path | None, typer.Option(help="A picture to write (.png or .svg).")] = None,
    data_root: Root = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Draw who would hold how much of which class."""
    from fedstill.cli import data

    data.show_partition(name, partition, clients, seed, out, data_root, plugin or [], json)
