"""The command line, typed in an empty folder."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedstill.cli import main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run `fedstill` with these words in an empty folder; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedstill", *words])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def succeed(call: Call) -> Callable[..., str]:
    """The same where nothing may go wrong; gives the output."""

    def run(*words: str) -> str:
        code, out, err = call(*words)
        assert code == 0, err
        return out

    return run


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, as at a terminal: shells ignore it for what they run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
