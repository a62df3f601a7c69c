"""The kind of processor: libraries choose their kernels by it, so bits may differ between two kinds."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch


@cache
def cpu_kind() -> str:
    """Maker, family and model where the system tells, and the instructions that torch uses of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    words = [said.get(key, "") for key in ("vendor_id", "cpu family", "model")]
    kind = " ".join([platform.machine(), *words]) if all(words) else f"{platform.machine()} {platform.processor()}"
    return f"{kind}, {torch.backends.cpu.get_cpu_capability()}"
