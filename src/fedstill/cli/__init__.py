"""The command line. Commands are thin: each imports its work when it is called, so that `--help` is quick."""

import sys

HELP_WIDTH = 80  # columns; the help of wider terminals is the same


def main() -> None:
    """Run the command that was typed; the overview of all commands is printed without assembling them."""
    if sys.argv[1:] in ([], ["--help"]) and sys.argv[0].rpartition("/")[2] == "fedstill" and (text := _overview()):
        sys.stdout.write(text)
        sys.exit(0)
    from fedstill.cli.app import main as run_command

    run_command()


def _overview() -> str | None:
    """What `fedstill --help` prints, as `fedstill reference` has written it; None for a narrow terminal."""
    import json
    from pathlib import Path
    from shutil import get_terminal_size

    if get_terminal_size().columns < HELP_WIDTH:
        return None
    text: str = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))["help"]
    return text
