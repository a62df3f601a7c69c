"""The log of what left is chained: whatever is changed in it is noticed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message
from fedstill.deploy import egress_log
from fedstill.deploy.egress_log import FIRST, EgressLog, described, read_log


def written(folder: Path, number: int = 5) -> Path:
    log = EgressLog(folder)
    for line in range(number):
        log.add(what="sent", round=line)
    return log.path


def test_lines_follow_each_other_also_after_a_restart(tmp_path: Path) -> None:
    written(tmp_path, 2)
    written(tmp_path, 2)
    lines = read_log(tmp_path)
    assert [line.facts["round"] for line in lines] == [0, 1, 0, 1]
    assert lines[0].facts["previous"] == FIRST
    assert all(later.facts["previous"] == earlier.digest for earlier, later in itertools.pairwise(lines))
    assert lines[0].facts["at"].endswith("+00:00")


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_changed_a_removed_and_an_inserted_line_are_noticed(at: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = json.dumps({**json.loads(lines[at]), "round": 99}).encode() + b"\n"
    for forged in (
        [*lines[:at], changed, *lines[at + 1 :]],
        [*lines[:at], *lines[at + 1 :]],
        [*lines[:at], lines[at], *lines[at:]],
        [*lines[:at], b"nonsense\n", *lines[at:]],
        [*lines[:at], b"[" * 100_000 + b"\n", *lines[at:]],
    ):
        path.write_bytes(b"".join(forged))
        if at == 4 and len(forged) == 5 and forged[4] == changed:  # nothing follows it: its digest tells
            assert read_log(tmp_path)[-1].digest != egress_log.sha256(lines[4].rstrip(b"\n")).hexdigest()
        elif at == 4 and len(forged) == 4:
            assert len(read_log(tmp_path)) == 4
        else:
            with pytest.raises(RunError, match=r"line \d of the log, in .*: the log was changed or damaged"):
                read_log(tmp_path)


def test_a_full_file_is_rotated_and_the_chain_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_log, "FULL", 300)
    written(tmp_path, 7)
    written(tmp_path, 3)
    log = EgressLog(tmp_path)
    assert [path.name for path in log.files()][:2] == ["egress-0001.jsonl", "egress-0002.jsonl"]
    assert len(read_log(tmp_path)) == 10
    (tmp_path / "egress-0002.jsonl").unlink()
    with pytest.raises(RunError, match="does not follow the line before it"):
        read_log(tmp_path)


def test_a_line_that_a_power_failure_cut_is_taken_off(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    path.write_bytes(path.read_bytes() + b'{"at": "20')
    written(tmp_path, 1)
    assert len(read_log(tmp_path)) == 3
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    written(tmp_path, 1)
    assert len(read_log(tmp_path)) == 4


def test_without_a_log_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing has left from here"):
        read_log(tmp_path)


def test_tensors_are_described_by_the_lines_that_declare_them() -> None:
    lines = [
        {"name": "model/*", "kind": "parameters", "to": "peers"},
        {"name": "steps", "kind": "metrics", "to": "server"},
    ]
    message = Message({"model/w": torch.zeros(2, 3), "steps": torch.tensor(1), "odd": torch.zeros(1)})
    assert described(message, lines) == [
        {"name": "model/w", "kind": "parameters", "to": "peers", "shape": [2, 3]},
        {"name": "odd", "kind": "undeclared", "to": "server", "shape": [1]},
        {"name": "steps", "kind": "metrics", "to": "server", "shape": []},
    ]
