"""Peak memory for a growing population and a constant cohort; it should depend on the cohort only."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.data import write_images
from benchmarks.processes import JobError, job
from benchmarks.report import Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio

TARGET = 1.2


def measure(size: Size, folder: Path) -> Findings:
    images, kind = write_images(folder, size.job_samples)
    cohort, *larger = size.populations
    try:
        peaks = {
            clients: [
                job("benchmarks.job_fedavg", images, folder / f"{clients}-{again}", clients, cohort, size.memory_rounds)
                for again in range(size.jobs)
            ]
            for clients in size.populations
        }
    except JobError as error:
        return Findings([Row("peak memory", "failed", note=str(error))])
    base = [one["peak"] for one in peaks[cohort]]
    note = f"{kind}; {median(base) / 2**20:.0f} MiB, of which imports {_imports(peaks[cohort]):.0f}; "
    return Findings(
        [
            Row(
                f"peak memory, {clients:,} clients / {cohort:,}",
                Ratio.of([one["peak"] for one in peaks[clients]], base),
                TARGET,
                note=f"{note}{cohort} take part in each of {size.memory_rounds} rounds",
            )
            for clients in larger
        ]
    )


def _imports(jobs: list[dict[str, int]]) -> float:
    return median(one["imports"] for one in jobs) / 2**20
