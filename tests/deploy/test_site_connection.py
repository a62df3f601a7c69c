"""A site's end of the connection: bytes are checked, and attempts to connect end some day."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from fedstill.core.errors import BusyError, InputError, RunError
from fedstill.core.message import Message
from fedstill.data.catalogue import load
from fedstill.deploy import site
from fedstill.deploy.answer_log import QuestionPlace
from fedstill.deploy.deployment_folder import make_deployment, open_site
from fedstill.deploy.egress_log import read_log
from fedstill.deploy.private_files import only_one
from fedstill.deploy.site import _check_logs, _Outage, take_part
from fedstill.deploy.site_connection import (
    HEARTBEAT,
    SiteConnectionError,
    StillConnectedError,
    UntrustedServerError,
    _Verified,
)
from fedstill.deploy.site_service import SiteService

from .conftest import Notes


def test_bytes_that_do_not_have_the_announced_digest_are_refused() -> None:
    content = b"weights"
    name = sha256(content).hexdigest()
    pull: Callable[[str], bytes] = _Verified(lambda asked: content)
    assert pull(name) == content
    with pytest.raises(ObjectPullError, match="do not have the digest"):
        pull(sha256(b"others").hexdigest())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(site, "monotonic", lambda: now[0])
    return now


def test_attempts_come_less_and_less_often_until_the_server_is_reached(clock: list[float]) -> None:
    notes = Notes()
    outage = _Outage("there", notes, None)
    delays = [outage.delay(SiteConnectionError("no answer")) for _ in range(10)]
    assert 0.05 < delays[0] < 0.15
    assert 3 < delays[-1] < 7
    assert notes.notes == ["no answer: trying again until it can be reached"], "shown once, and logged each time"
    outage.over()
    assert outage.delay(SiteConnectionError("no answer")) > 3, "it broke at once"
    outage.over()
    outage.over()
    clock[0] += 1.1
    assert outage.delay(SiteConnectionError("no answer")) < 0.15
    assert notes.notes.count("connected to there") == 2


def test_a_wait_that_is_over_ends_the_site(clock: list[float]) -> None:
    outage = _Outage("there", Notes(), 10)
    outage.delay(SiteConnectionError("no answer"))
    clock[0] = 9.99
    assert outage.delay(SiteConnectionError("no answer")) <= 0.0101
    clock[0] = 10
    with pytest.raises(RunError, match="no answer: given up after 10 seconds"):
        outage.delay(SiteConnectionError("no answer"))


def test_a_certificate_that_is_wrong_three_times_in_a_row_ends_the_site(clock: list[float]) -> None:
    """Once may be a flipped bit, after which another trouble, or none, comes."""
    outage, wrong = _Outage("there", Notes(), None), UntrustedServerError("not trusted")
    for error in (wrong, wrong, SiteConnectionError("no answer"), wrong, wrong):
        outage.delay(error)
    with pytest.raises(InputError, match="not trusted"):
        outage.delay(wrong)


def test_a_folder_is_locked_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers from there until then may answer more, of which the second one would know nothing."""
    make_deployment(tmp_path / "d", 1)
    folder = open_site(tmp_path / "d", 0)
    monkeypatch.setattr(site, "SiteService", lambda *_: pytest.fail("it was read"))
    with only_one(folder.path, "site"), pytest.raises(BusyError, match="another site is running from"):
        take_part(folder, load("digits"), Notes())


def test_lines_taken_out_of_a_log_are_noticed_by_the_answers(tmp_path: Path) -> None:
    """Its chain is whole without its last lines."""
    make_deployment(tmp_path / "d", 1)
    service = SiteService(open_site(tmp_path / "d", 0), load("digits"), Notes())
    for round in range(3):
        service.answers.add(QuestionPlace("a" * 16, round, "train"), "q", Message({}), {"status": "reply"})
        service.egress.add(what="sent", run="a" * 16, round=round + 1, exchange="train", attempt=1)
    _check_logs(service)
    path = service.egress.path
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    service.egress.last = None
    _check_logs(service)
    assert "has no line for 2 replies" in str(read_log(service.folder.path)[-1].facts["sentence"])
    assert len(read_log(service.folder.path)) == 2
    path.unlink()
    service.egress.last = None
    _check_logs(service)
    assert "has no line for 3 replies" in str(read_log(service.folder.path)[0].facts["sentence"])


def test_a_site_that_runs_twice_is_told_so(clock: list[float]) -> None:
    outage = _Outage("there", Notes(), None)
    outage.delay(StillConnectedError("connected already"))
    clock[0] = 6 * HEARTBEAT + 1
    with pytest.raises(InputError, match="stop the other one"):
        outage.delay(StillConnectedError("connected already"))
