"""Experiments before they run: what would be done (`--dry-run`), and what would leave a client (`fedstill egress`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import size
from fedstill.core.settings import Settings
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.plan import make_plan


def show_plan(experiment: Experiment, data_root: Path | None, as_json: bool) -> None:
    """The resolved experiment; data that is not here is said, and is no error."""
    try:
        plan = make_plan(experiment, data_root)
        experiment, found = plan.experiment, f"found; this run is called {plan.folder_name}"
    except InputError as error:
        found = f"cannot run here: {error}"
    print_plan(experiment, found, as_json)


def print_plan(settings: Settings, status: str, as_json: bool, called: str = "experiment") -> None:
    """What would be done, as a recipe has it, and what is known of it."""
    content = settings.model_dump(mode="json")
    if as_json:
        print_json({called: content, "status": status})
        return
    console.print(yaml.safe_dump({called: content}, sort_keys=False).rstrip())
    console.print(f"# {status}")


def egress(experiment: Experiment, data_root: Path | None, as_json: bool) -> None:
    """The manifest a data officer reads: every line that leaves, its kind, its receiver and its measured size."""
    manifest = egress_manifest(make_plan(experiment, data_root))
    if as_json:
        print_json(manifest)
        return
    console.print(f"What leaves a client in each round of {manifest['method']} ({manifest['model']}):\n")
    manifest_table(manifest, console)
    console.print(f"\nWhat a client receives at first contact: {size(manifest['arrives_bytes'])}.")
    for part in ("participation", "evaluation"):
        console.print(f"{part.capitalize()}: {manifest[part]}.")


def manifest_table(manifest: Mapping[str, Any], where: Console) -> None:
    rows = [
        (line["name"], line["kind"], line["to"], str(line["tensors"]), size(line["bytes"]), line["why"])
        for line in manifest["leaves"]
    ]
    table("", ("name", "kind", "to", "tensors", "size", "what it is"), rows, right=(3, 4), where=where)
