"""What a page of the documents tells a reader to do: files to write, code to run, commands to type, lines to see.

A fenced block `LANGUAGE title="NAME"` is a file, `python` without a name is run as it is, and in `console` lines with
`$ ` are typed (a backslash at the end goes on in the next line). Other lines there are what one should see; `…` in them
stands for anything, such as a time or a hash.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .warm import Warm

ROOT = Path(__file__).parent.parent
FEDSTILL = [sys.executable, "-m", "fedstill"]
_FENCE = re.compile(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
# How far figures may be from those shown: other CPUs round differently, and training amplifies the difference.
_POINTS = 20.0  # in percent
_ROUNDED = 2.0  # in whole percent
_NEAR = 0.05  # bytes, by so much of them
_HALF = 0.5  # all others with a decimal point; whole numbers not at all
_SECONDS = 600
_FOR_A_SHELL = re.compile(r"[*?\[\]{}~$`|&;<>()#!]")


class Block(NamedTuple):
    language: str
    file: str
    body: str


def all_blocks(page: str) -> list[Block]:
    found = _FENCE.findall((ROOT / page).read_text())
    return [
        Block(language, extra.strip().removeprefix('title="').removesuffix('"'), body)
        for language, extra, body in found
    ]


def blocks(page: str, language: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page in some language, each with the name of the file that it is."""
    return [(block.file, block.body) for block in all_blocks(page) if block.language == language]


def commands(page: str) -> list[str]:
    return [command for _, body in blocks(page, "console") for command, _ in typed(body)]


def typed(body: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, each with the lines shown below it."""
    for part in re.split(r"^\$ ", body.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, [line for line in shown if line.strip() and line.strip() != "…"]


def write_files(page: str, folder: Path) -> None:
    for block in all_blocks(page):
        if block.file:
            (folder / block.file).write_text(block.body)


def walk(page: str, folder: Path, warm: Warm | None = None) -> None:
    """Do all that a page says, in its order and as it is written, and look for the lines that it shows.

    With a process that is warm it is quicker; without one, everything is typed into a shell.
    """
    for block in all_blocks(page):
        if block.file:
            (folder / block.file).write_text(block.body)
        elif block.language == "python":
            seen(_worked(block.body, folder, warm), [], block.body)
        elif block.language == "console":
            for command, shown in typed(block.body):
                seen(_done(command, folder, warm), shown, command)


def _worked(code: str, folder: Path, warm: Warm | None) -> subprocess.CompletedProcess[str]:
    if warm is None:
        return _started([sys.executable, "-c", code], folder)
    return warm.python(code, folder, environment=_environment(), together=True)


def _done(command: str, folder: Path, warm: Warm | None) -> subprocess.CompletedProcess[str]:
    """What only a shell understands (`*`, `>`, `;`) is typed into one in any case."""
    if warm is None or not command.startswith("fedstill ") or _FOR_A_SHELL.search(command):
        return _started(["sh", "-c", _shell(command)], folder)
    return warm.fedstill(shlex.split(command)[1:], folder, environment=_environment(), together=True)


def _shell(command: str) -> str:
    """With this interpreter and this package."""
    ours = f'fedstill() {{ {shlex.join(FEDSTILL)} "$@"; }}\npython() {{ {shlex.quote(sys.executable)} "$@"; }}\n'
    return ours + command


def _started(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Errors go where results go, as on a screen."""
    return subprocess.run(
        words,
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def _environment() -> dict[str, str]:
    """Wide enough that lines are broken nowhere else."""
    environment = {**os.environ, "COLUMNS": "118", "PYTHONIOENCODING": "utf-8"}
    environment.pop("FEDSTILL_DATA", None)
    return environment


def seen(done: subprocess.CompletedProcess[str], shown: list[str], what: str) -> None:
    """It went well, and printed the lines shown, in their order."""
    assert done.returncode == 0, f"{what}\n{done.stdout}"
    printed = iter(done.stdout.splitlines())
    for line in shown:
        assert any(alike(line, other) for other in printed), f"{what}\ndid not print {line!r} (next) but\n{done.stdout}"


def alike(shown: str, printed: str) -> bool:
    """The same words, and figures that are near enough; how many blanks stand between them is of no account.

    >>> alike("last  3  96.38 %, …", "last     3   85.9 %, 4.0 s"), alike("last 3 96.38 %", "last 3 75.9 %")
    (True, False)
    >>> alike("loss 0.51, 4 replies", "loss 0.62, 4 replies"), alike("loss 0.51, 4 replies", "loss 0.51, 3 replies")
    (True, False)
    >>> alike("sent 24.3 KiB", "sent 24.4 KiB"), alike("sent 24.3 KiB", "sent 30.3 KiB"), alike("faithful", "masked")
    (True, False, False)
    """
    found = re.fullmatch(_pattern(shown.strip()), printed.strip())
    if found is None:
        return False
    pairs = zip(_NUMBER.finditer(shown), map(float, found.groups()), strict=True)
    return all(abs(float(wanted[0]) - got) <= _room(wanted[0], shown[wanted.end() :]) for wanted, got in pairs)


def _room(number: str, after: str) -> float:
    """How far from a number shown one may be, by its unit; a decimal point means that it was measured."""
    share = after.startswith(" %")
    if "." not in number:
        return _ROUNDED if share else 0.0
    if share:
        return _POINTS
    counted = re.match(r" [KMG]iB", after)
    return (_NEAR if counted else _HALF) * max(abs(float(number)), 0.5)


def _pattern(line: str) -> str:
    """Of a line: any figure where there is one, any blanks for blanks, anything for `…`."""
    words = re.escape(_NUMBER.sub("\0", line))
    return re.sub(r"(?:\\\s)+", r"\\s+", words).replace("\0", f"({_NUMBER.pattern})").replace("…", ".*")
