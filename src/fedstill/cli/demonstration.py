"""`fedstill demo`: four ways to learn the same digits, compared in a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.cli.progress import Display
from fedstill.cli.screen import console, table
from fedstill.config import make_experiment
from fedstill.core.files import writable_folder
from fedstill.core.numbers import MISSING, share, size
from fedstill.engines import make_engine
from fedstill.federation.launch import launch
from fedstill.federation.result import Run
from fedstill.methods import methods
from fedstill.report import write_report

_SKEWED = {"name": "dirichlet", "alpha": 0.1}
_WAYS: dict[str, dict[str, Any]] = {
    # Thirty epochs, as many as each client takes in ten rounds; momentum that is kept asks for a smaller rate.
    "all data in one place": {"method": "centralised", "rounds": 30, "training": {"rate": 0.02}},
    "federated, equal shards": {"method": "fedavg"},
    "federated, skewed shards": {"method": "fedavg", "partition": _SKEWED},
    "every client alone": {"method": "local-only", "partition": _SKEWED},
}


def demo(out: Path, workers: int, quiet: bool) -> None:
    writable_folder(out)
    runs: dict[str, Run] = {}
    with make_engine("processes", workers) as engine:
        for title, given in _WAYS.items():
            display = Display(quiet)
            experiment = make_experiment({**given, "data": "digits", "seed": 7})
            try:
                runs[title] = launch(experiment, out=out / "runs", engine=engine, observers=[display])
            finally:
                display.close()
    rows = [(title, share(run.accuracy), _sent(run), f"{run.seconds:.1f} s") for title, run in runs.items()]
    table("", ("way to learn", "accuracy", "sent by clients", "time"), rows, right=(1, 2, 3))
    page = write_report(runs, out / "report.html")
    console.print(f"\nopen {page.resolve()} in a browser", highlight=False, soft_wrap=True)


def _sent(run: Run) -> str:
    pooled = methods[run.experiment.method.name].pooled
    return MISSING if pooled else size(run.result["bytes"]["up"])
