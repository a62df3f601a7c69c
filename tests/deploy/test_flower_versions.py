"""Which versions of Flower are taken: the range is the same everywhere, and a deployment runs with both of its ends."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from fedstill.core.errors import InputError
from fedstill.deploy import flower_inner
from fedstill.engines import flower

ROOT = Path(__file__).parents[2]
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation"}
INNER = {"deploy/flower_inner.py", "engines/flower/ray_backend.py"}  # of deployments, and of simulations on Ray


def test_the_range_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (wanted,) = (one for one in project["project"]["optional-dependencies"]["flower"] if one.startswith("flwr"))
    lowest, above = (tuple(map(int, one)) for one in re.findall(r"(\d+)\.(\d+)", wanted))
    assert (lowest, above) == (flower.LOWEST, (flower.HIGHEST[0], flower.HIGHEST[1] + 1))


@pytest.mark.parametrize("version", ["1.39.0", "1.43.0", "2.0", "unknown"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(
        InputError, match=f"Flower {version} is installed, and this version of Fedstill works with 1.40"
    ):
        flower._check(version)
    for fine in ("1.40.0", "1.41.0", "1.42.1", "1.42.0rc1"):
        flower._check(fine)


def test_inner_modules_are_named_in_one_place() -> None:
    source = ROOT / "src" / "fedstill"
    for path in source.rglob("*.py"):
        tree = ast.parse(path.read_text())
        named = {one.module or "" for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
        named |= {alias.name for one in ast.walk(tree) if isinstance(one, ast.Import) for alias in one.names}
        inner = {one for one in named if one.partition(".")[0] == "flwr" and one not in PUBLIC}
        assert not inner or path.relative_to(source).as_posix() in INNER, (path, inner)


def test_all_that_is_named_there_is_in_flower_and_needed() -> None:
    used = " ".join(path.read_text() for path in (ROOT / "src" / "fedstill" / "deploy").glob("*.py"))
    for name, module in flower_inner.PLACES.items():
        assert getattr(flower_inner, name) is getattr(import_module(module), name)
        assert len(re.findall(rf"\b{name}\b", used)) > 2, name  # here, where it is imported, and where it is used
    with pytest.raises(AttributeError, match="nothing"):
        assert flower_inner.nothing


@pytest.mark.slow
@pytest.mark.parametrize("version", [flower.LOWEST, flower.HIGHEST], ids=lambda one: ".".join(map(str, one)))
def test_a_deployment_runs_with(version: tuple[int, int], tmp_path: Path) -> None:
    """Without what Flower itself depends on, which is here: three sites, whose sums have the bits of a simulation."""
    wanted, other = ".".join(map(str, version)), tmp_path / "other"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(other)]
    subprocess.run([*pip, f"flwr=={wanted}.*"], check=True, timeout=300)
    path = os.pathsep.join(filter(None, (str(other), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = "import flwr; from importlib.metadata import version; print(version('flwr'), flwr.__file__)"
    assert run("-c", where).startswith(f"{wanted}.")
    assert str(other) in run("-c", where)
    run("-m", "fedstill", "deploy", "init", "clinics", "--sites", "3")
    settings = ("--data", "digits[:10%]", "--model", "mlp", "--rounds", "1", "--set", "secure=true")
    told = run("-m", "fedstill", "deploy", "try", "clinics", "fedavg", *settings)
    assert "the same models, bit for bit" in told
