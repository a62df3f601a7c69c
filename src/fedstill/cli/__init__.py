"""The command line. Commands are thin: each imports its work when it is called, so that `--help` is quick."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HELP_WIDTH = 80  # columns; the help of wider terminals is the same
INTERRUPTED = 130  # the exit code of shells: 128 and the number of SIGINT


def main() -> None:
    """Run the command that was typed; the overview of all commands is printed without assembling them."""
    typed, called = sys.argv[1:], sys.argv[0].rpartition("/")[2]
    completing = "_FEDSTILL_COMPLETE" in os.environ  # a shell asks what may follow
    if typed in ([], ["-h"], ["--help"]) and called == "fedstill" and not completing and (text := _overview()):
        sys.stdout.write(text)
        sys.exit(0)
    with _interrupts() as interrupts:
        try:
            from fedstill.cli.app import main as run_command
        except KeyboardInterrupt:  # while packages are imported, which takes a second or two
            sys.stderr.write("fedstill: interrupted: nothing has been done\n")
            sys.exit(INTERRUPTED)
        try:
            run_command()
        except Exception:
            if not interrupts:
                raise
            # torch goes on without a NumPy whose import was interrupted, and what fails then is no error of its own.
            from logging import getLogger  # here, since help is quick

            getLogger(__name__).info("what failed after an interrupt", exc_info=True)
            sys.stderr.write("fedstill: interrupted: run the same command again to go on\n")
            sys.exit(INTERRUPTED)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The interrupts meanwhile, each of which is raised as ever; somebody may hide it."""
    from signal import SIGINT, default_int_handler, getsignal, signal
    from threading import current_thread, main_thread

    seen: list[int] = []
    if current_thread() is not main_thread() or getsignal(SIGINT) is not default_int_handler:
        yield seen
        return

    def remember(number: int, frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    signal(SIGINT, remember)
    try:
        yield seen
    finally:
        signal(SIGINT, default_int_handler)


def _overview() -> str | None:
    """What `fedstill --help` prints, as `fedstill reference` has written it.

    None for a narrow terminal, and where there are other slices, whose commands are in it.
    """
    import json
    from pathlib import Path
    from shutil import get_terminal_size

    from fedstill.core.slices import slices

    written = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))
    fits = get_terminal_size().columns >= HELP_WIDTH and written["slices"] == [*slices()]
    return str(written["help"]) if fits else None
