"""The command line as a whole, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedstill._version import __version__
from fedstill.cli import checking, looking, training, using
from fedstill.cli.audit import audit
from fedstill.cli.data_app import data_app
from fedstill.cli.deploy_app import deploy_app
from fedstill.cli.extensions import commands
from fedstill.cli.plain import USAGE_ERROR, Commands
from fedstill.core.errors import FedstillError

# What a command's end tells a script.
EXIT_CODES = {
    0: "done; nothing is wrong",
    1: "failed while running (what was committed before is kept), or `doctor` found something broken",
    2: "the input was wrong, and nothing has been done; also data that `data check` finds unusable",
    3: "`audit` was done, and found what `--fail-on` names",
    130: "interrupted: the same command again goes on",
}
_INTERRUPTED = 130  # as shells count it: 128 and the number of SIGINT

app = Commands(name="fedstill", help="Federated learning and knowledge distillation.")

COMMANDS: dict[str, Callable[..., None]] = {
    "run": training.run,
    "study": training.study,
    "distill": training.distill,
    "demo": training.demo,
    "list": looking.list_,
    "show": looking.show,
    "audit": audit,
    "report": looking.report,
    "egress": looking.egress,
    "predict": using.predict,
    "export": using.export,
    "latency": using.latency,
    "doctor": checking.doctor,
    "clean": looking.clean,
    "reference": checking.reference,
}
for name, command in COMMANDS.items():
    app.command(name=name)(command)
for name in commands:
    added = commands[name]
    if not isinstance(added, Commands):
        app.command(name=name)(added)
for group in (data_app, deploy_app, *(one for name in commands if isinstance(one := commands[name], Commands))):
    app.add_typer(group)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"fedstill {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command, and end with one of `EXIT_CODES`."""
    code: Any = 0
    try:
        code = app(standalone_mode=False)
        if code == _INTERRUPTED:  # typer has made a return value of the interrupt
            raise KeyboardInterrupt
    except FedstillError as error:
        _complain(str(error), error.exit_code)
    except USAGE_ERROR as error:
        _complain(error.format_message(), 2)
    except (typer.Abort, KeyboardInterrupt):
        _complain("interrupted: run the same command again to go on", _INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has had enough (`| head`): not an error.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(text: str, code: int) -> None:
    print(f"fedstill: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(code)
