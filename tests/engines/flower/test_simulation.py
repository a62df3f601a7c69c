"""Clients in Flower's simulation on Ray: the same bits, the same losses, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
import torch
from torch import Tensor

from fedstill.core.egress import Egress, UndeclaredEgressError
from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message
from fedstill.core.protocols import (
    Abstain,
    Client,
    Engine,
    Exchange,
    Failure,
    Profile,
    Reply,
    ReportsFaults,
    RoundContext,
)
from fedstill.core.streams import Streams
from fedstill.engines import make_engine, registered
from fedstill.runtime.run import execute

if TYPE_CHECKING:
    from ..warm import Warm

DATA = torch.arange(2**15, dtype=torch.float32)  # large enough to be read in Ray's own memory
TURN = RoundContext(2, 4, 9, "exchange", Streams(0))


@dataclass
class Factory:
    data: Tensor

    def __call__(self, profile: Profile, state: Any, context: RoundContext) -> Client:
        return Client(profile, None, self.data, Streams(profile.id), state)  # type: ignore[arg-type]


class Obedient(Exchange):
    """Clients do as their request says."""

    name = "exchange"
    egress = (Egress("told/*", "metrics", "for the test"),)

    def request(self, state: Any, who: Profile, context: RoundContext) -> Message | None:
        raise NotImplementedError

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        import signal

        (order,) = request
        client.meter.add(forward=3)
        if order.startswith("die once"):
            died = Path(order.removeprefix("die once "))
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "sleep":
            time.sleep(600)
        if order == "fail":
            raise KeyError("lost it")
        if order == "abstain":
            raise Abstain("nothing to do")
        if order == "leak":
            return Message({"secret": torch.ones(1)})
        data: Any = client.data
        client.state = {"count": client.state.get("count", torch.tensor(0)) + 1}
        facts = {
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "openmp": int(os.environ["OMP_NUM_THREADS"]),
            "misaligned": data.data_ptr() % 64,
            "round": context.round,
            "since": -1 if client.profile.last_round is None else client.profile.last_round,
        }
        told = {f"told/{name}": torch.tensor(value) for name, value in facts.items()}
        return Message({**told, "told/sum": data.sum(), "told/twice": 2 * request[order]})

    def expect(self, state: Any, who: Profile, request: Message) -> Any:
        raise NotImplementedError

    def aggregate(self, state: Any, replies: Any, context: RoundContext) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    from ray import cloudpickle

    # Ray's processes cannot import a file of tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with make_engine("flower-ray", 2) as made:
        yield made
    assert not ray.is_initialized()


def job(client: int, order: str = "work", last_round: int | None = None) -> tuple[Profile, Message, dict[str, Tensor]]:
    return Profile(client, 1, "none", last_round=last_round), Message({order: torch.tensor([client, 0.5])}), {}


def carried(engine: Engine, *jobs: Any) -> dict[int, Reply | Failure]:
    engine.open(Factory(DATA))
    outcomes = list(engine.dispatch(Obedient(), jobs, TURN))
    assert len(outcomes) == len(jobs)
    return {outcome.profile.id: outcome for outcome in outcomes}


def left_of(pids: list[int]) -> list[str]:
    """Which of these processes still run after a while (those that only wait to be counted as ended do not)."""
    deadline = time.monotonic() + 20
    while True:
        listed = subprocess.run(["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(maxsplit=2) for line in listed.splitlines()]
        left = [" ".join(row) for row in rows if int(row[0]) in pids and not row[1].startswith("Z")]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def everything(run: Path) -> dict[str, bytes]:
    left_out = {"timing.json", ".lock", "checkpoint-previous.safetensors"}
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in left_out]
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(files)}


# That of SCAFFOLD shows what that of FedAvg does, and the state of clients besides. Each client process takes many
# seconds to start.
@pytest.mark.parametrize(
    ("method", "workers"),
    [
        ("scaffold", 1),
        pytest.param("scaffold", 2, marks=pytest.mark.slow),
        pytest.param("fedavg", 2, marks=pytest.mark.slow),
    ],
)
def test_the_bits_are_those_of_one_process(
    method: str, workers: int, engines: dict[str, Engine], tiny_plan: Any, tmp_path: Path
) -> None:
    plan = tiny_plan(method=method, rounds=2, model="cnn-bn", clients=3)
    here = everything(execute(plan, engines["in-process"], tmp_path / "here").path)
    with make_engine("flower-ray", workers) as engine:
        assert everything(execute(plan, engine, tmp_path / "ray").path) == here
    assert not ray.is_initialized()
    assert any(name.startswith("clients/") for name in here) == (method == "scaffold")


@pytest.mark.slow  # Flower's simulation starts anew for each factory
def test_what_a_client_is_sent_and_what_it_says_arrive(engine: Engine) -> None:
    profile, request, _ = job(4, last_round=1)
    outcome = carried(engine, (profile, request, {"count": torch.tensor(6)}), job(5))[4]
    assert isinstance(outcome, Reply)
    assert outcome.profile is profile
    assert outcome.state is not None
    assert {name: tensor.tolist() for name, tensor in outcome.state.items()} == {"count": 7}
    assert outcome.message["told/twice"].tolist() == [8.0, 1.0]
    assert outcome.message["told/round"].item() == 2
    assert outcome.message["told/since"].item() == 1
    assert outcome.work == 3.0


@pytest.mark.slow  # Flower's simulation starts anew for each factory
def test_a_process_has_one_thread_and_reads_the_data_where_ray_keeps_it(engine: Engine) -> None:
    for outcome in carried(engine, *(job(client) for client in range(4))).values():
        assert isinstance(outcome, Reply)
        told = {name: tensor.tolist() for name, tensor in outcome.message.items()}
        assert (told["told/threads"], told["told/openmp"], told["told/misaligned"]) == (1, 1, 0)
        assert told["told/sum"] == DATA.sum().item()


@pytest.mark.slow  # Flower's simulation starts anew for each factory
def test_no_more_requests_exist_than_workers(engine: Engine) -> None:
    pulled = 0

    def jobs() -> Iterator[Any]:
        nonlocal pulled
        for client in range(6):
            pulled += 1
            yield job(client)

    engine.open(Factory(DATA))
    for done, _ in enumerate(engine.dispatch(Obedient(), jobs(), TURN)):
        assert pulled <= done + 2
    assert pulled == 6


@pytest.mark.slow  # Flower's simulation starts anew for each factory
def test_a_client_that_fails_or_abstains_is_lost_alone(engine: Engine) -> None:
    outcomes = carried(engine, job(0), job(1, "fail"), job(2, "abstain"), job(3))
    assert [type(outcomes[client]) for client in range(4)] == [Reply, Failure, Failure, Reply]
    assert outcomes[1] == Failure(job(1)[0], "failed", "KeyError: 'lost it'", 3.0)
    assert outcomes[2] == Failure(job(2)[0], "abstained", "nothing to do", 3.0)


@pytest.mark.slow  # a new process takes seconds
def test_a_reply_whose_process_dies_is_computed_again(engine: Engine, tmp_path: Path) -> None:
    died, notes = tmp_path / "died", list[str]()
    assert isinstance(engine, ReportsFaults)
    engine.report = notes.append
    outcomes = carried(engine, job(0, f"die once {died}"), *(job(client) for client in range(1, 6)))
    assert died.exists()
    assert all(isinstance(outcomes[client], Reply) for client in range(6))
    assert notes == [
        "round 3, exchange, client 0: its worker process ended: the reply is computed again by another one"
    ]


@pytest.mark.slow  # new processes take seconds
def test_a_job_that_ends_every_process_ends_the_run(engine: Engine) -> None:
    with pytest.raises(RunError, match=r"round 3, exchange, client 0: .* in each of 3 attempts"):
        carried(engine, job(0, "die"), *map(job, range(1, 4)))
    assert all(isinstance(outcome, Reply) for outcome in carried(engine, *map(job, range(6))).values())


@pytest.mark.slow  # Flower's simulation starts anew for each factory
def test_what_is_not_declared_stops_the_run(engine: Engine) -> None:
    with pytest.raises(UndeclaredEgressError, match=r"'exchange' tried to send 'secret'"):
        carried(engine, job(0, "leak"))


@pytest.mark.slow  # a new process takes seconds
def test_what_is_under_way_is_dropped_when_a_run_stops(engine: Engine) -> None:
    engine.open(Factory(DATA))
    carrying = engine.dispatch(Obedient(), [job(0), job(1, "sleep"), job(2)], TURN)
    assert {next(carrying).profile.id, next(carrying).profile.id} == {0, 2}
    before = time.monotonic()
    carrying.close()
    assert time.monotonic() - before < 60  # the client would have slept for ten minutes
    assert sorted(carried(engine, job(3), job(4))) == [3, 4]


def test_the_extras_are_asked_for_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "find_spec", lambda name: None if name == "ray" else object())
    with pytest.raises(InputError, match=r"pip install 'fedstill\[flower,ray\]'"):
        make_engine("flower-ray")


def test_at_least_one_worker_is_needed() -> None:
    with pytest.raises(InputError, match="workers is 0"):
        make_engine("flower-ray", 0)


def test_neither_flower_nor_ray_is_imported_before_it_is_asked_for(foreign: Warm, tmp_path: Path) -> None:
    code = "import sys; from fedstill.engines import make_engine; print({'flwr', 'ray'} & set(sys.modules))"
    done = foreign.python(code, tmp_path)
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.slow
def test_a_cluster_that_was_there_before_stays_and_ours_does_not() -> None:
    """In a process of its own, where no other engine has Ray."""
    run = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_simulation as t; "
    done = subprocess.run([sys.executable, "-c", run + "t.use_the_users_ray()"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["stayed", "gone"]


def use_the_users_ray() -> None:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    pids = []
    for _ in range(2):
        with make_engine("flower-ray", 2) as engine:
            outcome = carried(engine, job(0))[0]
            assert isinstance(outcome, Reply)
            pids.append(int(outcome.message["told/pid"]))
            stayed = ray.is_initialized()
        if stayed and ray.is_initialized():
            print("stayed")
            ray.shutdown()
    print("gone" if not ray.is_initialized() and not left_of(pids) else "left behind")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["interrupted", "terminated"])
def test_nothing_is_left_running_when_a_run_is_stopped_from_outside(stop: signal.Signals, tmp_path: Path) -> None:
    words = ["run", "fedavg", "--data", "digits", "--clients", "3", "--rounds", "1000", "--engine", "flower-ray"]
    command = [sys.executable, "-m", "fedstill", *words, "--quiet"]
    process = subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in tmp_path.rglob("journal.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert process.poll() is None
    family = offspring(process.pid)
    assert len(family) > 3
    if stop == signal.SIGINT:
        os.killpg(process.pid, stop)  # as a terminal does
    else:
        process.send_signal(stop)
    told, _ = process.communicate(timeout=60)
    assert "Traceback" not in told
    assert left_of(family) == []


def offspring(pid: int) -> list[int]:
    """All processes below one, as the system lists them."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found = [pid]
    for child in found:
        found += [below for below, parent in parents.items() if parent == child]
    return found[1:]
