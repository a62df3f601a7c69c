"""Options and arguments that mean the same in every command: one name, one sentence, one completion.

What a shell offers after TAB comes from `names.json`, which `fedstill reference` writes and a test compares with what
is registered: nothing is imported, so that completion is quick. Plugins and the user's own data sets are not in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill.core.errors import InputError

FILE = "names.json"
_MOST = 200  # runs that are offered
Offered = list[tuple[str, str]]


@cache
def _names() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("fedstill.cli").joinpath(FILE).read_text(encoding="utf-8"))
    return content


def named(*shelves: str) -> Callable[[str], Offered]:
    """Offers the names on these shelves of `fedstill list`.

    >>> named("methods")("fedp")
    [('fedprox', 'FedAvg with a proximal term that keeps local models close to the shared model.')]
    """

    def offer(incomplete: str) -> Offered:
        return [
            (name, sentence)
            for shelf in shelves
            for name, sentence in _names()[shelf].items()
            if name.startswith(incomplete)
        ]

    return offer


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Offers some words.

    >>> one_of("last", "best", "selected")("b")
    ['best']
    """

    def offer(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return offer


def layers(kind: str) -> Callable[[typer.Context, str], list[str]]:
    """Offers the presets, or the variants, of the recipe that was typed before."""

    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        recipe = next((ctx.params[key] for key in ("recipe", "experiment", "source") if ctx.params.get(key)), None)
        known: dict[str, list[str]] = _names()[kind]
        every = known.get(recipe, []) if recipe in known else sorted({name for some in known.values() for name in some})
        return [name for name in every if name.startswith(incomplete)]

    return offer


_SHELVES = {  # of `fedstill list`, that hold what a setting names
    "attack": "attacks",
    "data": "datasets",
    "dropout": "dropouts",
    "method": "methods",
    "method.objective": "objectives",
    "model": "models",
    "participation": "participation",
    "partition": "partitions",
    "privacy": "privacy",
}


def settings_to_type(incomplete: str) -> Offered:
    """Offers what can be set, by its path.

    >>> [name for name, _ in settings_to_type("training.ra")]
    ['training.rate=']
    >>> "method.mu=" in [name for name, _ in settings_to_type("method.")]
    True
    >>> [name for name, _ in settings_to_type("partition=path")]
    ['partition=pathological']
    >>> [name for name, _ in settings_to_type("training.optimiser=ad")]
    ['training.optimiser=adam', 'training.optimiser=adamw']
    """
    path, typed, begun = incomplete.partition("=")
    if typed:
        shelf = _SHELVES.get(path.removesuffix(".name"))
        offered = (
            named(shelf)(begun) if shelf else [(one, "") for one in one_of(*_names()["values"].get(path, []))(begun)]
        )
        return [(f"{path}={name}", what) for name, what in offered]
    every: dict[str, str] = _names()["settings"]
    return [(f"{name}=", what) for name, what in every.items() if name.startswith(incomplete)]


def run_folders(incomplete: str) -> list[str]:
    """Folders of runs that go on as typed, and folders that hold some; before anything is typed, those in `runs`."""
    found = []
    for folder in _folders(incomplete or "runs/"):
        if (folder / "config.json").is_file():
            found.append(str(folder))
        elif next(folder.glob("*/config.json"), None) is not None:
            found.append(f"{folder}/")
        if len(found) == _MOST:
            break
    return found


def _folders(typed: str) -> Iterator[Path]:
    path = Path(typed)
    above, begun = (path, "") if typed.endswith("/") else (path.parent, path.name)
    try:
        every = sorted(above.iterdir())
    except OSError:
        return
    yield from (one for one in every if one.name.startswith(begun) and one.is_dir())


_PAGES = (".html", ".htm")
_SEED = "Seed of all random draws."
_DATA = "Name of a data set, or folder:FOLDER, table:FILE, npz:FILE, signals:FOLDER or hf:NAME."


def html_path(path: Path | None) -> Path | None:
    """Refuse, before any work, a page whose name does not end in .html; folders are refused later."""
    if path is None or path.suffix.lower() in _PAGES or path.is_dir():
        return path
    raise InputError(f"{path} is to hold a page: give it a name that ends in .html")


def in_runs(path: Path) -> Path:
    """A run by its name alone, as `--dry-run` prints it, or by the beginning of that or of its digest."""
    return named_run(path, Path("runs"))


def named_run(path: Path, folder: Path) -> Path:
    """The same for the runs in a folder."""
    if path.exists() or path.is_absolute() or len(path.parts) != 1:
        return path
    if (folder / path).is_dir():
        return folder / path
    every = sorted(config.parent for config in folder.glob("*/config.json"))
    begun = path.name
    found = [run for run in every if run.name.startswith(begun) or run.name.rpartition("-")[2].startswith(begun)]
    if len(found) > 1:
        some = ", ".join(run.name for run in found[:3])
        raise InputError(f"{path} may be any of {len(found)} runs in {folder}: {some}{', ...' * (len(found) > 3)}")
    return found[0] if found else path


# How a command behaves.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and exit.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for the runs.")]
Picture = Annotated[Path, typer.Option("--out", help="Picture to write (.png).")]
Html = Annotated[
    Path | None, typer.Option("--html", help="Also write a page with figures (.html).", callback=html_path)
]
Root = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of data sets; default: $FEDSTILL_DATA, else your data folder."),
]
Plugin = Annotated[
    list[Path] | None, typer.Option("--plugin", help="A Python file with methods, models etc. of your own; repeatable.")
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:N or mps; only cpu is tested, and gives the same bits every time.",
        autocompletion=one_of("cpu", "cuda", "mps"),
    ),
]

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Also record rounds with tensorboard, mlflow or wandb, as NAME or NAME:WHERE; repeatable.",
        autocompletion=one_of("tensorboard", "mlflow", "wandb"),
    ),
]

