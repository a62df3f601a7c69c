"""`fedstill fleet show` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.devices.fleet import Fleet
from fedstill.devices.fleet_facts import RoundWorkload, costs, fleet_of, job_of, works
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.launch import launch
from fedstill.runtime.plan import make_plan
from fedstill.runtime.result import Run

Call = Callable[..., tuple[int, str, str]]
GIVEN = {
    "method": "fedavg",
    "data": "digits",
    "clients": 6,
    "rounds": 2,
    "seed": 3,
    "fleet": {"plugged": 0.0},
    "participation": {"name": "random", "number": 3},
    "training": {"epochs": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(make_experiment(GIVEN), out=tmp_path_factory.mktemp("runs"))


def test_an_experiment_that_is_not_run(call: Call, tmp_path: Path) -> None:
    code, out, err = call("fleet", "show", "fedavg", "--clients", "12", "--set", "fleet={}", "--html", "fleet.html")
    assert (code, err) == (0, "")
    assert out.startswith("12 devices of fedavg on digits, seed 0\n")
    lines = out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert [line.split()[:2] for line in lines[2:5]] == [["low", "4"], ["mid", "4"], ["high", "4"]]
    assert "43.1\u00a0KiB down" in " ".join(lines)
    page = (tmp_path / "fleet.html").read_text()
    assert "Batteries before the first round" in page
    assert "http-equiv" in page
    assert not (tmp_path / "runs").exists()


def test_the_same_as_json(call: Call) -> None:
    words = ("fleet", "show", "fedavg", "--clients", "9", "--seed", "5", "--set", 'fleet={"wifi_share": 1}', "--json")
    code, out, _ = call(*words)
    told = json.loads(out)
    assert code == 0
    assert [tier["devices"] for tier in told["tiers"]] == [3, 3, 3]
    assert {cost["link"] for cost in told["costs"]} == {"Wi-Fi"}
    assert all(cost["download"] > 0 and cost["upload"] == 0 for cost in told["costs"]), "a short upload is free there"
    assert told["experiment"]["seed"] == 5
    assert (told["run"], told["left"], told["missing"]) == (None, [], None)


def test_a_run_also_says_what_became_of_them(call: Call, run: Run) -> None:
    code, out, _ = call("fleet", "show", str(run.path), "--html", "fleet.html")
    assert code == 0
    assert "After round 2" in out
    page = Path("fleet.html").read_text()
    assert "Batteries after round 2" in page
    assert "Charge over time by tier" in page
    told = json.loads(call("fleet", "show", str(run.path), "--json")[1])
    start = make_experiment(GIVEN).fleet
    assert start is not None
    before = start.start(6, Streams(3).at("fleet"))
    after = run.fleet
    assert all(torch.equal(before[name], after[name]) for name in ("capacity", "tier", "wifi", "watts", "speed"))
    for tier in told["left"]:
        assert tier["after"] < tier["before"], "nothing is plugged in"
    low = before["tier"] == 0
    assert told["left"][0]["after"] == pytest.approx(float((after["charge"] / after["capacity"])[low].mean()))
    attended = sum(tier["attended"] * tier["devices"] for tier in told["left"])
    assert attended == pytest.approx(sum(len(record.accepted) for record in run.journal))


def test_predicted_bytes_and_work_are_those_of_a_run(run: Run) -> None:
    """Clients have equal shares of the data, or one sample more: bytes are the same, work is nearly."""
    plan = make_plan(run.experiment)
    job = job_of(plan)
    assert isinstance(job, RoundWorkload)
    for record in run.journal:
        assert (record.bytes.up, record.bytes.down) == (3 * job.up, 3 * job.down)
        passes = job.flops / plan.participants.costs["cnn"]
        assert record.work == pytest.approx(3 * passes, rel=0.01)


def test_each_exchange_is_charged_its_own_offsets() -> None:
    """Two exchanges of 1 MB down, with 45 MB and 1 MB up, of 13.475 Wh each.

    3G: up 0.1 h, 1.531 + 2.67 %, and 8 s, 15.31 * 8 / 3600 + 2.67 = 2.704022 %; down nothing, twice. Wi-Fi: down twice
    18.09 * 0.16 / 3600 + 0.17 = 0.170804 %; up nothing. As one message, uploads would take 4.2 % and 0.17 %.
    """
    state = {
        **{name: torch.full((2,), value, dtype=torch.float64) for name, value in (("capacity", 13.475), ("charge", 9))},
        **{name: torch.full((2,), 4.0, dtype=torch.float64) for name in ("watts", "speed")},
        "tier": torch.tensor([0, 0]),
        "wifi": torch.tensor([True, False]),
    }
    job = RoundWorkload("cnn", 10, 1, 4e9 * 3600, ((10**6, 45 * 10**6), (10**6, 10**6)))
    wifi, cellular = costs(Fleet(), state, job)
    assert (wifi.download, wifi.upload) == pytest.approx((13.475 * 0.00341608, 0), abs=1e-9)
    assert (cellular.download, cellular.upload) == pytest.approx(
        (0, 13.475 * (0.04201 + 0.0267 + 0.1531 * 8 / 3600)), abs=1e-8
    )
    assert wifi.training == cellular.training == pytest.approx(4.0)  # an hour at 4 W, once
    assert cellular.seconds == pytest.approx(3600 + 2 * 2 + 360 + 8)
    proportional = costs(Fleet(offsets="none"), state, job)[1]
    assert proportional.upload == pytest.approx(13.475 * 0.1531 * 368 / 3600, abs=1e-8)


def test_what_is_shown_is_what_a_run_charges(tmp_path: Path) -> None:
    """Of a method with several exchanges: FedAvg that measures BatchNorm anew, a client's own charges in round 1."""
    method = {"name": "fedavg", "buffers": "recalibrate", "recalibration": "layer-by-layer"}
    experiment = make_experiment({**GIVEN, "method": method, "model": "cnn-bn", "rounds": 1})
    plan = make_plan(experiment)
    job = job_of(plan)
    assert len(job.transfers) > 2
    fleet, state = fleet_of(experiment)
    run = launch(experiment, out=tmp_path)
    for client, device in works(run.journal):
        (shown,) = costs(fleet, only(state, client), job)
        assert shown.download + shown.upload == pytest.approx(device.communication, rel=1e-3)


