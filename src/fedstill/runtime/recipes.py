"""Recipes: experiments written down as YAML, with presets (scale) and variants laid over them.

A recipe with a section `grid` is a study: its experiment is run once for every combination of the values listed there.
With a section `students` each of those runs teaches:

    students:
      experiment: {model: small-pointnet2-lite, rounds: 80}   # data, points, augmentation and seed are the teacher's
      which: last                                             # of the teacher's models: last, best or selected
      only: {data: [heads]}                                   # teachers by their labels; left out, all
      grid:
        objective: [labels-only, vanilla, feature]            # labels-only: no teacher at all
        labels: [use, no-ce]

Presets and variants may hold `students` too, laid over these in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.files import read_text_file
from fedstill.core.yaml_text import parse_yaml
from fedstill.methods import methods
from fedstill.runtime.assemble import overlay
from fedstill.runtime.experiment import WHICH

# What variants of shipped recipes were called before, as commands beside older results have it.
OLD_VARIANTS = {"seed": "as-published", "sound": "corrected"}
_KEYS = {"about", "experiment", "grid", "students", "columns", "rows", "presets", "variants"}
_STUDENTS = {"experiment", "grid", "which", "only", "columns", "rows"}


@dataclass(frozen=True)
class Students:
    """The second stage of a study: what is distilled from every run of the first."""

    experiment: dict[str, Any]
    grid: dict[str, list[Any]]
    which: str = "last"
    only: dict[str, list[str]] = field(default_factory=dict)
    columns: str | None = None
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A recipe with its layers applied: an experiment and, for a study, the lists of values that it is varied by."""

    name: str
    about: str
    experiment: dict[str, Any]
    grid: dict[str, list[Any]]
    columns: str | None = None  # the axis that a table shows across
    rows: tuple[str, ...] = ()  # the axes that it shows down, from the outermost
    students: Students | None = None


def recipe_folder() -> Path:
    """Beside the package in an installed wheel, at the top of the tree in a checkout."""
    installed = Path(str(files("fedstill"))) / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "recipes"


def recipe_names(study: bool | None = None) -> dict[str, str]:
    """The recipes that ship with the package, each with its sentence: all, only studies, or only the others."""
    shipped = {path.stem: _read(path) for path in sorted(recipe_folder().glob("*.yaml"))}
    return {
        name: str(content.get("about", ""))
        for name, content in shipped.items()
        if study is None or study == bool(content.get("grid"))
    }


def recipe_layers() -> dict[str, dict[str, list[str]]]:
    """The names of the presets and variants that shipped recipes have, by recipe."""
    shipped = {path.stem: _read(path) for path in sorted(recipe_folder().glob("*.yaml"))}
    return {
        name: {section: list(map(str, content.get(section) or {})) for section in ("presets", "variants")}
        for name, content in shipped.items()
    }


def given_by(name: str, preset: str | None = None, variant: str | None = None) -> dict[str, Any]:
    """The configuration behind a method's name, a shipped recipe's name, or the path of a recipe file."""
    recipe = recipe_by(name, preset, variant)
    if recipe.grid:
        raise InputError(
            f"the recipe {name} is a study, a grid of experiments over {', '.join(recipe.grid)}:"
            f" run it with `fedstill study {name}`"
        )
    return recipe.experiment


def recipe_by(name: str | Path | Mapping[str, Any], preset: str | None = None, variant: str | None = None) -> Recipe:
    """The recipe of that name or in that file, or one given as a mapping, with a preset and a variant laid over it."""
    if isinstance(name, Mapping):
        return _layered(_checked(dict(name), "given"), "study", "given", preset, variant)
    name = str(name)
    if name in methods:
        if preset or variant:
            raise InputError(f"{name!r} is a method, and only recipes have presets and variants")
        return Recipe(name, methods.summary(name), {"method": name}, {})
    path = Path(name) if name.endswith((".yaml", ".yml")) else recipe_folder() / f"{name}.yaml"
    if not path.is_file():
        raise InputError(_not_there(name))
    return _layered(_read(path), path.stem, str(path), preset, variant)


