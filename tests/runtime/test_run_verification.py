"""An edited or damaged file of a run is named with its field; and whoever reads it refuses it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.runtime import digests as run_digests
from fedstill.runtime.digests import changed_fields, field_digests, leaves
from fedstill.runtime.run_verification import verify_run

Edit = Callable[[Any], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = {"data": "digits", "model": "cnn-bn", "clients": 2, "rounds": 2, "validation": 0.1}
    out = tmp_path_factory.mktemp("runs")
    return fedstill.run("scaffold", out=out, training={"epochs": 1, "batch": 128}, **given).path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / whole.name))


def edit(path: Path, change: Edit) -> None:
    """Edit a JSON file, or a file of JSON lines, as somebody with an editor would."""
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        change(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content, indent=2))


def named(run: Path) -> list[tuple[str, str]]:
    return [(one.file, one.field) for one in verify_run(run).contradictions]


def test_an_untouched_run_fits_together(run: Path) -> None:
    found = verify_run(run)
    assert found.ok
    assert found.notes == found.stale == ()


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        ("result.json", lambda c: c["accuracy"].update(last=0.99), ("result.json", "accuracy.last")),
        ("result.json", lambda c: c["bytes"].update(up=1), ("result.json", "bytes.up")),
        ("result.json", lambda c: c.update(ceiling=0.5), ("result.json", "ceiling")),
        ("result.json", lambda c: c.update(sha256="0" * 64), ("result.json", "sha256")),
        ("result.json", lambda c: c.pop("failures"), ("result.json", "failures")),
        ("config.json", lambda c: c["experiment"].update(seed=5), ("config.json", "experiment.seed")),
        ("config.json", lambda c: c["parts"].update({"method scaffold": 2}), ("config.json", "parts.method scaffold")),
        ("config.json", lambda c: c.update(torch="1.0"), ("config.json", "torch")),
        (
            "journal.jsonl",
            lambda c: c[1]["evaluation"]["test"].update(accuracy=0.99),
            ("journal.jsonl", "round 2, evaluation.test.accuracy"),
        ),
        ("journal.jsonl", lambda c: c[0]["bytes"].update(up=1), ("journal.jsonl", "round 1, bytes.up")),
        ("journal.jsonl", lambda c: c.pop(), ("journal.jsonl", "")),
        ("predictions.json", lambda c: c["last"].reverse(), ("predictions.json", "")),
        ("predictions.json", lambda c: c["labels"].reverse(), ("result.json", "accuracy.last")),
    ],
)
def test_what_was_edited_is_named(run: Path, file: str, change: Edit, expected: tuple[str, str]) -> None:
    edit(run / file, change)
    assert expected in named(run)


@pytest.mark.parametrize(
    "file", ["model-last.safetensors", "model-best.safetensors", "checkpoint.safetensors", "clients/0.1.safetensors"]
)
def test_a_flipped_bit_is_named(run: Path, file: str) -> None:
    data = bytearray((run / file).read_bytes())
    data[-1] ^= 1
    (run / file).write_bytes(data)
    assert file in {name for name, _ in named(run)}


@pytest.mark.parametrize("file", ["predictions.json", "model-last.safetensors", "journal.jsonl"])
def test_a_missing_file_is_named(run: Path, file: str) -> None:
    (run / file).unlink()
    assert file in {name for name, _ in named(run)}


def test_numbers_are_compared_where_there_are_no_digests(run: Path) -> None:
    """A forger who deletes them is found out by that, and where numbers contradict; earlier versions kept none."""
    (run / "digests.json").unlink()
    assert [(one.file, one.says) for one in verify_run(run).contradictions] == [
        ("digests.json", "it is missing or damaged")
    ]
    edit(run / "config.json", lambda c: c.update(format=3))
    assert verify_run(run).ok
    edit(run / "result.json", lambda c: c["accuracy"].update(last=0.99))
    found = verify_run(run)
    assert [(one.file, one.field) for one in found.contradictions] == [("result.json", "accuracy.last")]
    assert "kept no digests" in found.notes[0]


def test_a_folder_with_the_files_of_another_run_is_refused(run: Path) -> None:
    """A labelled student's files under the name of its label-free control, say: each file fits the others."""
    other = run.with_name(f"{run.name[:-16]}{'0123456789abcdef'}")
    shutil.copytree(run, other)
    assert [(one.file, one.field) for one in verify_run(other).contradictions] == [("config.json", "identity")]
    with pytest.raises(InputError, match="holds the files of another run"):
        fedstill.Run(other)
    kept = run.with_name("the one in the paper")
    shutil.copytree(run, kept)
    assert verify_run(kept).ok
    assert fedstill.Run(kept).finished


