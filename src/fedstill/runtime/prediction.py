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
from fedstill.data.feature_preparation import Preparation
from fedstill.data.feature_rows import read_rows
from fedstill.data.readers.text_table import SUFFIXES as TABLES
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
    row: int | None = None  # of a table, as a spreadsheet counts: the first row below the header is 2

    @property
    def name(self) -> str:
        """The file, and the row in it."""
        return str(self.file) if self.row is None else f"{self.file}, row {self.row}"

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

    Of a table (.csv, .tsv, .parquet), for models that were trained on one, there is a prediction for each row.

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
    kind = "signal" if task.reads_signals else "cloud" if split_name(trained_on)[1].normals else ""
    inputs: list[tuple[Path, int | None, Tensor]] = []
    for path in paths:
        if len(task.shape) == 1 and path.suffix.lower() in TABLES:
            rows = read_rows(path, _preparation(held, path), _site_of(held, client))
            inputs += [(path, number, row) for number, row in rows.items()]
        else:
            inputs.append((path, None, read_input(path, task.shape, fit, kind)))
    model = held.built(which, client, architecture).to(device)
    with one_thread():
        said = [task.predict(model, one.unsqueeze(0))[0] for _, _, one in inputs]
    several = isinstance(task, tasks["multilabel"])
    return [
        Prediction(path, tuple(task.classes), one, probabilities, several, row)
        for (path, row, one), probabilities in zip(inputs, said, strict=True)
    ]


def _preparation(held: Run | ExportedFile, path: Path) -> Preparation:
    """How rows of a table become what the model reads."""
    if held.preparation is None:
        raise InputError(
            f"{held.path} does not keep how a table becomes its inputs, as runs on table:FILE do: give {path} as an"
            " array of prepared numbers (.npy), or delete the folder and run the experiment again"
        )
    return held.preparation


def _site_of(held: Run | ExportedFile, client: int | None) -> str:
    """The site whose own model is used."""
    if client is None or isinstance(held, ExportedFile) or held.preparation is None:
        return ""
    by_site = held.experiment.partition.name == "sites" and client < len(held.preparation.sites)
    return held.preparation.sites[client] if by_site else ""


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
