"""Teacher outputs on a batch: several teachers combined, in evaluation mode, cached if inputs are not augmented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset, every_row, without_answers
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Task
from fedstill.distillation.logits import average_teachers
from fedstill.distillation.outputs import named_outputs


@dataclass(frozen=True)
class TeacherModel:
    """A frozen teacher model and its origin."""

    name: str
    architecture: str
    model: nn.Module


def teacher_outputs(teachers: Sequence[TeacherModel], task: Task, batch: Batch) -> Output:
    """The combined teacher outputs on a batch: without gradients, in evaluation mode, never using labels."""
    inputs = without_answers(batch)
    with torch.no_grad():
        outputs = [task.forward(teacher.model.eval(), inputs) for teacher in teachers]
    return outputs[0] if len(outputs) == 1 else average_teachers(outputs)


def first_outputs(teacher: TeacherModel, task: Task) -> Output:
    """The teacher's output on two dummy inputs, to check that it can be used at all."""
    inputs = torch.linspace(-1, 1, 2 * torch.Size(task.shape).numel()).reshape(2, *task.shape)
    try:
        with Streams(0).ambient("first words"):
            return teacher_outputs([teacher], task, {"inputs": inputs})
    except Exception as error:  # a user's own module may raise anything
        why = " ".join(str(error).split())[:200]
        raise InputError(f"the teacher {teacher.name} cannot read an input of shape {task.shape}: {why}") from error


@dataclass
class TeacherCache:
    """Caches teacher outputs per sample for a data set without augmentation.

    Whether outputs are cached or computed per batch depends on the configuration alone, and so do the outputs,
    including a teacher's random draws: a resumed run gets the same outputs. The cache is not state: it can be discarded
    at any time, and is not pickled with this object. For the same reason it is not charged to any client as work.
    """

    teachers: Sequence[TeacherModel]
    held: dict[str, Tensor] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {"teachers": self.teachers, "held": {}}

    def of(self, task: Task, data: Dataset, batch: Batch) -> Mapping[str, Tensor]:
        if not self.held:
            with Streams(0).ambient("lectures"):
                self._listen(task, data)
        rows = torch.searchsorted(self.held["ids"], batch["sample_id"])
        return {name: tensor[rows] for name, tensor in self.held.items() if name != "ids"}

    def _listen(self, task: Task, data: Dataset) -> None:
        heard: dict[str, list[Tensor]] = {}
        for rows in every_row(data):
            batch = data.batch(rows)
            said = named_outputs(teacher_outputs(self.teachers, task, batch))
            for name, tensor in {"ids": batch["sample_id"], **said}.items():
                heard.setdefault(name, []).append(tensor)
        whole = {name: torch.cat(pieces) for name, pieces in heard.items()}
        order = whole["ids"].argsort()
        self.held.update({name: tensor[order] for name, tensor in whole.items()})
