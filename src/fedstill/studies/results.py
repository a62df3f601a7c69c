"""A study's numbers in a small file: what was varied, and a line of figures for every run.

The file can be committed and extended run by run, and its tables can be drawn again without the runs themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from types import GenericAlias
from typing import Any, Self

from pydantic import (
    ConfigDict,
    StrictFloat,
    StrictInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fedstill.core.earlier_records import current_figure
from fedstill.core.errors import InputError
from fedstill.core.files import parse_json, read_text_file, write_atomically
from fedstill.core.notebook import html_table, panel, paragraph
from fedstill.core.numbers import count, listed
from fedstill.core.records import RESULTS_FORMAT, MadeWith, StudyRecord, problem
from fedstill.runtime.assemble import current_names
from fedstill.runtime.experiment import spelt_out
from fedstill.runtime.identity import KERNEL, differences, identity_from
from fedstill.runtime.run_folder import MODELS
from fedstill.studies.grid import Taught
from fedstill.studies.run_figures import Figures, unpacked

READABLE = (1, 2, RESULTS_FORMAT)  # formats; earlier ones are translated when they are read
EARLIER_TORCH = "2.13.0+cpu"  # that earlier versions were tied to, and did not write down
_LISTS = ("runs", "failures", "refused", "joint_errors", "pupils")
_CORRECT, _MADE, _DIGESTS = "correct.", "made", "digests"
_DIGITS = 4  # of the digest of each value in a line
_ROUNDED = 1e-6  # figures have six digits
# What lines hold behind their labels.
_NUMBER, _TEXT = StrictInt | StrictFloat | None, str | None
_FINITE = ConfigDict(allow_inf_nan=False)
Labels = tuple[str, ...]  # of a cell, in the order of the axes


@dataclass(frozen=True)
class ResultRow:
    """The figures of one cell, and the identity of the run that they come from."""

    identity: str
    figures: Figures
    correct: dict[str, str] = field(default_factory=dict)  # by model, which test samples it got right, packed
    made: MadeWith = field(default_factory=lambda: MadeWith(parts={}))


@dataclass(frozen=True)
class Pupil:
    """What a student was taught, and on what: the rest is in its labels."""

    taught: Taught
    data: str
    model: str


@dataclass(frozen=True)
class Results:
    """Everything that tables are made from. Rows with equal `source` may share a table."""

    study: str
    about: str
    source: dict[str, Any]  # the experiment that was varied, and the user's settings
    axes: dict[str, dict[str, Any]]  # by axis and label, what the label stands for
    columns: str | None
    rows: tuple[str, ...]
    runs: dict[Labels, ResultRow] = field(default_factory=dict)
    failures: dict[Labels, str] = field(default_factory=dict)
    refused: dict[Labels, str] = field(default_factory=dict)  # cells that can have no result, and why
    joint_errors: dict[Labels, str] = field(default_factory=dict)  # of students that were trained separately
    test_counts: dict[str, list[int]] = field(default_factory=dict)  # by data set, test samples of each class
    command: str = ""  # that makes them
    pupils: dict[Labels, Pupil] = field(default_factory=dict)  # of the second stage
    students: Results | None = None  # the second stage, whose first axes are these

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        students = f", students: {self.students!r}" if self.students else ""
        return f"Results({self.study!r}, {count(len(self.runs), 'run')}{failed}, by {listed([*self.axes])}{students})"

    def _repr_html_(self) -> str:
        from fedstill.studies.results_table import make_table  # which is made from results

        table = make_table(self)
        shown = panel(self.study, {}, paragraph(self.about), paragraph(table.caption), html_table(table))
        return shown + (self.students._repr_html_() if self.students is not None else "")

    def stale(self) -> dict[Labels, str]:
        """Rows whose parts have another behaviour today, and why."""
        why = {id(row.made): "; ".join(differences(row.made.parts)) for row in self.runs.values()}
        return {cell: why[id(row.made)] for cell, row in self.runs.items() if why[id(row.made)]}

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.encode().encode())

    def encode(self) -> str:
        """JSON with one line a run, so that differences between two versions of a file can be read."""
        names = [*dict.fromkeys(name for row in self.runs.values() for name in row.figures)]
        used = [name for name in names if any(row.figures.get(name) is not None for row in self.runs.values())]
        models = [*dict.fromkeys(which for row in self.runs.values() for which in row.correct)]
        made: list[MadeWith] = []
        for row in self.runs.values():
            if row.made not in made:
                made.append(row.made)
        head = {
            "format": RESULTS_FORMAT,
            "study": self.study,
            "about": self.about,
            "command": self.command,
            "source": self.source,
            "axes": self.axes,
            "columns": self.columns,
            "rows": list(self.rows),
            "test_counts": self.test_counts,
            "made": [one.to_dict() for one in made],
            "figures": [*self.axes, "identity", _MADE, *used, *(f"{_CORRECT}{which}" for which in models), _DIGESTS],
        }
        lines = [
            [
                *cell,
                row.identity,
                made.index(row.made),
                *(row.figures.get(name) for name in used),
                *(row.correct.get(which) for which in models),
            ]
            for cell, row in self.runs.items()
        ]
        lists: dict[str, list[list[Any]]] = {
            "runs": [[*line, "".join(map(_digest, line))] for line in lines],
            "failures": [[*cell, error] for cell, error in self.failures.items()],
            "refused": [[*cell, error] for cell, error in self.refused.items()],
        }
        if self.joint_errors:
            lists["joint_errors"] = [[*cell, error] for cell, error in self.joint_errors.items()]
        if self.pupils:
            lists["pupils"] = [
                [*cell, *astuple(pupil.taught), pupil.data, pupil.model] for cell, pupil in self.pupils.items()
            ]
        head["digests"] = {key: _digest(value, 2 * _DIGITS) for key, value in {**head, **lists}.items()}
        parts = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in head.items()]
        parts += [_lines(name, of) for name, of in lists.items()]
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
        left = {cell: error for cell, error in older.joint_errors.items() if cell in kept and cell not in self.runs}
        joint_errors = left | self.joint_errors
        order = {axis: {label: number for number, label in enumerate(values)} for axis, values in axes.items()}

        def place(cell: Labels) -> list[int]:
            return [order[axis].get(label, -1) for axis, label in zip(axes, cell, strict=True)]

        return replace(
            self,
            axes=axes,
            runs={cell: runs[cell] for cell in sorted(runs, key=place)},
            failures={cell: failures[cell] for cell in sorted(failures, key=place)},
            refused={cell: refused[cell] for cell in sorted(refused, key=place)},
            joint_errors={cell: joint_errors[cell] for cell in sorted(joint_errors, key=place)},
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
                if label in older.axes[axis] and not _same_meaning(older.axes[axis][label], meaning):
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
    """Read a results file; one that is not such a file, or no longer, gets a sentence."""
    try:
        content = parse_json(read_text_file(path))
        if isinstance(content, dict) and content.get("format", RESULTS_FORMAT) not in READABLE:
            formats = " and ".join(map(str, READABLE))
            raise InputError(f"{path} has format {content['format']}, and this version of fedstill reads {formats}")
        return _ResultsFile.model_validate(content).results()
    except FileNotFoundError:
        raise InputError(f"there is no results file {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        why = problem(error) if isinstance(error, ValidationError) else error
        raise InputError(f"{path} cannot be read as a study's results: {why}") from None


class _ResultsFile(StudyRecord):
    """A file as JSON has it, or its second stage."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.figures[: len(self.axes) + 1] != [*self.axes, "identity"]:
            raise ValueError("its figures do not begin with its axes and the identity of a run")
        if self.students is not None and [*self.students.axes][: len(self.axes)] != [*self.axes]:
            raise ValueError("its students are not told apart by what tells their teachers apart")
        if (which := self.source.get("which", MODELS[0])) not in MODELS:
            raise ValueError(f"of a teacher's models {', '.join(MODELS)} there is none called {which!r}")
        for name in self.digests:
            if name not in _LISTS:  # which are read first, since that says more of what is wrong
                self._check(name)
        return self

    def _check(self, name: str) -> None:
        if name in self.digests and _digest(self._written(name), 2 * _DIGITS) != self.digests[name]:
            raise ValueError(f"{name} is not what was written")

    def _written(self, name: str) -> Any:
        return self.model_dump(mode="json", include={name})[name]

    def results(self) -> Results:
        """The lines, each of which has the axes' labels first, by those labels."""
        names = [current_figure(name) for name in self.figures[len(self.axes) + 1 :]]
        kinds = [_TEXT if name.startswith(_CORRECT) or name == _DIGESTS else _NUMBER for name in names]
        made = self.made or [MadeWith(parts={KERNEL: self.source.get("behaviour", 0)}, torch=EARLIER_TORCH)]
        runs = {cell: self._row(names, made, cell, *line) for cell, line in self._lines("runs", str, *kinds)}
        results = Results(
            self.study,
            self.about,
            {key: value for key, value in self.source.items() if key != "behaviour"},
            self.axes,
            self.columns,
            self.rows,
            runs,
            {cell: why for cell, (why,) in self._lines("failures", str)},
            {cell: why for cell, (why,) in self._lines("refused", str)},
            {cell: why for cell, (why,) in self._lines("joint_errors", str)},
            self.test_counts,
            self.command,
            {
                cell: Pupil(Taught(*line[:3]), *line[3:])
                for cell, line in self._lines("pupils", str, str, _NUMBER, str, str)
            },
            None if self.students is None else self.students.results(),
        )
        for name in _LISTS:  # also where a line was added, taken out or repeated
            self._check(name)
        return results

    def _lines(self, what: str, *kinds: Any) -> Iterator[tuple[Labels, tuple[Any, ...]]]:
        """Every line of a list, parted into labels and the values that follow, which are of these kinds."""
        width = len(self.axes)
        line = GenericAlias(tuple, (*[str] * width, *kinds))
        shape: Any = GenericAlias(dict, (str, GenericAlias(list, line)))  # by name, so that a complaint has it
        checked = TypeAdapter(shape, config=_FINITE).validate_python({what: getattr(self, what)})
        return ((one[:width], one[width:]) for one in checked[what])

    def _row(
        self, names: Sequence[str], made: Sequence[MadeWith], cell: Labels, identity: str, *values: Any
    ) -> ResultRow:
        """The figures of one line, which is refused where a digest or a count contradicts it."""
        told = dict(zip(names, values, strict=True))
        digests, number = told.pop(_DIGESTS, None), told.pop(_MADE, None)
        correct = {
            name.removeprefix(_CORRECT): bits
            for name, bits in told.items()
            if name.startswith(_CORRECT) and bits is not None
        }
        figures = {name: value for name, value in told.items() if not name.startswith(_CORRECT)}
        answers = {which: unpacked(bits) for which, bits in correct.items()}  # refuses what is no such text
        if digests is not None:
            _check_line(self.figures[:-1], [*cell, identity, *values[:-1]], digests)
        _check_counts(cell, figures, answers)
        if number is None:  # of an earlier format: identities did not have torch in them
            return ResultRow(identity_from(identity, {}, made_by=EARLIER_TORCH), figures, correct, made[0])
        return ResultRow(identity, figures, correct, made[int(number)])


