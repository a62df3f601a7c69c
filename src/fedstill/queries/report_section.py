"""The report section about clients' queries, for runs that have any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedstill.core.numbers import MISSING, count, listed, points, share
from fedstill.core.table import Cell, Column, Table, make_table, percent, text, whole
from fedstill.queries.probe import probed
from fedstill.queries.query_figures import Balance, gain_against_forgetting, probe_figure
from fedstill.queries.study_figures import ALONE, Companions, Fates, bytes_per_client, fates_of, ground
from fedstill.report import descriptions
from fedstill.report.extensions import RunSections, run_sections
from fedstill.report.figure import Figure
from fedstill.report.page import PageSection
from fedstill.runtime.result import Run

_MIB = 2**20
_CLIENTS = 60  # maximum number of table rows on a page
_TOLD = 4  # maximum number of runs that a sentence lists
_PROBES = 6  # maximum number of such figures on a page


@dataclass(frozen=True)
class AskedRun:
    """A run with queries, with its title and its index among all runs of the page."""

    title: str
    index: int
    run: Run
    fates: Fates

    @property
    def alone(self) -> bool:
        return self.run.experiment.method.name == ALONE

    def figure(self, name: str) -> float | None:
        """A mean over clients; metrics that need the recall before are omitted if it is unknown."""
        hidden = name in ("gain", "forgetting") and not self.fates.known
        hidden |= name == "before" and not (self.fates.known or self.alone)
        return None if hidden else self.fates.means()[name]


def query_section(runs: Mapping[str, Run]) -> PageSection:
    """The section; empty without queries."""
    asked = asked_in(runs)
    if not asked:
        return PageSection("queries", "Queries")
    few = sum(len(one.fates.by_client) for one in asked) <= _CLIENTS
    return PageSection(
        "queries",
        "Queries",
        [*_balance(asked), *probe_figures(one.run for one in asked)],
        [_table(asked), *([_clients(asked)] if few else []), *_without_teacher(asked)],
        about=_about(asked),
    )


def _balance(asked: Sequence[AskedRun]) -> list[Figure]:
    """All runs with known gain and forgetting."""
    found = []
    for one in asked:
        if one.fates.known:
            means = one.fates.means()
            found.append(Balance(one.title, [(means["forgetting"], means["gain"])], one.index))
    return [gain_against_forgetting("balance", "What was learnt and what was forgotten", found)] if found else []


def asked_in(runs: Mapping[str, Run]) -> list[AskedRun]:
    """Each run with queries beside the local-only run among these that has the same clients."""
    alone = Companions[Run]()
    for run in runs.values():
        if run.answers():
            alone.add(run.experiment, run)
    found = []
    for index, (title, run) in enumerate(runs.items()):
        fates = fates_of(run, alone.of(run.experiment)) if run.answers() else None
        if fates is not None:
            found.append(AskedRun(title, index, run, fates))
    return found


def probe_figures(runs: Iterable[Run]) -> list[Figure]:
    """Probe figures of clients' models, once for runs with the same clients."""
    figures: dict[str, Figure] = {}
    for run in runs:
        experiment = run.experiment
        where = ground(experiment)
        if where in figures or len(figures) >= _PROBES or (found := probed(run)) is None:
            continue
        title = (
            f"{experiment.data}, {experiment.model}, {descriptions.part(experiment.partition)}, seed {experiment.seed}"
        )
        figures[where] = probe_figure(f"probe-{len(figures)}", title, found)
    return list(figures.values())


def _table(asked: Sequence[AskedRun]) -> Table:
    def mean(name: str) -> Column[AskedRun]:
        return Column(name.capitalize(), f"query_{name}", lambda one: percent(one.figure(name)))

    columns = (
        Column[AskedRun]("Way", "way", lambda one: text(one.title), right=False),
        Column[AskedRun]("Method", "method", lambda one: text(one.run.experiment.method.name), right=False),
        Column[AskedRun]("Clients that asked", "clients", lambda one: whole(len(one.fates.by_client))),
        *(mean(name) for name in ("accuracy", "before", "gain", "forgetting", "uniform")),
        Column[AskedRun]("Rounds", "rounds", lambda one: whole(one.run.result.rounds)),
        Column[AskedRun]("MiB of a client", "mib", lambda one: _mib(bytes_per_client(one.run))),
    )
    note = (
        "Accuracy is the recall of a client's own classes, weighted by its samples, and of those asked for, weighted by"
        " one; uniform, with all of them alike. Gain is of the classes asked for, forgetting of a client's own. Means"
        " over clients that asked."
    )
    if any(not one.fates.known and not one.alone for one in asked):
        note += f" {MISSING} stands where no run of {ALONE} on this page has the same clients to compare with."
    return make_table("queries", "Answers to queries", columns, asked, note)


