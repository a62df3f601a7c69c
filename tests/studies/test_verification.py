"""Results files: an edited value is named, stale rows are marked, and cells are repeated."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.methods import methods
from fedstill.studies.results import EARLIER_TORCH, load_results
from fedstill.studies.results_table import make_table
from fedstill.studies.verification import study_of

RECIPE = {
    "experiment": {
        "data": "digits",
        "model": "mlp",
        "clients": 2,
        "rounds": 1,
        "training": {"epochs": 1, "batch": 256},
    },
    "grid": {"method": ["fedavg", "fedprox"], "seed": [1, 2]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study")
    recipe = path / "small.yaml"
    recipe.write_text(json.dumps({"about": "Two methods.", **RECIPE}))
    fedstill.study(str(recipe), out=path / "runs").save(path / "results.json")
    return path


def edited(folder: Path, tmp_path: Path, change: Any) -> Path:
    content = json.loads((folder / "results.json").read_text())
    change(content)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(content))
    return path


def test_an_untouched_file_fits_its_runs(folder: Path) -> None:
    (found,) = fedstill.verify(folder / "results.json", runs=folder / "runs")
    assert found.ok
    assert found.checked == 4
    assert found.notes == (f"4 of its 4 runs are in {folder / 'runs'}, and were compared",)


def test_a_file_says_what_its_runs_were_made_with(folder: Path) -> None:
    made = [row.made for row in load_results(folder / "results.json").runs.values()]
    assert {("method fedavg" in one.parts, "method fedprox" in one.parts) for one in made} == {
        (True, False),
        (False, True),
    }
    assert all(one.torch and one.cpu and one.parts["kernel"] for one in made)


@pytest.mark.parametrize("name", ["accuracy", "class_accuracy", "bytes_up", "identity", "correct.last", "seconds"])
def test_an_edited_value_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    def change(content: Any) -> None:
        place = content["figures"].index(name)
        held = content["runs"][1][place]
        content["runs"][1][place] = "1:0" if name == "correct.last" else "ff" if isinstance(held, str) else 0.123

    path = edited(folder, tmp_path, change)
    says = f"{name} of fedavg, 2 is not what was written"
    (found,) = fedstill.verify(path)
    assert says in str(found.contradictions[0])
    for read in (load_results, fedstill.report):  # whoever reads it
        with pytest.raises(InputError, match=says):
            read(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["source"]["experiment"].update(rounds=9),
        lambda c: c["test_counts"]["digits"].reverse(),
        lambda c: c["made"][0]["parts"].update(kernel=99),
        lambda c: c.update(command="fedstill study another"),
        lambda c: c["axes"]["seed"].update({"1": 7}),
        lambda c: c["runs"].pop(),
        lambda c: c["runs"].append(c["runs"][0]),
        lambda c: c["failures"].append(["fedavg", "3", "it broke off"]),
    ],
)
def test_what_stands_beside_the_runs_is_named_too(folder: Path, tmp_path: Path, change: Any) -> None:
    with pytest.raises(InputError, match="is not what was written"):
        load_results(edited(folder, tmp_path, change))


def test_a_row_whose_run_is_not_what_it_was_is_named(folder: Path, tmp_path: Path) -> None:
    """Neither a run without its result, nor one whose configuration was edited, ends the check of the others."""
    runs = tmp_path / "runs"
    shutil.copytree(folder / "runs", runs)
    first, second, *_ = sorted(path.parent for path in runs.glob("*/config.json"))
    (first / "result.json").unlink()
    config = json.loads((second / "config.json").read_text())
    config["experiment"]["rounds"] = 9
    (second / "config.json").write_text(json.dumps(config))
    (found,) = fedstill.verify(folder / "results.json", runs=runs)
    told = "\n".join(map(str, found.contradictions))
    assert f"its run {first.name} has no result" in told
    assert f"{second.name}/config.json: experiment.rounds: it is not what the run wrote" in told


def test_labels_that_were_exchanged_are_noticed(folder: Path, tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["runs"][0][0], content["runs"][2][0] = content["runs"][2][0], content["runs"][0][0]

    with pytest.raises(InputError, match="method of fedprox, 1 is not what was written"):
        load_results(edited(folder, tmp_path, change))


def test_without_digests_accuracies_are_counted(folder: Path, tmp_path: Path) -> None:
    """As in files of earlier formats."""

    def change(content: Any) -> None:
        content["format"], content["digests"] = 2, {}
        place, made = content["figures"].index("accuracy"), content["figures"].index("made")
        for line in (*content["runs"], content["figures"]):
            del line[-1], line[made]
        content["runs"][0][place - 1] = 0.999

    with pytest.raises(InputError, match=r"accuracy of fedavg, 1 says 0.999, and 0\.\d+ of its answers are right"):
        load_results(edited(folder, tmp_path, change))


def test_files_of_earlier_formats_are_converted(folder: Path, tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["format"], content["digests"], content["made"] = 2, {}, []
        content["source"]["behaviour"] = 3
        made = content["figures"].index("made")
        for line in (*content["runs"], content["figures"]):
            del line[-1], line[made]

    results = load_results(edited(folder, tmp_path, change))
    made = results.runs["fedavg", "1"].made
    assert all(row.made == made for row in results.runs.values())
    assert made.parts == {"kernel": 3}
    assert made.torch == EARLIER_TORCH
    assert "behaviour" not in results.source
    results.save(tmp_path / "converted.json")
    assert load_results(tmp_path / "converted.json") == results
    assert set(results.stale().values()) == {"kernel has behaviour 4 today, and had 3"}
    assert make_table(results).note.startswith("Stale: 4 of 4 runs (kernel has behaviour 4 today, and had 3).")


def test_rows_of_a_part_that_has_changed_are_stale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = load_results(folder / "results.json")
    assert results.stale() == {}
    monkeypatch.setitem(methods._behaviours, "fedprox", 2)
    assert set(results.stale()) == {("fedprox", "1"), ("fedprox", "2")}
    (found,) = fedstill.verify(folder / "results.json", runs=folder / "runs")
    assert found.ok
    assert found.stale == ("method fedprox has behaviour 2 today, and had 1",)


def test_a_row_that_is_not_its_runs_is_named(folder: Path, tmp_path: Path) -> None:
    results = load_results(folder / "results.json")
    row = results.runs["fedavg", "1"]
    row.figures["bytes_up"] = 1
    results.save(tmp_path / "wrong.json")  # with digests that fit
    (found,) = fedstill.verify(tmp_path / "wrong.json", runs=folder / "runs")
    assert "bytes_up of fedavg, 1: it says 1, and the run" in str(found.contradictions[0])


def test_cells_are_repeated(folder: Path, tmp_path: Path) -> None:
    (found,) = fedstill.verify(folder / "results.json", rerun=1)
    assert found.ok
    assert found.notes[-1].endswith("was repeated, to the same figures and answers")
    results = load_results(folder / "results.json")
    for row in results.runs.values():
        row.figures["class_accuracy"] = 0.5
    results.save(tmp_path / "forged.json")
    (found,) = fedstill.verify(tmp_path / "forged.json", rerun=1)
    assert [one.field.split(" ")[0] for one in found.contradictions] == ["class_accuracy"]
    assert "repeated, the run gives" in str(found.contradictions[0])


def test_bits_of_an_unknown_processor_prove_nothing(folder: Path, tmp_path: Path) -> None:
    """Files of earlier formats do not say what they were made on."""
    results = load_results(folder / "results.json")
    for cell, row in results.runs.items():
        unknown = row.made.model_copy(update={"cpu": ""})
        results.runs[cell] = replace(row, figures={**row.figures, "class_accuracy": 0.5}, made=unknown)
    results.save(tmp_path / "elsewhere.json")
    (found,) = fedstill.verify(tmp_path / "elsewhere.json", rerun=1)
    assert found.ok
    assert "which may be due to the processor" in found.notes[-1]


def test_a_folder_is_checked_whole(folder: Path) -> None:
    found = fedstill.verify(folder / "runs")
    assert len(found) == 4
    assert all(one.ok for one in found)
    assert [one.path.name for one in fedstill.verify(folder)] == ["results.json"]


@pytest.mark.parametrize("name", ["nothing", "nothing.json", "empty"])
def test_what_cannot_be_verified_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"nothing at|neither a run nor a results file"):
        fedstill.verify(tmp_path / name)


def test_a_study_is_made_again_from_its_command() -> None:
    one = study_of("fedstill study clinical-grid --preset tiny --set rounds=1", {"method": "fedavg", "seed": "7"})
    assert [cell.labels for cell in one.teachers] == [{"method": "fedavg", "seed": "7"}]
    assert one.teachers[0].experiment.rounds == 1
    with pytest.raises(InputError, match="do not say which study made them"):
        study_of("python my_script.py", {})
