"""Options and arguments that mean the same in every command: one name, one sentence, one completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import layers, named, one_of, runs

_PAGES = (".html", ".htm")
_SEED = "Seed of every random draw."
_DATA = "Data set, npz:FILE or folder:FOLDER."


def a_page(path: Path | None) -> Path | None:
    """Refuse, before any work, a page under the name of something else; of folders others say that they are such."""
    if path is None or path.suffix.lower() in _PAGES or path.is_dir():
        return path
    from fedstill.core.errors import InputError

    raise InputError(f"{path} is to hold a page: give it a name that ends in .html")


def _in_runs(path: Path) -> Path:
    """A run by its mere name, as `--dry-run` tells it."""
    inside = Path("runs") / path
    return inside if not path.exists() and inside.is_dir() else path


# How a command behaves.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done and stop.")]
Out = Annotated[Path, typer.Option("--out", help="Folder that holds the runs.")]
Picture = Annotated[Path, typer.Option("--out", help="The picture (.png).")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write a page with figures (.html).", callback=a_page)]
Root = Annotated[
    Path | None, typer.Option("--data-root", help="Where data sets are; else FEDSTILL_DATA, else your data folder.")
]
Plugin = Annotated[
    list[Path] | None, typer.Option("--plugin", help="A Python file with parts of your own; repeatable.")
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda or mps; bits are promised on the cpu only.",
        autocompletion=one_of("cpu", "cuda", "mps"),
    ),
]

# What an experiment is.
Experiment = Annotated[
    str,
    typer.Argument(
        help="A method, a recipe, or a recipe file.",
        metavar="METHOD_OR_RECIPE",
        autocompletion=named("methods", "recipes"),
    ),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", help="A recipe's scale, e.g. paper, lite or tiny.", autocompletion=layers("presets")),
]
Variant = Annotated[
    str | None,
    typer.Option(
        "--variant",
        help="A recipe's variant, e.g. as-published, corrected or recalibrated.",
        autocompletion=layers("variants"),
    ),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting, e.g. training.rate=0.01; repeatable.")]
Data = Annotated[str | None, typer.Option("--data", help=_DATA, autocompletion=named("datasets"))]
DataName = Annotated[str, typer.Argument(help=_DATA, metavar="NAME", autocompletion=named("datasets"))]
Model = Annotated[str | None, typer.Option("--model", help="Model, by name.", autocompletion=named("models"))]
Cut = Annotated[
    str | None,
    typer.Option("--partition", help="Partition, e.g. iid or dirichlet:alpha=0.1.", autocompletion=named("partitions")),
]
Participation = Annotated[
    str | None,
    typer.Option(
        "--participation", help="Who takes part, e.g. random:fraction=0.1.", autocompletion=named("participation")
    ),
]
Dropout = Annotated[
    str | None,
    typer.Option(
        "--dropout",
        help="Who is lost, e.g. 0.4, or bursty:rate=0.4,replace=true.",
        autocompletion=named("dropouts"),
    ),
]
Clients = Annotated[int | None, typer.Option("--clients", help="How many clients.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="How many rounds.")]
Seed = Annotated[int | None, typer.Option("--seed", help=_SEED)]
SeedOfDraw = Annotated[int, typer.Option("--seed", help=_SEED)]
Query = Annotated[
    list[str] | None, typer.Option("--query", help="Classes that a client asks the others for, e.g. 3:7,8; repeatable.")
]

# A run and its models.
RunFolder = Annotated[
    Path, typer.Argument(help="A run's folder.", metavar="RUN", autocompletion=runs, callback=_in_runs)
]
Which = Annotated[
    str,
    typer.Option(
        "--which", help="Of a run's models: last, best or selected.", autocompletion=one_of("last", "best", "selected")
    ),
]
OwnModel = Annotated[int | None, typer.Option("--client", help="A client's own model, where the method has such.")]
Architecture = Annotated[
    str | None,
    typer.Option(
        "--architecture",
        help="Where clients have different models, which by name; else the first.",
        autocompletion=named("models"),
    ),
]
OneData = Annotated[
    str | None,
    typer.Option("--data", help="Of a study on several data sets, which is meant.", autocompletion=named("datasets")),
]
