"""Sites that refuse, or do not fit: both ends and the status say why, and the run goes on without them or ends."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedstill.core.errors import InputError, RunError
from fedstill.deploy import enrolment
from fedstill.deploy.egress_log import read_log
from fedstill.deploy.enrolment import Enrolment
from fedstill.deploy.rehearsal import LocalDeployment
from fedstill.deploy.server_options import ServerOptions
from fedstill.deploy.server_status import read_status, refusal

from .conftest import Notes
from .odd_site import OddSite

CLOSED = "allow: [statistics, metrics]\n"
WHY = "fedavg sends parameters"
SMALL = {"rounds": 1, "model": "mlp"}


def logged(made: Any, site: int) -> str:
    lines = [line.facts for line in read_log(made.folder / f"site-{site}")]
    return "\n".join(str(line.get("sentence")) for line in lines if line["what"] == "refused")


def test_the_run_ends_with_the_sites_sentence_if_all_sites_are_wanted(stage: Any) -> None:
    made = stage(2)
    (made.folder / "site-1" / "policy.yaml").write_text(CLOSED)
    with (
        OddSite(made, 0),
        OddSite(made, 1),
        pytest.raises(RunError, match=rf"^site 1 does not take part: {WHY}.*leave it out with --only 0$"),
    ):
        made.serve({"wait": 0}, **SMALL)
    known = read_status(made.folder / "server")
    assert known is not None
    assert known["refusals"].keys() == {"1"}
    assert WHY in known["refusals"]["1"]
    assert WHY in str(refusal(made.folder / "server"))
    assert WHY in logged(made, 1)
    assert not logged(made, 0)
    assert not made.notes.records, "no round has begun"


def test_the_run_goes_on_without_it_where_enough_remain_as_if_it_had_not_been_asked(stage: Any) -> None:
    made = stage(3)
    (made.folder / "site-1" / "policy.yaml").write_text(CLOSED)
    with OddSite(made, 0), OddSite(made, 1), OddSite(made, 2):
        run = made.serve({"wait": 0, "min_sites": 2}, **SMALL)
        again = made.serve({"sites": (0, 2)}, **SMALL)
    assert "going on without site 1: 2 sites are enough" in made.notes.text
    assert run.config()["experiment"]["clients"] == 2
    assert run.path == again.path, "the same experiment as with --only 0,2, so the same run"
    assert "every site has the final model" in made.notes.text


def test_a_site_that_does_not_fit_is_told_why_and_may_come_again(stage: Any) -> None:
    made = stage(2)
    with OddSite(made, 0), OddSite(made, 1, classes=tuple("abcdefghij")):
        with pytest.raises(RunError, match="site 1 does not take part: its data has another label space"):
            made.serve({"wait": 0}, **SMALL)
        assert "the server does not take this site: its data has another label space: its classes are a, b" in logged(
            made, 1
        )
        thread = made.serve_in_background({"wait": 30}, **SMALL)
        until = time.monotonic() + 20
        while "another label space" not in str(refusal(made.folder / "server")):
            assert time.monotonic() < until, made.notes.text
            time.sleep(0.05)
        assert thread.is_alive(), "it waits for the site to come again"
    with OddSite(made, 0), OddSite(made, 1):
        thread.join(timeout=60)
    assert made.error is None
    assert refusal(made.folder / "server") is None


def test_a_server_with_refusing_sites_only_ends_also_when_a_run_goes_on(stage: Any, stop_after: Any) -> None:
    made = stage(1)
    with OddSite(made, 0), pytest.raises(KeyboardInterrupt):
        made.serve(model="mlp", rounds=2, observers=[stop_after(1)])
    (made.folder / "site-0" / "policy.yaml").write_text(CLOSED)
    with OddSite(made, 0), pytest.raises(RunError, match=f"site 0 does not take part: {WHY}"):
        made.serve({"wait": 0.1}, model="mlp", rounds=2)


def test_a_site_that_is_refused_again_and_again_holds_up_nobody_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(enrolment, "monotonic", lambda: clock[0])
    link: Any = SimpleNamespace(nodes={0: 7}, since=lambda node: str(clock[0]))
    office = Enrolment(link, None, (0,), Notes(), ServerOptions(host="", wait=10.0), tmp_path)  # type: ignore[arg-type]
    for second in (0, 4, 8):
        clock[0] = 100.0 + second
        office._refuse(0, f"other words each time: {second}")
        assert not office._refused_for_good({0})
    clock[0] = 110.5
    assert office.refused[0].connected == "108.0", "asked again once it connects anew"
    assert office._refused_for_good({0})


@pytest.mark.parametrize("number", [0, -1])
def test_the_least_number_of_sites_is_checked(number: int, stage: Any) -> None:
    with pytest.raises(InputError, match="--min-sites must be 1 or more"):
        ServerOptions(min_sites=number)
    with pytest.raises(InputError, match="--min-sites 3 is more than the 2 sites that are asked"):
        stage(2).serve({"min_sites": 3})


def test_a_rehearsal_ends_when_something_is_wrong_with_it(tmp_path: Path) -> None:
    class Running:
        def poll(self) -> None: ...

    company = LocalDeployment(tmp_path)
    company.processes["server"] = Running()  # type: ignore[assignment]
    with pytest.raises(RunError, match="site 1 does not take part: its policy"):
        company.wait("server", lambda: "site 1 does not take part: its policy")
