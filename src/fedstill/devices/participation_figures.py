"""Figures about participation: failures by cause, fairness of participation, and clusters of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedstill.core.numbers import MISSING, capital, count, listed
from fedstill.core.records import RoundRecord
from fedstill.core.task import Tensors
from fedstill.devices.clusters import WORDS, Clusters
from fedstill.devices.fleet_figures import MANY, width_for
from fedstill.devices.study_figures import attendance, jain
from fedstill.report.figure import (
    CAUSES,
    Figure,
    Key,
    axis,
    cause_colour,
    colour,
    label,
    names_axis,
    symbol,
    whole_axis,
)

Groups = Mapping[str, Sequence[int]]


def failures_by_round(id: str, title: str, journal: Sequence[RoundRecord]) -> Figure:
    """Failures in each round by cause, and the number of them that were replaced."""
    rounds = [record.round for record in journal]
    each: list[Counter[str]] = [Counter(one.reason for one in record.failures) for record in journal]
    total = sum(each, Counter())
    causes = [cause for cause in dict.fromkeys([*CAUSES, *total]) if total[cause]]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "x": rounds,
            "y": [found[cause] for found in each],
            "marker": {"color": cause_colour(cause)},
            "hovertemplate": f"round %{{x}}: %{{y}} {label(cause)}<extra></extra>",
        }
        for cause in causes
    ]
    keys = [Key(cause, cause_colour(cause), (number,), shape="box") for number, cause in enumerate(causes)]
    replaced = [len(record.replacements or {}) for record in journal]
    told = [f"{total[cause]:,} {cause}" for cause in causes]
    words = f"Over all rounds {listed(told)}" + (f"; {sum(replaced):,} replaced." if sum(replaced) else ".")
    if sum(replaced):
        keys.append(Key("replaced", "var(--series-3)", (len(data),), shape="symbol", symbol="diamond"))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": rounds,
                "y": replaced,
                "marker": {"color": "var(--series-3)", "symbol": "diamond", "size": 8},
                "hovertemplate": "round %{x}: %{y} replaced<extra></extra>",
            }
        )
    most = max(sum(found.values()) for found in each)
    return Figure(
        id,
        title,
        f"Failures in each round, by cause. {words}",
        f"Clients that were sampled in a round and whose reply does not count, by cause. {words}"
        + (" A diamond at the top of a bar means that every one was replaced." if sum(replaced) else ""),
        data,
        {
            "barmode": "stack",
            "bargap": 0.2,
            "xaxis": whole_axis("round", len(journal), showgrid=False),
            "yaxis": whole_axis("clients", most, rangemode="tozero"),
        },
        keys,
    )


def fairness(id: str, title: str, journal: Sequence[RoundRecord], clients: int, groups: Groups, what: str) -> Figure:
    """The number of rounds with an accepted reply of each client, in descending order, coloured by its group.

    A group's colour depends on its position, so that groups without clients are listed too.
    """
    attended = attendance(journal, clients)
    order = sorted(range(clients), key=lambda client: (-attended[client], client))
    few = clients <= MANY
    place = {client: str(client) if few else at + 1 for at, client in enumerate(order)}
    group = {client: number for number, own in enumerate(groups.values()) for client in own}
    names = list(groups)
    means = {name: float(attended[list(own)].mean()) for name, own in groups.items() if len(own)}
    words = f"Jain's index of fairness is {_index(attended)} (1: all took part alike)"
    if len(means) > 1:
        told = [f"{name} {mean:.1f}" for name, mean in means.items()]
        words += f", {_index(np.array(list(means.values())))} between {what}s; mean rounds by {what}: {', '.join(told)}"
    return Figure(
        id,
        title,
        f"Rounds that each client took part in, of {len(journal)}: {attended.min():.0f} to {attended.max():.0f}."
        f" {words}.",
        f"In how many of {count(len(journal), 'round')} each client's reply counted, from the busiest. {words}.",
        [
            {
                "type": "bar",
                "x": [place[client] for client in order],
                "y": [float(attended[client]) for client in order],
                "marker": {"color": [colour(group.get(client, 6)) for client in order]},
                "customdata": [
                    f"client {client}" + (f" ({what} {label(names[group[client]])})" if client in group else "")
                    for client in order
                ],
                "hovertemplate": "%{customdata}: %{y} rounds<extra></extra>",
            }
        ],
        {
            "bargap": 0.15 if few else 0,
            "xaxis": names_axis(title={"text": "client"}) if few else whole_axis("clients", clients, showgrid=False),
            "yaxis": whole_axis("rounds", int(max(attended.max(), 1)), rangemode="tozero"),
        },
        [Key(f"{what} {name}", colour(names.index(name)), shape="box") for name in means],
        width=width_for(clients) if few else 0,
    )


def cluster_plane(id: str, title: str, clusters: Clusters, fleet: Tensors, classes: Sequence[str]) -> Figure:
    """Clients by the first two statistics that they sent, coloured by cluster."""
    table, cluster = fleet["statistics"].numpy(), fleet["cluster"].numpy()
    names = (
        [f"share of class {name}" for name in classes]
        if clusters.statistics == "labels"
        else [f"{WORDS[name]} of inputs" for name in clusters.statistics]
    )
    known = np.flatnonzero((cluster >= 0) & np.isfinite(table).all(axis=1))
    flat = table.shape[1] < 2
    across, up = table[:, 0], np.arange(len(table), dtype=float) if flat else table[:, 1]
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    sizes = []
    for number in np.unique(cluster[known]).tolist():
        own = known[cluster[known] == number]
        sizes.append(len(own))
        keys.append(Key(f"cluster {number}", colour(number), (len(data),), shape="symbol", symbol=symbol(number)))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": across[own].tolist(),
                "y": up[own].tolist(),
                "marker": {"color": colour(number), "symbol": symbol(number), "size": 10, "opacity": 0.85},
                "customdata": own.tolist(),
                "hovertemplate": f"client %{{customdata}}, cluster {number}: %{{x:.4g}}, %{{y:.4g}}<extra></extra>",
            }
        )
    unknown = len(table) - len(known)
    overlap = f" Of {len(names)} statistics two are drawn: clusters that overlap here may be apart in the others."
    more = overlap if len(names) > 2 else ""
    words = f"{capital(count(len(sizes), 'cluster'))} of {listed([str(size) for size in sizes])} clients"
    return Figure(
        id,
        title,
        f"Clients by {names[0]}" + ("" if flat else f" and {names[1]}") + f". {words}.",
        f"A mark is a client, where the statistics put it that it sent of its own data; its cluster is by k-means on"
        f" all of them. {words}{f', and {unknown} of unknown cluster' if unknown else ''}.{more}",
        data,
        {"height": 360, "xaxis": axis(names[0]), "yaxis": axis("client" if flat else names[1])},
        keys,
    )


def _index(counts: np.ndarray) -> str:
    index = jain(counts)
    return MISSING if index is None else f"{index:.2f}"
