"""The devices that can compute."""

from __future__ import annotations

import torch

from fedstill.core.errors import InputError, did_you_mean

DEVICES = ("cpu", "cuda", "mps")


def check_device(device: str) -> None:
    """Refuse a device that is unknown, or not in this machine."""
    if device not in DEVICES:
        raise InputError(f"unknown device {device!r}: {did_you_mean(device, DEVICES)}")
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present[device]:
        raise InputError(f"this machine has no {device} device: leave --device out to use the cpu")
