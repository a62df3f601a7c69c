"""The log of what left is chained: whatever is changed in it is noticed."""

from __future__ import annotations

import itertools
import json
import resource
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
    with pytest.raises(RunError, match=r"egress-0002\.jsonl is missing: bring it back"):
        read_log(tmp_path)
    for path in log.files()[:-1]:
        path.unlink(missing_ok=True)
    with pytest.raises(RunError, match="does not follow the line before it"):
        read_log(tmp_path)


def test_refusals_of_ever_other_requests_fill_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_log, "REFUSALS", 8)
    log = EgressLog(tmp_path)
    for number in range(1000):
        log.refuse("fedavg has no exchange of that name", exchange=f"nothing {number}")
    found = [line.facts for line in read_log(tmp_path)]
    others = [line["times"] for line in found if line.get("kinds") == "others"]
    assert [line["exchange"] for line in found[:8]] == [f"nothing {number}" for number in range(8)]
    assert others == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], "992 in ten lines, which tell how many there were"
    log.refuse("fedavg has no exchange of that name", exchange="nothing 0")
    assert read_log(tmp_path)[-1].facts["times"] == 2, "what is known is counted by itself"
    monkeypatch.setattr(egress_log, "monotonic", lambda: 1e9)
    log.refuse("another", exchange="train")
    assert "kinds" not in read_log(tmp_path)[-1].facts, "an hour later each kind is counted again"


def test_a_line_that_a_power_failure_cut_is_taken_off(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    path.write_bytes(path.read_bytes() + b'{"at": "20')
    written(tmp_path, 1)
    assert len(read_log(tmp_path)) == 3
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    written(tmp_path, 1)
    assert len(read_log(tmp_path)) == 4


def test_lines_taken_off_the_end_are_noticed_by_a_digest_that_was_noted(tmp_path: Path) -> None:
    path = written(tmp_path)
    noted = read_log(tmp_path)[-1].digest
    written(tmp_path, 2)
    assert len(read_log(tmp_path, noted)) == 7
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    assert len(read_log(tmp_path)) == 4, "the chain itself is whole"
    with pytest.raises(RunError, match="lines were removed from its end"):
        read_log(tmp_path, noted)
    path.unlink()
    written(tmp_path)
    with pytest.raises(RunError, match="or it was written anew"):
        read_log(tmp_path, noted)


def test_reordered_lines_and_a_changed_rotated_file_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_log, "FULL", 300)
    written(tmp_path, 7)
    rotated = tmp_path / "egress-0001.jsonl"
    lines = rotated.read_bytes().splitlines(keepends=True)
    for forged in ([lines[1], lines[0], *lines[2:]], [lines[0], lines[1].replace(b"sent", b"lost"), *lines[2:]]):
        rotated.write_bytes(b"".join(forged))
        with pytest.raises(RunError, match="the log was changed or damaged"):
            read_log(tmp_path)


def test_a_disk_that_fills_up_in_the_midst_of_a_line_breaks_no_chain(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    log = EgressLog(tmp_path)
    log.add(what="sent")
    before = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, resource.RLIM_INFINITY))
    try:
        with pytest.raises(RunError, match="cannot write"):
            log.add(what="sent")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert path.read_bytes() == before, "half a line was written, and taken back"
    log.add(what="sent")
    assert len(read_log(tmp_path)) == 4


def test_a_log_whose_newest_file_is_empty_goes_on(tmp_path: Path) -> None:
    written(tmp_path, 2).rename(tmp_path / "egress-0001.jsonl")
    (tmp_path / "egress.jsonl").touch()
    (tmp_path / "egress-0002.jsonl").touch()
    written(tmp_path, 1)
    assert len(read_log(tmp_path)) == 3


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


def test_a_log_is_checked_while_it_is_written_and_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `fedstill deploy log` does at a site that runs: neither half a line nor a new file is a broken chain."""
    written(tmp_path, 3)
    with open(tmp_path / "egress.jsonl", "ab") as file:
        file.write(b'{"at": "2026-11-19T12:00:00", "wha')
    assert len(read_log(tmp_path)) == 3
    assert (tmp_path / "egress.jsonl").read_bytes().endswith(b'"wha'), "whoever reads changes nothing"
    written(tmp_path, 1)
    real, meanwhile = egress_log._read, [True]

    def rotating(path: Path) -> bytes:
        if meanwhile.pop() if meanwhile else False:
            monkeypatch.setattr(egress_log, "FULL", 1)
            written(tmp_path, 1)
            monkeypatch.setattr(egress_log, "FULL", 2**20)
        return real(path)

    monkeypatch.setattr(egress_log, "_read", rotating)
    assert len(read_log(tmp_path)) == 5


def test_a_folder_in_place_of_a_log_is_named(tmp_path: Path) -> None:
    log = EgressLog(tmp_path)
    log.path.mkdir()
    for act in (log.departed, lambda: log.add(what="event"), lambda: read_log(tmp_path)):
        with pytest.raises(RunError, match=r"egress\.jsonl cannot be read: Is a directory"):
            act()


def test_refusals_that_quote_megabytes_are_kept_short(tmp_path: Path) -> None:
    log = EgressLog(tmp_path)
    for _ in range(2):
        log.refuse("it has version " + "9" * 10**6, exchange="enrol or accept")
    assert log.path.stat().st_size < 2000
    assert len(next(iter(log._refusals))[0]) == 500


def test_failures_that_left_are_places_that_are_taken(tmp_path: Path) -> None:
    log, place = EgressLog(tmp_path), {"run": "a", "round": 1, "exchange": "train", "attempt": 1}
    for what in ("failed", "failed", "sent", "sent again"):
        log.add(what=what, **place)
    log.add(what="failed", **{**place, "round": 2})
    log.add(what="sent", **place)  # after a reset
    found = log.departed()
    assert found.times == {("a", 0, "train", 0): 2, ("a", 1, "train", 0): 1}
    assert found.whole
    assert len(found.known) == 2
    log.path.rename(tmp_path / "egress-0001.jsonl")
    log.add(what="event", sentence="it goes on")
    (tmp_path / "egress-0001.jsonl").unlink()  # kept elsewhere
    assert not log.departed().whole
