"""A page: everything it needs is in the one file, and its policy lets the browser fetch nothing else."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from platform import python_version
from shlex import join
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from fedstill._version import __version__
from fedstill.core.table import Table
from fedstill.report.figure import Figure

_HALF = 470  # pixels: what a figure has beside another


@dataclass(frozen=True)
class Note:
    """Something a reader should know, and how much it matters; the mark says so again to those who see no colours."""

    level: str
    mark: str
    title: str
    evidence: str
    advice: str


@dataclass(frozen=True)
class PageSection:
    """A heading of the page and what stands under it: words, notes, tables, figures."""

    id: str
    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[Note] = ()
    about: str = ""  # what the section is there to answer

    @property
    def broad(self) -> bool:
        """Whether some figure needs more than half of the page's usual width."""
        return any(figure.width > _HALF for figure in self.figures)

    @property
    def empty(self) -> bool:
        return not (self.figures or self.tables or self.notes)


def render(template: str, sections: Sequence[PageSection], **context: Any) -> str:
    """The page's text, from one of the templates; sections that have nothing to show are left out."""
    shown = [section for section in sections if not section.empty]
    figures = [figure for section in shown for figure in section.figures]
    specs = {figure.id: figure.spec() for figure in figures}
    scripts = [*_plotly(figures), *map(_asset, ["figures.js", "tables.js"])]
    if any(figure.turns for figure in figures):
        scripts.append(_asset("viewer.js"))
    return _template(template).render(
        sections=shown,
        version=__version__,
        python=python_version(),
        commit=source_commit(),
        made_by=typed_command(),
        style=Markup(_asset("report.css")),
        scripts=[Markup(script) for script in scripts],
        script_hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
        specs=Markup(_embedded(specs)),
        **context,
    )


@cache
def source_commit() -> str:
    """The commit of the checkout that this package runs from, in short; empty where it was installed from a file."""
    git = Path(__file__).resolve().parents[3] / ".git"
    try:
        if git.is_file():  # a worktree: where its own folder is
            git = Path(git.read_text(encoding="utf-8").removeprefix("gitdir:").strip())
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return head[:10]
        common = git / "commondir"
        home = (git / common.read_text(encoding="utf-8").strip()).resolve() if common.is_file() else git
        name = head.removeprefix("ref:").strip()
        return (home / name).read_text(encoding="utf-8").strip()[:10]
    except OSError:  # no checkout, or references that are packed
        return ""


def typed_command() -> str:
    """The command that writes the page; empty where Python does."""
    called = Path(sys.argv[0]).name
    if called == "__main__.py":
        called = Path(sys.argv[0]).parent.name
    return join(["fedstill", *sys.argv[1:]]) if called.removesuffix(".exe") == "fedstill" else ""


def _plotly(figures: Sequence[Figure]) -> list[str]:
    """Plotly's script, of some megabytes, unless all figures are the 3-D viewer's."""
    if figures and all(figure.turns for figure in figures):
        return []
    from plotly.offline import get_plotlyjs  # here, because it takes a second that pages without it need not wait

    return [get_plotlyjs()]


def coded(text: str) -> Markup:
    """Words between backticks as code, everything else as the text it is.

    >>> coded("set `a<b` & go")
    Markup('set <code>a&lt;b</code> &amp; go')
    """
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # one backtick has no other: then it is only a character
        return escape(text)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(piece) if number % 2 else escape(piece) for number, piece in enumerate(pieces))


def style_sheet() -> str:
    return _asset("report.css")


def _embedded(content: object) -> str:
    """JSON that can stand in a script element: no `<` in it can end the element or begin another."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("fedstill.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("fedstill.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = coded
    return environment.get_template(name)
