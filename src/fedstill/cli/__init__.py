"""The command line. Commands are thin: each imports its work when it is called, so that `--help` is quick."""

import os
import sys

HELP_WIDTH = 80  # columns; the help of wider terminals is the same


def main() -> None:
    """Run the command that was typed; the overview of all commands is printed without assembling them."""
    typed, called = sys.argv[1:], sys.argv[0].rpartition("/")[2]
    completing = "_FEDSTILL_COMPLETE" in os.environ  # a shell asks what may follow
    if typed in ([], ["--help"]) and called == "fedstill" and not completing and (text := _overview()):
        sys.stdout.write(text)
        sys.exit(0)
    from fedstill.cli.app import main as run_command

    run_command()


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
