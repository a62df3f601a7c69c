"""Accuracy against epsilon: noise at the server, distributed noise in sums, and private steps on records.

A federation of images and one of point clouds, one seed each. No setting was tuned for any kind of privacy, and each
epsilon is of another promise: of a whole client against the public, of a whole client against the server, of one record
against everybody.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fedstill
from benchmarks.report import Findings
from benchmarks.sizes import Size

HEAD = ("privacy", "clip", "noise", "epsilon: public", "other sites", "server", "accuracy (%)")
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
    "data": "heads",
    "model": "pointnet-tiny:norm=group",
    "points": 128,
    "clients": 20,
    "rounds": 30,
    "evaluate_every": 30,
    "training": {"optimiser": "adam", "epochs": 4, "batch": 8, "rate": 0.003},
}
FEDERATIONS = {"digits": DIGITS, "heads": HEADS}
FEW: dict[str, Any] = {"rounds": 1, "evaluate_every": 1}
FEWER = {
    "digits": {**FEW, "clients": 5, "data": "digits[:10%]"},
    "heads": {**FEW, "clients": 5, "data": "heads[:10%]", "points": 64},
}
TRIED = {
    "none": [(0.0, 0.0)],
    "client-level": [(0.5, 0.25), (0.5, 1.0), (0.5, 4.0)],
    "distributed": [(0.5, 0.25), (0.5, 1.0), (0.5, 4.0)],
    "record-level": [(1.0, 0.7), (1.0, 1.5), (1.0, 3.0)],
}


def measure(size: Size, folder: Path) -> Findings:
    findings = Findings()
    tiny = size.samples < 1000
    for name, settings in FEDERATIONS.items():
        given = {**SHARED, **settings, **(FEWER[name] if tiny else {})}
        lines = [HEAD]
        for kind, tried in TRIED.items():
            for clip, noise in tried[:1] if tiny else tried:
                lines.append(_line(given, kind, clip, noise, folder / name))
                print(name, *lines[-1], file=sys.stderr, flush=True)
        findings.tables[f"accuracy against epsilon, {name}"] = lines
    return findings


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
