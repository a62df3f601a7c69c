"""`fedstill demo`: the main job at a small scale, from training teachers to the report."""

from __future__ import annotations

from pathlib import Path

from fedstill.cli import reporting, studies
from fedstill.cli.screen import console
from fedstill.core.files import writable_folder
from fedstill.studies import Study

RECIPE = "demo"


def demo(out: Path, workers: int, quiet: bool) -> None:
    writable_folder(out)
    study = Study(RECIPE)
    wanted = studies.Wanted(["accuracy"], None, None, False, quiet)
    studies.run(study, out / "runs", workers, False, wanted)
    page = reporting.write_study(out / "runs" / f"{study.title}.json", out / "report.html")
    console.print(f"open {page.resolve()} in a browser", highlight=False, soft_wrap=True)
