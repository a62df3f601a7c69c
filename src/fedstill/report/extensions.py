"""What slices add to reports: sections of the page about runs, figures to turn, and pages about a study's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedstill.core.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from fedstill.report.facts import Facts
    from fedstill.report.page import PageSection
    from fedstill.runtime.result import Run
    from fedstill.studies.results import Results


@dataclass(frozen=True)
class RunSections:
    """Sections of the page about runs, and after which of its own sections they come; empty where they do not apply."""

    after: Literal["results", "curves"]
    make: Callable[[Mapping[str, Run], Sequence[Facts]], list[PageSection]]


@dataclass(frozen=True)
class TurnedFigure:
    """A kind of figure that the page's 3-D viewer turns: how it is drawn still."""

    height: Callable[[Mapping[str, Any]], float]  # of the still, in pixels
    draw: Callable[[Canvas, Mapping[str, Any], Callable[[str], str]], None]


@dataclass(frozen=True)
class StudyPage:
    """A page about a study's results that takes the place of the audit's, for results that it applies to."""

    applies: Callable[[Results], bool]
    write: Callable[[Results, Path, Path], Path]


run_sections: Registry[RunSections] = Registry("report section")
turned_figures: Registry[TurnedFigure] = Registry("figure to turn")
turned_figures.declare("fedstill.report.traces", "cloud")
study_pages: Registry[StudyPage] = Registry("page about a study")
