"""A complete FedAvg run in a separate process: `python -m benchmarks.job_fedavg DATA OUT CLIENTS COHORT ROUNDS`."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from time import process_time

from benchmarks.setting import fedavg
from fedstill.runtime.launch import launch


def peak_bytes() -> int:
    """The largest resident memory of this process so far.

    `getrusage` also counts memory of the parent at the time of the fork. The kernel's own figure for this program is
    preferred where it exists.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(images: str, out: str, clients: int, cohort: int, rounds: int) -> None:
    participation = {"name": "random", "number": cohort} if cohort < clients else "everyone"
    before, starting = peak_bytes(), process_time()  # after the imports
    run = launch(fedavg(Path(images), clients, rounds, participation=participation), out=Path(out))
    seconds = {"starting": starting, "rounds": run.seconds}
    print(json.dumps({"accuracy": run.accuracy, "peak": peak_bytes(), "imports": before, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
