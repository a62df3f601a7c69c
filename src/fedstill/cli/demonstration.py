"""`fedstill demo`: four ways to learn the same digits, compared in a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.cli.progress import Display
from fedstill.cli.screen import console, share, size, table
from fedstill.config import make_experiment
from fedstill.core.files import writable_folder
from fedstill.federation.launch import launch
from fedstill.federation.result import Run
from fedstill.report import write_report

_SKEWED = {"name": "dirichlet", "alpha": 0.1}
_WAYS: dict[str, dict[str, Any]] = {
    "all data in one place": {"method": "centralised", "rounds": 10},
    "federated, equal shards": {"method": "fedavg"},
    "federated, skewed shards": {"method": "fedavg", "partition": _SKEWED},
    "every client alone": {"method": "local-only", "partition": _SKEWED},
}


def demo(out: Path, workers: int, quiet: bool) -> None:
    writable_folder(out)
    runs: dict[str, Run] = {}
    for title, given in _WAYS.items():
        display = Display(quiet)
        try:
            runs[title] = launch(
                make_experiment({**given, "data": "digits", "seed": 7}),
                out=out / "runs",
                engine="processes",
                workers=workers,
                observers=[display],
            )
        finally:
            display.close()
    rows = [
        (title, share(run.accuracy), size(run.result["bytes"]["up"]), f"{run.seconds:.1f} s")
        for title, run in runs.items()
    ]
    table("", ("way to learn", "accuracy", "sent by clients", "time"), rows, right=(1, 2, 3))
    page = write_report(runs, out / "report.html")
    console.print(f"\nopen {page.resolve()} in a browser", highlight=False, soft_wrap=True)
