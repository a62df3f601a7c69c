"""`fedstill report`: one page about a study and its audit, or about some runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.audit.judge import judge
from fedstill.audit.reading import evidence_of, results_in
from fedstill.cli.screen import console
from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder
from fedstill.federation.result import Run
from fedstill.report import Extras, write_audit_report, write_query_report, write_report
from fedstill.report.static import figures_beside
from fedstill.report.study.gather import gathered
from fedstill.report.titles import titles
from fedstill.studies.query_table import has_queries
from fedstill.studies.results import load_results


def report(sources: Sequence[Path], page: Path | None, data: str | None, data_root: Path | None) -> None:
    if page is not None:
        checked_page(page)
    study = _study(sources)
    if study is not None:
        written = write_study(study, page or study.with_suffix(".html"), data_root, data)
    else:
        page = page or Path("report.html")
        written = write_report(_runs(sources), page, data_root=data_root, figures=figures_beside(page))
    console.print(f"open {written.resolve()} in a browser", highlight=False, soft_wrap=True)


def write_study(results: Path, page: Path, data_root: Path | None = None, data: str | None = None) -> Path:
    """Audit a study's results and write its page; of one without students, what became of clients' queries."""
    loaded = load_results(results)
    if loaded.students is None and has_queries(loaded):
        return write_query_report(loaded, page, results.parent)
    extras = gathered(loaded, results.parent, data_root) if loaded.students is not None else Extras()
    return write_audit_report(judge(evidence_of(results, data_root, data=data)), page, extras=extras)


def checked_page(page: Path) -> None:
    """Refuse, before any work, a page that cannot be written."""
    if page.is_dir():
        raise InputError(f"{page} is a folder: name the page in it, for instance {page / 'report.html'}")
    writable_folder(page.parent)


def _study(sources: Sequence[Path]) -> Path | None:
    """The results to report on, if that is what was named: a file, or a folder that holds one.

    A study without students cannot be audited: of a folder with such results its runs are reported, unless clients ask
    for classes in it.
    """
    if len(sources) != 1:
        return None
    (source,) = sources
    if source.suffix == ".json":
        return source
    if (source / "config.json").is_file() or not source.is_dir():
        return None
    found = results_in(source)
    if found is None:
        return None
    loaded = load_results(found)
    return found if loaded.students is not None or has_queries(loaded) or not _folders([source]) else None


def _runs(sources: Sequence[Path]) -> dict[str, Run]:
    """The runs named, and those in the folders named, by what they differ in."""
    runs = [run for folder in _folders(sources) if (run := Run(folder)).finished]
    if not runs:
        raise InputError(f"there is no finished run in {', '.join(map(str, sources))}, and no study's results")
    names = titles([run.experiment for run in runs], [run.path.name for run in runs])
    return dict(zip(names, runs, strict=True))


def _folders(sources: Sequence[Path]) -> list[Path]:
    """The folders of runs among these, and directly in these."""
    return [
        folder
        for source in sources
        for folder in (
            [source]
            if (source / "config.json").is_file()
            else [path.parent for path in sorted(source.glob("*/config.json"))]
        )
    ]
