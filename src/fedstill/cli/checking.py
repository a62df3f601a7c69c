"""The commands about Fedstill itself; `app` registers them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.options import Json, Out, Plugin, Root


def doctor(out: Out = Path("runs"), data_root: Root = None, json: Json = False) -> None:
    """What is right and wrong with this installation, and what to do."""
    from fedstill.cli import diagnosis

    diagnosis.doctor(out, data_root, json)


def reference(
    out: Annotated[Path | None, typer.Option(help="The file (.md); else it is printed.")] = None,
    names: Annotated[Path | None, typer.Option(help="Also write the names that shells complete (.json).")] = None,
    records: Annotated[Path | None, typer.Option(help="Also write the JSON Schema of records (.json).")] = None,
    plugin: Plugin = None,
) -> None:
    """Write down every command, part and setting, as Markdown."""
    from fedstill.cli.reference import write_reference

    write_reference(out, names, records, plugin or [])
