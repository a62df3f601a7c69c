"""Results are never stale: whichever way a part is edited, the answer is that of the part as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.own_parts import fresh_token
from fedstill.core.registry import Registry
from fedstill.methods import methods
from fedstill.runtime import identity
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.experiment import BEHAVIOUR
from fedstill.runtime.identity import identify, identity_from, parts_of, stale_parts

from ..warm import Warm

EDITS = Path(__file__).with_name("edits.py")
BASE = {"method": "fedavg", "data": "digits", "model": "mlp"}


def edited(warm: Warm, folder: Path, engine: str) -> list[Any]:
    done = warm.file(EDITS, [engine], folder)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("engine", ["in-process", "processes"])
def test_every_way_of_editing_gives_the_true_answer(warm: Warm, tmp_path: Path, engine: str) -> None:
    found = edited(warm, tmp_path, engine)
    assert len(found) >= 20
    assert [edit for edit, _, true, _ in found if not true] == []
    assert [edit for edit, as_expected, _, _ in found if not as_expected] == []  # nothing is run twice
    assert len({bits for *_, bits in found}) >= len(found) - 5  # but for those that edit nothing


PLUGIN = """
import torch
from torch import nn
from fedstill.models import models
import {helper}

@models.register("plugged")
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.head, self.feature_size = nn.Linear(64, classes), 64

    def forward(self, x):
        features = x.flatten(1) * {helper}.SCALE
        return torch.log_softmax(self.head(features), 1), features
"""
RUN = """
import sys
sys.path[:0] = {paths!r}
import fedstill
made = fedstill.run("fedavg", data="digits[:10%]", model="plugged", clients=2, rounds=1, out={out!r},
                    plugins={plugins!r}, training={{"epochs": 1, "batch": 128}})
