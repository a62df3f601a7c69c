"""Lists of runs: conditions, order, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.terminal_table import terminal_text

from .conftest import MakeRun


@pytest.fixture
def folder(make_run: MakeRun) -> Path:
    """Three finished runs, 0 to 2, and one that was cut off, 3."""
    make_run({"method": "fedavg", "seed": 7, "training": {"rate": 0.1}}, (0.5, 0.9))
    make_run({"method": "fedprox", "seed": 7}, (0.5, 0.95, 0.8))
    make_run({"method": {"name": "fedprox", "mu": 0.5}, "seed": 8, "partition": "dirichlet"}, (0.7,))
    cut = make_run({"method": "fedavg", "seed": 8}, (0.2, 0.4))
    (cut.path / "result.json").unlink()
    return cut.path.parent


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ([], {"0", "1", "2", "3"}),
        (["method=fedprox"], {"1", "2"}),
        (["method != fedprox"], {"0", "3"}),
        (["accuracy>=80%"], {"0", "1"}),
        (["best>0.9"], {"1"}),
        (["method.mu=0.5"], {"2"}),
        (["mu=0.01"], {"1"}),
        (["lr=0.1"], {"0"}),
        (["partition=dirichlet"], {"2"}),
        (["alpha=0.5"], {"2"}),
        (["mu=none"], {"0", "3"}),
        (["mu!=none", "seed<8"], {"1"}),
        (["state=unfinished"], {"3"}),
        (["rounds<=2", "seed=7"], {"0"}),
        (["mu<1"], {"1", "2"}),
    ],
)
def test_conditions(folder: Path, conditions: list[str], left: set[str]) -> None:
    assert {one.path.name for one in fedstill.runs(folder, where=conditions).listed} == left


@pytest.mark.parametrize(
    ("sort", "reverse", "order"),
    [
        ("accuracy", False, ["0", "1", "2", "3"]),
        ("accuracy", True, ["3", "2", "1", "0"]),
        ("best", False, ["1", "0", "2", "3"]),
        ("run", False, ["0", "1", "2", "3"]),
        ("method", True, ["1", "2", "0", "3"]),
        ("seed", False, ["0", "1", "2", "3"]),
        ("mu", False, ["1", "2", "0", "3"]),
    ],
)
def test_order(folder: Path, sort: str, reverse: bool, order: list[str]) -> None:
    listed = fedstill.runs(folder, sort=sort, reverse=reverse).listed
    assert [one.path.name for one in listed] == order


def test_figures_and_objects(folder: Path) -> None:
    found = fedstill.runs(folder, sort="best", limit=2)
    assert len(found) == 2
    assert found[0].accuracy == 0.8
    assert [run.path.name for run in found] == ["1", "0"]
    assert found.rows[0]["best"] == 0.95
    assert found.rows[0]["rounds"] == 3
    assert found.rows[0]["bytes"] == sum(file.stat().st_size for file in (folder / "1").rglob("*"))
    assert found.to_pandas()["accuracy"].tolist() == [0.8, 0.9]
    assert "fedprox" in str(found)
    assert "fedprox" in found._repr_html_()


def test_a_limit_does_not_shorten_what_runs_are_called(folder: Path) -> None:
    """The best of many is called by what sets it apart from all of them, not from the few that are shown."""
    every = {row["run"]: row["what"] for row in fedstill.runs(folder).rows}
    (best,) = fedstill.runs(folder, sort="best", limit=1).rows
    assert best["what"] == every[best["run"]] != "fedprox"


def test_a_run_that_cannot_be_read_is_listed_last(folder: Path) -> None:
    config = json.loads((folder / "1" / "config.json").read_text())
    (folder / "1" / "config.json").write_text(json.dumps({**config, "format": 99}))
    config = json.loads((folder / "2" / "config.json").read_text())
    config["experiment"]["method"] = {"name": "of a plugin"}
    (folder / "2" / "config.json").write_text(json.dumps(config))
    found = fedstill.runs(folder, sort="accuracy")
    assert [one.state for one in found.listed] == ["finished", "unfinished", "cannot be read", "cannot be read"]
    assert {one.path.name for one in fedstill.runs(folder, where=["state=cannot be read"]).listed} == {"1", "2"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"where": ["colour=red"]}, "no run has a setting or figure 'colour'"),
        ({"where": ["accuracy~1"]}, "cannot read the condition 'accuracy~1'"),
        ({"where": ["method<3"]}, "are not both numbers"),
        ({"where": ["name=3"]}, "no run has a setting"),
        ({"sort": "colour"}, "no run has a setting or figure 'colour'"),
        ({"limit": 0}, "a limit must be at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(folder: Path, given: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        fedstill.runs(folder, **given)  # type: ignore[arg-type]


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        fedstill.runs(tmp_path / "nowhere")


def test_an_ambiguous_name_is_refused(make_run: MakeRun) -> None:
    folder = make_run({"method": "fedavg", "dropout": 0.4}).path.parent
    with pytest.raises(InputError, match=r"'rate' may be training\.rate, dropout\.rate|dropout\.rate, training\.rate"):
        fedstill.runs(folder, where=["rate=0.4"])
    assert len(fedstill.runs(folder, where=["dropout.rate=0.4"])) == 1


@pytest.mark.parametrize("file", ["digests.json", "timing.json"])
@pytest.mark.parametrize("content", ["[1]", "3", '{"files": 3, "fields": {"config.json": null}, "rounds": ["x"]}'])
def test_a_damaged_file_does_not_hide_the_other_runs(folder: Path, file: str, content: str) -> None:
    (folder / "1" / file).write_text(content)
    listed = {row["run"]: row["state"] for row in fedstill.runs(folder).rows}
    assert listed.pop("1") in ("finished", "cannot be read")
    assert sorted(listed.values()) == ["finished", "finished", "unfinished"]


@pytest.mark.parametrize("width", [50, 60, 80])
def test_a_narrow_list_leaves_figures_out_and_breaks_none(make_run: MakeRun, width: int) -> None:
    """What runs are had one word a line, and percentages lost their sign to the next one."""
    experiments = [
        {"method": "fedavg", "seed": 7, "partition": {"name": "dirichlet", "alpha": 0.3}},
        {"method": "fedavg", "seed": 8, "training": {"rate": 0.003}, "clients": 40},
    ]
    made = [make_run(one) for one in experiments]
    found = fedstill.runs(made[0].path.parent, sort="seed")
    table = found.table(width=width)
    lines = terminal_text(table, width).splitlines()
    assert table.header[-1] == {50: "Last", 60: "Best", 80: "Size"}[width]
    assert sum(line.count("\N{NO-BREAK SPACE}%") for line in lines) == 2 * (1 if width == 50 else 2)
    assert len(lines) <= 7
