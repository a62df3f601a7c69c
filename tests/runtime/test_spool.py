"""Replies that wait on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.message import Message
from fedstill.core.protocols import Profile, Reply
from fedstill.engines import InProcess
from fedstill.runtime.run import execute
from fedstill.runtime.spool import LARGE, Spool


def reply(**tensors: torch.Tensor) -> Reply:
    return Reply(Profile(0, 1, "cnn"), Message(tensors), {}, 3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_a_large_tensor_comes_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    bits = torch.randint(0, 2, (LARGE // 7 + 1, 7), generator=torch.Generator().manual_seed(1))
    given = reply(large=bits.to(dtype), small=torch.tensor(5))
    spool = Spool(tmp_path / "spool")
    kept = spool.keep(given)
    assert (tmp_path / "spool" / "0").stat().st_size == given.message["large"].nbytes
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["0"], "what is small stays in memory"
    assert kept.message["large"].dtype == dtype
    assert torch.equal(kept.message["large"], given.message["large"])
    assert kept.message.encode() == given.message.encode()
    assert (kept.work, kept.profile) == (given.work, given.profile)
    spool.clear()
    assert not (tmp_path / "spool").exists()


def test_without_a_folder_the_system_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool()
    kept = [spool.keep(reply(large=torch.full((LARGE,), float(number)))) for number in range(3)]
    assert [float(one.message["large"].mean()) for one in kept] == [0.0, 1.0, 2.0]
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 3
    spool.clear()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_a_run(tiny_plan: Any, tmp_path: Path) -> None:
    """Sixty-four features of 287 digits are 73 kB: large enough; and what a killed process left is swept."""
    plan = tiny_plan(method="fedgkt", model="cnn", rounds=1, training={"epochs": 1, "batch": 32})
    left = tmp_path / plan.folder_name / "spool"
    left.mkdir(parents=True)
    (left / "17").write_bytes(b"features")
    with InProcess() as engine:
        run = execute(plan, engine, tmp_path)
    assert not (run.path / "spool").exists()
