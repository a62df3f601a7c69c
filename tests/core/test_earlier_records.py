"""Journals and results that version 0.1 wrote (run folders of format 2), and results files of format 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedstill.core.earlier_records import current_checkpoint, current_figure, current_result, current_round
from fedstill.core.records import RecordError, read_result, read_round
from fedstill.devices.fleet_record import FleetRecord

from ..records_by_hand import round_record, run_result

FILES = Path(__file__).parent / "format_2"
NAMES = sorted(path.stem for path in FILES.glob("*.jsonl"))


def old(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (FILES / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_what_format_2_said_is_all_there(name: str) -> None:
    for line in old(name):
        record = read_round(line)
        assert (list(record.sampled), list(record.accepted)) == (line["asked"], line["accepted"])
        assert [failure.to_dict() for failure in record.failures] == line["lost"]
        assert (record.skipped, record.work, record.loss) == (line["skipped"], line["work"], line["loss"])
        assert record.metrics == line.get("metrics", {})
        assert (record.evaluation is None) == ("metrics" not in line)
        assert record.bytes.up + record.bytes.down == line["bytes"]["up"] + line["bytes"]["down"]  # type: ignore[index]
    result, kept = read_result(json.loads((FILES / f"{name}.json").read_text())), FILES / f"{name}.json"
    content = json.loads(kept.read_text())
    assert (result.accuracy, result.failures, result.sha256) == (
        content["accuracy"],
        content["lost"],
        content["sha256"],
    )


def test_parts_that_only_some_have_are_translated_too() -> None:
    first = read_round(old("fleet")[0])
    assert first.replacements == {2: 3}
    assert first.surveys is not None
    assert [(one.name, one.sampled, one.failures[0].client) for one in first.surveys] == [
        ("statistics", 4, 1),
        ("losses", 3, 1),
    ]
    fleet = first.section(FleetRecord)
    assert fleet is not None
    assert sorted(fleet.devices) == [0, 1, 2, 3]
    assert fleet.devices[1].after == 0.0
    last = read_round(old("on-site")[-1]).evaluation
    assert last is not None
    assert last.sites is not None
    assert last.personal is not None
    assert (last.sites.sampled, last.sites.accepted, last.personal.clients) == (4, 4, 4)
    evaluation = read_round(old("proxy")[0]).evaluation
    assert evaluation is not None
    assert set(evaluation.extra_models) == {"cnn", "mlp"}
    (teacher,) = read_result(json.loads((FILES / "student.json").read_text())).teachers
    assert (teacher.model, teacher.which, "accuracy" in teacher.metrics) == ("mlp", "last", True)
    assert current_round({**old("plain")[0], "bytes": {"up": 1, "down": 2, "once": 1}})["bytes"] == {
        "up": 1,
        "down": 2,
        "first_contact": 1,
    }


def test_what_is_current_stays_as_it_is() -> None:
    line, result = round_record().to_dict(), run_result().to_dict()
    assert current_round(line) is line
    assert current_result(result) is result
    facts = {"round": 1, "journal": [line], "leaders": {}, "notes": {}}
    assert current_checkpoint(facts) is facts


def test_a_checkpoint_of_pretraining_keeps_its_notes() -> None:
    notes = {"identity": "a", "losses": [1.0], "seconds": 2.0}
    found = current_checkpoint({"round": 1, "journal": [notes], "leaders": {}})
    assert (found["journal"], found["notes"]) == ([], notes)
    lines = old("plain")
    found = current_checkpoint({"round": 2, "journal": lines, "leaders": {}})
    assert (found["journal"], found["notes"]) == (lines, {})


def test_what_is_of_neither_format_is_refused_in_a_sentence() -> None:
    with pytest.raises(RecordError, match="not a record of an earlier format either"):
        read_round({"asked": [0]})


@pytest.mark.parametrize(("name", "now"), [("fleet.stand_ins", "fleet.replacements"), ("facts.x", "method_metrics.x")])
def test_figures_have_new_names(name: str, now: str) -> None:
    assert current_figure(name) == now