# What an experiment is.
ExperimentName = Annotated[
    str,
    typer.Argument(
        help="Name of a method or recipe, or a recipe file.",
        metavar="METHOD_OR_RECIPE",
        autocompletion=named("methods", "recipes"),
    ),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", help="Size of a recipe, e.g. paper, lite or tiny.", autocompletion=layers("presets")),
]
Variant = Annotated[
    str | None,
    typer.Option(
        "--variant",
        help="Variant of a recipe, e.g. as-published, corrected or recalibrated.",
        autocompletion=layers("variants"),
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="Metric instead of accuracy, e.g. auc, balanced_accuracy or f1.",
        autocompletion=one_of(
            *("accuracy", "class_accuracy", "loss", "auc", "balanced_accuracy", "f1"),
            *("sensitivity", "specificity", "calibration_error"),
        ),
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting and its value, e.g. training.rate=0.01; repeatable.", autocompletion=settings_to_type
    ),
]
Data = Annotated[str | None, typer.Option("--data", help=_DATA, autocompletion=named("datasets"))]
DataName = Annotated[str, typer.Argument(help=_DATA, metavar="NAME", autocompletion=named("datasets"))]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Name of a model; default: the one for this kind of data.", autocompletion=named("models")
    ),
]
Cut = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="How data is split among clients, e.g. iid or dirichlet:alpha=0.1.",
        autocompletion=named("partitions"),
    ),
]
Participation = Annotated[
    str | None,
    typer.Option(
        "--participation",
        help="How clients are sampled, e.g. random:fraction=0.1.",
        autocompletion=named("participation"),
    ),
]
Dropout = Annotated[
    str | None,
    typer.Option(
        "--dropout",
        help="Share of clients that drop out, or the kind of dropout, e.g. 0.4 or bursty:rate=0.4.",
        autocompletion=named("dropouts"),
    ),
]
Clients = Annotated[int | None, typer.Option("--clients", help="Number of clients; unset: the recipe's, else 10.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Number of rounds; unset: the recipe's, else mostly 10.")]
Seed = Annotated[int | None, typer.Option("--seed", help=_SEED)]
SeedOfDraw = Annotated[int, typer.Option("--seed", help=_SEED)]
Query = Annotated[
    list[str] | None,
    typer.Option("--query", help="A client and the classes that it queries from others, e.g. 3:7,8; repeatable."),
]

# A run and its models.
RunFolder = Annotated[
    Path, typer.Argument(help="A run's folder.", metavar="RUN", autocompletion=run_folders, callback=in_runs)
]
RunFolders = Annotated[
    list[Path],
    typer.Argument(
        help="A run's folder, or several to compare them.",
        metavar="RUN...",
        autocompletion=run_folders,
        callback=lambda paths: list(map(in_runs, paths)),
    ),
]
TrainedModel = Annotated[
    Path,
    typer.Argument(
        help="A run's folder, or an exported .onnx file.",
        metavar="RUN",
        autocompletion=run_folders,
        callback=in_runs,
    ),
]
Which = Annotated[
    str,
    typer.Option(
        "--which",
        help="Which of the run's models: last, best or selected.",
        autocompletion=one_of("last", "best", "selected"),
    ),
]
OwnModel = Annotated[
    int | None, typer.Option("--client", help="Use this client's personal model, if the method trains them.")
]
Architecture = Annotated[
    str | None,
    typer.Option(
        "--architecture",
        help="Model, if clients have different ones; default: the first.",
        autocompletion=named("models"),
    ),
]
OneData = Annotated[
    str | None,
    typer.Option("--data", help="Data set, if the study has several.", autocompletion=named("datasets")),
]


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
