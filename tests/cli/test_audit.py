"""`fedstill audit` as a user meets it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fedstill.audit import Evidence, Score, Student, Teacher
from fedstill.cli import screen
from fedstill.runtime.recipes import recipe_folder

DATA = recipe_folder() / "data"
HEAD = "teacher,objective,seed,teacher_accuracy,accuracy,free_accuracy\n"
MASKED = HEAD + "".join(f"a,vanilla,{seed},30,{90 + seed},{30 + seed}\n" for seed in range(3))
FAITHFUL = HEAD + "".join(f"a,vanilla,{seed},80,{80 + seed},{80 + seed}\n" for seed in range(3))
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Beside two tables, in a terminal of 80 columns."""
    monkeypatch.setattr(screen.console, "_width", 80)
    Path("masked.csv").write_text(MASKED)
    Path("faithful.csv").write_text(FAITHFUL)

    def run(*words: str) -> tuple[int, str, str]:
        code, out, err = call(*words)
        return code, out.replace("\u00a0", " "), err

    return run


def test_a_table_in_words_and_figures(call: Call) -> None:
    code, out, err = call("audit", "masked.csv", "--classes", "4")
    assert (code, err) == (0, "")
    assert "Labels hide the teacher" in out
    assert "vanilla" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "a vanilla 91.0 31.0 +60.0 60.0 to 60.0+ masked" in lines
    assert "serious: Labels hide what the teacher is worth (masked)" in lines


def test_the_same_as_one_json_object(call: Call) -> None:
    code, out, err = call("audit", "masked.csv", "--json")
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert content["pairs"][0]["word"] == "masked"
    assert content["pairs"][0]["masking"] == pytest.approx(0.6)
    assert content["chance"] is None
    assert content["summary"][0].startswith("Labels hide the teacher")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["masked.csv", "--fail-on", "masked"], "masked"),
        (["masked.csv", "--fail-on", "serious"], "serious"),
        (["masked.csv", "--fail-on", "stale-teacher"], ""),
        (["masked.csv", "--fail-on", "stale-teacher", "--fail-on", "masked", "--json"], "masked"),
        (["masked.csv", "--fail-on", "serious", "--fail-on", "masked"], "serious, masked"),
        (["masked.csv", "--fail-on", "masked", "--delta", "70"], ""),
        (["faithful.csv", "--fail-on", "masked", "--fail-on", "serious"], ""),
        (["faithful.csv", "--fail-on", "note"], "note"),  # the class counts are not known
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_exit_code_for_somebodys_own_checks(call: Call, words: list[str], found: str) -> None:
    code, out, err = call("audit", *words)
    assert (code, err) == ((3, f"found: {found}\n") if found else (0, ""))
    assert out


@pytest.mark.parametrize(
    ("table", "counts"),
    [("clinical-combined", "20,20,20,20"), ("modelnet40-combined", str(DATA / "modelnet40-classes.csv"))],
    ids=["clinical", "modelnet40"],
)
@pytest.mark.parametrize("more", [(), ("--all",)], ids=["short", "all"])
def test_published_tables_fit_a_terminal(call: Call, table: str, counts: str, more: tuple[str, ...]) -> None:
    code, out, _ = call("audit", str(DATA / f"{table}.csv"), "--class-counts", counts, *more)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "fedyogi" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("fedyogi ") and line.split()[1] == "vanilla"]
    assert len(rows) == (1 if more else 0)


