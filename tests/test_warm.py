"""Copies of a warm process stand for processes: exit codes, signals, standard files, and an end with whoever asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .warm import Warm


def started(warm: Warm, code: str) -> subprocess.Popen[str]:
    words = [*warm.command(), "-c", code, "a word"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_words_input_output_and_exit_code(warm: Warm) -> None:
    process = started(warm, "import sys, torch; print(sys.argv[1], input()); sys.exit(7)")
    assert process.communicate("a line\n", timeout=60) == ("a word a line\n", None)
    assert process.returncode == 7


def test_signals_are_passed_on(warm: Warm) -> None:
    process = started(warm, "import time; print('ready', flush=True); time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_a_copy_dies_with_whoever_asked_for_it(warm: Warm) -> None:
    process = started(warm, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    assert process.stdout is not None
    copy = int(process.stdout.readline())
    assert copy != process.pid
    process.kill()
    process.communicate(timeout=60)  # the copy has the other end of its output until it ends
    deadline = time.monotonic() + 30
    while exists(copy):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_copy_leaves_nothing_to_the_next(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import os, sys; print(sys.argv[1:], os.environ.get('ONE'), 'left' in dir(os))\n")
    code = "import os; os.left = 1; os.environ['ONE'] = '2'"
    assert warm.python(code, tmp_path).returncode == 0
    environment = {**os.environ, "ONE": "1"}
    assert warm.file(tmp_path / "told.py", ["x"], tmp_path, environment=environment).stdout == "['x'] 1 False\n"
    assert sys.executable in warm.command()
