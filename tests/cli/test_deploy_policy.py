"""What a site's operator and its auditor ask on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.message import Message
from fedstill.deploy.answer_log import AnswerLog, QuestionPlace
from fedstill.deploy.create import make_deployment
from fedstill.deploy.egress_log import EgressLog
from fedstill.deploy.secure_keys import root_file

RUN = "0123456789abcdef"


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "clinics"
    make_deployment(folder, 2, "127.0.0.1", 9092)
    return folder


def check(call: Any, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    where = [str(folder), *words, "--data", "digits[:20%]", "--site", "1", "--json"]
    code, out, _ = call("deploy", "policy", "check", *where)
    return code, json.loads(out)


def test_what_an_experiment_would_send_and_the_rules_that_allow_it(call: Any, clinics: Path) -> None:
    code, found = check(call, clinics, "fedavg", "--model", "mlp", "--rounds", "3")
    assert (code, found["takes_part"], found["reasons"]) == (0, True, [])
    assert {line["decision"] for line in found["leaves"]} == {
        f"allow {kind}: server" for kind in ("parameters", "statistics", "metrics")
    }
    assert found["terms"]["rounds"] == 3
    assert found["epsilon_server"] is None
    assert not (clinics / "site-1" / "answers").exists(), "nothing is stored"
    assert not (clinics / "site-1" / "egress.jsonl").exists()


def test_a_refused_experiment_has_exit_code_1_and_every_reason(call: Any, clinics: Path) -> None:
    policy = clinics / "site-1" / "policy.yaml"
    before = policy.read_text()
    policy.write_text(
        "allow: {statistics: server, metrics: server}\nmethods: [fedprox]\nrounds: 2\nleast_samples: 9999\n"
        "largest_request: 0.1\n"
    )
    try:
        code, found = check(call, clinics, "fedavg", "--model", "mlp", "--rounds", "3")
        own = [str(clinics / "site-1"), "fedavg", "--model", "mlp", "--data", "digits[:20%]"]
        shown, out, _ = call("deploy", "policy", "check", *own)
    finally:
        policy.write_text(before)
    assert code == shown == 1
    told = "\n".join(found["reasons"])
    for words in (
        "sends parameters",
        "allows fedprox, and not fedavg",
        "requires 9999 samples",
        "allows 2 rounds",
        "up to 0.1 meg",
    ):
        assert words in told
    assert found["requests"]["train"] > 0.1 * 2**20
    assert "refused" in {line["decision"] for line in found["leaves"]}
    assert "refused: fedavg sends parameters" in out


def test_noise_at_the_site_is_told_as_an_epsilon_against_the_server(call: Any, clinics: Path) -> None:
    private = ["--set", "privacy=client-level", "--set", "privacy.where=client", "--set", "method.weights=uniform"]
    code, found = check(call, clinics, "fedavg", "--model", "mlp", "--rounds", "3", *private)
    assert code == 0
    assert found["epsilon_server"] > 10
    code, less = check(call, clinics, "fedavg", "--model", "mlp", "--rounds", "1", *private)
    assert less["epsilon_server"] < found["epsilon_server"]


def test_noise_in_steps_is_told_as_an_epsilon_of_one_record(call: Any, clinics: Path) -> None:
    words = [
        "fedavg",
        "--model",
        "mlp",
        "--rounds",
        "3",
        "--set",
        "privacy=record-level",
        "--set",
        "privacy.delta=1e-4",
    ]
    site = clinics / "site-1"
    before = (site / "policy.yaml").read_text()
    code, found = check(call, clinics, *words)
    assert (code, found["epsilon_of"], found["terms"]["steps"]["deviation"]) == (0, "record", 1.0)
    assert found["used"]["epsilon_server"] is None
    try:
        limit = f"privacy: {{level: record, epsilon: {found['epsilon_server']}}}\n"
        (site / "policy.yaml").write_text(f"allow: [parameters, statistics, metrics]\n{limit}")
        code, _ = check(call, clinics, *words)
        longer, more = check(call, clinics, *words, "--rounds", "4")
        without, plain = check(call, clinics, "fedavg", "--model", "mlp", "--rounds", "3")
        _, out, _ = call("deploy", "policy", "check", str(site), *words, "--data", "digits[:20%]")
    finally:
        (site / "policy.yaml").write_text(before)
    assert (code, longer, without) == (0, 1, 1)
    assert "and with this run it is" in more["reasons"][0]
    assert "requires noise in every step of training" in plain["reasons"][0]
    assert plain["epsilon_server"] is None
    assert "for one record, against everybody, after all rounds" in " ".join(out.split())


def test_earlier_runs_count_in_what_is_left(call: Any, clinics: Path) -> None:
    """Replies, failures, and the epsilon of what was sent with noise; a run that would exceed them is refused here."""
    private = ["--set", "privacy=client-level", "--set", "privacy.where=client", "--set", "method.weights=uniform"]
    words = ["fedavg", "--model", "mlp", "--rounds", "3", *private]
    site = clinics / "site-1"
    _, alone = check(call, clinics, *words)
    before = (site / "policy.yaml").read_text()
    log = AnswerLog(site / "answers")
    try:
        log.add(QuestionPlace(RUN, 0, "train"), "q", Message({}), {"status": "reply"}, noise=0.7)
        log.add(QuestionPlace(RUN, 0, "evaluate"), "q", None, {"status": "failed"})
        limit = alone["epsilon_server"] + 0.01
        policy = f"allow: [parameters, statistics, metrics]\nanswers: 7\nprivacy: {{epsilon: {limit}}}\n"
        (site / "policy.yaml").write_text(policy)
        code, found = check(call, clinics, *words)
        _, out, _ = call("deploy", "policy", "check", str(site), *words, "--data", "digits[:20%]")
    finally:
        (site / "policy.yaml").write_text(before)
        shutil.rmtree(site / "answers")
    assert code == 1
    assert found["used"] | {"epsilon_server": 0} == {
        "rounds": 1,
        "answers": 2,
        "epsilon_server": 0,
        "without_noise": 0,
    }
    assert 0 < found["used"]["epsilon_server"] < alone["epsilon_server"]
    told = "\n".join(found["reasons"])
    assert "7 replies over all runs, 2 were answered, and this run has up to 6" in told
    assert "with this run, after 1 replies in earlier runs, it is" in told
    assert "earlier runs have spent epsilon" in " ".join(out.split())
    assert "policy.yaml was written for an earlier version" in " ".join(out.split())


def test_the_log_is_printed_and_checked(call: Any, clinics: Path, tmp_path: Path) -> None:
    log = EgressLog(tmp_path)
    tensors = [{"name": "w", "kind": "parameters", "to": "server", "shape": [2]}]
    log.add(what="sent", round=1, exchange="train", to=["server"], tensors=tensors, bytes=1024)
    log.add(what="refused", exchange="dump", sentence="fedavg has no exchange of that name", times=1)
    code, out, _ = call("deploy", "log", str(tmp_path))
    assert code == 0
    for words in ("1 parameters", "1.0 KiB", "the chain is whole", "no exchange"):
        assert words in " ".join(out.split())
    _, out, _ = call("deploy", "log", str(tmp_path), "--json")
    assert len(json.loads(out)["lines"]) == 2
    log.path.write_text(log.path.read_text().replace("train", "trick"))
    for noted in ("", "123", "zz" * 32):
        assert call("deploy", "log", str(tmp_path), "--noted", noted)[0] == 2
    assert call("deploy", "log", str(tmp_path), "--noted", "0" * 64)[0] != 0
    code, _, told = call("deploy", "log", str(tmp_path))
    assert code != 0
    assert "line 2 of the log" in told
    assert call("deploy", "log", str(clinics / "site-0"))[0] == 2


def test_an_operator_opens_a_run_again(call: Any, clinics: Path) -> None:
    place = clinics / "site-0"
    AnswerLog(place / "answers").add(QuestionPlace(RUN, 4, "train"), "q", Message({}), {"status": "reply"})
    code, out, told = call("deploy", "reset", str(clinics), "--site", "0", "--run", RUN)
    assert code == 0, told
    assert "one answer of run" in out
    assert AnswerLog(place / "answers").find(QuestionPlace(RUN, 0, "train"), "other") is None
    assert AnswerLog(place / "answers").used.answers == 1
    for run in (RUN, f"{RUN}~1", f"../{RUN}"):
        code, _, told = call("deploy", "reset", str(clinics), "--site", "0", "--run", run)
        assert code == 2
        assert "answered nothing" in told
    AnswerLog(place / "answers").add(QuestionPlace(RUN, 0, "train"), "q", Message({}), {"status": "reply"})
    assert call("deploy", "reset", str(place), "--run", f"fedavg-clinics-{RUN}")[0] == 0, "its folder's name"
    assert "its operator sets 1 answers aside" in call("deploy", "log", str(place), "--json")[1]


def test_a_reset_that_is_killed_leaves_no_unlogged_answer_and_no_old_mask(
    call: Any, clinics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks of the first time under other models would tell the server a site's update."""
    place, run = clinics / "site-1", "f" * 16
    AnswerLog(place / "answers").add(QuestionPlace(run, 0, "train"), "q", Message({}), {"status": "reply"})
    secret = root_file(place, run)
    secret.parent.mkdir()
    secret.write_bytes(bytes(32))

    def killed(self: AnswerLog, name: str) -> int:
        assert not secret.exists()
        assert "its operator sets 1 answers aside" in (place / "egress.jsonl").read_text()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AnswerLog, "reset", killed)
        assert call("deploy", "reset", str(place), "--run", run)[0] != 0
    assert AnswerLog(place / "answers").given(run) == 1
    assert call("deploy", "reset", str(place), "--run", run)[0] == 0
