"""What is the same exactly when results are: digests of numbers that do not depend on what the numbers are called.

`numbers` takes anything apart into its numbers. Keys do not count, unless they are numbers themselves (client ids);
texts do not count; neither does what stands below a key that speaks of times, memory, versions or places. Numbers in a
list stay together and in their order; otherwise only which numbers there are matters, and how often. So keys can be
renamed and sections moved, and no number can change unnoticed.

Weights have two digests: `sha256` is the run's own, with the names of tensors; `models` is without these, so that it
tells renamed tensors from changed ones.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from safetensors.torch import load_file

from . import access

# Words in keys whose values differ from one run of the same experiment to the next, or from one version to the next.
PASSING = {
    *("second", "seconds", "time", "times", "timing", "duration", "elapsed", "clock", "memory", "rss"),
    *("batchnorm",),  # a check at the end of runs that came after the recording
    *("further",),  # metrics beside accuracy and loss, which came after it too
    *("path", "paths", "file", "files", "folder", "version", "versions", "torch", "fedstill", "format"),
}
LATER = {"epsilon_sites"}  # whole keys that came after the recording


def numbers(value: Any) -> list[str]:
    """Every number in it as exact text, sorted.

    >>> numbers({"round": 1, "loss": {"ce": 0.5}, "asked": [2, 0], "why": "dropped", "seconds": 3.1})
    ['0x1.0000000000000p-1', '1', '[2 0]']
    >>> numbers({"turn": 1, "ce": 0.5, "clients": (2, 0)})
    ['0x1.0000000000000p-1', '1', '[2 0]']
    >>> numbers({"3": {"recall": 1.0}})
    ['3: 0x1.0000000000000p+0']
    """
    return sorted(_leaves(value))


def _leaves(value: Any) -> Iterable[str]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, BaseModel):
        value = value.model_dump()
    if (one := _number(value)) is not None:
        yield one
    elif isinstance(value, torch.Tensor):
        yield tensor_digest(value)
    elif isinstance(value, np.ndarray):
        yield tensor_digest(torch.from_numpy(np.ascontiguousarray(value)))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if _is_number(key):
                yield f"{key}: {' '.join(numbers(inner))}"
            elif str(key) not in LATER and not PASSING & set(re.split(r"[^a-z]+", str(key).lower())):
                yield from _leaves(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        whole = _array(ordered)
        if whole is not None:
            yield whole
        else:
            for inner in ordered:
                yield from _leaves(inner)


def _number(value: Any) -> str | None:
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int | np.integer):
        return str(int(value))
    return float(value).hex() if isinstance(value, float | np.floating) else None


def _array(values: list[Any]) -> str | None:
    """A list of numbers, or of such lists, as one text that keeps their order."""
    parts = [_array(list(one)) if isinstance(one, list | tuple) else _number(one) for one in values]
    return None if not parts or None in parts else f"[{' '.join(map(str, parts))}]"


def _is_number(key: Any) -> bool:
    return isinstance(key, int) or (isinstance(key, str) and key.isdecimal())


def tensor_digest(tensor: torch.Tensor) -> str:
    """Of type, shape and bits."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + raw).hexdigest()


def digest(lines: Iterable[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()[:32]


# What is known of a result in full, before it is made short: by field, either one text or lines.
Details = dict[str, str | list[str]]


def run_details(run: Any) -> Details:
    """Everything of a finished run that may not change."""
    files = sorted(path for path in run.path.rglob("*") if path.is_file())
    weights = {path: _tensors(path) for path in files if path.suffix == ".safetensors"}
    top = {path: lines for path, lines in weights.items() if path.parent == run.path}
    checkpoints = (access.CHECKPOINT, access.EARLIER_CHECKPOINT)
    told = [path for path in files if path.suffix == ".json" and path.name not in access.NOT_COMPARED]
    return {
        "sha256": run.sha256,
        "identity": access.run_identity(run),
        "models": sorted(digest(lines) for path, lines in top.items() if path.name not in checkpoints),
        "clients": sorted(digest(lines) for path, lines in weights.items() if path not in top),
        "state": [line for path, lines in top.items() if path.name == access.CHECKPOINT for line in lines],
        "journal": [" ".join(numbers(record)) for record in run.journal],
        "outcome": sorted(line for path in told for line in numbers(json.loads(path.read_text()))),
    }


def _tensors(path: Path) -> list[str]:
    """A file's tensors without their names. Bytes are left out: a checkpoint keeps texts in them, with keys inside."""
    tensors = load_file(path).values()
    return sorted(tensor_digest(one) for one in tensors if one.dtype != torch.uint8)


def shortened(details: Details) -> dict[str, str]:
    """Hashes instead of lines; a field that has none is left out."""
    return {field: value if isinstance(value, str) else digest(value) for field, value in details.items() if value}
