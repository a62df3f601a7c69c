"""Callbacks: who is called when, what is refused, and that nothing they raise costs a run anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.records import RoundRecord
from fedstill.runtime.callbacks import HOOKS, QUERY_HOOKS, RUN_HOOKS, STUDY_HOOKS, RunCallbacks

SMALL: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 3, "epochs": 1}


class Everything:
    """Writes down each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_start(self, experiment: Any, journal: Any) -> None:
        self.calls.append(("start", (experiment.rounds, len(journal))))

    def on_round(self, record: RoundRecord) -> None:
        self.calls.append(("round", record.round))

    def on_note(self, text: str) -> None:
        self.calls.append(("note", text))

    def on_finish(self, run: fedstill.Run) -> None:
        self.calls.append(("finish", run.finished))

    def on_error(self, error: BaseException) -> None:
        self.calls.append(("error", error))


class Fails:
    """Raises in some round."""

    def __init__(self, round: int, error: BaseException) -> None:
        self.round, self.error = round, error

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.round:
            raise self.error


def content(run: fedstill.Run) -> dict[str, Any]:
    """All of a run that does not depend on time."""
    files = [path for path in sorted(run.path.glob("*")) if path.is_file()]
    return {path.name: path.read_bytes() for path in files if path.name not in ("timing.json", ".lock")}


def test_hooks_of_a_run_and_of_one_that_is_reused(tmp_path: Path) -> None:
    seen = Everything()
    fedstill.run("fedavg", out=tmp_path, callbacks=[seen], **SMALL)
    assert seen.calls == [("start", (3, 0)), ("round", 1), ("round", 2), ("round", 3), ("finish", True)]
    again = Everything()
    assert fedstill.run("fedavg", out=tmp_path, callbacks=again, **SMALL).reused
    assert [name for name, _ in again.calls] == ["note", "finish"]


@pytest.mark.parametrize("error", [ValueError("no"), ConnectionError("a tracker is away"), KeyboardInterrupt()])
def test_what_a_callback_raises_reaches_the_caller_and_the_run_resumes_to_the_same_bits(
    error: BaseException, tmp_path: Path
) -> None:
    seen = Everything()
    with pytest.raises(type(error)) as raised:
        fedstill.run("fedavg", out=tmp_path / "a", callbacks=[seen, Fails(2, error)], **SMALL)
    assert raised.value is error
    assert error.__context__ is None
    assert seen.calls[1:] == [("round", 1), ("round", 2), ("error", error)]
    (folder,) = (tmp_path / "a").iterdir()
    assert [record.round for record in fedstill.load_run(folder).journal] == [1, 2]
    resumed = Everything()
    run = fedstill.run("fedavg", out=tmp_path / "a", callbacks=resumed, **SMALL)
    assert resumed.calls == [("start", (3, 2)), ("round", 3), ("finish", True)]
    undisturbed = fedstill.run("fedavg", out=tmp_path / "b", **SMALL)
    assert content(run) == content(undisturbed)


def test_a_callback_may_stop_a_run_which_is_resumed_by_the_next_call(tmp_path: Path) -> None:
    rounds: list[int] = []
    after = Everything()
    stop = Fails(2, fedstill.StopRun())
    stopped = fedstill.run("fedavg", out=tmp_path / "a", callbacks=(stop, after), **SMALL)
    assert not stopped.finished
    assert len(stopped.journal) == 2
    assert after.calls[-1] == ("round", 2), "called too, and neither on_finish nor on_error"
    whole = fedstill.run("fedavg", out=tmp_path / "a", callbacks=lambda record: rounds.append(record.round), **SMALL)
    assert rounds == [3]
    assert content(whole) == content(fedstill.run("fedavg", out=tmp_path / "b", **SMALL))


def test_a_damaged_file_is_a_warning(tmp_path: Path) -> None:
    stopped = fedstill.run("fedavg", out=tmp_path, callbacks=Fails(2, fedstill.StopRun()), **SMALL)
    (stopped.path / "checkpoint.safetensors").write_bytes(b"damaged")
    warned: list[str] = []
    seen = Everything()
    seen.on_warning = warned.append  # type: ignore[attr-defined]
    fedstill.run("fedavg", out=tmp_path, callbacks=seen, **SMALL)
    assert warned
    assert "going on after round 1" in warned[0]
    assert seen.calls == [("start", (3, 1)), ("round", 2), ("round", 3), ("finish", True)]


def test_an_error_before_the_run_is_reported_too(tmp_path: Path) -> None:
    seen = Everything()
    with pytest.raises(fedstill.InputError) as raised:
        fedstill.run("fedavgg", out=tmp_path, callbacks=seen)
    assert seen.calls == [("error", raised.value)]


