"""Connections that break cost nothing: the run has the bits of an undisturbed one, and each answer counts once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from flwr.app import Message

from fedstill.core.errors import InputError, RunError
from fedstill.data.catalogue import load
from fedstill.deploy.answer_log import AnswerLog
from fedstill.deploy.egress_log import read_log
from fedstill.deploy.rehearsal import LocalDeployment
from fedstill.deploy.site import take_part
from fedstill.engines.flower import grid_engine
from fedstill.engines.flower.grid_engine import EXCHANGE
from fedstill.runtime.exchange_log import ExchangeLog
from fedstill.runtime.run_folder import RunFolder

from .conftest import Notes, Stage, make_stage
from .fault_proxy import Fault, FaultProxy, Kind
from .odd_site import OddSite

SMALL: dict[str, Any] = {"rounds": 2, "model": "mlp"}


class ThreadSite(Thread):
    """A site's command in a thread of this process."""

    def __init__(self, made: Stage, site: int, port: int, **options: Any) -> None:
        super().__init__(daemon=True)
        self.made, self.site, self.port = made, site, port
        self.options = {"once": True, **options}
        self.notes = Notes()
        self.error: BaseException | None = None

    def run(self) -> None:
        bundle = load(f"npz:{self.made.shard(self.site)}")
        try:
            take_part(
                self.made.site_folder(self.site), bundle, self.notes, address=f"127.0.0.1:{self.port}", **self.options
            )
        except BaseException as error:
            self.error = error


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two sites for one run after another."""
    path = tmp_path_factory.mktemp("faults")
    with LocalDeployment(path / "logs", {"FEDSTILL_DATA": str(path / "nothing")}) as company:
        yield make_stage(path, 2, company)


def script(kind: Kind) -> list[Fault]:
    """In the handshake, in both directions; while sites enrol; in the requests and in the replies of a round."""
    return [
        Fault(kind, "to server", 300),
        Fault(kind, "to site", 500),
        Fault(kind, "to server", 5000),
        Fault(kind, "to site", 2500),
        Fault(kind, "to site"),
        Fault(kind, "to server"),
        Fault(kind, "to server"),
        Fault(kind, "to site"),
    ]


def disturbed(made: Stage, proxy: FaultProxy, terms: dict[str, Any] | None = None, **changes: Any) -> RunFolder:
    """A run whose sites reach the server through the proxy."""
    made.notes.notes.clear()
    sites = [ThreadSite(made, site, proxy.port) for site in range(made.sites)]
    for site in sites:
        site.start()
    done = made.serve(terms, **{**SMALL, **changes})
    for site in sites:
        site.join(timeout=60)
        assert not site.is_alive(), "it has not got the final model"
        assert site.error is None
    return done


def same(deployed: RunFolder, alone: RunFolder) -> None:
    for name in ("journal.jsonl", "model-last.safetensors", "model-best.safetensors"):
        assert (deployed.path / name).read_bytes() == (alone.path / name).read_bytes(), name
    result, whole = deployed.result(), alone.result()
    assert result is not None
    assert whole is not None
    assert result.sha256 == whole.sha256


KINDS: list[Any] = [
    "cut",
    "flip",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("truncate", "replay", "delay")),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_place_leaves_the_bits_of_the_undisturbed_run(
    shared: Stage, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fedstill")
    other = {"rounds": 1, "training": {"epochs": 1, "batch": 60 + len(kind)}}  # another run for each kind
    faults = script(kind)
    with FaultProxy(shared.port, faults) as proxy:
        run = disturbed(shared, proxy, **other)
    assert proxy.hit == faults
    same(run, shared.alone(**{**SMALL, **other}))
    for site in range(2):
        folder = shared.folder / f"site-{site}"
        answers = AnswerLog(folder / "answers").runs[run.config()["identity"]]
        assert len(answers) == 2, "each of two exchanges was answered once"
    again = [
        line
        for site in range(2)
        for line in read_log(shared.folder / f"site-{site}")
        if line.facts["what"] == "sent again"
    ]
    if kind != "delay":
        assert again, "a site was asked again"
        assert "the same message is sent again" in shared.notes.text
        assert "the same message is sent again" in caplog.text
        assert "failed, the next one is in" in caplog.text, "the site logs each attempt"


def vanishing(when: Callable[[int], bool]) -> tuple[Callable[[Message], None], Event]:
    """An answer of a site that goes away for good at one of its exchanges, and the event that says so."""
    gone, count = Event(), [0]

    def answer(message: Message) -> None:
        if message.metadata.message_type == EXCHANGE:
            count[0] += 1
            if when(count[0]):
                gone.set()
                raise RuntimeError("gone")

    return answer, gone


def test_a_site_that_stays_away_is_a_failure_that_can_be_replayed(stage: Any) -> None:
    made = stage(2)
    answer, gone = vanishing(lambda number: number == 1)
    with OddSite(made, 0):
        with OddSite(made, 1, answer):
            thread = made.serve_in_background({"wait": 0.5}, **{**SMALL, "rounds": 3})
            assert gone.wait(timeout=60)
        while not made.notes.records:
            time.sleep(0.02)
        with OddSite(made, 1):
            thread.join(timeout=60)
    assert made.error is None
    assert made.done is not None
    journal = made.done.journal()
    lost = [(record.round, one.client, one.reason) for record in journal for one in record.failures if record.accepted]
    assert (1, 1, "dropped") in lost
    assert journal[-1].accepted == (0, 1), "it is back"
    trace = {"name": "trace", "file": str(made.done.path / "journal.jsonl")}
    replayed = made.alone(**{**SMALL, "rounds": 3}, dropout=trace)
    result = made.done.result()
    assert result is not None
    assert replayed.result().sha256 == result.sha256
    assert made.alone(**{**SMALL, "rounds": 3}).result().sha256 != result.sha256


def test_a_run_without_any_site_ends_with_a_sentence(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_engine, "LEAST_WAIT", 0.3)
    made = stage(1)
    answer, _ = vanishing(lambda number: True)
    sentence = r"no site was connected for 0 seconds \(missing: site 0\): see to the network"
    with OddSite(made, 0, answer), pytest.raises(RunError, match=sentence) as error:
        made.serve({"wait": 0.1}, **SMALL)
    assert error.value.exit_code == 1


def test_a_silent_site_does_not_hold_up_the_enrolment_of_others(stage: Any) -> None:
    """One connects and never answers; another that connects later is asked at once; the end names the silent one."""
    made = stage(3)
    asked, late, closing = Event(), Event(), Event()

    def never(message: Message) -> None:
        asked.set()
        closing.wait(60)
        raise RuntimeError("the test is over")

    with ExitStack() as sites:
        sites.enter_context(OddSite(made, 1, never))
        sites.callback(closing.set)  # before the end of its thread is waited for
        thread = made.serve_in_background({"patience": 4}, **SMALL)
        assert asked.wait(timeout=60)
        sites.enter_context(OddSite(made, 2, lambda message: late.set()))
        assert late.wait(timeout=3), "the later site is not asked while the first is silent"
        thread.join(timeout=60)
        assert isinstance(made.error, RunError)
        assert "site 0 is not connected; site 1 is connected and has not answered" in str(made.error)
        assert "site 2" not in str(made.error)


def test_a_site_gives_up_after_its_wait(stage: Any) -> None:
    made = stage(1)
    site = ThreadSite(made, 0, made.port, wait=0.3)
    site.run()
    assert isinstance(site.error, RunError)
    assert site.error.exit_code == 1
    assert "no answer from the server at 127.0.0.1" in str(site.error)
    assert "given up after 0.3 seconds" in str(site.error)
    wrong = ThreadSite(made, 0, made.port, wait=-1)
    wrong.run()
    assert isinstance(wrong.error, InputError)
    assert "--wait must be a number of seconds, zero or more, not -1" in str(wrong.error)


RECALIBRATED = {"name": "fedavg", "buffers": "recalibrate"}
TWICE: dict[str, Any] = {"model": "cnn-bn", "rounds": 1, "method": RECALIBRATED, "training": {"epochs": 1, "batch": 32}}


@pytest.mark.slow
def test_a_server_that_lost_a_site_after_others_had_answered_names_a_new_attempt(
    stage: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It stops between two exchanges, and comes back without one site's first reply and without that site."""
    made, write = stage(2), ExchangeLog.write

    def stopping(self: ExchangeLog, place: int, result: Any, request: str) -> None:
        write(self, place, result, request)
        if place == 1 and result.profile.id == 0:  # the first site has answered the second exchange
            raise RuntimeError("the server stops here")

    with OddSite(made, 0):
        with OddSite(made, 1), monkeypatch.context() as patch:
            patch.setattr(ExchangeLog, "write", stopping)
            with pytest.raises(RuntimeError, match="the server stops here"):
                made.serve({"wait": 20}, **TWICE)
        (run,) = (made.path / "runs").iterdir()
        for path in (run / "exchanges").glob("0.*.1.*"):
            path.unlink()
        done = made.serve({"wait": 0.5}, **TWICE)
    assert "round 1, recalibrate, client 0: its site has answered another request: it is asked as attempt 2" in (
        made.notes.text
    )
    (record,) = done.journal()
    assert record.accepted == (0,)
    assert [(one.client, one.reason) for one in record.failures] == [(1, "dropped")]
    answers = AnswerLog(made.folder / "site-0" / "answers").runs[done.config()["identity"]]
    attempts = [(one.exchange, one.attempt) for one in answers]
    assert attempts[:3] == [("train", 0), ("recalibrate", 0), ("recalibrate", 1)], "and each of them counts"
    sent = [line.facts for line in read_log(made.folder / "site-0") if line.facts.get("exchange") == "recalibrate"]
    assert [one.get("attempt") for one in sent if one["what"] == "sent"] == [1, 2]
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client,when\n1,1,after\n")
    replayed = made.alone(**TWICE, dropout={"name": "trace", "file": str(trace)}).result()
    result = done.result()
    assert result is not None
    assert replayed is not None
    assert replayed.sha256 == result.sha256, "the journal's failures, replayed, give the same bits"