def _not_there(name: str) -> str:
    """What to say of a name that is neither a method, nor a recipe, nor the file of one."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        there = Path(name).expanduser().exists()
        return f"{name} is not the file of a recipe (.yaml)" if there else f"there is no file {name}"
    known = did_you_mean(name, [*methods.names(), *recipe_names()])
    return f"no method or recipe is called {name!r}: {known}; see `fedstill list`"


def _layered(content: Mapping[str, Any], name: str, where: str, preset: str | None, variant: str | None) -> Recipe:
    """Layers change settings of the experiment and, below `grid`, the axes: a list replaces one, null takes it out."""
    layers = {}
    known = content.get("variants") or {}
    variant = variant if variant is None or variant in known else OLD_VARIANTS.get(variant, variant)
    for section, chosen in (("presets", preset), ("variants", variant)):
        layers[f"the {section[:-1]} {chosen!r}"] = dict(_layer(content, section, chosen, where))
    below = {what: _section(layer.pop("students", None), where) for what, layer in layers.items()}
    experiment, grid, columns, rows = _stage(content, layers, where)
    students = None
    if content.get("students") is not None:
        students = _students(_section(content["students"], where), below, set(grid), f"{where}: students")
    elif any(below.values()):
        raise InputError(
            f"the recipe {where} has no section `students` for {next(w for w in below if below[w])} to change"
        )
    return Recipe(name, str(content.get("about", "")), experiment, grid, columns, rows, students)


def _students(content: dict[str, Any], layers: dict[str, dict[str, Any]], teachers: set[str], where: str) -> Students:
    if unknown := sorted(set(content) - _STUDENTS):
        raise InputError(f"the recipe {where}: unknown {unknown[0]!r}: {did_you_mean(unknown[0], _STUDENTS)}")
    kept = {"which": content.get("which", "last"), "only": content.get("only") or {}}
    for layer in layers.values():
        kept |= {key: layer.pop(key) for key in ("which", "only") if key in layer}
    if kept["which"] not in WHICH:
        raise InputError(f"the recipe {where}: which is {kept['which']!r}: {did_you_mean(str(kept['which']), WHICH)}")
    only = _section(kept["only"], where)
    axes = {axis.removesuffix("?") for axis in teachers}
    if strange := sorted(set(only) - axes):
        raise InputError(f"the recipe {where}: only: there is no axis {strange[0]!r}: {did_you_mean(strange[0], axes)}")
    experiment, grid, columns, rows = _stage(
        {**content, "experiment": content.get("experiment") or {}}, layers, where, axes
    )
    if twice := sorted({axis.removesuffix("?") for axis in grid} & axes):
        raise InputError(f"the recipe {where}: {twice[0]!r} is varied for the teachers already")
    listed = {
        axis: [str(one) for one in (value if isinstance(value, list) else [value])] for axis, value in only.items()
    }
    return Students(experiment, grid, kept["which"], listed, columns, rows)


def _stage(
    content: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]], where: str, further: Set[str] = frozenset()
) -> tuple[dict[str, Any], dict[str, Any], str | None, tuple[str, ...]]:
    """Experiment, grid and how a table shows it; `further` axes may be shown that the grid does not have."""
    if not isinstance(content["experiment"], Mapping):
        raise InputError(f"the recipe {where}: experiment must hold settings (got {content['experiment']!r})")
    experiment = dict(content["experiment"])
    grid = _grid(content, f"the recipe {where}")
    axes = set(grid) | further
    for what, given in layers.items():
        layer = dict(given)
        changes = _grid(layer, f"the recipe {where}: {what}", removing=True)
        layer.pop("grid", None)
        grid = {axis: values for axis, values in (grid | changes).items() if values is not None}
        axes |= set(grid)
        if fixed := sorted(set(layer) & set(grid)):
            raise InputError(
                f"the recipe {where}: {what} sets {fixed[0]!r}, which the grid varies:"
                f" write `grid: {{{fixed[0]}: [...]}}` in it"
            )
        experiment = overlay(experiment, layer)
    columns, rows = content.get("columns"), content.get("rows") or []
    rows = [rows] if isinstance(rows, str) else rows
    if not isinstance(rows, list) or not all(isinstance(hint, str | None) for hint in [*rows, columns]):
        raise InputError(f"the recipe {where}: columns must be an axis of the grid, and rows a list of axes")
    axes = {axis.removesuffix("?") for axis in axes}
    for hint in [*rows, *([] if columns is None else [columns])]:
        if hint not in axes:
            raise InputError(f"the recipe {where} has no axis {hint!r}: {did_you_mean(str(hint), axes)}")
    left = {axis.removesuffix("?") for axis in grid} | further
    present = tuple(axis for axis in rows if axis in left and axis != columns)
    return experiment, grid, columns if columns in left else None, present


def _section(value: Any, where: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InputError(f"the recipe {where}: `students`, and `only` in it, must be mappings (got {value!r})")
    return dict(value or {})


def _grid(content: Mapping[str, Any], where: str, removing: bool = False) -> dict[str, Any]:
    grid = content.get("grid") or {}
    if not isinstance(grid, Mapping):
        raise InputError(f"{where}: grid must be a mapping from settings to lists of values")
    for axis, values in grid.items():
        if not isinstance(axis, str):
            raise InputError(f"{where}: the grid's {axis!r} is not the name of a setting")
        if values is None and removing:
            continue
        if not isinstance(values, list):
            raise InputError(f"{where}: the grid's {axis!r} must be a list of values (got {values!r})")
        if not values:
            raise InputError(f"{where}: the grid's {axis!r} is an empty list, so nothing would be run")
    return dict(grid)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(read_text_file(path))
    except (OSError, ValueError) as error:
        raise InputError(f"the recipe {path} cannot be read: {' '.join(str(error).split())}") from None
    return _checked(content, str(path))


def _checked(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict) or not isinstance(content.get("experiment"), dict):
        raise InputError(f"the recipe {where} needs a section `experiment` with at least a `method`")
    if unknown := sorted(set(map(str, content)) - _KEYS):
        raise InputError(f"the recipe {where} has an unknown section {unknown[0]!r}: {did_you_mean(unknown[0], _KEYS)}")
    return content


def _layer(recipe: Mapping[str, Any], section: str, name: str | None, where: str) -> Mapping[str, Any]:
    if name is None:
        return {}
    layers = recipe.get(section) or {}
    if not isinstance(layers, Mapping):
        raise InputError(f"the recipe {where}: {section} must be a mapping from names to settings")
    if name not in layers:
        raise InputError(f"the recipe {where} has no {section[:-1]} {name!r}: {did_you_mean(name, map(str, layers))}")
    layer = layers[name] or {}
    if not isinstance(layer, Mapping):
        raise InputError(f"the recipe {where}: the {section[:-1]} {name!r} must hold settings")
    return layer
