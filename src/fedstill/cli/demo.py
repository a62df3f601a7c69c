"""`fedstill demo`: the main job at a small scale, from training teachers to the report."""

from __future__ import annotations

from pathlib import Path

from fedstill.cli import study as studies
from fedstill.cli.screen import print_json, print_page
from fedstill.core.files import writable_folder
from fedstill.report.writer import write_study
from fedstill.studies import Study

RECIPE = "demo"


def demo(preset: str | None, out: Path, workers: int, quiet: bool, as_json: bool) -> None:
    writable_folder(out)
    study = Study(RECIPE, preset=preset)
    results = out / "runs" / f"{study.title}.json"
    wanted = studies.Wanted(["accuracy"], None, None, False, quiet or as_json)
    studies.run(study, out / "runs", workers, False, wanted, say=not as_json)
    page = write_study(results, out / "report.html")
    if as_json:
        print_json({"results": str(results), "page": str(page)})
    else:
        print_page(page, as_json)
