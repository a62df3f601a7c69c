"""A deployed server that is killed in a round goes on with what it was answered: nobody is asked the same twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.client import answer
from fedstill.core.errors import RunError
from fedstill.core.message import Message
from fedstill.core.protocols import Failure, Profile, Reply, RoundContext, StateVersion
from fedstill.core.streams import Streams
from fedstill.deploy.site_state import SiteStates
from fedstill.engines import InProcess
from fedstill.runtime.exchange_log import DurableEngine, ExchangeLog, request_digest
from fedstill.runtime.run import execute

# A survey, a first exchange with replacements, a second exchange, and an evaluation: dispatches of every kind.
FULL: dict[str, Any] = {
    "method": {"name": "fedavg", "buffers": "recalibrate"},
    "model": "cnn-bn",
    "rounds": 2,
    "evaluation": "on-site",
    "participation": {"name": "power-of-choice", "number": 2, "losses": "ask"},
    "dropout": {"name": "independent", "rate": 0.3, "when": "during", "replace": True},
    "fleet": {"plugged": 0.5},
}
SHORT: dict[str, Any] = {
    "method": {"name": "fedavg", "buffers": "recalibrate"},
    "model": "cnn-bn",
    "clients": 2,
    "rounds": 1,
    "evaluation": "on-site",
}
STATEFUL: dict[str, Any] = {"method": "ditto", "rounds": 2, "clients": 3, "evaluation": "on-site"}


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@dataclass
class Sites:
    """Sites that keep their state and answer each question once; the server dies after `lives` results."""

    folder: Path
    lives: int = 10**9
    absent: frozenset[tuple[int, int, str]] = frozenset()  # (round, client, exchange) that find no site
    answers_once: bool = True
    asked: dict[tuple[int, int, str], int] = field(default_factory=dict)
    at_sites: bool = True

    def open(self, factory: Any) -> None:
        self.factory = factory

    def dispatch(self, exchange: Any, jobs: Iterable[Any], context: RoundContext) -> Generator[Reply | Failure]:
        for who, request, state in jobs:
            assert state == {}
            if not self.lives:
                raise Killed
            self.lives -= 1
            yield self._result(exchange, who, request, context)

    def _result(self, exchange: Any, who: Profile, request: Message, context: RoundContext) -> Reply | Failure:
        question = (context.round, who.id, exchange.name)
        self.asked[question] = self.asked.get(question, 0) + 1
        if question in self.absent:
            return Failure(who, "dropped", "its site is not connected")
        if self.answers_once and self.asked[question] > 1:
            return Failure(who, "failed", "it was asked this before")
        states = SiteStates(self.folder / str(who.id))
        before = states.load(who.kept, context.round)
        result = answer(self.factory, exchange, who, request, before, context)
        if isinstance(result, Failure) or not result.state or result.state is before:
            return replace(result, state=None) if isinstance(result, Reply) else result
        return Reply(who, result.message, None, result.work, states.save(context.round, result.state))

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *error: Any) -> None: ...


class Heard:
    """An observer that remembers notes and warnings."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def start(self, experiment: Any, journal: Any) -> None: ...

    def round(self, record: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def finish(self) -> None: ...


def contents(run: Path) -> dict[str, bytes]:
    """All that must not depend on a kill: journal, models, checkpoint, result."""
    names = [path for path in run.iterdir() if path.name not in ("timing.json", ".lock")]
    assert not [path.name for path in names if path.is_dir() and path.name != "clients"], "the log was left behind"
    return {path.name: path.read_bytes() for path in names if path.is_file()}


def attempt(plan: Any, sites: Sites, out: Path, lives: int, heard: Heard | None = None) -> Path | None:
    """Go on with the run until so many requests were answered; None if the server died of it."""
    sites.lives = lives
    try:
        return execute(plan, sites, out, [heard] if heard else []).path
    except Killed:
        return None


def log_of(out: Path) -> list[Path]:
    return sorted(out.glob("*/exchanges/*.safetensors"))


@pytest.mark.parametrize("settings", [FULL, STATEFUL], ids=["every kind of dispatch", "client state"])
def test_killed_after_every_single_answer_it_ends_with_the_same_bits(
    settings: dict[str, Any], tiny_plan: Any, tmp_path: Path
) -> None:
    plan = tiny_plan(**settings)
    absent = frozenset({(0, client, "train") for client in (0, 1)} | {(1, 2, "evaluate")})
    whole = Sites(tmp_path / "whole-sites", absent=absent)
    undisturbed = attempt(plan, whole, tmp_path / "whole", 10**9)
    assert undisturbed is not None
    sites, ended, kills = Sites(tmp_path / "sites", absent=absent), None, 0
    while ended is None:
        ended = attempt(plan, sites, tmp_path / "killed", 1)
        kills += ended is None
    assert contents(ended) == contents(undisturbed)
    assert sites.asked == whole.asked, "somebody was asked twice, or something else"
    assert set(sites.asked.values()) == {1}
    assert kills == len(sites.asked) - 1
    if settings is FULL:
        journal = [json.loads(line) for line in (ended / "journal.jsonl").read_text().splitlines()]
        exchanges = {name for _, _, name in sites.asked}
        checks = {"check statistics", "evaluate recalibrated"}
        assert exchanges == {"losses", "train", "recalibrate", "evaluate", *checks}
        assert any(record.get("replacements") for record in journal)
        assert any(record["failures"] for record in journal)


def test_without_the_log_other_clients_would_take_part(tiny_plan: Any, tmp_path: Path) -> None:
    """A site that answered the first exchange is gone when the server comes back between two exchanges."""
    plan = tiny_plan(**SHORT)
    undisturbed = attempt(plan, Sites(tmp_path / "a"), tmp_path / "whole", 10**9)
    sites = Sites(tmp_path / "b", answers_once=False)
    assert attempt(plan, sites, tmp_path / "killed", 2) is None
    shutil.copytree(tmp_path / "killed", tmp_path / "without")
    for path in log_of(tmp_path / "without"):
        path.unlink()
    sites.absent = frozenset({(0, 0, "train")})
    ended, other = (attempt(plan, sites, tmp_path / name, 10**9) for name in ("killed", "without"))
    assert undisturbed is not None
    assert ended is not None
    assert other is not None
    assert contents(ended) == contents(undisturbed)
    accepted = [json.loads((run / "journal.jsonl").read_text())["accepted"] for run in (ended, other)]
    assert accepted == [[0, 1], [1]]
    assert contents(other)["model-last.safetensors"] != contents(ended)["model-last.safetensors"]


def test_a_simulation_writes_no_log(tiny_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExchangeLog, "write", lambda *_: pytest.fail("a simulation pays for nothing"))
    with InProcess() as engine:
        run = execute(tiny_plan(rounds=1, evaluation="on-site"), engine, tmp_path)
    assert not (run.path / "exchanges").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "removed"])
