"""One page about whatever is named: a study with its audit, what became of clients' queries, or some runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.audit.audit_inputs import evidence_of, results_in
from fedstill.audit.verdict_rules import judge
from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder
from fedstill.core.numbers import count
from fedstill.core.plugins import use_plugins
from fedstill.report.extensions import StudyPage, study_pages
from fedstill.report.named_runs import run_folders
from fedstill.report.runs import write_report
from fedstill.report.static import figures_beside
from fedstill.report.study.audit_page import write_audit_report
from fedstill.report.study.gather import gathered
from fedstill.report.titles import titles
from fedstill.runtime.result import Run
from fedstill.runtime.round_ranking import check_metric_name
from fedstill.studies.results import Results, load_results
from fedstill.tasks.task_choice import ACCURACY

PAGE = "report.html"


def report(
    sources: str | Path | Run | Sequence[str | Path | Run],
    out: str | Path | None = None,
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
    metric: str | None = None,
) -> Path:
    """Write one HTML page, with every figure also as a file, and say where it is.

    Sources are a study's results (.json) or the folder that holds them, or runs and folders of runs. Without `out` the
    page of a study lies beside its results, and that of runs is `report.html`. `metric` is what a page of runs shows in
    place of accuracy, e.g. `auc`.

    >>> import fedstill
    >>> folder = getfixture("tmp_path")
    >>> made = fedstill.run("fedavg", data="digits", rounds=1, clients=2, out=folder)
    >>> fedstill.report(made, folder / "page.html").name
    'page.html'
    """
    use_plugins(plugins)
    shown = check_metric_name(metric or ACCURACY)
    several = [sources] if isinstance(sources, str | Path | Run) else list(sources)
    paths = [one.path if isinstance(one, Run) else Path(one) for one in several]
    page = None if out is None else checked_page(Path(out))
    root = None if data_root is None else Path(data_root)
    study = _study(paths)
    if study is not None and shown != ACCURACY:
        raise InputError("a study's page audits accuracies: leave --metric out, or name the folders of runs")
    if study is not None:
        return write_study(study, page or study.with_suffix(".html"), root, data)
    page = page or Path(PAGE)
    return write_report(_runs(paths), page, data_root=root, figures=figures_beside(page), metric=shown)


def left_out(sources: Sequence[Path]) -> str | None:
    """A sentence about runs in a folder that the page of the study in it does not show; None: there are none."""
    study = _study(sources)
    if study is None or study == sources[0]:
        return None
    loaded = load_results(study)
    stages = (loaded,) if loaded.students is None else (loaded, loaded.students)
    shown = {row.identity for stage in stages for row in stage.runs.values()}
    others = [folder for folder in run_folders(sources) if folder.name.rpartition("-")[2] not in shown]
    if not others:
        return None
    return (
        f"the page is about the study {loaded.study}, and not about {count(len(others), 'other run')} in {sources[0]}:"
        " name the folders of runs to report on them"
    )


def write_study(results: Path, page: Path, data_root: Path | None = None, data: str | None = None) -> Path:
    """Audit a study's results and write its page; of one without students, what became of clients' queries."""
    loaded = load_results(results)
    if (own := _own_page(loaded)) is not None:
        return own.write(loaded, page, results.parent)
    judged = judge(evidence_of(results, data_root, data=data))
    return write_audit_report(judged, page, extras=gathered(loaded, results.parent, data_root, data))


def checked_page(page: Path) -> Path:
    """Refuse, before any work, a page that cannot be written."""
    if page.is_dir():
        raise InputError(f"{page} is a folder: name the page in it, for instance {page / PAGE}")
    writable_folder(page.parent)
    return page


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
    return found if loaded.students is not None or _own_page(loaded) or not run_folders([source]) else None


def _own_page(results: Results) -> StudyPage | None:
    """The page that a slice has for such results; those with students are audited."""
    if results.students is not None:
        return None
    return next((study_pages[name] for name in study_pages if study_pages[name].applies(results)), None)


def _runs(sources: Sequence[Path]) -> dict[str, Run]:
    """The runs named, and those in the folders named, by what they differ in."""
    runs = [run for folder in run_folders(sources) if (run := Run(folder)).finished]
    if not runs:
        raise InputError(f"there is no finished run in {', '.join(map(str, sources))}, and no study's results")
    names = titles([run.experiment for run in runs], [run.path.name for run in runs])
    return dict(zip(names, runs, strict=True))
