"""The input of the method `distill`: an objective and teachers."""

from __future__ import annotations

from fedstill.core.errors import InputError
from fedstill.distillation import objectives
from fedstill.distillation.distill import Teaching
from fedstill.runtime.method_inputs import PlanContext, method_inputs


@method_inputs.register("teaching")
def teaching(context: PlanContext) -> Teaching:
    """The teachers and the objective of a student."""
    chosen = context.experiment.objective
    assert chosen is not None
    kind = objectives[chosen.name]
    if not context.teachers and kind.least_teachers:
        raise InputError('distillation needs a teacher: use `fedstill distill`, or set teachers=[{"run": "FOLDER"}]')
    return Teaching(kind(chosen.settings), context.teachers)
