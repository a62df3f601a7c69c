"""Private runs from end to end: what they equal, what they journal, what they send, and that they can be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.core.message import Message
from fedstill.core.protocols import Engine
from fedstill.methods.wrappers.privacy_accounting import epsilon, replies_epsilon
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.run import execute

UNIFORM = {"name": "fedavg", "weights": "uniform"}


@pytest.mark.parametrize("where", ["server", "client"])
@pytest.mark.parametrize("method", ["fedavg", "moon", "fedavgm", "fedadam"])
def test_without_noise_and_limit_it_is_the_method_itself(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, method: str, where: str
) -> None:
    """To 1e-6: updates go through double precision once more."""
    runs = []
    for privacy in ("none", {"name": "client-level", "clip": 1e6, "noise": 0, "where": where}):
        given = {"name": method, "weights": "uniform"}
        plan = tiny_plan(data="digits[:30%]", method=given, model="cnn-bn", rounds=2, privacy=privacy)
        run = execute(plan, engines["in-process"], tmp_path / str(privacy)[:5])
        runs.append((run.path / "model-last.safetensors", run.journal()))
    (plain_model, plain), (private_model, private) = runs
    plain_state, private_state = (Message.decode(path.read_bytes()) for path in (plain_model, private_model))
    for name, tensor in plain_state.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, private_state[name], rtol=1e-6, atol=1e-6), name
    assert private[-1].method_metrics == plain[-1].method_metrics == {}, "without noise there is no epsilon"
    assert plain[-1].loss
    assert not private[-1].loss


def test_the_journal_has_epsilon_and_a_skipped_round_costs_nothing(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path
) -> None:
    plan = tiny_plan(
        method=UNIFORM,
        rounds=5,
        privacy={"name": "client-level", "noise": 3.0, "delta": 1e-4},
        participation={"name": "random", "number": 3},
        dropout=0.3,
        min_replies=2,
    )
    run = execute(plan, engines["in-process"], tmp_path)
    published, skipped = 0, 0
    for record in run.journal():
        published, skipped = published + (record.skipped is None), skipped + (record.skipped is not None)
        assert record.method_metrics["delta"] == 1e-4
        assert record.method_metrics["epsilon"] == epsilon([3.0] * published, [5] * published, 5, 1e-4)
        assert record.method_metrics["epsilon_sites"] == record.method_metrics["epsilon"]
    assert published >= 2
    assert skipped >= 1


def test_replies_of_a_skipped_round_count_against_the_server_that_saw_them(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path
) -> None:
    plan = tiny_plan(
        method=UNIFORM,
        rounds=5,
        privacy={"name": "client-level", "noise": 3.0, "where": "client", "delta": 1e-4},
        participation={"name": "random", "number": 3},
        dropout=0.3,
        min_replies=2,
    )
    run = execute(plan, engines["in-process"], tmp_path)
    journal = run.journal()
    assert any(record.skipped is not None for record in journal)
    shares: list[float] = []  # of noise that another site does not know, in each published round
    for rounds, record in enumerate(journal, 1):
        if record.skipped is None:
            shares.append(len(record.accepted) - 1)
        against_sites = epsilon([3.0 * (count / 3) ** 0.5 for count in shares], [5] * len(shares), 5, 1e-4)
        assert record.method_metrics["epsilon_sites"] == pytest.approx(against_sites, rel=1e-12)
        against_server = replies_epsilon([3.0 / 3**0.5] * rounds, 1e-4)
        assert record.method_metrics["epsilon_server"] == pytest.approx(against_server, rel=1e-12)


def test_the_manifest_lists_what_leaves_a_private_client(tiny_plan: Any) -> None:
    plan = tiny_plan(method=UNIFORM, model="cnn-bn", privacy={"name": "client-level", "where": "client"})
    lines = egress_manifest(plan)["leaves"]
    assert [line["name"] for line in lines] == ["model/parameters/*", "model/buffers/*"]
    assert all(line["tensors"] and "cut to norm 1, with noise" in line["why"] for line in lines)


@pytest.mark.parametrize("where", ["server", "client"])
def test_engines_and_resuming_give_the_same_bits(
    tiny_plan: Any, engines: dict[str, Engine], tampered: Any, stop_after: Any, tmp_path: Path, where: str
) -> None:
    """With a lost upload and a refused reply, as in the conformance test of all methods."""

    def nan_from_client_one(reply: Any, turn: Any) -> dict[str, Tensor] | None:
        if (reply.profile.id, turn.round) != (1, 1):
            return None
        return {name: tensor * float("nan") for name, tensor in reply.message.items()}

    plan = tiny_plan(
        data="digits[:30%]",
        method={"name": "fedavgm", "weights": "uniform"},
        model="cnn-bn",
        rounds=3,
        seed=11,
        participation={"name": "everyone"},
        dropout=0.25,
        privacy={"name": "client-level", "clip": 0.5, "noise": 0.1, "where": where, "sampling": "secret"},
    )

    def everything(run: Any) -> dict[str, bytes]:
        left_out = {"timing.json", ".lock", "checkpoint-previous.safetensors"}
        files = [path for path in run.path.rglob("*") if path.is_file() and path.name not in left_out]
        return {str(path.relative_to(run.path)): path.read_bytes() for path in files}

    bad = {name: tampered(engine, nan_from_client_one) for name, engine in engines.items()}
    reference_run = execute(plan, bad["in-process"], tmp_path / "reference")
    reference = everything(reference_run)
    reasons = {lost.reason for record in reference_run.journal() for lost in record.failures}
    assert reasons == {"dropped", "refused"}
    for name in ("wire", "processes-2"):
        assert everything(execute(plan, bad[name], tmp_path / name)) == reference, name
    for stop in (1, 2, 3):
        out = tmp_path / f"stopped-{stop}"
        with pytest.raises(KeyboardInterrupt):
            execute(plan, bad["in-process"], out, [stop_after(stop)])
        assert everything(execute(plan, bad["in-process"], out)) == reference, stop
