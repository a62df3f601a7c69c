"""Writes a stock Flower app: a folder that `flwr run` sends to a SuperLink, with one experiment in it."""

from __future__ import annotations

import json
from pathlib import Path

from fedstill._version import __version__
from fedstill.core.errors import InputError
from fedstill.core.files import write_json
from fedstill.deploy.site_registry import for_sites
from fedstill.runtime.experiment import Experiment

PACKAGE = "fedstill_app"
_PROJECT = """\
# Made by `fedstill flower app`. `flwr run . CONNECTION --stream` runs it, and again goes on after an interruption.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{method}, by Fedstill {version}"
license = "Apache-2.0"
dependencies = ["fedstill[flower]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedstill"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

# Changed by --run-config.
[tool.flwr.app.config]
name = {deployment}
sites = {sites}
out = "~/fedstill-runs"
patience = 3600.0
wait = 60.0
"""
_CLIENT = '''"""A site's end: where its folder and data are is in its SuperNode's --node-config."""

from fedstill.deploy.stock_flower import site_app

app = site_app()
'''
_SERVER = '''"""The server's end: it runs the experiment in experiment.json."""

from pathlib import Path

from fedstill.deploy.stock_flower import federation_app

app = federation_app(Path(__file__).with_name("experiment.json"))
'''


def write_flower_app(folder: Path, experiment: Experiment, sites: int, deployment: str) -> list[Path]:
    """Write the app into an empty folder; an experiment that cannot be deployed is refused first."""
    wanted = for_sites(experiment, sites, deployment)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already: name a folder that is empty, or not there yet")
    package = folder / PACKAGE
    package.mkdir(parents=True)
    settings = {
        key: value for key, value in wanted.model_dump(mode="json", exclude_unset=True).items() if value is not None
    }
    write_json(package / "experiment.json", settings)
    facts = {"name": f"fedstill-{wanted.method.name}", "method": wanted.method.name, "version": __version__}
    project = _PROJECT.format(**facts, package=PACKAGE, deployment=json.dumps(deployment), sites=sites)
    texts = {
        folder / "pyproject.toml": project,
        package / "__init__.py": "",
        package / "client.py": _CLIENT,
        package / "server.py": _SERVER,
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return [*texts, package / "experiment.json"]
