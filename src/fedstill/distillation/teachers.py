"""What teachers say of a batch: several as one, in evaluation, and only once where the inputs never change."""

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
    """A model that teaches, and where it came from; it never learns."""

    name: str
    architecture: str
    model: nn.Module


def teacher_outputs(teachers: Sequence[TeacherModel], task: Task, batch: Batch) -> Output:
    """What the teachers say of a batch, as one: without gradients, in evaluation, never from labels."""
    inputs = without_answers(batch)
    with torch.no_grad():
        outputs = [task.forward(teacher.model.eval(), inputs) for teacher in teachers]
    return outputs[0] if len(outputs) == 1 else average_teachers(outputs)


def first_outputs(teacher: TeacherModel, task: Task) -> Output:
    """What it says of two inputs that mean nothing, to see whether it can be understood at all."""
    inputs = torch.linspace(-1, 1, 2 * torch.Size(task.shape).numel()).reshape(2, *task.shape)
    try:
        with Streams(0).ambient("first words"):
            return teacher_outputs([teacher], task, {"inputs": inputs})
    except Exception as error:  # anything may come from a module of the user's own
        why = " ".join(str(error).split())[:200]
        raise InputError(f"the teacher {teacher.name} cannot read an input of shape {task.shape}: {why}") from error


@dataclass
class TeacherCache:
    """What teachers say of the samples of a data set that is not augmented: asked once, remembered by sample.

    Whether they are asked once or batch by batch follows from the configuration alone, and so do their words, down to
    what a teacher may draw at random: a resumed run hears the same. The memory is not state: it can be forgotten at
    any time, and is when this object travels. For the same reason no client counts it as work.
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
