"""The package as it is handed out: built, checked, and used in an empty environment far from this repository.

Slow, since environments are made and torch is installed; `.ci/run` runs it beside `make test`. Everything but torch is
taken at the newest version that the package's own ranges allow, and no extra is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from fedstill import __version__

from .pages import ROOT, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def done(*words: str | Path, cwd: Path, **environment: str) -> str:
    """What a command prints, which must end well."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDSTILL"))}
    ended = subprocess.run(
        list(map(str, words)), cwd=cwd, env={**clean, **environment}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, the wheel made from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (only,) = built.glob("*.whl")
    return only


@pytest.fixture(scope="module")
def torch_pin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one pin there must be: without it the newest torch comes with gigabytes for graphics cards."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    path = tmp_path_factory.mktemp("pin") / "torch.txt"
    path.write_text("\n".join(line for line in lines if line.startswith("torch==")) + "\n")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, torch_pin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the wheel and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    done(folder / "bin" / "pip", "install", "--quiet", "--constraint", torch_pin, wheel, cwd=folder)
    return folder / "bin"


def test_the_archives_are_whole(built: Path, wheel: Path) -> None:
    assert "FAILED" not in done(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    names = set(zipfile.ZipFile(wheel).namelist())
    recipes = {f"fedstill/recipes/{path.name}" for path in (ROOT / "recipes").glob("*.yaml")}
    assert {"fedstill/py.typed", "fedstill/cli/names.json", *recipes} <= names
    assert not [name for name in names if not name.startswith(("fedstill/", f"fedstill-{__version__}.dist-info/"))]
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        held = {name.partition("/")[2] for name in source.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/fedstill/__init__.py", "recipes/demo.yaml"} <= held
    assert not [name for name in held if name.startswith((".venv", "runs", "demo", ".git/"))]


def test_the_five_lines_of_the_readme(installed: Path, tmp_path: Path) -> None:
    ((_, code),) = blocks("README.md", "python")
    accuracy, digest = done(installed / "python", "-c", code, cwd=tmp_path).split()
    assert 0.5 < float(accuracy) <= 1
    assert len(digest) == 64


def test_no_package_of_an_extra_came_along_and_all_ranges_hold(installed: Path, tmp_path: Path) -> None:
    here = {one["name"] for one in json.loads(done(installed / "pip", "list", "--format", "json", cwd=tmp_path))}
    assert "fedstill" in here
    assert not here & {"flwr", "ray", "onnx", "onnxruntime", "dp-accounting", "pytest"}
    done(installed / "pip", "check", cwd=tmp_path)
    assert "needs" not in done(installed / "fedstill", "doctor", cwd=tmp_path)


def test_the_command_line(installed: Path, tmp_path: Path) -> None:
    fedstill = installed / "fedstill"
    assert done(fedstill, "--version", cwd=tmp_path) == f"fedstill {__version__}\n"
    for words in ([], ["run"], ["data"], ["deploy", "init"]):
        assert done(fedstill, *words, "--help", cwd=tmp_path).startswith("Usage: ")
    done(fedstill, "reference", "--out", "page.md", cwd=tmp_path)
    written = (tmp_path / "page.md").read_text()
    assert len(written) > 100_000
    assert hash(written) == hash((ROOT / "docs" / "reference.md").read_text()), "docs/reference.md is not of this code"
    typed = {"_FEDSTILL_COMPLETE": "complete_bash", "COMP_WORDS": "fedstill run fedp", "COMP_CWORD": "2"}
    assert done(fedstill, cwd=tmp_path, **typed).split() == ["fedprox"]
    assert "complete" in done(
        fedstill, "--show-completion", "bash", cwd=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )


def test_a_run_and_a_recipe(installed: Path, tmp_path: Path) -> None:
    fedstill = installed / "fedstill"
    small = ["--model", "mlp", "--clients", "3", "--rounds", "1"]
    told = json.loads(done(fedstill, "run", "fedavg", *small, "--json", cwd=tmp_path))
    again = json.loads(done(fedstill, "run", "fedavg", *small, "--json", cwd=tmp_path))
    assert told["sha256"] == again["sha256"]
    done(fedstill, "study", "clinical-grid", "--preset", "tiny", "--quiet", cwd=tmp_path)
    done(fedstill, "audit", "runs/clinical-grid-tiny.json", cwd=tmp_path)


def test_the_smallest_demo_ends_with_its_report(installed: Path, tmp_path: Path) -> None:
    done(installed / "fedstill", "demo", "--preset", "tiny", cwd=tmp_path)
    assert "FedAvg skewed" in (tmp_path / "demo" / "report.html").read_text()


@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.13.0+cpu", "2.99.0+cu150"])
def test_a_torch_that_is_installed_already_stays(wheel: Path, tmp_path: Path, version: str) -> None:
    """Only pip's resolver is asked: an environment that claims to have a torch, and what would be installed there."""
    venv.create(tmp_path / "own", with_pip=True)
    (site,) = (tmp_path / "own" / "lib").glob("python*/site-packages")
    claim = site / f"torch-{version}.dist-info"
    claim.mkdir()
    (claim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (claim / "INSTALLER").write_text("pip\n")
    (claim / "RECORD").write_text("")
    plan = ["install", "--dry-run", "--quiet", "--report", tmp_path / "plan.json", wheel]
    done(tmp_path / "own" / "bin" / "pip", *plan, cwd=tmp_path)
    chosen = {one["metadata"]["name"] for one in json.loads((tmp_path / "plan.json").read_text())["install"]}
    assert {"fedstill", "numpy"} <= chosen
    assert not {name for name in chosen if name == "torch" or name.startswith("nvidia")}


def test_extras_can_be_added_to_a_wheel_that_is_installed(installed: Path, tmp_path: Path) -> None:
    """`pip install 'fedstill[privacy]'`, as messages advise, takes the fedstill that is there."""
    plan = ["install", "--dry-run", "--quiet", "--report", tmp_path / "plan.json", "fedstill[privacy]"]
    done(installed / "pip", *plan, cwd=tmp_path)
    chosen = {one["metadata"]["name"] for one in json.loads((tmp_path / "plan.json").read_text())["install"]}
    assert "dp-accounting" in chosen
    assert "fedstill" not in chosen