def test_a_damaged_result_is_reported_and_asked_for_again(damage: str, tiny_plan: Any, tmp_path: Path) -> None:
    plan = tiny_plan(**SHORT)
    undisturbed = attempt(plan, Sites(tmp_path / "a"), tmp_path / "whole", 10**9)
    sites, heard = Sites(tmp_path / "b", answers_once=False), Heard()
    assert attempt(plan, sites, tmp_path / "killed", 3) is None
    hurt = log_of(tmp_path / "killed")[1]
    data = hurt.read_bytes()
    broken = {"cut": data[:-9], "flipped": data[:-1] + bytes([data[-1] ^ 1]), "emptied": b""}
    hurt.unlink() if damage == "removed" else hurt.write_bytes(broken[damage])
    ended = attempt(plan, sites, tmp_path / "killed", 10**9, heard)
    assert ended is not None
    assert undisturbed is not None
    assert contents(ended) == contents(undisturbed)
    assert sorted(sites.asked.values())[-2:] == [1, 2], "one question was asked twice"
    if damage != "removed":
        (warning,) = heard.warnings
        client = hurt.name.split(".")[2]
        assert warning.startswith(f"round 1: the recorded result of client {client} in the exchange ")
        assert " is damaged (" in warning
        assert warning.endswith("the client is asked again")
    assert any("results were recorded before the server stopped" in note for note in heard.notes)


def test_if_every_client_failed_they_are_asked_again_once_it_is_mended(tiny_plan: Any, tmp_path: Path) -> None:
    """What was recorded must not make the same error of every later attempt; earlier exchanges still count."""
    plan = tiny_plan(**SHORT)
    sites = Sites(tmp_path / "sites", answers_once=False)
    factory = plan.clients

    def broken(who: Profile, state: Any, context: RoundContext) -> Any:
        if context.exchange == "recalibrate":
            raise MemoryError("no memory")
        return factory(who, state, context)

    sites.open = lambda _: setattr(sites, "factory", broken)  # type: ignore[method-assign]
    with pytest.raises(RunError, match="every client failed"):
        attempt(plan, sites, tmp_path, 10**9)
    assert [path.name for path in log_of(tmp_path)] == ["0.0.0.safetensors", "0.0.1.safetensors"]
    sites.open = lambda _: setattr(sites, "factory", factory)  # type: ignore[method-assign]
    assert attempt(plan, sites, tmp_path, 10**9) is not None
    assert sites.asked[0, 0, "train"] == 1
    assert sites.asked[0, 0, "recalibrate"] == 2


