"""What a server is run with, and the file that says what it is doing."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.errors import InputError
from fedstill.core.records import RoundRecord
from fedstill.deploy import server_status
from fedstill.deploy.server_options import ServerOptions, bytes_of, check_port
from fedstill.deploy.server_status import NAME, Status, read_status

from ..records_by_hand import round_record


class Somebody:
    """Two sites, the first of which is connected."""

    nodes: Mapping[int, int] = {3: 30, 5: 50}

    def get_node_ids(self) -> Any:
        return [30]


def failed(round: int, client: int) -> RoundRecord:
    return round_record(round, 2, failures=[{"client": client, "reason": "failed", "detail": "gone"}])


def test_the_file_says_what_happened(tmp_path: Path) -> None:
    with Status(tmp_path, Somebody(), (3, 5)) as told:
        told.round(failed(1, 1))
        told.round(failed(2, 0))
        told.finish()
    known = read_status(tmp_path)
    assert known is not None
    assert known["failures"] == {"5": "round 1: gone", "3": "round 2: gone"}
    assert (known["sites"], known["round"], known["state"]) == ({"3": True, "5": False}, 2, "finished")
    assert not known["alive"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": "running"}', "null", '{"failures": []}', "\udcff"])
def test_a_file_that_is_not_whole_says_nothing(tmp_path: Path, text: str) -> None:
    with Status(tmp_path, Somebody(), (3, 5)):
        pass
    whole = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_bytes(text.encode(errors="surrogateescape"))
    assert read_status(tmp_path) is None
    for key in whole:
        (tmp_path / NAME).write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        assert read_status(tmp_path) is None, key


def test_what_is_being_written_does_not_change(tmp_path: Path) -> None:
    """A writer is in the midst of the facts when more come."""
    told = Status(tmp_path, Somebody(), (3, 5))
    midst = told.facts
    before = iter(midst["failures"].items())
    told.round(failed(1, 1))
    assert list(before) == []
    assert midst["round"] == 0
    assert told.facts["failures"] == {"5": "round 1: gone"}


def test_a_full_disk_does_not_end_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is written first and then renamed cannot be: a folder has its name, for a while."""
    monkeypatch.setattr(server_status, "_EVERY", 0.01)
    tries = threading.Semaphore(0)

    class Counted(Somebody):
        def get_node_ids(self) -> Any:
            tries.release()
            return [30]

    with Status(tmp_path, Counted(), (3, 5)) as told:
        blocker = tmp_path / f".{NAME}.{os.getpid()}.tmp"
        while not blocker.is_dir():
            try:
                blocker.mkdir()
            except FileExistsError:  # it was just being written
                continue
        for _ in range(20):
            assert tries.acquire(timeout=10), "nobody writes any more"
        blocker.rmdir()
        told.round(failed(1, 1))
    known = read_status(tmp_path)
    assert known is not None
    assert known["round"] == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_terms_are_numbers(value: float) -> None:
    with pytest.raises(InputError, match="--patience must be a number of seconds above zero"):
        ServerOptions(patience=value)
    with pytest.raises(InputError, match="--wait must be a number of seconds, zero or more"):
        ServerOptions(wait=value)
    with pytest.raises(InputError, match="--limit must be a number of megabytes above zero"):
        bytes_of(value)


def test_terms_at_their_edges() -> None:
    assert ServerOptions(wait=0).wait == 0
    assert bytes_of(0.5) == 2**19
    with pytest.raises(InputError, match="--patience"):
        ServerOptions(patience=0)
    with pytest.raises(InputError, match="--limit"):
        bytes_of(0)
    check_port(65535)
    check_port(0, least=0)
    for wrong in (0, -1, 65536):
        with pytest.raises(InputError, match=f"there is no port {wrong}: ports are 1 to 65535"):
            check_port(wrong)
