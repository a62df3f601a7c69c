"""Options that commands share: what a shell offers after TAB, and runs paired with names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from fedstill.cli import list as listed
from fedstill.cli import options
from fedstill.cli.options import layers, named, one_of, paired, run_folders
from fedstill.core.errors import InputError
from fedstill.methods import methods
from fedstill.runtime.recipes import recipe_layers
from fedstill.studies.results_table import metrics

from ..warm import Warm


def typed(**params: Any) -> typer.Context:
    """What a shell has read so far."""
    return cast("typer.Context", SimpleNamespace(params=params))


def make_run(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").touch()


def test_names_with_their_sentences() -> None:
    assert named("methods")("fedavg") == [(name, methods.summary(name)) for name in ("fedavg", "fedavgm")]
    assert {"fedavg", "scaffold", "qkt"} <= {name for name, _ in named("methods")("")}
    assert named("methods")("nobody") == []
    both = [name for name, _ in named("studies", "recipes")("")]
    assert {"dgcnn-student", "demo"} <= set(both)


@pytest.fixture(scope="module")
def shelves(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What is registered in a process of its own: other tests register parts in this one."""
    say = "json.dumps({shelf: names() for shelf, names in shelves().items()})"
    script = f"import json; from fedstill.cli.list import shelves; print({say})"
    return dict(json.loads(warm.python(script, tmp_path_factory.mktemp("shelves")).stdout))


@pytest.mark.parametrize("shelf", sorted(listed.shelves()))
def test_every_shelf_of_the_list_can_be_completed(shelf: str, shelves: dict[str, dict[str, str]]) -> None:
    assert dict(named(shelf)("")) == shelves[shelf]


def test_metrics_and_words() -> None:
    assert [name for name, _ in named("metrics")("")] == list(metrics())
    assert one_of("last", "best", "selected")("") == ["last", "best", "selected"]


@pytest.mark.parametrize("kind", ["presets", "variants"])
def test_presets_are_those_of_the_recipe_that_was_typed(kind: str) -> None:
    known = recipe_layers()
    recipe = next(name for name, own in known.items() if own[kind])
    for word in ("recipe", "experiment", "source"):
        assert layers(kind)(typed(**{word: recipe}), "") == known[recipe][kind]
    every = sorted({name for own in known.values() for name in own[kind]})
    assert layers(kind)(typed(), "") == layers(kind)(typed(recipe="my.yaml"), "") == every
    first = every[0]
    assert first in layers(kind)(typed(), first[:1])


def test_runs_and_folders_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folders("") == run_folders("nowhere/") == []
    make_run(tmp_path / "runs" / "fedavg-digits-1")
    make_run(tmp_path / "runs" / "fedprox-digits-2")
    make_run(tmp_path / "kept" / "old")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert run_folders("") == run_folders("runs/") == ["runs/fedavg-digits-1", "runs/fedprox-digits-2"]
    assert run_folders("runs/fedp") == ["runs/fedprox-digits-2"]
    assert run_folders("ru") == ["runs/"]
    assert run_folders("./") == ["kept/", "runs/"]
    monkeypatch.setattr(options, "_MOST", 1)
    assert run_folders("runs/") == ["runs/fedavg-digits-1"]


def test_a_shell_is_answered_and_nobody_waits_for_torch() -> None:
    """The protocol of bash, in a process of its own: words and the cursor's place come in the environment."""
    script = """
import atexit, sys
from fedstill.cli import main
sys.argv = ["fedstill"]
heavy = {"torch", "numpy"}  # newer releases of Typer import pydantic themselves
atexit.register(lambda: print(*sorted(heavy & set(sys.modules)), file=sys.stderr))
main()
"""
    asked = {"_FEDSTILL_COMPLETE": "complete_bash", "COMP_WORDS": "fedstill run fedp", "COMP_CWORD": "2"}
    told = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **asked}, check=True, capture_output=True, text=True
    )
    assert (told.stdout.split(), told.stderr.split()) == (["fedprox"], [])


def test_runs_and_names_are_paired() -> None:
    one, two = Path("one"), Path("two")
    assert paired([one, two], [], "--a") == [(one, None), (two, None)]
    assert paired([one, two], ["x", "y"], "--a") == [(one, "x"), (two, "y")]
    assert paired([one], ["x", "y"], "--a") == [(one, "x"), (one, "y")]
    with pytest.raises(InputError, match="--a is given 2 times for 3 runs: give it once, or once for each"):
        paired([one, two, one], ["x", "y"], "--a")