def only(state: Tensors, client: int) -> Tensors:
    return {name: values[client : client + 1] for name, values in state.items()}


def test_a_study_shows_its_first_experiment(call: Call, tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text(
        "experiment: {method: fedavg, clients: 6, fleet: {}}\ngrid: {seed: [8, 9]}\npresets: {wide: {clients: 30}}\n"
    )
    told = json.loads(call("fleet", "show", "some.yaml", "--preset", "wide", "--json")[1])
    assert (told["experiment"]["seed"], sum(tier["devices"] for tier in told["tiers"])) == (8, 30)


def test_data_that_is_not_here_hides_costs_only(call: Call, tmp_path: Path) -> None:
    words = ("fleet", "show", "fedavg", "--data", "mnist", "--data-root", str(tmp_path), "--set", "fleet={}")
    code, out, _ = call(*words)
    assert code == 0
    assert "What a round costs is not known" in out
    assert "Seconds" not in out
    told = json.loads(call(*words, "--json")[1])
    assert (told["job"], told["costs"]) == (None, [])
    assert "mnist" in told["missing"]


def test_mistakes_get_a_sentence(call: Call, run: Run) -> None:
    for words, sentence in (
        (["fedavg"], "this experiment has no fleet"),
        (["centralised", "--set", "fleet={}"], "has all data in one place"),
        ([str(run.path), "--seed", "4"], "leave all settings out"),
        (["fedavg", "--set", "fleet={}", "--html", "."], "is a folder"),
        (["fedawg"], "did you mean 'fedavg'?"),
    ):
        code, out, err = call("fleet", "show", *words)
        assert (code, out) == (2, "")
        assert sentence in err
        assert len(err.splitlines()) == 1
