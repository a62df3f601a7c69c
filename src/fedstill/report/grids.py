"""Figures over clients: who took part when, and who has what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstill.core.numbers import capital, listed
from fedstill.core.records import RoundRecord
from fedstill.report import descriptions
from fedstill.report.facts import Facts
from fedstill.report.figure import CAUSES, Figure, Key, axis, cause_colour, label, whole_axis
from fedstill.report.shards import Holdings

_ROWS = 60  # more clients than this are counted, not drawn one by one
_COLUMNS = 300
_NUMBERS = 16  # up to so many clients there is room for numbers in the cells

# What a table counts, by what, and several of those.
_BY = {
    "class": ("samples", "class", "classes"),
    "kind": ("samples", "kind", "kinds of things"),
    "box": ("boxes", "class", "classes"),
}

_ACCEPTED, _UNUSED = "accepted", "unused (round skipped)"
_COLOURS = {_ACCEPTED: "var(--taken)", _UNUSED: "var(--unused)"}


def attendance(runs: Sequence[Facts]) -> list[Figure]:
    """Who took part when, for every run in which somebody did not."""
    return [_attendance(number, run) for number, run in enumerate(runs) if run.partial]


def _attendance(number: int, run: Facts) -> Figure:
    outcomes = [_outcomes(record) for record in run.journal]
    reasons = [name for name in _all_reasons(outcomes) if any(name in outcome.values() for outcome in outcomes)]
    few = run.experiment.clients <= _ROWS
    data, layout = _squares(run, outcomes, reasons) if few else _bars(run, outcomes, reasons)
    totals = [f"{sum(list(outcome.values()).count(name) for outcome in outcomes):,} {_label(name)}" for name in reasons]
    return Figure(
        f"attendance-{number}",
        run.title,
        f"Replies by {'client and ' if few else ''}round in {run.quoted}: {listed(totals) if totals else 'none'}.",
        f"Participation: {descriptions.part(run.experiment.participation)}. Over all rounds: "
        f"{listed(totals) if totals else 'nobody took part'}.",
        data,
        layout,
        [Key(_label(name), _colour(name), shape="box") for name in reasons],
    )


def _outcomes(record: RoundRecord) -> dict[int, str]:
    """What became of each client that was sampled in a round."""
    outcomes = dict.fromkeys(record.sampled, _UNUSED) | dict.fromkeys(record.accepted, _ACCEPTED)
    return outcomes | {one.client: one.reason for one in record.failures}


def _squares(
    run: Facts, outcomes: Sequence[Mapping[int, str]], reasons: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """A square per client and round; one trace per outcome, so that each has one colour."""
    clients = range(run.experiment.clients)
    rounds = [record.round for record in run.journal]
    data = [
        {
            "type": "heatmap",
            "x": rounds,
            "y": list(clients),
            "z": [[1 if outcome.get(client) == name else None for outcome in outcomes] for client in clients],
            "colorscale": [[0, _colour(name)], [1, _colour(name)]],
            "showscale": False,
            "xgap": 2 if len(rounds) <= _ROWS else 0,
            "ygap": 2,
            "hovertemplate": f"round %{{x}}, client %{{y}}: {_label(name)}<extra></extra>",
        }
        for name in reasons
    ]
    return data, {
        "height": 110 + max(60, 17 * len(clients)),
        "xaxis": whole_axis("round", len(rounds), range=[0.5, len(rounds) + 0.5], showgrid=False),
        "yaxis": whole_axis("client", len(clients), range=[len(clients) - 0.5, -0.5], showgrid=False),
    }


def _bars(
    run: Facts, outcomes: Sequence[Mapping[int, str]], reasons: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    data = [
        {
            "type": "bar",
            "name": _label(name),
            "x": [record.round for record in run.journal],
            "y": [list(outcome.values()).count(name) for outcome in outcomes],
            "marker": {"color": _colour(name)},
            "hovertemplate": f"round %{{x}}: %{{y:,}} {_label(name)}<extra></extra>",
        }
        for name in reasons
    ]
    return data, {
        "barmode": "stack",
        "bargap": 0.15,
        "xaxis": whole_axis("round", len(run.journal), showgrid=False),
        "yaxis": whole_axis("clients", max(map(len, outcomes))),
    }


def partitions(runs: Sequence[Facts], tables: Mapping[str, Holdings]) -> list[Figure]:
    """Who has what, once for runs that share a partition."""
    shared: dict[str, list[Facts]] = {}
    for run in runs:
        if run.title in tables:
            shared.setdefault(repr(tables[run.title]), []).append(run)
    # One scale for all, or an even partition would look as lopsided as a skewed one.
    drawn = [tables[group[0].title] for group in shared.values()]
    most = max((count for table in drawn for row in table.counts for count in row), default=1)
    groups = zip(shared.values(), drawn, strict=True)
    return [_partition(number, group, table, most) for number, (group, table) in enumerate(groups)]


def _partition(number: int, group: Sequence[Facts], table: Holdings, most: int) -> Figure:
    run, shown = group[0], table.counts[:_COLUMNS]
    counted, by, several = _BY[table.by]
    sizes = table.sizes
    held = [sum(count > 0 for count in row) for row in table.counts]
    titles = listed([each.quoted for each in group])
    columns = [list(column) for column in zip(*shown, strict=True)]
    numbers = len(shown) <= _NUMBERS
    spread = f"{_range(sizes)} samples of {_range(held)} {several} each"
    points = " Every point has a label of its own: counted are whole clouds." if table.by == "kind" else ""
    points += " Samples are scenes: counted are the boxes in them." if table.by == "box" else ""
    points += " Some samples lie with several clients." if table.overlap else ""
    name = descriptions.part(run.experiment.partition)
    client = "" if table.sites else "client "
    cut = f" The first {_COLUMNS} clients are shown." if len(sizes) > _COLUMNS else ""
    return Figure(
        f"partition-{number}",
        name,
        f"{capital(counted)} by client and {by}, {name}: {len(sizes):,} clients have {spread}.",
        f"{capital(counted)} by client and {by} in {titles}. Clients have {spread}.{points}{cut}",
        [
            {
                "type": "heatmap",
                "x": [label(name) for name in table.sites[: len(shown)]] or list(range(len(shown))),
                "y": [f"{label(name)} " for name in table.names],
                # The square root lets a handful of samples be seen beside a thousand.
                "z": [[count**0.5 for count in column] for column in columns],
                "text": [[f"{count:,}" if count else "" for count in column] for column in columns],
                "customdata": columns,
                "texttemplate": "%{text}" if numbers else "",
                "textfont": {"size": 10},
                "colorscale": [[step / 3, f"var(--shade-{step})"] for step in range(4)],
                "zmin": 0,
                "zmax": most**0.5,
                "showscale": False,
                "xgap": 1 if numbers else 0,
                "ygap": 1,
                "hovertemplate": f"{client}%{{x}}, {by} %{{y}}: %{{customdata:,}} {counted}<extra></extra>",
            }
        ],
        {
            "height": 110 + max(60, 20 * min(len(table.names), 40)),
            "xaxis": axis("site", type="category", showgrid=False)
            if table.sites
            else whole_axis("client", len(shown), showgrid=False),
            "yaxis": axis(by, type="category", autorange="reversed", showgrid=False),
        },
    )


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _all_reasons(outcomes: Sequence[Mapping[int, str]]) -> list[str]:
    return list(dict.fromkeys([*_COLOURS, *CAUSES, *(name for outcome in outcomes for name in outcome.values())]))


def _colour(name: str) -> str:
    return _COLOURS.get(name) or cause_colour(name)


def _label(name: str) -> str:
    return name if name in (_ACCEPTED, _UNUSED) else f"lost ({name})"
