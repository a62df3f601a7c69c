"""Log records go where the user wants them, and nowhere unless asked."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.logs import FILE, LEVEL, log_as_parent_does, logging_to
from fedstill.methods import FedAvg

OURS, FLOWER = logging.getLogger("fedstill.anywhere"), logging.getLogger("flwr")


def test_a_library_user_sees_nothing_unless_asked() -> None:
    script = "import logging, fedstill; logging.getLogger('fedstill.x').error('unseen')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_command_shows_warnings_and_flowers_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to(None, None):
        OURS.info("too little")
        OURS.warning("enough")
        FLOWER.warning("not ours")
    shown = capsys.readouterr().err
    assert "enough" in shown
    assert "too little" not in shown
    assert "not ours" not in shown


def test_a_level_counts_for_flower_too(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to("debug", None):
        OURS.debug("ours")
        FLOWER.warning("theirs")
    shown = capsys.readouterr().err
    assert "ours" in shown
    assert "theirs" in shown


def test_a_file_gets_records_from_info_on_and_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    for number in (1, 2):
        with logging_to(None, file):
            OURS.debug("left out")
            OURS.info("line %d", number)
    lines = file.read_text().splitlines()
    assert [line.rsplit(": ", 1)[1] for line in lines] == ["line 1", "line 2"]
    assert all(" fedstill.anywhere: " in line and " INFO " in line for line in lines)


def test_everything_is_as_before_afterwards(tmp_path: Path) -> None:
    before = [(one.level, list(one.handlers), list(one.filters)) for one in (logging.getLogger("fedstill"), FLOWER)]
    with logging_to("debug", tmp_path / "log.txt"):
        assert os.environ[LEVEL] == "debug"
    after = [(one.level, list(one.handlers), list(one.filters)) for one in (logging.getLogger("fedstill"), FLOWER)]
    assert after == before
    assert not os.environ.keys() & {LEVEL, FILE}


def test_a_wrong_level_and_a_file_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'debug'"), logging_to("debgu", None):
        pass
    with pytest.raises(InputError, match="cannot write the log file"), logging_to(None, tmp_path):
        pass
    assert not os.environ.keys() & {LEVEL, FILE}


def test_worker_processes_write_to_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    with logging_to("debug", file):
        made = fedstill.run(
            "fedavg", data="digits[:20%]", clients=2, rounds=1, engine="processes", workers=1, out=tmp_path
        )
    text = file.read_text()
    assert f"{made.path.name}: round 1 committed" in text
    assert "worker " in text


def test_the_traceback_of_a_client_that_fails_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = FedAvg.reply

    def failing(self: FedAvg, client: Any, request: Any, context: Any) -> Any:
        if client.profile.id == 1:
            raise ArithmeticError("client 1 cannot")
        return reply(self, client, request, context)

    monkeypatch.setattr(FedAvg, "reply", failing)
    file = tmp_path / "log.txt"
    with logging_to("info", file):
        fedstill.run("fedavg", data="digits[:20%]", clients=2, rounds=1, out=tmp_path)
    text = file.read_text()
    assert "client 1 failed in train" in text
    assert "Traceback" in text
    assert "ArithmeticError: client 1 cannot" in text


def test_a_process_without_a_parent_that_logs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (LEVEL, FILE):
        monkeypatch.delenv(name, raising=False)
    before = list(logging.getLogger("fedstill").handlers)
    log_as_parent_does()
    assert logging.getLogger("fedstill").handlers == before


def test_a_study_logs_the_data_it_reads_and_what_becomes_of_each_cell(tmp_path: Path) -> None:
    file, small = tmp_path / "log.txt", {"data": "digits[:20%]", "model": "mlp", "clients": 2, "rounds": 1}
    recipe = {"experiment": small, "grid": {"method": ["fedavg", "fednova"]}}
    with logging_to("info", file):
        fedstill.study(recipe, out=tmp_path / "runs")
    text = file.read_text()
    assert re.search(r"read digits\[:20%\]: \d+ training and \d+ test samples in \d+\.\d\d s", text)
    for method in ("fedavg", "fednova"):
        assert re.search(rf"method {method}: started\n(.*\n)*.*method {method}: done\n", text)
    assert "2 runs: 2 to do, the others are reused" in text
