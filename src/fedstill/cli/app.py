"""The command line as a whole, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from fedstill._version import __version__
from fedstill.cli import INTERRUPTED, data, deploy, deploy_keys, deploy_policy, deploy_server
from fedstill.cli.audit import audit
from fedstill.cli.clean import clean
from fedstill.cli.demo import demo
from fedstill.cli.distill import distill
from fedstill.cli.doctor import doctor
from fedstill.cli.export import export, latency, predict
from fedstill.cli.extensions import USAGE_ERROR, Commands, commands
from fedstill.cli.flower_app import flower_app
from fedstill.cli.list import list_
from fedstill.cli.reference import reference
from fedstill.cli.report import report
from fedstill.cli.run import egress, run, show
from fedstill.cli.runs import runs
from fedstill.cli.study import study
from fedstill.cli.verify import verify
from fedstill.cli.watch import watch
from fedstill.core.errors import FedstillError

# What a command's end tells a script.
EXIT_CODES = {
    0: "done; nothing is wrong",
    1: "failed while running (what was committed before is kept), or `doctor` or `verify` found something broken",
    2: "the input was wrong, and nothing has been done; also data that `data check` finds unusable, and a `--dry-run`"
    " of what cannot run",
    3: "`audit` was done, and found what `--fail-on` names",
    INTERRUPTED: "interrupted: the same command again goes on",
}
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "study": study,
    "distill": distill,
    "demo": demo,
    "list": list_,
    "runs": runs,
    "show": show,
    "watch": watch,
    "audit": audit,
    "report": report,
    "verify": verify,
    "egress": egress,
    "predict": predict,
    "export": export,
    "latency": latency,
    "doctor": doctor,
    "clean": clean,
    "reference": reference,
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {
    "list": data.data_list,
    "check": data.data_check,
    "show": data.data_show,
    "add": data.data_add,
    "get": data.data_get,
    "partition": data.data_partition,
}
DEPLOY_COMMANDS: dict[str, Callable[..., None]] = {
    "init": deploy.deploy_init,
    "renew": deploy.deploy_renew,
    "rotate": deploy_keys.deploy_rotate,
    "revoke": deploy_keys.deploy_revoke,
    "split": deploy.deploy_split,
    "server": deploy_server.deploy_server,
    "site": deploy_server.deploy_site,
    "status": deploy.deploy_status,
    "try": deploy.deploy_try,
    "log": deploy_policy.deploy_log,
    "reset": deploy_policy.deploy_reset,
}
POLICY_COMMANDS: dict[str, Callable[..., None]] = {"check": deploy_policy.policy_check}
# Shown below the help of a command, by the words that are typed.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "fedstill run fedavg --data digits --partition dirichlet:alpha=0.1",
        "fedstill run scaffold --set rate=0.01 --engine processes --workers 2",
    ),
    "verify": ("fedstill verify runs", "fedstill verify docs/results/focused-lite.json --rerun 1"),
    "study": (
        "fedstill study clinical-grid --preset tiny",
        "fedstill study my-grid.yaml --workers 2 --table results.md",
    ),
    "distill": (
        "fedstill distill --teacher runs/fedavg-... --student mlp --objective dkd",
        "fedstill distill --teacher runs/fedavg-... --student mlp --labels withhold",
    ),
    "audit": (
        "fedstill audit runs/clinical-grid-tiny.json --html audit.html",
        "fedstill audit table.csv --classes 4 --fail-on masked",
    ),
    "list": ("fedstill list methods", "fedstill list fedprox", "fedstill list methods --traffic"),
    "runs": (
        "fedstill runs --sort accuracy --limit 5",
        "fedstill runs --where method=fedavg --where 'accuracy>=0.9' --column rate",
    ),
    "show": ("fedstill show runs/fedavg-...", "fedstill show runs/fedavg-... runs/fedprox-..."),
    "watch": ("fedstill watch runs --open", "fedstill watch runs clinics/server --port 0"),
    "report": ("fedstill report runs --out report.html",),
    "egress": ("fedstill egress fedavg --model cnn-bn",),
    "predict": ("fedstill predict runs/fedavg-... picture.png",),
    "export": ("fedstill export runs/fedavg-... model.onnx",),
    "clean": ("fedstill clean --unfinished --yes", "fedstill clean runs/fedavg-... --yes"),
    "latency": ("fedstill latency runs/fedavg-... runs/distill-...",),
    "data add": ("fedstill data add mine pictures/",),
    "data get": ("fedstill data get bloodmnist",),
    "data show": ("fedstill data show digits --out digits.png",),
    "data check": ("fedstill data check folder:pictures",),
    "data partition": ("fedstill data partition digits --partition dirichlet:alpha=0.3 --clients 4",),
    "deploy init": ("fedstill deploy init clinics --sites 3 --address fl.example.org",),
    "deploy server": ("fedstill deploy server clinics fedavg --model mlp --rounds 10",),
    "deploy site": ("fedstill deploy site site-0 --data folder:pictures",),
    "deploy try": ("fedstill deploy try clinics fedavg --data digits --rounds 2",),
}


def _group(name: str, help: str, members: Mapping[str, Callable[..., None]]) -> Commands:
    group = Commands(name=name, help=help)
    for word, command in members.items():
        examples = EXAMPLES.get(word if name == "fedstill" else f"{name} {word}", ())
        group.command(name=word, epilog=_epilog(examples))(command)
    return group


def _epilog(examples: Sequence[str]) -> str | None:
    """Examples one below the other; the mark keeps the help from joining their lines."""
    return "\n".join(("\b", "Examples:", *(f"  {one}" for one in examples))) if examples else None


def _assemble() -> Commands:
    """All commands: first the single ones, then groups, each with those of slices last."""
    added = [commands[name] for name in commands]
    single = {name: one for name, one in zip(commands, added, strict=True) if not isinstance(one, Commands)}
    whole = _group("fedstill", "Federated learning and knowledge distillation.", {**COMMANDS, **single})
    whole.add_typer(_group("data", "Data sets: list, check, add, show and partition them.", DATA_COMMANDS))
    deployments = _group("deploy", "Train across machines: set up and run a server and its sites.", DEPLOY_COMMANDS)
    deployments.add_typer(_group("policy", "A site's policy: check experiments against it.", POLICY_COMMANDS))
    whole.add_typer(deployments)
    whole.add_typer(_group("flower", "Run experiments on a federation of stock Flower.", {"app": flower_app}))
    for group in added:
        if isinstance(group, Commands):
            whole.add_typer(group)
    return whole


app = _assemble()


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
        if code == INTERRUPTED:  # typer has made a return value of the interrupt
            raise KeyboardInterrupt
    except FedstillError as error:
        _exit_with(str(error), error.exit_code)
    except USAGE_ERROR as error:
        _exit_with(error.format_message(), 2)
    except (typer.Abort, KeyboardInterrupt):
        _exit_with("interrupted: run the same command again to go on", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has closed it (`| head`): not an error.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _exit_with(text: str, code: int) -> None:
    print(f"fedstill: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(code)
