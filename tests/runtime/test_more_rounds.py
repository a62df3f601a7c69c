"""More rounds: a finished run of two goes on to what four give from the start, or starts anew and says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.records import RoundRecord
from fedstill.methods import methods

SMALL: dict[str, Any] = {"data": "digits[:30%]", "model": "cnn-bn", "clients": 2}
SCHEDULE = {"epochs": 1, "batch": 64}
FILES = ("journal.jsonl", "result.json", "predictions.json", "model-last.safetensors", "model-best.safetensors")


class Watcher:
    """Counts rounds and keeps notes."""

    def __init__(self) -> None:
        self.rounds = 0
        self.notes: list[str] = []

    def on_round(self, record: RoundRecord) -> None:
        self.rounds += 1

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_warning(self, text: str) -> None:
        if not text.startswith("BatchNorm statistics do not fit"):  # as they may after a round or two
            self.notes.append(text)


def extended(folder: Path, method: str | dict[str, Any], few: int = 1, many: int = 2, **more: Any) -> Watcher:
    """Few rounds, then many; and many from the start, to compare."""
    given = {**SMALL, "training": {**SCHEDULE, **more.pop("training", {})}, **more}
    fedstill.run(method, rounds=few, out=folder / "runs", **given)
    watcher = Watcher()
    ours = fedstill.run(method, rounds=many, out=folder / "runs", callbacks=watcher, **given)
    truth = fedstill.run(method, rounds=many, out=folder / "truth", **given)
    assert ours.path.name == truth.path.name
    for name in FILES:
        kept = [run.path / name for run in (ours, truth)]
        assert [path.exists() for path in kept] in ([True, True], [False, False])
        if kept[0].exists():
            assert kept[0].read_bytes() == kept[1].read_bytes(), name
    assert fedstill.verify(ours)[0].ok
    return watcher


FEW_PATCHES = {
    "method": {
        "name": "single-image",
        "image": "noise:64x64",
        "patches": {"count": 60},
        "selection": {"kmeans": 5},
        "samples": 40,
        "steps": 2,
    }
}
LESSONS = {"transfer_epochs": 1, "head_epochs": 1, "patience": 1, "frozen": 0.1}
SHORT: dict[str, Any] = {
    "single-image": FEW_PATCHES,
    **{name: {"method": {"name": name, **LESSONS}} for name in ("naive-kd", "qkt", "qkt-light")},
}
ALIKE = [name for name in methods if name not in ("distill", "fed3d", "feddf", "fedmd", "fine-tuned")]


@pytest.mark.parametrize("method", ALIKE)
def test_every_method_goes_on_where_a_shorter_run_ended(tmp_path: Path, method: str) -> None:
    own: dict[str, Any] = {"fedgkt": {"model": "split-cnn-lite"}}
    watcher = extended(tmp_path, SHORT.get(method, method), **own.get(method, {}))
    assert watcher.rounds == 1
    assert any("going on after the 1 rounds of" in note for note in watcher.notes)


def test_leaders_and_client_state_come_along(tmp_path: Path) -> None:
    watcher = extended(tmp_path, "scaffold", 2, 4, validation=0.2, evaluate_every=2)
    assert watcher.rounds == 2


GROWING = {"method": {"name": "feddf", "proxy": "digits", "samples": 32, "steps": 4, "schedule": "growing"}}


@pytest.mark.parametrize(
    ("method", "more", "why", "rounds"),
    [
        ("fine-tuned", {}, "rounds of fine-tuned depend on their number", 4),
        ("fedavg", {"training": {"schedule": "cosine"}}, "the schedule of its learning rate depends", 3),
        ("fedavg", {"evaluate_every": 3}, "which in this run is no round of evaluation (every 3)", 3),
        (GROWING, {"model": "mlp"}, "rounds of feddf depend on their number", 3),
    ],
)
def test_what_depends_on_the_number_of_rounds_starts_anew(
    tmp_path: Path, method: Any, more: dict[str, Any], why: str, rounds: int
) -> None:
    watcher = extended(tmp_path, method, 2, 3, **more)
    assert watcher.rounds == rounds
    assert why in watcher.notes[-1]


def test_a_step_schedule_does_not_depend_on_the_number_of_rounds(tmp_path: Path) -> None:
    assert extended(tmp_path, "fedavg", training={"schedule": "step", "step_every": 1}).rounds == 1


def test_a_damaged_shorter_run_is_left_alone(tmp_path: Path) -> None:
    given = {**SMALL, "training": SCHEDULE}
    short = fedstill.run("fedavg", rounds=1, out=tmp_path, **given)
    for path in short.path.glob("checkpoint*"):
        path.write_bytes(b"damaged")
    watcher = Watcher()
    fedstill.run("fedavg", rounds=2, out=tmp_path, callbacks=watcher, **given)
    assert watcher.rounds == 2


def test_a_local_update_that_is_told_the_number_of_rounds_starts_at_the_beginning(tmp_path: Path) -> None:
    def annealed(model: Any, loader: Any, context: Any) -> None:
        for parameter in model.parameters():
            parameter.data.mul_(1 - 0.1 * len(list(loader)) / context.rounds)

    given: dict[str, Any] = {"data": "digits[:30%]", "model": "mlp", "clients": 2, "local_update": annealed}
    for rounds in (1, 2):
        found = fedstill.run("fedavg", **given, rounds=rounds, out=tmp_path / "together")
    assert found.sha256 == fedstill.run("fedavg", **given, rounds=2, out=tmp_path / "alone").sha256
