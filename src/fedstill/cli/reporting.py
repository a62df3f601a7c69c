"""`fedstill report`: one page about a study and its audit, or about some runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.audit.judge import judge
from fedstill.audit.reading import evidence_of
from fedstill.cli.screen import console
from fedstill.core.errors import InputError
from fedstill.federation.result import Run
from fedstill.report import Extras, write_audit_report, write_report
from fedstill.report.study.gather import gathered
from fedstill.studies.results import load_results


def report(sources: Sequence[Path], page: Path | None, data_root: Path | None) -> None:
    study = _study(sources)
    if study is not None:
        written = write_study(study, page or study.with_suffix(".html"), data_root)
    else:
        runs = _runs(sources)
        written = write_report(runs, page or Path("report.html"))
    console.print(f"open {written.resolve()} in a browser", highlight=False, soft_wrap=True)


def write_study(results: Path, page: Path, data_root: Path | None = None) -> Path:
    """Audit a study's results and write its page."""
    loaded = load_results(results)
    extras = gathered(loaded, results.parent, data_root) if loaded.students is not None else Extras()
    return write_audit_report(judge(evidence_of(results, data_root)), page, extras=extras)


def _study(sources: Sequence[Path]) -> Path | None:
    """The results to report on, if that is what was named: a file, or a folder that holds one."""
    if len(sources) != 1:
        return None
    (source,) = sources
    if source.suffix == ".json":
        return source
    if (source / "config.json").is_file() or not source.is_dir():
        return None
    found = sorted(source.glob("*.json"))
    if len(found) > 1:
        raise InputError(f"{source} holds the results of several studies: name one of {', '.join(map(str, found))}")
    return found[0] if found else None


def _runs(sources: Sequence[Path]) -> dict[str, Run]:
    """The runs named, and those in the folders named, by the names of their folders."""
    paths = [
        path
        for source in sources
        for path in ([source] if (source / "config.json").is_file() else sorted(source.glob("*/config.json")))
    ]
    folders = [path.parent if path.name == "config.json" else path for path in paths]
    runs = {folder.name: run for folder in folders if (run := Run(folder)).finished}
    if not runs:
        raise InputError(f"there is no finished run in {', '.join(map(str, sources))}, and no study's results")
    return runs
