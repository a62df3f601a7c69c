"""Options that mean the same in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
Root = Annotated[Path | None, typer.Option(help="Where data sets are; else FEDSTILL_DATA, else your data folder.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps; bits are promised on the cpu only.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting, e.g. training.rate=0.01; repeatable.")]
Plugin = Annotated[list[Path] | None, typer.Option(help="A Python file with parts of your own; repeatable.")]
Preset = Annotated[str | None, typer.Option(help="A recipe's scale, e.g. paper, lite or tiny.")]
Variant = Annotated[str | None, typer.Option(help="A recipe's reading, e.g. seed or sound.")]
Data = Annotated[str | None, typer.Option(help="Data set, npz:FILE or folder:FOLDER.")]
Model = Annotated[str | None, typer.Option(help="Model, by name.")]
Cut = Annotated[str | None, typer.Option("--partition", help="Partition, e.g. iid or dirichlet:alpha=0.1.")]
Clients = Annotated[int | None, typer.Option(help="How many clients.")]
Seed = Annotated[int | None, typer.Option(help="Seed of every random draw.")]
Query = Annotated[
    list[str] | None, typer.Option(help="Classes that a client asks the others for, e.g. 3:7,8; repeatable.")
]
Experiment = Annotated[str, typer.Argument(help="A method, a recipe, or a recipe file.", metavar="METHOD_OR_RECIPE")]
Architecture = Annotated[
    str | None, typer.Option(help="Where clients have different models, which by name; else the first.")
]
RunFolder = Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")]
