"""Invalid commands: each must print one sentence on stderr, exit with code 2 and change no file.

The benchmark calls `fedstill.cli.main` in this process for each command, and starts some of them as real processes.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.reliability.input_files import write_input_files
from benchmarks.reliability.process import FEDSTILL
from benchmarks.reliability.traces import look
from benchmarks.report import Findings, Row
from benchmarks.sizes import Size
from fedstill.cli import main

LIST = Path(__file__).with_name("invalid_commands.txt")
_LIMIT = 120  # seconds
_EVERY = 40  # one in so many commands is also started as a process
_LONGEST = 1_000  # characters of a message: those that list all known names are long


@dataclass(frozen=True)
class InvalidCommand:
    """A command, and a part of the expected message."""

    words: tuple[str, ...]
    expected: str

    @property
    def command(self) -> str:
        return shlex.join(("fedstill", *self.words))


@dataclass(frozen=True)
class Output:
    code: Any
    out: str
    err: str


def invalid_commands() -> list[InvalidCommand]:
    """All commands of the list; those about deployments only where Flower is installed."""
    lines = [line.strip() for line in LIST.read_text().splitlines()]
    pairs = [line.partition("=>") for line in lines if line and not line.startswith("#")]
    made = [InvalidCommand(tuple(shlex.split(command)), expected.strip()) for command, _, expected in pairs]
    return [one for one in made if one.words[:1] != ("deploy",) or find_spec("flwr")]


def faults(invalid: InvalidCommand, output: Output) -> list[str]:
    """Describe what is wrong with an output."""
    found = []
    if output.code != 2:
        found.append(f"exit code {output.code}")
    if output.out:
        found.append(f"prints {output.out[:60]!r} on stdout")
    if "Traceback" in output.err:
        found.append(f"a traceback: {output.err.strip().splitlines()[-1]}")
    elif len(output.err.splitlines()) != 1 or not output.err.startswith("fedstill: ") or len(output.err) > _LONGEST:
        found.append(f"not one sentence: {output.err[:200]!r}")
    if invalid.expected not in output.err:
        found.append(f"does not contain {invalid.expected!r}: {output.err.strip()[:200]}")
    return found


def call(words: Sequence[str]) -> Output:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["fedstill", *words]
    code: Any = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limited():
            main()
    except SystemExit as left:
        code = left.code
    except BaseException:
        print(traceback.format_exc(), file=err)
    finally:
        sys.argv = before
    return Output(code, out.getvalue(), err.getvalue())


def start(words: Sequence[str]) -> Output:
    """Run the command line in a new process."""
    done = subprocess.run([*FEDSTILL, *words], capture_output=True, text=True, timeout=_LIMIT, check=False)
    return Output(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Stop a command that does not fail within the time limit."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still running after {_LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(invalid: InvalidCommand, how: Any = call) -> list[str]:
    """Describe what is wrong with the output of a command, and which files it changed."""
    here = Path()
    before = look(here)
    found = faults(invalid, how(invalid.words))
    after = look(here)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [*found, *(f"{name} changed" for name in changed[:3])]


def measure(size: Size, folder: Path) -> Findings:
    before, data = Path.cwd(), os.environ.get("FEDSTILL_DATA")
    os.chdir(folder)
    os.environ["FEDSTILL_DATA"] = str(folder / "no-data")
    try:
        write_input_files()
        every = invalid_commands()
        found = {one.command: check(one) for one in every}
        processes = every[::_EVERY]
        for one in processes:
            found[one.command] += [f"as a process: {fault}" for fault in check(one, start)]
    finally:
        os.chdir(before)
        os.environ.pop("FEDSTILL_DATA") if data is None else os.environ.update(FEDSTILL_DATA=data)
    by = Counter(one.words[0] for one in every if one.words)
    made = Findings(tables={"Invalid commands": [("command", "tested"), *((k, str(n)) for k, n in by.items())]})
    made.rows = [
        Row("invalid commands", str(len(every)), note=f"{len(processes)} of them also started as processes"),
        Row(
            "refused with one sentence and exit code 2, no file changed",
            str(sum(not faults for faults in found.values())),
        ),
    ]
    made.differences = [f"`{command}`: {'; '.join(faults)}" for command, faults in found.items() if faults]
    return made
