"""Hostile requests to a site's service, one after another and at once, and kills and full disks while it answers."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.app import Message as Envelope
from flwr.supercore.task_identity import TaskIdentity

from fedstill.core.errors import RunError
from fedstill.core.message import Message
from fedstill.core.protocols import RoundContext
from fedstill.data.catalogue import load
from fedstill.deploy import site_service
from fedstill.deploy.apps import client_app
from fedstill.deploy.deployment_folder import open_site
from fedstill.deploy.egress_log import read_log
from fedstill.deploy.rehearsal import LocalDeployment
from fedstill.deploy.site_service import SiteService

from ..conftest import Notes, Stage, make_stage
from ..test_site_service import GREETING, PRIVATE, offer

OPEN = "allow: [parameters, statistics, metrics]\n"
WEIGHT = "model/parameters/head.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    path = tmp_path_factory.mktemp("hostile")
    with LocalDeployment(path / "logs") as company:
        yield make_stage(path, 1, company)


@pytest.fixture
def fresh(made: Stage, tmp_path: Path) -> Callable[[], SiteService]:
    """The same site in a folder of its own, as it starts after whatever happened to its process."""
    place = tmp_path / "site-0"
    place.mkdir()
    for file in (made.folder / "site-0").iterdir():
        if file.is_file() and not file.name.startswith("."):
            (place / file.name).write_bytes(file.read_bytes())
    (place / "site.key").chmod(0o600)
    (place / "policy.yaml").write_text(OPEN)
    bundle = load(f"npz:{made.shard(0)}")
    return lambda: SiteService(open_site(place), bundle, Notes())


def agreed(service: SiteService, **changes: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """A run that the site takes part in, and the request that an honest server would send first."""
    asked = offer(service, **changes)
    assert service.accept(asked)["status"] == "ready"
    plan = service.parts[asked["run"]].plan
    state = plan.method.start(plan.streams)
    return asked["run"], {name: one for name, one in state.items() if name.startswith("model/")}


def ask(service: SiteService, run: str, request: Any, **changes: Any) -> tuple[Message, dict[str, Any]]:
    header = {"run": run, "exchange": "train", "round": 0, "since": -1, "kept": -1, "state": "", **changes}
    return service.exchange(Message(request), header)


def test_requests_for_one_place_at_the_same_time_are_answered_once(fresh: Any) -> None:
    service = fresh()
    run, request = agreed(service, **PRIVATE)  # noise from the system: computed twice, a reply would differ
    together, found = Barrier(6), list[tuple[bytes, str]]()

    def work(scale: float) -> None:
        together.wait(30)
        message, header = ask(service, run, {name: scale * one for name, one in request.items()})
        found.append((message.encode(), str(header["status"])))

    threads = [Thread(target=work, args=(scale,)) for scale in (1.0, 1.0, 1.0, 2.0, 2.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(status for _, status in found) == ["refused"] * 3 + ["reply"] * 3
    assert len({data for data, status in found if status == "reply"}) == 1
    assert service.answers.used.answers == 1


MODELS: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "not a number": lambda model: {name: one * float("nan") for name, one in model.items()},
    "infinite": lambda model: {**model, WEIGHT: model[WEIGHT] + float("inf")},
    "another shape": lambda model: {**model, WEIGHT: model[WEIGHT][:, :3].clone()},
    "no shape": lambda model: {**model, WEIGHT: torch.zeros(0)},
    "another type": lambda model: {**model, WEIGHT: model[WEIGHT].to(torch.int64)},
    "double": lambda model: {**model, WEIGHT: model[WEIGHT].double()},
    "a tensor missing": lambda model: {name: one for name, one in model.items() if name != WEIGHT},
    "tensors too many": lambda model: {**model, "model/parameters/more": torch.zeros(3), "../site.key": torch.ones(1)},
    "nothing": lambda model: {},
}


def test_models_that_are_none_get_no_model_back_and_take_their_places(fresh: Any) -> None:
    """Nine of them, each at a place of its own: whatever the site makes of one, another is refused there."""
    service = fresh()
    run, request = agreed(service, rounds=len(MODELS))
    for round, (name, craft) in enumerate(MODELS.items()):
        message, header = ask(service, run, craft(request), round=round)
        if header["status"] == "reply":
            assert {one for one in message if not one.startswith("loss/")} <= {*request, "steps"}, name
            assert all(message[one].shape == request[one].shape for one in message if one in request), name
        else:
            assert not message, name
            assert "/" not in str(header["detail"]), name
        _, other = ask(service, run, request, round=round)
        assert (other["status"], other.get("taken")) == ("refused", 1), name
    assert service.answers.used.answers == len(MODELS)
    assert len(read_log(service.folder.path)) >= 2 * len(MODELS)


def test_a_run_stays_the_experiment_in_which_a_site_has_answered(fresh: Any) -> None:
    service = fresh()
    run, request = agreed(service, rounds=1)
    assert service.accept({**offer(service, rounds=9), "run": run})["status"] == "ready", "nothing was answered yet"
    agreed(service, rounds=1)
    assert ask(service, run, request)[1]["status"] == "reply"
    for other in ({"rounds": 9}, {"rounds": 1, "method": "fedprox"}, {"rounds": 1, "seed": 6}):
        service = fresh()  # also after a restart
        told = service.accept({**offer(service, **other), "run": run})
        assert "has answered in run" in told["detail"]
        assert ask(service, run, request, round=1)[1]["detail"].startswith("this site agreed to 1 rounds")
    assert [line.facts["exchange"] for line in read_log(service.folder.path)].count("enrol or accept") == 3
    assert service.accept(offer(service, rounds=1))["status"] == "ready", "the same one goes on"


def test_a_server_cannot_have_agreements_made_without_end(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_service, "PLANS", 2)
    monkeypatch.setattr(site_service, "AGREEMENTS", 2)
    service = fresh()
    run, request = agreed(service)
    assert ask(service, run, request)[1]["status"] == "reply"
    for number in range(4):
        assert service.accept({**offer(service), "run": f"{number:016x}"})["status"] == "ready"
    kept = {path.stem for path in (service.folder.path / "agreements").iterdir()}
    assert kept == {run, f"{2:016x}", f"{3:016x}"}
    assert len(service.parts) == 2
    again = ask(service, run, request)
    assert again[1]["status"] == "reply", "made again from its file"
    assert "has not accepted this run" in ask(service, f"{0:016x}", request)[1]["detail"]


def test_numbers_of_a_place_are_whole_numbers(fresh: Any) -> None:
    service = fresh()
    run, request = agreed(service)
    for name, value in (("round", True), ("round", 0.0), ("attempt", True), ("attempt", -1)):
        assert f"invalid {name}" in ask(service, run, request, **{name: value})[1]["detail"]
    assert ask(service, run, request)[1]["status"] == "reply"


def test_failures_are_answers_that_count(fresh: Any) -> None:
    """Whether a crafted request fails may depend on the data: one bit each, and not without end."""
    service = fresh()
    (service.folder.path / "policy.yaml").write_text(f"{OPEN}answers: 3\n")
    run, request = agreed(service, rounds=9)
    broken = MODELS["another shape"](request)
    told = [ask(service, run, broken, round=round)[1] for round in range(4)]
    assert [one["status"] for one in told] == ["failed"] * 3 + ["refused"]
    assert "allows 3 replies over all runs" in str(told[3]["detail"])


def test_an_exchange_of_a_later_round_is_held_against_the_policy_too(fresh: Any, monkeypatch: Any) -> None:
    """It is not in the rehearsed round, so that no line of the manifest stands for it."""
    service = fresh()
    run, request = agreed(service)
    part = service.parts[run]
    lines = [line for line in part.agreement.manifest["leaves"] if line["exchange"] != "train"]
    part.agreement = part.agreement.model_copy(update={"manifest": {**part.agreement.manifest, "leaves": lines}})
    (service.folder.path / "policy.yaml").write_text("allow: [statistics, metrics]\n")
    message, header = ask(service, run, request)
    assert (header["status"], len(message)) == ("refused", 0)
    assert "its policy does not allow parameters" in str(header["detail"])


def test_a_slice_of_one_validation_sample_is_no_sample_behind_a_reply(fresh: Any) -> None:
    """The server chooses how much is kept to select a round by, which is scored by itself."""
    service = fresh()
    (service.folder.path / "policy.yaml").write_text(f"{OPEN}least_samples: 20\n")
    assert service.accept(offer(service))["status"] == "ready"
    refused = service.accept(offer(service, validation=0.01))
    assert refused["status"] == "refused"
    assert "its policy requires 20 samples behind every reply" in str(refused["detail"])


def test_a_refusal_does_not_tell_the_figure_that_it_protects(fresh: Any) -> None:
    service = fresh()
    (service.folder.path / "policy.yaml").write_text(f"{OPEN}least_class_samples: 100000\nleast_samples: 100000\n")
    why = str(service.accept(offer(service))["detail"])
    assert "100000" in why
    assert not any(f" {number} " in f" {why} " for number in range(10_000))


def test_a_site_without_a_budget_is_not_in_a_new_run(fresh: Any) -> None:
    """Else each of its rounds would fail; a run that has begun goes on, since it may need nothing new."""
    service = fresh()
    (service.folder.path / "policy.yaml").write_text(f"{OPEN}rounds: 1\n")
    run, request = agreed(service)
    assert ask(service, run, request)[1]["status"] == "reply"
    refused = service.accept(offer(service, seed=1))
    assert (refused["status"], "allows 1 rounds over all runs" in str(refused["detail"])) == ("refused", True)
    assert service.accept(offer(service))["status"] == "ready"


def test_what_a_server_writes_commands_no_terminal_and_names_no_other_folder(fresh: Any) -> None:
    service = fresh()
    escape = "\x1b]0;title\x07\x1b[2J\u202e"
    run, request = agreed(service)
    service.enrol({**GREETING, "fedstill": escape + "9" * 10**6})
    service.accept({**offer(service), "experiment": escape})
    service.turned_away({"detail": escape})
    ask(service, run, request, exchange=escape)
    last = {"run": run, "name": "fedavg-clinics-0123456789abcdef", "result": "{}", "kept": -1, "state": ""}
    told = service.finish(Message({}), last)
    assert told["detail"] == "the server's last message names the folder of another run"
    lines = [line.facts for line in read_log(service.folder.path)]
    for text in (service.watcher.text, *(str(one.get(name)) for one in lines for name in ("sentence", "exchange"))):
        assert all(one.isprintable() or one == "\n" for one in text), text
        assert len(text) < 5000


class Killed(BaseException):
    """The process ends here."""


def test_a_site_killed_before_any_single_write_answers_once(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a state of its own: what is asked again has the bits of a site that nobody killed."""
    scaffold = {"method": "scaffold", "rounds": 40}
    service = fresh()
    run, request = agreed(service, **scaffold)
    plan = service.parts[run].plan
    server = plan.method.start(plan.streams)
    context = RoundContext.of(plan.streams, 0, plan.rounds, 1, "train")
    request = dict(plan.method.request(server, plan.profiles[0], context))
    whole = 0
    for round in range(40):
        left = [round]

        def dying(real: Any, left: list[int] = left) -> Any:
            def call(*arguments: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return real(*arguments, **more)

            return call

        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "mkdir", "unlink", "ftruncate"):
                patch.setattr(os, name, dying(getattr(os, name)))
            try:
                first = ask(service, run, request, round=round)
                whole += 1
            except Killed:
                first = None
        service = fresh()  # what the process had in memory is gone
        again = ask(service, run, request, round=round)
        assert again[1]["status"] == "reply"
        assert first is None or (first[0].encode(), first[1]) == (again[0].encode(), again[1])
        _, other = ask(service, run, {name: one + 1 for name, one in request.items()}, round=round)
        assert other["status"] == "refused"
        assert (service.answers.used.rounds, service.answers.used.answers) == (round + 1, round + 1)
        lines = [line.facts for line in read_log(service.folder.path)]
        left_here = [one for one in lines if str(one["what"]).startswith("sent") and one.get("round") == round + 1]
        assert left_here, "nothing leaves that is not in the log"
        if whole == 2:
            break
    assert whole == 2
    assert round > 5, "killed at that many places"


