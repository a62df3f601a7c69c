"""The table of a study with queries: all metrics, one row per combination."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from fedstill.core.numbers import count, listed
from fedstill.core.table import Table, text_table
from fedstill.queries.study_figures import PREFIX
from fedstill.studies.extensions import StudyTable, study_tables
from fedstill.studies.grid import SEED, called
from fedstill.studies.results import Results
from fedstill.studies.results_table import entry, thinned, values_of

SHARES = ("accuracy", "gain", "forgetting", "uniform")  # in this order across
_CLIENTS, _ROUNDS, _BYTES = f"{PREFIX}clients", f"{PREFIX}rounds", f"{PREFIX}bytes"


def has_queries(results: Results) -> bool:
    """Whether a run of the study has queries."""
    return any(f"{PREFIX}accuracy" in row.figures for row in results.runs.values())


def query_table(results: Results) -> Table | None:
    """Mean and spread over seeds; None for a study without queries."""
    tables = query_tables(results)
    if not tables:
        return None
    rows = [(*outer, *row) for outer, table in tables.items() for row in table.rows]
    (first, *_), down = tables.values(), down_axes(results)
    header = (*(axis.replace("_", " ") for axis in down[:-1]), *first.header)
    labels = max(0, len(down) - 1) + first.labels
    return text_table(first.caption, header, thinned(rows, labels), range(labels, len(header)))


def query_tables(results: Results, narrow: bool = False) -> dict[tuple[str, ...], Table]:
    """The same, one table for each combination of all axes except the innermost, for narrow layouts.

    `narrow` leaves out blanks too.
    """
    if not has_queries(results):
        return {}
    down = down_axes(results)
    outer, inner = down[:-1], down[-1] if down else None
    names = list(results.axes[inner]) if inner else [""]
    columns = [f"{PREFIX}{name}" for name in SHARES]
    several = len({value for row in results.runs.values() if (value := row.figures.get(_CLIENTS))}) > 1
    caption = query_caption(results)
    head = ([inner.replace("_", " ")] if inner else []) + [*SHARES, "rounds", "MiB"] + (["clients"] if several else [])
    numbers = {len(values_of(results, columns[0], held)) for held in places(results)}
    bracketed = len(numbers) > 1 and max(numbers) > 1
    tables = {}
    for labels in product(*(results.axes[axis] for axis in outer)):
        held = dict(zip(outer, labels, strict=True))
        rows = []
        for name in names:
            place = {**held, inner: name} if inner else held
            cells = [entry(results, metric, place, bracketed and not number) for number, metric in enumerate(columns)]
            cells += [_whole(results, _ROUNDS, place), _mean(results, _BYTES, place)]
            cells += [_whole(results, _CLIENTS, place)] if several else []
            if narrow:
                cells = [cell.replace(" ± ", "±") for cell in cells]
            rows.append((*([name] if inner else []), *cells))
        tables[labels] = text_table(caption, head, rows, range(1 if inner else 0, len(head)))
    return tables


def down_axes(results: Results) -> list[str]:
    """All varied axes, from the outermost: first those that other tables show across, then in the recipe's order."""
    varied = [axis for axis, labels in results.axes.items() if axis != SEED and len(labels) > 1]
    first = [results.columns] if results.columns in varied else []
    order = [*(axis for axis in first if axis), *results.rows, *varied]
    return list(dict.fromkeys(axis for axis in order if axis in varied))


def places(results: Results) -> Iterator[dict[str, str]]:
    """Every combination that has a row, by axis and label."""
    down = down_axes(results)
    for labels in product(*(results.axes[axis] for axis in down)):
        yield dict(zip(down, labels, strict=True))


def query_caption(results: Results) -> str:
    """A description of the columns, and of unknown values."""
    seeds = max(len(values_of(results, f"{PREFIX}accuracy", held)) for held in places(results))
    asking = {int(value) for row in results.runs.values() if (value := row.figures.get(_CLIENTS))}
    who = f"queries of {count(asking.pop(), 'client')}" if len(asking) == 1 else "clients' queries"
    what = (
        f"{results.study}: answers to {who}, in %: accuracy on own classes and those asked for, gain in the latter,"
        " forgetting of the former (losses only, so zero or below), accuracy with all these classes alike (uniform);"
        " MiB sent and received by a client"
    )
    if seeds > 1:
        what += f"; mean ± sample standard deviation over {count(seeds, 'seed')}"
    fixed = called({axis: next(iter(labels)) for axis, labels in results.axes.items() if len(labels) == 1})
    return what + (f" ({fixed})" if fixed else "") + _unknown(results)


def _unknown(results: Results) -> str:
    """Runs without a record of the accuracies before the transfer."""
    down = down_axes(results)
    names = [
        called({down[-1]: held[down[-1]]}) if down else "this method"
        for held in places(results)
        if values_of(results, f"{PREFIX}accuracy", held) and not values_of(results, f"{PREFIX}before", held)
    ]
    if not names:
        return ""
    return (
        f". What clients could do before is not known of {listed(list(dict.fromkeys(names)))}: no finished run of"
        " local-only in the study has the same clients"
    )


def _whole(results: Results, metric: str, held: dict[str, str]) -> str:
    """An integer, which is mostly the same for all seeds."""
    found = sorted({int(value) for value in values_of(results, metric, held)})
    if len(found) > 1:
        return f"{found[0]}–{found[-1]}"  # noqa: RUF001
    return str(found[0]) if found else entry(results, metric, held, False)


def _mean(results: Results, metric: str, held: dict[str, str]) -> str:
    """A mean without a spread: message sizes do not depend on the seed."""
    return entry(results, metric, held, False).partition(" ±")[0]


study_tables.register("queries")(
    StudyTable("queries", has_queries, query_table, partial(query_tables, narrow=True)),
)
