"""Accuracy against epsilon: noise at the server, distributed noise in sums, and private steps on records.

A federation of images and one of point clouds, one seed each. No setting was tuned for any kind of privacy, and each
epsilon is of another promise: of a whole client against the public, of a whole client against the server, of one record
against everybody.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import fedstill
from benchmarks.report import Findings
from benchmarks.sizes import Size
from fedstill.data.heads import CLASSES, make_heads

HEAD = ("privacy", "clip", "noise", "epsilon: public", "other sites", "server", "accuracy (%)")
POINTS, PER_CLASS, TEST = 128, 250, 200
SHARED: dict[str, Any] = {"method": {"name": "fedavg", "weights": "uniform"}, "seed": 1}
DIGITS: dict[str, Any] = {
    "data": "digits",
    "model": "mlp:width=32",
    "clients": 50,
    "rounds": 15,
    "evaluate_every": 15,
    "training": {"epochs": 1, "batch": 8, "rate": 0.1},
}
HEADS: dict[str, Any] = {
    "model": "pointnet-tiny:norm=group",
    "points": POINTS,
    "clients": 10,
    "rounds": 20,
    "evaluate_every": 20,
    "training": {"optimiser": "adam", "epochs": 3, "batch": 8, "rate": 0.002},
}
FEDERATIONS = {"digits": DIGITS, "heads": HEADS}
FEW: dict[str, Any] = {"rounds": 1, "evaluate_every": 1, "clients": 5}
_OF_CLIENTS = [(0.5, 0.25), (0.5, 1.0), (0.5, 4.0)]  # clip and noise
_OF_FEW_CLIENTS = [(0.5, 0.05), (0.5, 0.2), (0.5, 0.8)]
TRIED = {
    "digits": {
        "none": [(0.0, 0.0)],
        "client-level": _OF_CLIENTS,
        "distributed": _OF_CLIENTS,
        "record-level": [(1.0, 0.7), (1.0, 1.5), (1.0, 3.0)],
    },
    "heads": {
        "none": [(0.0, 0.0)],
        "client-level": _OF_FEW_CLIENTS,
        "distributed": _OF_FEW_CLIENTS,
        "record-level": [(1.0, 0.6), (1.0, 1.5)],
    },
}


def measure(size: Size, folder: Path) -> Findings:
    findings = Findings()
    tiny = size.samples < 1000
    for name, settings in FEDERATIONS.items():
        given = {**SHARED, **settings, **(FEW if tiny else {})}
        if name == "heads":
            given["data"] = f"npz:{written(folder / 'heads.npz', 15 if tiny else PER_CLASS)}"
        elif tiny:
            given["data"] = "digits[:10%]"
        lines = [HEAD]
        for kind, tried in TRIED[name].items():
            for clip, noise in tried[:1] if tiny else tried:
                lines.append(_line(given, kind, clip, noise, folder / name))
                print(name, *lines[-1], file=sys.stderr, flush=True)
        findings.tables[f"accuracy against epsilon, {name}"] = lines
    return findings


def written(path: Path, per_class: int) -> Path:
    """More of the heads that are built in, in a random order; a fifth of them, and 200 at most, to test with."""
    clouds, labels = make_heads(per_class, POINTS)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = np.split(order, [min(TEST, len(labels) // 5)])
    rows = {"train": train, "test": test}
    arrays = {
        f"{what}_{part}": every[of] for part, of in rows.items() for what, every in (("x", clouds), ("y", labels))
    }
    np.savez(path, classes=np.array(CLASSES), **arrays)
    return path


def _line(given: dict[str, Any], name: str, clip: float, noise: float, folder: Path) -> tuple[str, ...]:
    privacy = {"name": name} if name == "none" else {"name": name, "clip": clip, "noise": noise, "delta": 1e-3}
    secure = "fixed-point" if name == "distributed" else None
    run = fedstill.run(**given, privacy=privacy, secure=secure, out=folder / name)
    told = run.journal[-1].method_metrics
    public, server = told.get("epsilon"), told.get("epsilon_server")
    # With noise at the server, other sites see what the public sees, and the server sees single updates.
    epsilons = (public, told.get("epsilon_sites", public), server)
    shown = ("none" if one is None else f"{one:.1f}" for one in epsilons)
    assert run.accuracy is not None
    return (name, f"{clip:g}", f"{noise:g}", *shown, f"{100 * run.accuracy:.1f}")