def test_checkpoints_may_be_freed(run: Path) -> None:
    for path in run.glob("checkpoint*"):
        path.unlink()
    assert verify_run(run).ok


def test_readers_refuse_what_was_edited(run: Path, tmp_path: Path) -> None:
    edit(run / "result.json", lambda c: c["accuracy"].update(last=0.99))
    with pytest.raises(InputError, match=r"result.json was edited: accuracy.last is not what the run wrote"):
        _ = fedstill.Run(run).accuracy
    with pytest.raises(InputError, match=r"accuracy\.last"):
        fedstill.report(run, tmp_path / "page.html")


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda c: c["experiment"].update(seed=5)),
        ("journal.jsonl", lambda c: c[1]["evaluation"]["test"].update(accuracy=0.99)),
    ],
)
def test_the_report_refuses_an_edited_course(run: Path, tmp_path: Path, file: str, change: Edit) -> None:
    edit(run / file, change)
    with pytest.raises(InputError, match=f"{file} was edited"):
        fedstill.report(run, tmp_path / "page.html")


def test_an_unfinished_run_is_checked_as_far_as_it_is(run: Path) -> None:
    (run / "result.json").unlink()
    assert verify_run(run).notes == ("the run is not finished",)
    edit(run / "journal.jsonl", lambda c: c[0].update(round=7))
    assert [field for _, field in named(run)] == ["round 1, round"]


def test_a_run_is_repeated_to_the_same_bits_or_found_out(run: Path) -> None:
    (found,) = fedstill.verify(run, rerun=1)
    assert found.ok
    assert found.notes[-1].endswith("was repeated, to the same bits")
    edit(run / "config.json", lambda c: c.update(cpu="another kind"))
    run_digests.save(run, json.loads((run / "result.json").read_text()))
    (found,) = fedstill.verify(run, rerun=1)
    assert "was not repeated, which was made on another kind of processor (another kind)" in found.notes[-1]


def test_a_forged_run_is_found_out_by_repeating_it(run: Path) -> None:
    """Whoever edits every number and writes new digests is not noticed otherwise."""
    predictions = json.loads((run / "predictions.json").read_text())
    edit(run / "predictions.json", lambda c: c.update(last=c["labels"]))
    for path in run.glob("checkpoint*"):
        path.unlink()
    edit(run / "journal.jsonl", lambda c: c[1]["evaluation"]["test"].update(accuracy=1.0))
    for which, number in json.loads((run / "result.json").read_text())["round_of"].items():
        if number == 2:
            edit(run / "result.json", lambda c, which=which: c["accuracy"].update({which: 1.0}))  # type: ignore[misc]
            edit(run / "predictions.json", lambda c, which=which: c.update({which: c["labels"]}))  # type: ignore[misc]
    assert predictions["last"] != predictions["labels"]
    run_digests.save(run, json.loads((run / "result.json").read_text()))
    assert verify_run(run).contradictions == ()
    (found,) = fedstill.verify(run, rerun=1)
    assert [(one.file, one.field) for one in found.contradictions] == [("journal.jsonl", "")]


def test_every_leaf_has_a_path() -> None:
    content = {"a": {"b": [1, {"c": None}], "d": {}}, "e": []}
    assert dict(leaves(content)) == {"a.b.0": 1, "a.b.1.c": None, "a.d": {}, "e": []}
    digests = field_digests(content)
    assert changed_fields(content, digests) == []
    assert changed_fields({**content, "f": 1}, digests) == ["f"]
    assert changed_fields({"a": content["a"]}, digests) == ["e"]
    assert changed_fields({**content, "e": [float("nan")]}, digests) == ["e", "e.0"]
