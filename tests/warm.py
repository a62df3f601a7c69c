"""Commands as a person types them, without the seconds that each takes to import torch.

`Warm` is a process that has imported everything and computed nothing. It answers every command with a copy of itself
(a fork), so that each runs in a process of its own: what one of them loads, registers or leaves behind is gone with it.
One with `FOREIGN` has imported none of this package: for tests of what the package imports, and when.
Started anew, as a shell would, commands are in the tests of processes and of the distribution.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

# What the commands of pages import when they begin to work.
EVERYTHING = (
    "fedstill.cli",
    *("fedstill.runtime.launch", "fedstill.studies", "fedstill.audit", "fedstill.report"),
    *("fedstill.data.catalogue", "sklearn.datasets", "PIL.Image"),
)
# The large packages of others that nearly every command needs.
FOREIGN = ("torch", "pydantic", "scipy.stats", "sklearn.datasets", "matplotlib.pyplot", "jinja2", "PIL.Image")
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from warm import serve; serve(sys.argv[2:])"


class Warm:
    """Runs `fedstill WORDS` or `python -c CODE` in a folder."""

    def __init__(self, imported: Sequence[str] = EVERYTHING) -> None:
        self.imported = imported
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        if self.process is not None:
            self.process.communicate(timeout=60)  # it ends with its input

    def fedstill(self, words: list[str], folder: Path, **how: Any) -> subprocess.CompletedProcess[str]:
        return self._run("fedstill", words, folder, **how)

    def python(self, code: str, folder: Path, **how: Any) -> subprocess.CompletedProcess[str]:
        return self._run("python", [code], folder, **how)

    def _run(
        self,
        what: str,
        words: list[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        together: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """With errors where results go, as on a screen, if they are wanted together."""
        with tempfile.TemporaryDirectory() as kept:
            out = Path(kept, "out")
            errors = out if together else Path(kept, "errors")
            place = {"folder": str(folder), "out": str(out), "errors": str(errors)}
            code = self._ask({"what": what, "words": words, "environment": dict(environment or os.environ), **place})
            said = "" if together else errors.read_text(encoding="utf-8")
            return subprocess.CompletedProcess([what, *words], code, out.read_text(encoding="utf-8"), said)

    def _ask(self, asked: dict[str, Any]) -> int:
        if self.process is None:
            command = [sys.executable, "-c", _SERVE, str(Path(__file__).parent), *self.imported]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            self.process.stdin.flush()
            return int(self.process.stdout.readline())
        except BaseException:  # a test that takes too long, say: what it asked for is not the next one's answer
            self.process.kill()
            self.process.communicate()
            self.process = None
            raise


def serve(imported: Sequence[str]) -> None:
    """The other end: one line in, asking for a command; one line out, with its exit code."""
    for name in imported:
        importlib.import_module(name)
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    gc.freeze()  # nothing of this is ever looked at again, also in copies
    for line in questions:
        child = os.fork()
        if child == 0:
            _be(**json.loads(line))
        answers.write(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _be(what: str, words: list[str], folder: str, out: str, errors: str, environment: dict[str, str]) -> NoReturn:
    """Be the process that was asked for, to its end."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(out, flags), 1)
    os.dup2(os.open(errors, flags), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, "utf-8") for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    if "COLUMNS" in environment and (screen := sys.modules.get("fedstill.cli.screen")):
        # Consoles are made, and read it, when the command line is imported.
        screen.console.width = screen.errors.width = int(environment["COLUMNS"])
    os.chdir(folder)
    further = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:2] = ["", *filter(None, further)]  # in place of the folder of this file, and of where it was started
    try:
        if what == "python":
            exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            from fedstill.cli import main

            sys.argv = ["fedstill", *words]
            main()
        code: Any = 0
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # without taking everything down, which takes a second