def test_what_a_commit_could_not_delete_is_deleted_by_the_next_attempt(
    tiny_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, begin = tiny_plan(**SHORT), ExchangeLog.begin

    def deadly(self: ExchangeLog, round: int) -> None:
        if round == 1:
            raise Killed
        begin(self, round)

    monkeypatch.setattr(ExchangeLog, "begin", deadly)
    assert attempt(plan, Sites(tmp_path / "sites"), tmp_path, 10**9) is None
    assert log_of(tmp_path)
    (torn,) = [path.with_name(f".{path.name}.7.tmp") for path in log_of(tmp_path)[:1]]
    torn.write_bytes(b"half")
    monkeypatch.undo()
    ended = attempt(plan, Sites(tmp_path / "sites"), tmp_path, 0)
    assert ended is not None
    assert not (ended / "exchanges").exists()


WHO = Profile(3, 10, "cnn", 1, StateVersion(1, "ab"))
CONTEXT = RoundContext.of(Streams(0), 2, 5, 4, "train")


class Silent(Sites):
    """An engine that must not be needed."""

    def dispatch(self, exchange: Any, jobs: Iterable[Any], context: RoundContext) -> Generator[Reply | Failure]:
        pytest.fail("everything was on disk")
        yield


@pytest.mark.parametrize(
    "result",
    [
        Reply(WHO, Message({"x": torch.tensor([0.1, -0.0])}), None, 0.1 + 0.2, "cd" * 32),
        Reply(WHO, Message({}), {"w": torch.tensor(1, dtype=torch.int8)}, 3.0),
        Reply(WHO, Message({}), {}),
        Failure(WHO, "failed", "MemoryError: “no memory”", 1 / 3),
    ],
    ids=["reply", "state", "empty state", "failure"],
)
def test_results_are_given_back_exactly(result: Any, tmp_path: Path) -> None:
    class Once(Sites):
        def dispatch(self, exchange: Any, jobs: Iterable[Any], context: RoundContext) -> Generator[Reply | Failure]:
            yield from (result for _ in jobs)

    job, heard = (WHO, Message({"model/w": torch.ones(2)}), {}), Heard()
    given = []
    for engine in (Once(tmp_path), Silent(tmp_path)):
        log = ExchangeLog(tmp_path / "exchanges", heard.note, heard.warn)
        log.begin(2)
        given.append(list(DurableEngine(engine, log).dispatch(type("Train", (), {"name": "train"}), [job], CONTEXT)))
    ((first,), (second,)) = given
    assert first is result
    assert replace(second, **_without_tensors(second)) == replace(first, **_without_tensors(first))
    assert _tensors(second) == _tensors(first)
    assert not heard.warnings
    assert (tmp_path / "exchanges").stat().st_mode & 0o077 == 0, "replies are nobody else's to read"


def _without_tensors(result: Reply | Failure) -> dict[str, Any]:
    return {} if isinstance(result, Failure) else {"message": Message({}), "state": None}


def _tensors(result: Reply | Failure) -> Any:
    if isinstance(result, Failure):
        return None
    return result.message.encode(), None if result.state is None else Message(result.state).encode()


def test_a_result_counts_only_for_the_request_it_answers(tmp_path: Path) -> None:
    heard, request = Heard(), Message({"model/w": torch.ones(2)})
    log = ExchangeLog(tmp_path / "exchanges", heard.note, heard.warn)
    log.begin(2)
    log.write(0, Failure(WHO, "dropped", "its site fell silent"), request_digest(WHO, request, CONTEXT))
    others = [
        (WHO, Message({"model/w": torch.zeros(2)}), CONTEXT),
        (replace(WHO, kept=StateVersion(1, "cd")), request, CONTEXT),
        (replace(WHO, last_round=0), request, CONTEXT),
        (WHO, request, replace(CONTEXT, round=3)),
        (WHO, request, replace(CONTEXT, exchange="other")),
    ]
    for who, asked, context in others:
        assert log.read(0, who, request_digest(who, asked, context), "train") is None
    assert len(heard.warnings) == len(others)
    assert heard.warnings[0] == (
        "round 3: the recorded result of client 3 in the exchange train answers another request than the one that is"
        " due now: the client is asked again"
    )
    assert log.read(0, WHO, request_digest(WHO, request, CONTEXT), "train") is not None
