"""Recipes: experiments written down as YAML, with presets (scale) and variants (reading) laid over them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from fedstill.config.assemble import overlay
from fedstill.core.errors import InputError, did_you_mean
from fedstill.methods import methods

_KEYS = {"about", "experiment", "presets", "variants"}


def recipe_folder() -> Path:
    """Beside the package in an installed wheel, at the top of the tree in a checkout."""
    installed = Path(str(files("fedstill"))) / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "recipes"


def recipe_names() -> dict[str, str]:
    """The recipes that ship with the package, each with its sentence."""
    return {path.stem: str(_read(path).get("about", "")) for path in sorted(recipe_folder().glob("*.yaml"))}


def given_by(name: str, preset: str | None = None, variant: str | None = None) -> dict[str, Any]:
    """The configuration behind a method's name, a shipped recipe's name, or the path of a recipe file."""
    if name in methods:
        if preset or variant:
            raise InputError(f"{name!r} is a method, and only recipes have presets and variants")
        return {"method": name}
    path = Path(name) if name.endswith((".yaml", ".yml")) else recipe_folder() / f"{name}.yaml"
    if not path.is_file():
        known = [*methods.names(), *recipe_names()]
        raise InputError(f"no method or recipe is called {name!r}: {did_you_mean(name, known)}")
    recipe = _read(path)
    layers = [_layer(recipe, "presets", preset, path), _layer(recipe, "variants", variant, path)]
    return overlay(recipe["experiment"], *layers)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"the recipe {path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not isinstance(content.get("experiment"), dict):
        raise InputError(f"the recipe {path} needs a section `experiment` with at least a `method`")
    if unknown := sorted(set(map(str, content)) - _KEYS):
        raise InputError(f"the recipe {path} has an unknown section {unknown[0]!r}: {did_you_mean(unknown[0], _KEYS)}")
    return content


def _layer(recipe: Mapping[str, Any], section: str, name: str | None, path: Path) -> Mapping[str, Any]:
    if name is None:
        return {}
    layers = recipe.get(section) or {}
    if not isinstance(layers, Mapping):
        raise InputError(f"the recipe {path}: {section} must be a mapping from names to settings")
    if name not in layers:
        raise InputError(f"the recipe {path} has no {section[:-1]} {name!r}: {did_you_mean(name, map(str, layers))}")
    layer = layers[name] or {}
    if not isinstance(layer, Mapping):
        raise InputError(f"the recipe {path}: the {section[:-1]} {name!r} must hold settings")
    return layer