print(made.sha256, made.reused)
"""


def ran(warm: Warm, folder: Path, paths: list[Path], plugins: list[Path], out: str) -> list[str]:
    """In a new interpreter."""
    code = RUN.format(paths=list(map(str, paths)), plugins=list(map(str, plugins)), out=out)
    done = warm.python(code, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_module_that_a_plugin_imports_is_noticed_in_a_new_interpreter(warm: Warm, tmp_path: Path) -> None:
    helper, plugin = tmp_path / "scales.py", tmp_path / "plugin.py"
    plugin.write_text(PLUGIN.format(helper="scales"))
    seen = []
    for scale in (1.0, 0.25):  # of other lengths: Python tells compiled files apart by whole seconds and sizes
        helper.write_text(f"SCALE = {scale}\n")
        first, again = (ran(warm, tmp_path, [tmp_path], [plugin], "runs") for _ in range(2))
        assert [first[1], again[1]] == ["False", "True"]
        assert first[0] == ran(warm, tmp_path, [tmp_path], [plugin], f"truth-{scale}")[0]
        seen.append(first[0])
    assert seen[0] != seen[1]


def test_an_entry_point_and_the_version_of_an_imported_package_are_noticed(warm: Warm, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"

    def installed(name: str, version: str, files: dict[str, str], announces: bool = False) -> None:
        info = site / f"{name}-{version}.dist-info"
        for old in site.glob(f"{name}-*.dist-info"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text(f"{name}\n")
        if announces:
            (info / "entry_points.txt").write_text(f"[fedstill.plugins]\nmine = {name}\n")
        for file, text in files.items():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text(text)
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))

    def part(scale: str = "scales.SCALE") -> dict[str, str]:
        text = PLUGIN.format(helper="scales").replace("scales.SCALE", scale)
        return {"announced/__init__.py": text, "announced/data.txt": "1\n"}

    seen = []

    def step(reused: bool, other: bool = True) -> None:
        bits, found = ran(warm, tmp_path, [site], [], "runs")
        assert found == str(reused)
        assert bits == ran(warm, tmp_path, [site], [], f"truth-{len(seen)}")[0]
        assert (bits != seen[-1]) == other if seen else True
        seen.append(bits)

    installed("scales", "1.0", {"scales/__init__.py": "SCALE = 1.0\n"})
    installed("announced", "1.0", part(), announces=True)
    step(reused=False)
    step(reused=True, other=False)
    installed("announced", "1.0", part("0.5"), announces=True)  # the same version, edited where it lies
    step(reused=False)
    installed("announced", "1.0", part(), announces=True)
    step(reused=True)
    installed("scales", "1.1", {"scales/__init__.py": "SCALE = 0.25\n"})
    step(reused=False)


def test_built_in_parts_have_versions_and_a_raised_one_changes_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make_experiment(BASE)
    first = identify(experiment, "data")
    assert first.parts["kernel"] == BEHAVIOUR
    assert first.parts["method fedavg"] == first.parts["model mlp"] == 1
    assert identify(experiment, "other data").name != first.name
    monkeypatch.setitem(methods._behaviours, "fedavg", 2)
    raised = identify(experiment, "data")
    assert raised.name != first.name
    assert identify(make_experiment({**BASE, "method": "fedprox"}), "data").parts["method fedprox"] == 1
    config = {"parts": dict(first.parts)}
    assert stale_parts(config) == ("method fedavg has behaviour 2 today, and had 1",)
    assert stale_parts({"parts": dict(raised.parts)}) == ()
    assert stale_parts({"behaviour": BEHAVIOUR}) == ()
    assert stale_parts({"behaviour": 2}) == (f"kernel has behaviour {BEHAVIOUR} today, and had 2",)


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({"model": "pointnet-tiny", "data": "heads", "method": {"name": "fedavg", "buffers": "recalibrate"}}, True),
        ({"model": "pointnet-tiny", "data": "heads", "method": "fedavg"}, False),
        ({"model": "cnn-bn", "data": "digits", "method": {"name": "fedavg", "buffers": "recalibrate"}}, False),
    ],
)
def test_statistics_of_point_clouds_are_a_part_where_rounds_measure_them(
    changes: dict[str, Any], measured: bool
) -> None:
    """Runs from before they were a part, which were measured on another path, are stale."""
    experiment = make_experiment({**BASE, **changes})
    parts = identify(experiment, "data").parts
    assert ("statistics recalibrate" in parts) is measured
    earlier = {name: version for name, version in parts.items() if not name.startswith("statistics")}
    config = {"parts": earlier, "experiment": experiment.model_dump(mode="json")}
    expected = ("statistics recalibrate has behaviour 2 today, and had 1",) if measured else ()
    assert stale_parts(config) == expected
    assert stale_parts({**config, "parts": dict(parts)}) == ()


def test_torch_is_part_of_the_identity_and_rounds_not_of_the_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    ten, twenty = (identify(make_experiment({**BASE, "rounds": rounds}), "data") for rounds in (10, 20))
    assert ten.name != twenty.name
    assert ten.lineage == twenty.lineage
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert identify(make_experiment(BASE), "data").name != ten.name


def test_what_cannot_be_established_is_never_found_again_but_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: Registry[Any] = identity.PARTS["augmentation"]
    monkeypatch.setitem(kinds._parts, "none", type("Mine", (kinds["none"],), {"__module__": "__main__", "f": _reads}))
    experiment = make_experiment({**BASE, "augmentation": "none"})
    parts, unknown = parts_of(experiment)
    assert any("reads what its code does not show (`open` in _reads)" in why for why in unknown)
    one = identify(experiment, "data")
    assert one == identify(experiment, "data")  # in this process, until the run has ended
    fresh_token.renew()
    assert identify(experiment, "data").name != one.name
    assert identity_from("digest", parts, unknown=False) == identity_from("digest", parts, unknown=False)


def _reads(self: Any) -> str:
    with open("somewhere") as file:
        return file.read()
