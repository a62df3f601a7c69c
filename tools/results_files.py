"""Writes the table of committed results files into docs/results.md: what made each, and whether it is stale.

python tools/results_files.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedstill.core.numbers import listed
from fedstill.runtime.identity import KERNEL
from fedstill.studies.results import Results, load_results

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "results.md", ROOT / "docs" / "results"
BEGIN, END = "<!-- made by tools/results_files.py -->\n", "<!-- end of what it made -->"


def stages(results: Results) -> Iterator[Results]:
    yield results
    if results.students:
        yield from stages(results.students)


def is_stale(results: Results) -> bool:
    return any(stage.stale() for stage in stages(results))


def line(path: Path) -> str:
    """A file's row; the versions of all parts of its runs are in the file."""
    results = load_results(path)
    runs = " + ".join(str(len(stage.runs)) for stage in stages(results))
    seeds = listed(sorted(results.axes.get("seed", {}), key=float)) or "in the command"
    kernel = {row.made.parts.get(KERNEL, 0) for stage in stages(results) for row in stage.runs.values()}
    state = "**stale**" if is_stale(results) else "current"
    versions = ", ".join(map(str, sorted(kernel)))
    return f"| [{path.stem}](results/{path.name}) | {runs} | {seeds} | {versions} | {state} |"


def table() -> str:
    head = ["| file | runs | seeds | kernel | today |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(line, sorted(FOLDER.glob("*.json")))]) + "\n"


def updated(page: str) -> str:
    """The page with the table of today's files."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    PAGE.write_text(updated(PAGE.read_text()))


if __name__ == "__main__":
    main()