class Misspelt:
    def on_rounds(self, record: RoundRecord) -> None: ...


class NoMethod:
    on_round = 3


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Misspelt(), "the callback Misspelt has an unknown hook 'on_rounds': did you mean 'on_round'?"),
        (Misspelt, "the callback Misspelt is a class: give an object of it, Misspelt()"),
        (NoMethod(), "on_round of the callback NoMethod is not a method"),
        (object(), "the callback object has none of the hooks that are called here: on_start, on_round"),
        ("on_round", "the callback str has none of the hooks"),
        ([print, 3], "the callback int has none of the hooks"),
    ],
)
def test_what_could_never_be_called_is_refused_before_any_work(given: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(fedstill.InputError) as refused:
        fedstill.run("fedavg", out=tmp_path, callbacks=given, **SMALL)
    assert str(refused.value).startswith(why)
    assert not list(tmp_path.iterdir())


def test_the_base_class_has_every_hook_and_takes_every_call(tmp_path: Path) -> None:
    assert set(HOOKS) == {*RUN_HOOKS, *STUDY_HOOKS, *QUERY_HOOKS}
    callbacks = RunCallbacks(fedstill.Callback())
    for hook, given in (("on_start", 2), ("on_round", 1), ("on_warning", 1), ("on_error", 1)):
        callbacks.call(hook, *[None] * given)
    study_only = type("StudyOnly", (), {"on_run": lambda self, labels, run: None})()
    with pytest.raises(fedstill.InputError, match="none of the hooks that are called here"):
        RunCallbacks(study_only)


def test_observers_still_work_with_a_warning_where_they_are_used(tmp_path: Path) -> None:
    class Former:
        def __init__(self) -> None:
            self.told: list[str] = []

        def __getattr__(self, name: str) -> Any:
            return lambda *given: self.told.append(name)

    former = Former()
    with pytest.warns(DeprecationWarning, match="observers= is deprecated: use callbacks=") as warned:
        teacher = fedstill.run("centralised", out=tmp_path, observers=[former], **{**SMALL, "clients": 1, "rounds": 1})
    assert former.told == ["start", "round", "finish"]
    with pytest.warns(DeprecationWarning, match="observers=") as through:
        fedstill.distill(teacher, "cnn", out=tmp_path, rounds=1, observers=[former])
    assert {one.filename for one in (*warned, *through) if "observers" in str(one.message)} == {__file__}


def test_callbacks_of_a_study(tmp_path: Path) -> None:
    runs: list[tuple[str, ...]] = []
    seen: list[Any] = []

    class Study:
        def on_progress(self, progress: Any) -> None:
            seen.append((progress.done, progress.total))

        def on_failure(self, labels: tuple[str, ...], error: str) -> None:
            seen.append((labels, error))

        def on_finish(self, results: fedstill.Results) -> None:
            seen.append(sorted(results.runs))

    grid = {"method": ["fedavg", "fedprox"]}
    recipe = {"experiment": {**SMALL, "rounds": 1}, "grid": grid}
    recipe["experiment"]["training"] = {"epochs": recipe["experiment"].pop("epochs")}

    def one(labels: tuple[str, ...], run: fedstill.Run) -> None:
        runs.append(labels)
        assert run.finished
        if len(runs) == 1:
            raise fedstill.StopRun

    stopped = fedstill.study(recipe, out=tmp_path, workers=1, callbacks=[one, Study()])
    assert len(stopped.runs) == len(runs) == 1
    assert seen == [(0, 2)]
    seen.clear()
    fedstill.study(recipe, out=tmp_path, workers=1, callbacks=[one, Study()])
    assert sorted(runs) == [("fedavg",), ("fedprox",)]
    assert seen == [(1, 2), (2, 2), [("fedavg",), ("fedprox",)]]
    with pytest.raises(fedstill.InputError, match="none of the hooks that are called here: on_progress"):
        fedstill.study(recipe, out=tmp_path, callbacks=Fails(1, ValueError()))


def test_what_a_callback_of_a_study_raises_does_not_count_as_a_failed_run(tmp_path: Path) -> None:
    recipe = {"experiment": {"model": "mlp", "clients": 2, "rounds": 1}, "grid": {"method": ["fedavg"]}}

    def fails(labels: tuple[str, ...], run: fedstill.Run) -> None:
        raise OSError("elsewhere")

    with pytest.raises(OSError, match="elsewhere"):
        fedstill.study(recipe, out=tmp_path, workers=1, callbacks=fails)
    results = fedstill.study(recipe, out=tmp_path, workers=1)
    assert not results.failures
    assert len(results.runs) == 1
    assert json.loads(results.encode())["failures"] == []
