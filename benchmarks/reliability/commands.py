"""Commands that make no sense: each gets one sentence on stderr and exit code 2, and leaves everything as it was.

They are called in this process, as `fedstill.cli.main` is by the command; some also as real processes.
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

from benchmarks.reliability.materials import write_materials
from benchmarks.reliability.process import FEDSTILL
from benchmarks.reliability.traces import look
from benchmarks.report import Findings, Row
from benchmarks.sizes import Size
from fedstill.cli import main

MISTAKES = Path(__file__).with_name("mistakes.txt")
_PATIENCE = 120  # seconds
_EVERY = 40  # so many are called in this process for one that is called as a process
_LONGEST = 1_000  # characters of a sentence: those that list all that is known are long


@dataclass(frozen=True)
class Mistake:
    """A command, and what must be said about it."""

    words: tuple[str, ...]
    says: str

    @property
    def command(self) -> str:
        return shlex.join(("fedstill", *self.words))


@dataclass(frozen=True)
class Answer:
    code: Any
    out: str
    err: str


def mistakes() -> list[Mistake]:
    """All that can be asked here: those about deployments need what deployments need."""
    lines = [line.strip() for line in MISTAKES.read_text().splitlines()]
    pairs = [line.partition("=>") for line in lines if line and not line.startswith("#")]
    made = [Mistake(tuple(shlex.split(command)), says.strip()) for command, _, says in pairs]
    return [one for one in made if one.words[:1] != ("deploy",) or find_spec("flwr")]


def faults(mistake: Mistake, answer: Answer) -> list[str]:
    """What is wrong with an answer, in words."""
    found = []
    if answer.code != 2:
        found.append(f"exit code {answer.code}")
    if answer.out:
        found.append(f"says {answer.out[:60]!r} on stdout")
    if "Traceback" in answer.err:
        found.append(f"a traceback: {answer.err.strip().splitlines()[-1]}")
    elif len(answer.err.splitlines()) != 1 or not answer.err.startswith("fedstill: ") or len(answer.err) > _LONGEST:
        found.append(f"not one sentence: {answer.err[:200]!r}")
    if mistake.says not in answer.err:
        found.append(f"does not say {mistake.says!r}: {answer.err.strip()[:200]}")
    return found


def called(words: Sequence[str]) -> Answer:
    """Call the command line in this process."""
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
    return Answer(code, out.getvalue(), err.getvalue())


def started(words: Sequence[str]) -> Answer:
    """Start it as a process."""
    done = subprocess.run([*FEDSTILL, *words], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """A command that works instead of refusing is stopped after a while."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still at work after {_PATIENCE} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(mistake: Mistake, how: Any = called) -> list[str]:
    """What is wrong with how a mistake is answered, here and now; also what it has changed in the folder."""
    here = Path()
    before = look(here)
    found = faults(mistake, how(mistake.words))
    after = look(here)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [*found, *(f"{name} has changed" for name in changed[:3])]


def measure(size: Size, folder: Path) -> Findings:
    before, data = Path.cwd(), os.environ.get("FEDSTILL_DATA")
    os.chdir(folder)
    os.environ["FEDSTILL_DATA"] = str(folder / "no-data")
    try:
        write_materials()
        every = mistakes()
        found = {one.command: tried(one) for one in every}
        processes = every[::_EVERY]
        for one in processes:
            found[one.command] += [f"as a process: {fault}" for fault in tried(one, started)]
    finally:
        os.chdir(before)
        os.environ.pop("FEDSTILL_DATA") if data is None else os.environ.update(FEDSTILL_DATA=data)
    by = Counter(one.words[0] for one in every if one.words)
    made = Findings(tables={"Commands that cannot work": [("command", "tried"), *((k, str(n)) for k, n in by.items())]})
    made.rows = [
        Row("commands that cannot work", str(len(every)), note=f"{len(processes)} of them also as processes"),
        Row("refused in one sentence, exit code 2, nothing written", str(sum(not faults for faults in found.values()))),
    ]
    made.differences = [f"`{command}`: {'; '.join(faults)}" for command, faults in found.items() if faults]
    return made
