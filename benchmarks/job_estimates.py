"""A study estimated or run in a separate process: `python -m benchmarks.job_estimates estimate|run STUDY OUT`."""

from __future__ import annotations

import json
import sys
from time import process_time
from typing import Any

from fedstill.core.memory import measured_peak
from fedstill.studies import Study
from fedstill.studies.study_estimate import estimate_of


def main(action: str, given: str, out: str) -> None:
    recipe, settings = json.loads(given)
    name, _, preset = recipe.partition(":") if isinstance(recipe, str) else (recipe, "", "")
    began = process_time()
    study = Study(name, settings, preset=preset or None)
    print(json.dumps(_estimate(study, began) if action == "estimate" else _run(study, began, out)))


def _estimate(study: Study, began: float) -> dict[str, Any]:
    jobs = study.study_plan.jobs
    planned = process_time() - began
    found = estimate_of(study.study_plan, measure=True)
    if found.unknown:
        raise RuntimeError(f"{found.unknown} of {len(jobs)} runs were not estimated")
    measuring = process_time() - began - planned
    seconds = sum(found.seconds.values())
    by_kind: dict[str, float] = {}
    for one, cost in found.seconds.items():
        by_kind[str(one.cell)] = cost
    return {"runs": len(jobs), "seconds": seconds, "memory": found.memory, "measuring": measuring, "each": by_kind}


def _run(study: Study, began: float, out: str) -> dict[str, Any]:
    with measured_peak() as peak:
        results = study.execute(out)
    if results.failures or (results.students and results.students.failures):
        raise RuntimeError(f"runs failed: {results.failures or results.students}")
    return {"seconds": process_time() - began, "memory": peak.bytes}


if __name__ == "__main__":
    main(*sys.argv[1:4])
