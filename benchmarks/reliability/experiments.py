"""The experiments in which replies are corrupted; together they cover every kind of request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

BASE = {"model": "cnn", "clients": 4, "rounds": 2, "training": {"epochs": 1, "batch": 16}}

# The names seed the random draws of the cases: another name gives other cases.
EXPERIMENTS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"method": "fedavg", "model": "cnn-bn"},
    "fedavg, recalibrated": {"method": {"name": "fedavg", "buffers": "recalibrate"}, "model": "cnn-bn"},
    "scaffold": {"method": "scaffold"},
    "fednova": {"method": "fednova"},
    "feddyn": {"method": "feddyn"},
    "fedadam": {"method": "fedadam"},
    "krum": {"method": "krum"},
    "trimmed-mean": {"method": "trimmed-mean"},
    "fedbn": {"method": "fedbn", "model": "cnn-bn"},
    "local-only": {"method": "local-only"},
    "feddf": {"method": {"name": "feddf", "samples": 20, "steps": 4, "batch": 10}},
    "fedmd": {"method": {"name": "fedmd", "samples": 20, "steps": 4, "batch": 10}},
    "fedgkt": {"method": "fedgkt"},
    "fed3d's class statistics": {"method": {"name": "fed3d", "share": "all"}},
    "qkt": {"method": "qkt", "queries": {"by_hand": {0: [1]}}},
    "pfnm": {"method": {"name": "pfnm", "hidden": 8, "limit": 40}},
    "mimic": {"method": "fedavg", "mitigation": "mimic", "dropout": 0.2},
    "friends": {"method": "fedavg", "mitigation": "friend-substitution", "dropout": 0.2},
    "privacy": {"method": {"name": "fedavg", "weights": "uniform"}, "privacy": {"name": "client-level", "noise": 0.1}},
    "clusters": {"method": "fedavg", "clusters": {"number": 2, "every": 1}},
    "power of choice": {
        "method": "fedavg",
        "participation": {"name": "power-of-choice", "number": 3, "candidates": 4, "losses": "poll"},
    },
    "label-balanced": {"method": "fedavg", "participation": {"name": "label-balanced", "number": 3, "candidates": 4}},
    "on-site": {"method": "fedavg", "evaluation": "on-site"},
    "on-site, personal": {"method": "local-only", "evaluation": "on-site"},
}


def write_data(folder: Path) -> str:
    """Write small images of four classes, and return the name of the data set."""
    generator = np.random.default_rng(3)
    images, labels = generator.integers(0, 256, (160, 8, 8), dtype=np.uint8), np.arange(160) % 4
    np.savez(folder / "images.npz", x=images, y=labels)
    return f"npz:{folder / 'images.npz'}"


def experiment(name: str, data: str) -> dict[str, Any]:
    made = {**BASE, "data": data, **EXPERIMENTS[name]}
    if isinstance(made["method"], Mapping) and "samples" in made["method"]:
        made["method"] = {**made["method"], "proxy": data}
    return made