def fill(service: SiteService, run: str, request: Any) -> None:
    """Lines of the log until one does not fit."""
    for number in range(200):
        ask(service, run, request)
        service.egress.add(what="event", sentence=f"line {number}" * 9)


def test_a_full_disk_costs_no_answer_and_damages_no_log(fresh: Any) -> None:
    service = fresh()
    run, request = agreed(service)
    largest = max(path.stat().st_size for path in service.folder.path.rglob("*") if path.is_file())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (10, 500, largest + 30):  # not even the reply; its beginning; all but the end of a line of the log
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(RunError, match="cannot write"):
                fill(service, run, request)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        read_log(service.folder.path)
    first = ask(service, run, request)
    assert first[1]["status"] == "reply"
    again = ask(fresh(), run, request)
    assert (again[0].encode(), again[1]) == (first[0].encode(), first[1])
    assert service.answers.used.answers == 1


def test_a_message_that_cannot_be_read_is_in_the_log(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = fresh()
    for name in ("_run_id", "_node_id", "_task_id"):  # of whoever makes a message
        monkeypatch.setattr(TaskIdentity, name, 1)
    app = client_app(service)
    nonsense = RecordDict({"tensors": ArrayRecord({}), "header": ConfigRecord({"round": 1})})
    reply = app(Envelope(nonsense, 0, "train.exchange", ttl=60.0), Context(0, 0, {}, RecordDict(), {}))
    assert reply.has_content()
    (line,) = (one.facts for one in read_log(service.folder.path))
    assert (line["what"], line["exchange"]) == ("refused", "train.exchange")
    assert "cannot be read" in line["sentence"]