def _check_line(names: Sequence[str], line: Sequence[Any], digests: str) -> None:
    """Refuse a line of which a value is not what was written."""
    expected = [digests[start : start + _DIGITS] for start in range(0, len(digests), _DIGITS)]
    for name, value, digest in zip_longest(names, line, expected):
        if _digest(value) != digest:
            labels = ", ".join(str(label) for label in line[: list(names).index("identity")])
            raise ValueError(f"{name} of {labels} is not what was written (it says {value!r} now)")


def _check_counts(cell: Labels, figures: Figures, correct: Mapping[str, Sequence[bool]]) -> None:
    """Refuse an accuracy that is not the share of test samples that a model got right."""
    for which, answers in correct.items():
        named = "accuracy" if which == "last" else which
        accuracy = figures.get(named)
        if accuracy is None or not answers or figures.get("finite") != 1 or figures.get("personal") is not None:
            continue
        right = sum(answers) / len(answers)
        if abs(right - accuracy) > _ROUNDED:
            raise ValueError(f"{named} of {', '.join(cell)} says {accuracy}, and {right:.6f} of its answers are right")


def _digest(value: Any, digits: int = _DIGITS) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=digits // 2).hexdigest()


def _same_meaning(older: Any, newer: Any) -> bool:
    """Whether a label sets the same, also where the older file has a former name of a section or part."""
    if not (isinstance(older, Mapping) and isinstance(newer, Mapping)):
        return bool(older == newer)
    both = [{key: spelt_out(key, value) for key, value in current_names(meaning).items()} for meaning in (older, newer)]
    return both[0] == both[1]


def _lines(key: str, lines: Sequence[Iterable[Any]]) -> str:
    inner = ",\n".join(json.dumps(list(line), ensure_ascii=False) for line in lines)
    return f'"{key}": [\n{inner}\n]' if lines else f'"{key}": []'
