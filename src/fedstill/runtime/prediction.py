"""What a run's model says of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.hardware import check_device, one_thread
from fedstill.core.plugins import use_plugins
from fedstill.data.data_settings import split_name
from fedstill.data.single_input import read_input
from fedstill.runtime.exported_file import SUFFIX, ExportedFile
from fedstill.runtime.result import Run
from fedstill.tasks.task_choice import tasks


@dataclass(frozen=True)
class Prediction:
    """A file, what the model saw of it, and what it says.

    Of models that label every point, points are those the model saw: as many as it learned from, in random order,
    centred and scaled.
    """

    file: Path
    classes: tuple[str, ...]
    inputs: Tensor
    probabilities: Tensor  # by class; of models that label points, a row for each point
    several: bool = False  # whether it may have any number of classes: the probabilities then do not sum to 1

    @property
    def labels_points(self) -> bool:
        return self.probabilities.ndim == 2

    @property
    def label(self) -> str:
        """The most probable class; of points, the one that most of them have; of several classes, all found ones."""
        if self.several:
            return ", ".join(self.found) or "none"
        if self.labels_points:
            return max(self.counts, key=lambda name: self.counts[name])
        return self.classes[int(self.probabilities.argmax())]

    @property
    def probability(self) -> float:
        """Of that class; of points, the share of them that has it; of several classes, of the most probable one."""
        if self.labels_points:
            return self.counts[self.label] / len(self.inputs)
        return float(self.probabilities.max())

    @property
    def found(self) -> tuple[str, ...]:
        """The classes with a probability above one half."""
        return tuple(name for name, held in self.by_class.items() if held > 0.5)

    @property
    def by_class(self) -> dict[str, float]:
        """The probability of every class, where there is one for the whole file."""
        return dict(zip(self.classes, self.probabilities.tolist(), strict=True))

    @property
    def point_labels(self) -> Tensor:
        """The number of each point's class."""
        return self.probabilities.argmax(dim=1)

    @property
    def counts(self) -> dict[str, int]:
        """How many points have each class."""
        counted = torch.bincount(self.point_labels, minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, counted, strict=True))


def predict(
    run: str | Path | Run | ExportedFile,
    files: str | Path | Sequence[str | Path],
    *,
    which: str = "last",
    client: int | None = None,
    architecture: str | None = None,
    device: str = "cpu",
    plugins: Sequence[str | Path] = (),
) -> list[Prediction]:
    """Classify pictures, arrays (.npy), clouds or meshes with a run's model or an exported file, in the order given.

    >>> import fedstill, numpy as np
    >>> folder = getfixture("tmp_path")
    >>> made = fedstill.run("fedavg", data="digits", model="mlp", rounds=1, clients=2, out=folder)
    >>> np.save(folder / "blank.npy", np.zeros((8, 8), dtype=np.uint8))
    >>> (said,) = fedstill.predict(made, folder / "blank.npy")
    >>> said.label in said.classes, 0.1 <= said.probability <= 1
    (True, True)
    """
    held, paths = opened(run, files, device, plugins)
    task = replace(held.task, device=device)
    if task.finds_boxes:
        raise InputError(f"the model of {held.path} finds boxes in scenes: say fedstill detect {held.path} FILE")
    trained_on = held.data if isinstance(held, ExportedFile) else held.experiment.data
    fit = split_name(trained_on)[1].fit
    inputs = [read_input(path, task.shape, fit, "signal" if task.reads_signals else "") for path in paths]
    model = held.built(which, client, architecture).to(device)
    with one_thread():
        said = [task.predict(model, one.unsqueeze(0))[0] for one in inputs]
    return [
        Prediction(path, tuple(task.classes), one, probabilities, isinstance(task, tasks["multilabel"]))
        for path, one, probabilities in zip(paths, inputs, said, strict=True)
    ]


def opened(
    run: str | Path | Run | ExportedFile,
    files: str | Path | Sequence[str | Path],
    device: str,
    plugins: Sequence[str | Path],
) -> tuple[Run | ExportedFile, list[Path]]:
    """A model to use on that device, and the files to use it on, whether one or several were named."""
    use_plugins(plugins)
    check_device(device)
    held = trained(run)
    if isinstance(held, ExportedFile) and device != "cpu":
        raise InputError(f"{held.path} is computed on the CPU: leave --device out")
    return held, [Path(one) for one in ([files] if isinstance(files, str | Path) else files)]


def trained(run: str | Path | Run | ExportedFile) -> Run | ExportedFile:
    """A run by its folder, or an exported file by its name."""
    if isinstance(run, Run | ExportedFile):
        return run
    path = Path(run)
    if path.suffix.lower() == ".pt2" and not path.is_dir():
        raise InputError(f"{path} is a program of torch.export, and loading one can run any code: export .onnx instead")
    return ExportedFile(path) if path.suffix.lower() == SUFFIX and not path.is_dir() else Run(path)
