"""The names that shells complete, for `cli/names.json`."""

from __future__ import annotations

from typing import Any

from fedstill.audit.conditions import TOPICS
from fedstill.audit.verdicts import SEVERITIES
from fedstill.cli.list import SHELVES
from fedstill.runtime.recipes import recipe_layers
from fedstill.studies.table import metrics


def completed_names() -> dict[str, Any]:
    """By shelf, names with their sentences; by recipe, presets and variants."""
    shelves = {shelf: dict(sorted(listed().items())) for shelf, listed in SHELVES.items()}
    layers = recipe_layers()
    return {
        **shelves,
        "shelves": dict.fromkeys(shelves, ""),
        "metrics": {name: what for name, (what, _, _) in metrics().items()},
        "findings": dict.fromkeys([*SEVERITIES, *TOPICS], ""),
        "presets": {recipe: kinds["presets"] for recipe, kinds in layers.items() if kinds["presets"]},
        "variants": {recipe: kinds["variants"] for recipe, kinds in layers.items() if kinds["variants"]},
    }
