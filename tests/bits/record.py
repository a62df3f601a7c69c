"""Write down the digests of all experiments, or of some, for this kind of processor and this torch.

    python -m tests.bits.record                     all of them, into tests/bits/recorded.json
    python -m tests.bits.record fedavg scaffold     these
    python -m tests.bits.record --in-process        those that start no processes
    python -m tests.bits.record --check             compare instead of writing; ends with 1 where something differs
    python -m tests.bits.record --details a.json    all numbers behind the digests as well, to be compared with diff

The package is the one that Python finds, so PYTHONPATH=OTHER/src records another source tree. What is recorded for
other machines, and other experiments, stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import fedstill
from fedstill.core.cpu import cpu_kind

from .experiments import EXPERIMENTS
from .runner import Runner

RECORDED = Path(__file__).with_name("recorded.json")
Record = dict[str, dict[str, str]]  # by experiment and field


def machine() -> str:
    """What bits may depend on beside code: the processor's kind, what torch makes of it, and torch."""
    return f"{cpu_kind()} | torch {torch.__version__}"


def recorded() -> Record:
    """What is recorded for this machine; nothing where nobody recorded on one like it."""
    return _everything().get(machine(), {})


def recorded_elsewhere(name: str) -> bool:
    """Whether an experiment is recorded for another machine, and so only waits for one like this."""
    return any(name in record for record in _everything().values())


def _everything() -> dict[str, Record]:
    content: dict[str, Record] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return content


def missing(experiment: dict[str, Any]) -> str | None:
    """An optional package that an experiment needs and that is not installed."""
    if experiment["do"] == "deploy":
        wanted = ["flwr", "cryptography"]
    elif experiment.get("engine") == "flower-ray":
        wanted = ["flwr", "ray"]
    elif experiment.get("executor") == "ray":
        wanted = ["ray"]
    else:
        wanted = []
    return next((name for name in wanted if find_spec(name) is None), None)


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """The fields in which two results differ."""
    return [field for field in {**before, **now} if before.get(field) != now.get(field)]


def main() -> None:
    arguments = _arguments()
    names = arguments.names or [
        name for name, one in EXPERIMENTS.items() if not (arguments.in_process and one.get("starts_processes"))
    ]
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        sys.exit(f"unknown experiments: {', '.join(unknown)}")
    torch.set_num_threads(1)
    print(f"{fedstill.__file__}\n{machine()}")
    found: Record = {}
    details: dict[str, Any] = {}
    failed: list[str] = []
    began = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDSTILL_DATA"] = str(Path(folder) / "no-data")
        runner = Runner(Path(folder) / "work")
        for name in names:
            if lacking := missing(EXPERIMENTS[name]):
                print(f"   left out  {name}: {lacking} is not installed")
                continue
            start = perf_counter()
            try:
                found[name], details[name] = runner.digests(name), runner.details(name)
            except Exception as error:  # one that cannot be run must not hide what the others give
                failed.append(name)
                print(f"     failed  {name}: {type(error).__name__}: {error}", flush=True)
            else:
                print(f"{perf_counter() - start:8.2f} s  {name}", flush=True)
    print(f"{perf_counter() - began:8.2f} s  altogether, {len(found)} experiments")
    if arguments.details:
        Path(arguments.details).write_text(json.dumps(details, indent=1) + "\n")
    if arguments.check:
        _check(found)
    else:
        every = _everything()
        every[machine()] = {**every.get(machine(), {}), **found}
        RECORDED.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bits.record", description="Record or check digests.")
    parser.add_argument("names", nargs="*", help="experiments; else all")
    parser.add_argument("--in-process", action="store_true", help="only those that start no processes")
    parser.add_argument("--check", action="store_true", help="compare with the record instead of writing it")
    parser.add_argument("--details", metavar="FILE", help="write all numbers behind the digests")
    return parser.parse_args()


def _check(found: Record) -> None:
    before = recorded()
    if not before:
        sys.exit(f"nothing is recorded for {machine()}")
    wrong = {name: differences(before.get(name, {}), now) for name, now in found.items()}
    for name, fields in wrong.items():
        if fields:
            print(f"{name}: {', '.join(fields)}" if name in before else f"{name}: not recorded")
    if any(wrong.values()):
        sys.exit("results differ from the record")
    print("everything is as recorded")


if __name__ == "__main__":
    main()