def fake_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads studies and runs, replaced by one that knows a single run."""
    module = ModuleType("fedstill.audit.audit_inputs")

    def evidence_of(source: Path, *_: object, **__: object) -> Evidence:
        students = (
            Student("t", "vanilla", "0", False, Score(0.9, (True,) * 90 + (False,) * 10)),
            Student("t", "vanilla", "0", True, Score(0.3, (True,) * 30 + (False,) * 70)),
        )
        teacher = Teacher("t", "0", Score(0.4), ceilings={"vanilla": 0.85})
        return Evidence(source.name, "", (teacher,), students, class_counts=(50, 50))

    module.evidence_of = evidence_of  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fedstill.audit.audit_inputs", module)


def test_a_study_or_a_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_reading(monkeypatch)
    code, out, _ = call("audit", "results.json", "--fail-on", "masked")
    assert code == 3
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "results.json"
    assert "t vanilla 85.00 90.00" in lines  # the ceiling beside what was reached
    assert "* over test samples, not seeds" in lines


def test_a_table_is_known_by_its_name(call: Call) -> None:
    Path("masked.csv").rename("MASKED.CSV")
    assert call("audit", "MASKED.CSV", "--fail-on", "masked")[0] == 3


def test_a_page_that_is_a_folder_is_refused_before_any_work(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_work(*_: object) -> None:
        raise AssertionError("the table was read")

    monkeypatch.setattr(import_module("fedstill.audit.judge_source"), "read_table", at_work)
    Path("pages").mkdir()
    code, out, err = call("audit", "masked.csv", "--html", "pages")
    assert (code, out) == (2, "")
    assert "pages is a folder: name the page in it, for instance pages/report.html" in err
    assert len(err.strip().splitlines()) == 1
    assert "cannot write to the folder masked.csv" in call("audit", "masked.csv", "--html", "masked.csv/page.html")[2]


MISTAKES = [
    (["audit"], "SOURCE"),
    (["audit", "--csv", "masked.csv"], "has no option '--csv'"),
    (["audit", "runs", "--classes", "4"], "are for tables"),
    (["audit", "nowhere.csv"], "cannot read the table nowhere.csv"),
    (["audit", "masked.csv", "--unit", "per-cent"], "did you mean 'percent'"),
    (["audit", "masked.csv", "--fail-on", "maskd"], "did you mean 'masked'"),
    (["audit", "masked.csv", "--delta", "0"], "between 0 and 100 points"),
    (["audit", "masked.csv", "--class-counts", "3,x"], "not a whole number"),
    (["audit", "masked.csv", "--unit", "share"], "cannot be above 1"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_gets_one_sentence(call: Call, words: list[str], says: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1


GAIN = "teacher,objective,seed,teacher_accuracy,accuracy,labels_only_accuracy\n" + "".join(
    f"a,kd,{seed},{75.5 + seed / 10},{72.9 + seed / 10},69\n" for seed in range(3)
)


def test_the_gain_over_labels_only_students(call: Call) -> None:
    """72.9, 73.0 and 73.1 against 69: 4 -+ 4.303 * 0.1 / sqrt(3)."""
    Path("gain.csv").write_text(GAIN)
    code, out, err = call("audit", "gain.csv", "--classes", "100")
    assert (code, err) == (0, "")
    assert " ".join(out.split()).startswith("gain Distillation helped: in the only pair")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "a kd 73.0 69.0 +4.0 3.8 to 4.2+" in lines
    content = json.loads(call("audit", "gain.csv", "--json")[1])
    assert content["pairs"][0]["gain"] == pytest.approx(0.04)
    assert content["pairs"][0]["gain_interval"]["low"] == pytest.approx(0.04 - 4.3027 * 0.001 / 3**0.5, abs=1e-6)


def test_an_impossible_accuracy_by_every_path(call: Call) -> None:
    """91.9 % of 80 samples are 73.52; the table as CSV and as JSON, and the exit code by the finding's name."""
    rows = [{"teacher": "a", "seed": seed, "teacher_accuracy": value} for seed, value in enumerate((90, 91.25, 91.9))]
    Path("t.json").write_text(json.dumps(rows))
    Path("t.csv").write_text(
        "\n".join(["teacher,seed,teacher_accuracy", *(",".join(map(str, r.values())) for r in rows)])
    )
    for name in ("t.csv", "t.json"):
        code, out, err = call(
            "audit", name, "--class-counts", "20,20,20,20", "--fail-on", "impossible-accuracy", "--json"
        )
        assert (code, err.strip()) == (3, "found: impossible-accuracy")
        (found,) = [one for one in json.loads(out)["findings"] if one["topic"] == "impossible-accuracy"]
        assert found["severity"] == "serious"
        assert "teacher a, seed 2: 91.9 %, next 91.25 % (73 right) and 92.50 %" in found["evidence"]


def test_mixed_units_are_refused_with_their_rows(call: Call) -> None:
    Path("mixed.csv").write_text(GAIN.replace("75.5", "0.755"))
    code, out, err = call("audit", "mixed.csv")
    assert (code, out) == (2, "")
    assert "shares among percentages: line 2 with 0.755" in " ".join(err.split())
