"""A study's numbers in a small file: what was varied, and a line of figures for every run.

The file can be committed and extended run by run, and its tables can be drawn again without the runs themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.files import write_atomically
from fedstill.studies.figures import Figures, unpacked
from fedstill.studies.grid import Taught

FORMAT = 1
_CORRECT = "correct."
Labels = tuple[str, ...]  # of a cell, in the order of the axes


@dataclass(frozen=True)
class Row:
    """The figures of one cell, and the identity of the run that they come from."""

    identity: str
    figures: Figures
    correct: dict[str, str] = field(default_factory=dict)  # by model, which test samples it got right, packed


@dataclass(frozen=True)
class Pupil:
    """What a student was taught, and on what: the rest is in its labels."""

    taught: Taught
    data: str
    model: str


@dataclass(frozen=True)
class Results:
    """Everything that tables are made from. Equal `source` means that rows may stand in one table."""

    study: str
    about: str
    source: dict[str, Any]  # the experiment that was varied, the user's settings, the behaviour version
    axes: dict[str, dict[str, Any]]  # by axis and label, what the label stands for
    columns: str | None
    rows: tuple[str, ...]
    runs: dict[Labels, Row] = field(default_factory=dict)
    failures: dict[Labels, str] = field(default_factory=dict)
    refused: dict[Labels, str] = field(default_factory=dict)  # cells that can have no result, and why
    test_counts: dict[str, list[int]] = field(default_factory=dict)  # by data set, test samples of each class
    command: str = ""  # that makes them
    pupils: dict[Labels, Pupil] = field(default_factory=dict)  # of the second stage
    students: Results | None = None  # the second stage, whose first axes are these

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.encode().encode())

    def encode(self) -> str:
        """JSON with one line a run, so that differences between two versions of a file can be read."""
        names = [*dict.fromkeys(name for row in self.runs.values() for name in row.figures)]
        used = [name for name in names if any(row.figures.get(name) is not None for row in self.runs.values())]
        models = [*dict.fromkeys(which for row in self.runs.values() for which in row.correct)]
        head = {
            "format": FORMAT,
            "study": self.study,
            "about": self.about,
            "command": self.command,
            "source": self.source,
            "axes": self.axes,
            "columns": self.columns,
            "rows": list(self.rows),
            "test_counts": self.test_counts,
            "figures": [*self.axes, "identity", *used, *(f"correct.{which}" for which in models)],
        }
        parts = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in head.items()]
        lines = [
            [
                *cell,
                row.identity,
                *(row.figures.get(name) for name in used),
                *(row.correct.get(which) for which in models),
            ]
            for cell, row in self.runs.items()
        ]
        parts.append(_lines("runs", lines))
        parts.append(_lines("failures", [[*cell, error] for cell, error in self.failures.items()]))
        parts.append(_lines("refused", [[*cell, error] for cell, error in self.refused.items()]))
        if self.pupils:
            told = [[*cell, *astuple(pupil.taught), pupil.data, pupil.model] for cell, pupil in self.pupils.items()]
            parts.append(_lines("pupils", told))
        if self.students is not None:
            parts.append(f'"students": {self.students.encode().rstrip()}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def extended(self, older: Results, *identities: Mapping[Labels, str | None]) -> Results:
        """These results together with those of a file, where ours win.

        `identities` are those of this study's cells, stage by stage: an old row of such a cell whose identity is
        another one (its data changed, or the code that computed it) is dropped.
        """
        self._check_same(older)
        axes = {axis: {**older.axes[axis], **values} for axis, values in self.axes.items()}
        kept = {
            cell: row
            for cell, row in older.runs.items()
            if (identities[0].get(cell) or row.identity) == row.identity  # None: not known yet
        }
        runs = kept | self.runs
        failures = {cell: error for cell, error in (older.failures | self.failures).items() if cell not in runs}
        refused = {cell: error for cell, error in (older.refused | self.refused).items() if cell not in runs}
        order = {axis: {label: number for number, label in enumerate(values)} for axis, values in axes.items()}

        def place(cell: Labels) -> list[int]:
            return [order[axis].get(label, -1) for axis, label in zip(axes, cell, strict=True)]

        return replace(
            self,
            axes=axes,
            runs={cell: runs[cell] for cell in sorted(runs, key=place)},
            failures={cell: failures[cell] for cell in sorted(failures, key=place)},
            refused={cell: refused[cell] for cell in sorted(refused, key=place)},
            test_counts=older.test_counts | self.test_counts,
            pupils=older.pupils | self.pupils,
            students=self.students.extended(older.students, *identities[1:])
            if self.students and older.students
            else self.students or older.students,
        )

    def _check_same(self, older: Results) -> None:
        if list(self.axes) != list(older.axes):
            raise InputError(
                f"the results there vary {', '.join(older.axes)}, and this study varies {', '.join(self.axes)}:"
                " name another file"
            )
        for axis, values in self.axes.items():
            for label, meaning in values.items():
                if label in older.axes[axis] and older.axes[axis][label] != meaning:
                    raise InputError(
                        f"in the results there, {axis} {label!r} stands for something else: name another file"
                    )
        for what, value in self.source.items():
            if older.source.get(what) != value:
                raise InputError(
                    f"the results there are of another experiment ({what}: {older.source.get(what)!r}, and"
                    f" {value!r} here): name another file"
                )


def load_results(path: Path) -> Results:
    """Read a results file; one that is not such a file gets a sentence."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise InputError(f"{path} has format {content['format']}, and this version of fedstill reads {FORMAT}")
        return _decoded(content)
    except FileNotFoundError:
        raise InputError(f"there is no results file {path}") from None
    except KeyError as error:
        raise InputError(f"{path} is not the results file of a study: it has no {error}") from None
    except (OSError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{path} cannot be read as a study's results: {error}") from None


def _decoded(content: Mapping[str, Any]) -> Results:
    width = len(content["axes"])
    names = content["figures"][width + 1 :]

    def row(line: Sequence[Any]) -> Row:
        values = dict(zip(names, line[width + 1 :], strict=True))
        correct = {name.removeprefix(_CORRECT): value for name, value in values.items() if name.startswith(_CORRECT)}
        figures = {name: value for name, value in values.items() if not name.startswith(_CORRECT)}
        if not all(value is None or isinstance(value, int | float) for value in figures.values()):
            raise ValueError(f"a figure of {line[:width]} is no number")
        for bits in filter(None, correct.values()):
            unpacked(bits)
        return Row(line[width], figures, {which: bits for which, bits in correct.items() if bits is not None})

    def sentences(key: str) -> dict[Labels, str]:
        return {tuple(line[:width]): str(line[width]) for line in content.get(key, [])}

    return Results(
        content["study"],
        content["about"],
        content["source"],
        content["axes"],
        content["columns"],
        tuple(content["rows"]),
        {tuple(line[:width]): row(line) for line in content["runs"]},
        sentences("failures"),
        sentences("refused"),
        content.get("test_counts", {}),
        content.get("command", ""),
        {
            tuple(line[:width]): Pupil(Taught(*line[width : width + 3]), *line[width + 3 :])
            for line in content.get("pupils", [])
        },
        _decoded(content["students"]) if "students" in content else None,
    )


def _lines(key: str, lines: Sequence[Iterable[Any]]) -> str:
    inner = ",\n".join(json.dumps(list(line), ensure_ascii=False) for line in lines)
    return f'"{key}": [\n{inner}\n]' if lines else f'"{key}": []'
