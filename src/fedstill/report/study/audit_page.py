"""The page of an audit, and its figures as files."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import platform, python_version

from fedstill._version import __version__
from fedstill.audit.verdicts import SEVERITIES, Audit
from fedstill.core.numbers import points, share
from fedstill.report.page import Note, PageSection
from fedstill.report.page_file import write_page
from fedstill.report.static import figures_beside
from fedstill.report.study import marks
from fedstill.report.study.audit_tables import objectives_table, pairs_table, seeds_table, teachers_table, terms_table
from fedstill.report.study.bars import leaderboard, recovery, teachers
from fedstill.report.study.cloud_figures import clouds
from fedstill.report.study.costs import against_cost, savings
from fedstill.report.study.course import convergence, epochs
from fedstill.report.study.extras import Extras
from fedstill.report.study.heatmaps import heatmaps
from fedstill.report.study.scatters import against_teacher, against_traffic
from fedstill.report.study.term_figures import ceilings, terms
from fedstill.report.study.view import View
from fedstill.report.words import AUDIT, glossary

_PACKAGES = ("torch", "numpy", "matplotlib", "plotly")


def write_audit_report(audit: Audit, path: Path, extras: Extras | None = None) -> Path:
    """An audit as one HTML file that opens from disk without a network, and its figures as SVG and PNG files.

    They go into a folder beside the page that has its name: `audit.html` and `audit-figures/`.
    """
    return write_page(
        path,
        "audit.html.jinja",
        _sections(View(audit), extras or Extras(), path),
        figures_beside(path),
        heading=f"Audit of {audit.evidence.name}",
        summary=audit.summary or ("Nothing could be said of these results.",),
        caution=_caution(audit),
        commands=audit.evidence.commands,
        settings=_settings(audit),
        versions=_versions(),
    )


def _sections(view: View, extras: Extras, page: Path) -> list[PageSection]:
    return [
        PageSection(
            "verdicts",
            "Verdicts",
            tables=[table for table in (objectives_table(view), teachers_table(view)) if table.rows],
            about="Is the student's accuracy really its teacher's?",
        ),
        PageSection("findings", "Findings", notes=_notes(view.audit)),
        PageSection("grid", "Teacher by objective", heatmaps(view)),
        PageSection("follow", "Student and teacher", [*against_teacher(view), *recovery(view)]),
        PageSection("board", "Leaderboard", leaderboard(view), [pairs_table(view)] if view.pairs else []),
        PageSection("foreseen", "Masking ceiling", ceilings(view)),
        PageSection("training", "How training went on", [*convergence(view), *epochs(view)]),
        PageSection("ranks", "Teachers", [*teachers(view), *against_traffic(view)]),
        PageSection("cost", "What models cost", [*savings(view, extras), *against_cost(view, extras)]),
        PageSection("losses", "What objectives are made of", terms(view), terms_table(view)),
        PageSection("clouds", "What the data looks like", clouds(extras.clouds)),
        PageSection("seeds", "Every seed", tables=[seeds_table(view, page)]),
        glossary(AUDIT),
    ]


def _notes(audit: Audit) -> list[Note]:
    """Findings, the serious ones first."""
    return [
        Note(finding.severity, marks.SEVERITIES[finding.severity], finding.title, finding.evidence, finding.advice)
        for severity in SEVERITIES
        for finding in audit.findings
        if finding.severity == severity
    ]


def _caution(audit: Audit) -> str:
    stale = f"Stale: {note} " if (note := audit.evidence.settings.get("stale")) else ""
    chance = f" Chance is {share(audit.chance, 1)}, the share of the largest class." if audit.chance is not None else ""
    return (
        f"{stale}Masking is the accuracy of a student trained with labels minus that of the same student trained"
        f" without: points that its teacher cannot explain. A pair is masked if the whole 95 % interval lies above"
        f" {points(audit.delta)}, faithful if it lies at or below, inconclusive if it holds them.{chance}"
    )


def _settings(audit: Audit) -> dict[str, str]:
    evidence = audit.evidence
    counts = ", ".join(f"{count:,}" for count in evidence.class_counts)
    return {
        **({"about": evidence.about} if evidence.about else {}),
        **evidence.settings,
        **({"test samples by class": counts} if counts else {}),
        "threshold": points(audit.delta),
    }


def _versions() -> dict[str, str]:
    found = {"fedstill": __version__, "Python": python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "system": platform()}
