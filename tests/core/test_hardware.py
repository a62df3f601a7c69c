from __future__ import annotations

import os
import sys

import pytest
import torch

from fedstill.core import hardware
from fedstill.core.errors import InputError
from fedstill.core.hardware import (
    check_device,
    child_environment,
    device_environment,
    one_thread,
    threads_of,
    usable_cores,
)
from fedstill.studies.executor import executor_size


def test_threads_are_put_back_whatever_happens() -> None:
    with threads_of(2):
        with one_thread():
            assert torch.get_num_threads() == 1
        with pytest.raises(ZeroDivisionError), one_thread():
            _ = 1 / 0
        assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not say which cores may be used")
def test_workers_are_held_to_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cores() == 2
    assert executor_size(64) == executor_size(None, "ray") == 2
    assert executor_size(64, "ray", cores=8) == 8


def test_where_nobody_says_which_may_be_used_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cores() == 64


def test_a_child_computes_in_one_thread_with_the_same_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("KEPT", "as it is")
    monkeypatch.setattr(sys, "path", ["", "a", "b"])
    made = child_environment(MORE="too")
    assert (made["OMP_NUM_THREADS"], made["MKL_NUM_THREADS"]) == ("1", "1")
    assert (made["KEPT"], made["MORE"]) == ("as it is", "too")
    assert made["PYTHONPATH"].split(os.pathsep) == ["a", "b"]
    assert os.environ["OMP_NUM_THREADS"] == "8"


def test_a_device_is_one_of_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    check_device("cpu")
    monkeypatch.setattr(hardware, "devices_here", lambda: ("cpu",))
    with pytest.raises(InputError, match="this machine has no mps device: leave --device out to use the cpu"):
        check_device("mps")
    monkeypatch.setattr(hardware, "devices_here", lambda: ("cpu", "cuda:0", "cuda:1"))
    for device in ("cpu", "cuda", "cuda:0", "cuda:1"):
        check_device(device)
    with pytest.raises(InputError, match="this machine has no cuda:2 device: there are cpu, cuda:0, cuda:1"):
        check_device("cuda:2")
    for device in ("cuda:", "cuda:x", "cpu:0", "mps:1", "gpu"):
        with pytest.raises(InputError, match=f"unknown device '{device}'"):
            check_device(device)


def test_workers_share_out_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "devices_here", lambda: ("cpu", "cuda:0", "cuda:1"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = [device_environment("cuda", worker)["CUDA_VISIBLE_DEVICES"] for worker in range(5)]
    assert seen == ["0", "1", "0", "1", "0"]
    assert device_environment("cuda:1", 3) == device_environment("cpu", 3) == device_environment("mps", 3) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b,GPU-c")
    assert device_environment("cuda", 4) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
