"""The command: `python -m benchmarks [--only NAME] [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.machine import cores, load
from benchmarks.report import HEAD, DifferenceError, Findings, table
from benchmarks.sizes import SIZES

NAMES = (
    "rounds",
    "own_objects",
    "methods",
    "flower",
    "deployment",
    "memory",
    "population",
    "breakdown",
    "pointnet2",
    "recalibration",
    "detector",
    "joint_training",
    "patches",
    "images",
    "secure",
)
# They measure reliability, what an attack reveals and how good estimates are, not speed.
ON_DEMAND = {
    name: f"reliability.{name}" for name in ("crashes", "malformed_replies", "invalid_commands", "connection_faults")
}
ON_DEMAND["imprinting"] = "imprinting"
ON_DEMAND["privacy"] = "privacy"
ON_DEMAND["estimates"] = "estimates"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", choices=(*NAMES, *ON_DEMAND), action="append", help="run only this benchmark; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to a file")
    parser.add_argument("--size", choices=tuple(SIZES), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    size = SIZES[given.size or ("quick" if given.quick else "full")]
    found: dict[str, Findings] = {}
    differences = []
    for name in given.only or NAMES:
        print(f"measuring: {name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="fedstill-bench-") as folder:
            try:
                found[name] = import_module(f"benchmarks.{ON_DEMAND.get(name, name)}").measure(size, Path(folder))
            except Exception as error:  # the figures of the other benchmarks are kept
                differences.append(f"{name}: {error if isinstance(error, DifferenceError) else traceback.format_exc()}")
                continue
        for title, lines in found[name].tables.items():
            print(f"{title}\n\n{table(lines)}\n", flush=True)
        if found[name].rows:
            print(f"{table([HEAD, *(row.cells() for row in found[name].rows)])}\n", flush=True)
    print(f"Medians of ratios [middle half]. {_machine()}")
    if given.json:
        content = {name: one.as_json() for name, one in found.items()}
        given.json.write_text(json.dumps({"machine": _machine(), **content}, indent=2) + "\n")
    differences += [f"{name}: {what}" for name, one in found.items() for what in one.differences]
    for difference in differences:
        print(f"failed: {difference}", file=sys.stderr)
    return 1 if differences else 0


def _machine() -> str:
    return f"{cores()} cores, load {load()}, torch {torch.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
