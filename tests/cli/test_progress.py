"""Live progress in a terminal, and lines where there is none."""

from __future__ import annotations

import pytest

from fedstill.cli import progress, screen
from fedstill.cli.progress import RunDisplay, bar_of, fitting
from fedstill.runtime.assemble import make_experiment

from ..records_by_hand import round_record


def test_without_a_terminal_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 40.0, 50.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    display = RunDisplay(quiet=False)
    display.start(make_experiment({"method": "fedavg", "model": "mlp", "rounds": 4}), [])
    for _ in range(3):
        display.round(round_record())
    assert capsys.readouterr().err.replace("\u00a0", " ") == "round 2/4, accuracy 50.00 %, about 40.0 s left\n"


def test_with_80_columns_the_time_left_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen.errors, "_width", 80)
    bar = bar_of("round")
    name = fitting("single-image on folder:a/rather/long/way/to/pictures")
    display = RunDisplay(quiet=True)
    display.accuracy = 0.9638
    bar.add_task(name, total=1000, completed=999, text=display._text())
    with bar.console.capture() as drawn:
        bar.console.print(bar.make_tasks_table(bar.tasks))
    assert drawn.get().rstrip().endswith("left -:--:--")
    assert "round 999/1000 accuracy 96.38\u00a0%" in drawn.get()