@dataclass(frozen=True)
class _Client:
    of: AskedRun
    number: int

    @property
    def metrics(self) -> dict[str, float]:
        return self.of.fates.each(self.number)


def _clients(asked: Sequence[AskedRun]) -> Table:
    """Every client with a query, one row each."""

    def metric(name: str, needs: bool = False) -> Column[_Client]:
        return Column(
            name.capitalize(),
            f"query_{name}",
            lambda one: percent(one.metrics[name] if one.of.fates.known or not needs else None),
        )

    def wanted(one: _Client) -> Cell:
        names = one.of.run.config["classes"]
        return text(", ".join(names[number] for number in one.of.fates.by_client[one.number].query))

    def collapsed(one: _Client) -> Cell:
        fate, names = one.of.fates.by_client[one.number], one.of.run.config["classes"]
        lost = fate.collapsed if one.of.fates.known else ()
        changes = ((names[number], float(fate.before[number]), float(fate.after[number])) for number in lost)
        return text(", ".join(f"{name} {share(before, 1)} → {share(after, 1)}" for name, before, after in changes))

    columns = (
        Column[_Client]("Way", "way", lambda one: text(one.of.title), right=False),
        Column[_Client]("Client", "client", lambda one: whole(one.number)),
        Column[_Client]("Asked for", "query", wanted, right=False),
        Column[_Client]("Samples", "samples", lambda one: whole(int(one.of.fates.by_client[one.number].counts.sum()))),
        metric("accuracy"),
        metric("before", needs=True),
        metric("gain", needs=True),
        metric("forgetting", needs=True),
        metric("uniform"),
        Column[_Client]("Collapsed", "collapsed", collapsed, right=False),
    )
    lines = [_Client(one, number) for one in asked for number in one.fates.by_client]
    note = "Collapsed: own classes whose recall falls by 20 points or more, and to less than half."
    return make_table("query-clients", "Every client that asked", columns, lines, note)


def _without_teacher(asked: Sequence[AskedRun]) -> list[Table]:
    """The queried classes for which the probe's rule admitted no peer, with the peers that came nearest."""
    lines = [
        (one, number, sentence)
        for one in asked
        for number in one.fates.by_client
        for sentence in one.run.answers()[str(number)].get("no_teacher", ())
    ][:_CLIENTS]
    columns = (
        Column[tuple[AskedRun, int, str]]("Way", "way", lambda line: text(line[0].title), right=False),
        Column[tuple[AskedRun, int, str]]("Client", "client", lambda line: whole(line[1])),
        Column[tuple[AskedRun, int, str]]("Probe", "probe", lambda line: text(line[2]), right=False),
    )
    return [make_table("query-no-teacher", "Queried classes without a teacher", columns, lines)] if lines else []


def _about(asked: Sequence[AskedRun]) -> str:
    """A sentence about the outcome of the runs for which it is known."""
    known = {one.title: one.fates.means() for one in asked if one.fates.known}
    if len(known) > _TOLD:  # only the first and the last
        order = sorted(known, key=lambda title: known[title]["gain"])
        known = {title: known[title] for title in (order[-1], order[0])}
    told = [
        f"with “{title}” they gained {points(means['gain'])} in those, and lost {points(means['forgetting'])} in their"
        " own"
        for title, means in known.items()
    ]
    clients = sorted({len(one.fates.by_client) for one in asked})
    who = count(clients[0], "client") if len(clients) == 1 else f"{clients[0]} to {clients[-1]} clients"
    start = f"{who.capitalize()} asked for classes that are scarce in their own data"
    if not told:
        before = [share(one.figure("accuracy"), 1) for one in asked if one.alone]
        return f"{start}." + (f" On those and their own they get {before[0]} right by themselves." if before else "")
    lost = sum(bool(fate.collapsed) for one in asked if one.fates.known for fate in one.fates.by_client.values())
    warning = f" Own classes collapsed at {count(lost, 'client')}: the table names them." if lost else ""
    return f"{start}: {listed(told)}.{warning}"


def _mib(amount: float) -> Cell:
    return Cell(f"{amount / _MIB:.2f}", round(amount / _MIB, 4))


run_sections.register("queries")(RunSections("results", lambda runs, read: [query_section(runs)]))
