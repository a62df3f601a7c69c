"""A bad reply is refused and journalled, and the round goes on; too few replies, and the round is skipped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import RunError
from fedstill.core.message import Message
from fedstill.core.protocols import Engine, Failure, Profile, Reply
from fedstill.methods.fedavg import FedAvg
from fedstill.runtime.reply_validation import validate_reply
from fedstill.runtime.round import stop_if_all_failed
from fedstill.runtime.run import execute

WEIGHT = "model/parameters/head.weight"

FAULTS = {
    "missing": lambda reply: {name: tensor for name, tensor in reply.items() if name != WEIGHT},
    "surplus": lambda reply: {**reply, "inputs": torch.zeros(3)},
    "shape": lambda reply: {**reply, WEIGHT: reply[WEIGHT][:-1]},
    "rank": lambda reply: {**reply, WEIGHT: reply[WEIGHT].flatten()},
    "dtype": lambda reply: {**reply, WEIGHT: reply[WEIGHT].double()},
    "nan": lambda reply: {**reply, WEIGHT: reply[WEIGHT] * float("nan")},
    "inf": lambda reply: {**reply, WEIGHT: reply[WEIGHT] / 0},
    "norm": lambda reply: {**reply, WEIGHT: reply[WEIGHT] + 1e4},
    "empty": lambda reply: {},
}
SAYS = {
    "missing": "lacks model/parameters/head.weight",
    "surplus": "holds inputs, which nobody asked for",
    "shape": "has shape",
    "rank": "has shape",
    "dtype": "has type torch.float64, not torch.float32",
    "nan": "not finite",
    "inf": "not finite",
    "norm": "over the limit of 100",
    "empty": "lacks loss/cross-entropy",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_bad_reply_is_refused_and_the_round_goes_on_without_it(
    kind: str, tiny_plan: Any, engines: dict[str, Engine], tampered: Any, tmp_path: Path
) -> None:
    plan = tiny_plan(rounds=1, norm_limit=100)

    def tamper(reply: Any, turn: Any) -> Any:
        return FAULTS[kind](dict(reply.message)) if reply.profile.id == 3 else None

    run = execute(plan, tampered(engines["in-process"], tamper), tmp_path)
    (record,) = run.journal()
    assert record.accepted == (0, 1, 2, 4)
    assert [(lost.client, lost.reason) for lost in record.failures] == [(3, "refused")]
    assert SAYS[kind] in record.failures[0]["detail"]
    # The model is that of a round in which client 3 was never heard.
    merged = run.load_models("last")["cnn"]["parameters/head.weight"]
    without = execute(
        tiny_plan(rounds=1, participation={"name": "everyone", "availability": [1, 1, 1, 0, 1]}),
        engines["in-process"],
        tmp_path / "without",
    )
    assert torch.equal(merged, without.load_models("last")["cnn"]["parameters/head.weight"])


def test_state_of_a_refused_client_stays_as_it_was(
    tiny_plan: Any, engines: dict[str, Engine], tampered: Any, tmp_path: Path
) -> None:
    def tamper(reply: Any, turn: Any) -> Any:
        return {} if reply.profile.id == 1 and turn.round == 1 else None

    plan = tiny_plan(method="local-only", rounds=2)
    run = execute(plan, tampered(engines["in-process"], tamper), tmp_path)
    versions = sorted(path.name for path in (run.path / "clients").iterdir())
    assert "1.0.safetensors" in versions
    assert "1.1.safetensors" not in versions
    assert "2.1.safetensors" in versions


def test_too_few_replies_skip_the_round(
    tiny_plan: Any, engines: dict[str, Engine], tampered: Any, tmp_path: Path
) -> None:
    def tamper(reply: Any, turn: Any) -> Any:
        return {} if turn.round == 1 and reply.profile.id < 3 else None

    plan = tiny_plan(rounds=2, min_replies=3)
    whole = execute(tiny_plan(rounds=1, min_replies=3), engines["in-process"], tmp_path / "one")
    run = execute(plan, tampered(engines["in-process"], tamper), tmp_path)
    first, second = run.journal()
    assert first.skipped is None
    assert second.skipped == "2 of 5 replies (3 refused), and 3 are needed"
    assert second.accepted == ()
    assert run.load_models("last")["cnn"].keys() == whole.load_models("last")["cnn"].keys()
    for name, tensor in whole.load_models("last")["cnn"].items():
        assert torch.equal(tensor, run.load_models("last")["cnn"][name])
    result = run.result()
    assert result is not None
    assert result["skipped"] == 1


def test_a_client_that_fails_is_lost_and_the_others_go_on(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = FedAvg.reply

    def fragile(self: Any, client: Any, request: Any, turn: Any) -> Any:
        if client.profile.id == 2:
            raise MemoryError("too small a device")
        return reply(self, client, request, turn)

    monkeypatch.setattr(FedAvg, "reply", fragile)
    run = execute(tiny_plan(rounds=1), engines["in-process"], tmp_path)
    (lost,) = run.journal()[0].failures
    assert (lost.client, lost.reason, lost.detail) == (2, "failed", "MemoryError: too small a device")


def test_if_every_client_fails_the_run_stops_and_says_why(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, client: Any, request: Any, turn: Any) -> Any:
        raise ValueError("a bug in the method")

    monkeypatch.setattr(FedAvg, "reply", broken)
    with pytest.raises(RunError, match=r"every client failed.*a bug in the method"):
        execute(tiny_plan(rounds=1), engines["in-process"], tmp_path)


def test_if_every_site_declines_the_run_stops_and_says_why() -> None:
    who = Profile(0, 10, "mlp")
    declined = Failure(who, "refused", "its policy allows 3 rounds over all runs", declined=True)
    with pytest.raises(RunError, match="every client failed; client 0 reports: its policy allows 3 rounds"):
        stop_if_all_failed([declined, Failure(who, "failed", "no memory")], [])
    stop_if_all_failed([declined, Failure(who, "refused", "a reply with NaN")], [])  # the next one may be in order
    stop_if_all_failed([declined], [Reply(who, Message({}), None)])


def test_undeclared_egress_stops_the_run(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaky(self: Any, client: Any, request: Any, turn: Any) -> Any:
        return Message({"inputs": client.data.batch(torch.arange(2))["inputs"]})

    monkeypatch.setattr(FedAvg, "reply", leaky)
    with pytest.raises(RunError, match="'inputs', which it does not declare"):
        execute(tiny_plan(rounds=1), engines["in-process"], tmp_path)


def test_a_model_that_is_not_finite_is_never_best(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate = FedAvg.aggregate

    def explode(self: Any, state: Any, replies: Any, turn: Any) -> Any:
        merged = dict(aggregate(self, state, replies, turn))
        if turn.round == 2:
            merged[WEIGHT] = merged[WEIGHT] * float("nan")
        return merged

    monkeypatch.setattr(FedAvg, "aggregate", explode)
    run = execute(tiny_plan(rounds=3), engines["in-process"], tmp_path)
    assert [record.evaluation.finite for record in run.journal()] == [True, True, False]
    result = run.result()
    assert result is not None
    assert result["round_of"]["best"] <= 2
    assert result["finite"] is False


EXPECTED = {"a": ((2, 3), torch.float32), "free": ((-1, 2), torch.float32), "n": ((), torch.int64)}
REQUEST = Message({"a": torch.ones(2, 3)})
SOUND = {"a": torch.zeros(2, 3), "free": torch.zeros(5, 2), "n": torch.tensor(1)}


def test_a_sound_reply_has_no_fault() -> None:
    assert validate_reply(Message(SOUND), REQUEST, EXPECTED) is None


def test_what_is_optional_may_be_absent_and_is_checked_where_it_is_there() -> None:
    without = Message({name: tensor for name, tensor in SOUND.items() if name != "free"})
    assert validate_reply(without, REQUEST, EXPECTED) == "lacks free"
    assert validate_reply(without, REQUEST, EXPECTED, optional=["fr*"]) is None
    sick = Message({**SOUND, "free": torch.full((5, 2), float("nan"))})
    assert str(validate_reply(sick, REQUEST, EXPECTED, optional=["free"])).startswith("free holds numbers")


def test_the_norm_is_the_distance_from_what_was_sent() -> None:
    """`a` moved from ones to zeros (distance sqrt 6); `free` was not sent, so it counts itself: 10 ones; in all 4."""
    reply = Message({**SOUND, "free": torch.ones(5, 2)})
    assert validate_reply(reply, REQUEST, EXPECTED, norm_limit=4.001) is None
    assert (
        validate_reply(reply, REQUEST, EXPECTED, norm_limit=3.999) == "its update has norm 4, over the limit of 3.999"
    )


MUTATIONS = st.sampled_from(["drop", "add", "dtype", "shape", "nan", "inf", "-inf", "rank"])


def test_fuzzed_replies_are_always_refused() -> None:
    """Whatever is done to a sound reply that changes names, shapes, types or finiteness, it is refused in words."""
    seen: Counter[str] = Counter()

    @settings(max_examples=200, deadline=None)
    @given(kind=MUTATIONS, name=st.sampled_from(sorted(EXPECTED)), size=st.integers(0, 4))
    def check(kind: str, name: str, size: int) -> None:
        reply = dict(SOUND)
        tensor = reply[name]
        if kind == "drop":
            del reply[name]
        elif kind == "add":
            reply[f"{name}{size}"] = tensor
        elif kind == "dtype":
            reply[name] = tensor.to(torch.float16)
        elif kind == "shape":
            reply[name] = torch.zeros(3, 3 + size, dtype=tensor.dtype)
        elif kind == "rank":
            reply[name] = tensor.reshape(1, 1, *tensor.shape)
        else:
            reply[name] = torch.full_like(tensor, float(kind)) if tensor.is_floating_point() else tensor.reshape(1)
        verdict = validate_reply(Message(reply), REQUEST, EXPECTED)
        assert verdict
        assert "\n" not in verdict
        seen[kind] += 1

    check()
    assert len(seen) == 8, f"only {sorted(seen)} were tried"


def test_a_norm_limit_does_not_measure_statistics(tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path) -> None:
    """Recalibration's sums are far larger than any update, and no update at all."""
    plan = tiny_plan(method={"name": "fedavg", "buffers": "recalibrate"}, model="cnn-bn", rounds=1, norm_limit=100.0)
    (record,) = execute(plan, engines["in-process"], tmp_path).journal()
    assert record.skipped is None
    assert record.failures == ()
