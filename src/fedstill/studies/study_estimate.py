"""What the runs of a study will cost, each from a step that was measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedstill.core.numbers import size
from fedstill.methods import methods
from fedstill.runtime.estimates import cached_cost, core_time, may_measure, measured_cost
from fedstill.runtime.run_load import StepCost, load_of
from fedstill.studies.study_plan import Job, StudyPlan


@dataclass
class StudyEstimate:
    """CPU seconds by run, the memory that a worker takes at most, and how many runs could not be estimated."""

    seconds: dict[Job, float] = field(default_factory=dict)
    memory: int = 0
    unknown: int = 0

    def text(self, jobs: Sequence[Job]) -> str:
        """A sentence about these runs, which are left to do; nothing where none of them was estimated."""
        known = [self.seconds[job] for job in jobs if job in self.seconds]
        if not known:
            return ""
        missing = len(jobs) - len(known)
        beside = f", without {missing} runs of which nothing was measured" if missing else ""
        memory = f", up to {size(self.memory)} of memory for each worker" if self.memory else ""
        return f"estimate: {core_time(sum(known))}{memory}{beside}"


def estimate_of(plan: StudyPlan, measure: bool, tell: Callable[[int, int, str], None] | None = None) -> StudyEstimate:
    """The estimate of all runs of a plan whose data is here; steps that were not measured before are, if `measure`.

    Before each kind of runs that has to be measured `tell` gets how many have been, of how many, and its name.
    """
    kinds: dict[str, list[Job]] = {}
    for job in plan.jobs:
        if job.experiment.data in plan.bundles:
            kinds.setdefault(_kind(job), []).append(job)
    costs: dict[str, StepCost | None] = {kind: _cost(plan, jobs[0], cached_cost) for kind, jobs in kinds.items()}
    unmeasured = [kind for kind, cost in costs.items() if cost is None]
    if measure and may_measure() and unmeasured:
        for number, kind in enumerate(unmeasured):
            if tell is not None:
                tell(number, len(unmeasured), _name(kinds[kind][0]))
            costs[kind] = _cost(plan, kinds[kind][0], measured_cost)
    together: dict[str, int] = {}
    for job in plan.jobs:
        together[job.lesson] = together.get(job.lesson, 0) + 1
    made = StudyEstimate()
    for job in plan.jobs:
        cost = costs.get(_kind(job)) if job.experiment.data in plan.bundles else None
        if cost is None:
            made.unknown += 1
            continue
        teacher = None if job.teacher is None else costs.get(_kind(job.teacher))
        made.seconds[job] = _seconds(plan, job, cost, teacher, together[job.lesson])
        made.memory = max(made.memory, cost.memory)
    return made


def _name(job: Job) -> str:
    """What is measured, in words."""
    objective = job.experiment.objective
    return job.method if objective is None else f"{objective.name} {job.experiment.model} {job.experiment.data}"


def _kind(job: Job) -> str:
    """Jobs with the same words here take the same time for a step."""
    settings = job.experiment.model_dump(mode="json", exclude={"seed", "rounds", "teachers"})
    settings["method"].pop("labels", None)
    return f"{settings} {None if job.teacher is None else job.teacher.experiment.model}"


def _cost(plan: StudyPlan, job: Job, by: Callable[..., StepCost | None]) -> StepCost | None:
    teacher = None if job.teacher is None else str(job.teacher.experiment.model)
    return by(job.experiment, plan.bundles[job.experiment.data], teacher)


def _seconds(plan: StudyPlan, job: Job, cost: StepCost, teacher: StepCost | None, together: int) -> float:
    bundle = plan.bundles[job.experiment.data]
    method = methods[job.experiment.method.name]
    personal = isinstance(method.personal, bool) and method.personal
    load = load_of(job.experiment, len(bundle.train), len(bundle.test), personal)
    seconds = load.seconds(cost)
    if (
        teacher is not None
        and together > 1
        and job.experiment.augmentation is not None
        and job.experiment.augmentation.name != "none"
    ):
        # Students that learn together share their teacher's pass over each batch, where it is not cached anyway.
        shared = load.steps * job.experiment.training.batch * teacher.sample
        seconds -= min(shared, 0.9 * seconds) * (1 - 1 / together)
    return seconds
