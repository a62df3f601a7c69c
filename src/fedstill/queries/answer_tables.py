"""Tables of the outcomes of clients' queries in one run, for the terminal."""

from __future__ import annotations

from fedstill.cli.extensions import RunSummary, run_summaries
from fedstill.cli.screen import console
from fedstill.core.numbers import count, share
from fedstill.queries.guard import collapse_warning
from fedstill.queries.query_records import ClientQuery, PrintedQueries
from fedstill.queries.study_figures import ALONE, Fates, beside, fates_of
from fedstill.runtime.result import Run

_TOLD = 3  # clients that are named


def queries_section(run: Run) -> PrintedQueries | None:
    """The section that `--json` prints: means over clients with a query, and each of them; None without queries."""
    alone = beside(run)
    fates = fates_of(run, alone)
    if fates is None:
        return None
    unknown = set() if fates.known else {"before", "gain", "forgetting"}

    def known(metrics: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if name not in unknown}

    told = run.answers()
    each = {
        client: ClientQuery(
            query=fate.query,
            collapsed=fate.collapsed if fates.known else (),
            choice=told[str(client)].get("choice"),
            no_teacher=tuple(told[str(client)].get("no_teacher", ())),
            **known(fates.each(client)),
        )
        for client, fate in fates.by_client.items()
    }
    compared = None if alone is None else str(alone.path)
    return PrintedQueries(**known(fates.means()), compared_with=compared, each=each)


def show_answers(run: Run) -> None:
    """Prints four metrics and their baseline; for local-only, the values before any query."""
    if not run.answers():
        return
    alone = beside(run)
    fates = fates_of(run, alone)
    if fates is None:
        console.print("queries: no client lacks a class, so nobody asked")
        return
    means, known = fates.means(), fates.known
    itself = run.experiment.method.name == ALONE
    change = f" (before {share(means['before'])}), gain {share(means['gain'])}, forgetting {share(means['forgetting'])}"
    console.print(
        f"queries of {count(len(fates.by_client), 'client')}{', not answered yet' if itself else ''}:"
        f" accuracy {share(means['accuracy'])}{change if known else ''}, uniform {share(means['uniform'])}",
    )
    _show_details(run, fates)
    if not known and not itself:
        console.print(
            f"gain and forgetting are not known: run {ALONE} with the same clients and queries into the same folder,"
            " and show this run again",
        )
    elif known and alone is not None:
        console.print(f"compared with {alone.path}", soft_wrap=True)


def _show_details(run: Run, fates: Fates) -> None:
    """Clients that found no teacher for a class, and those of whose own classes some collapsed; a few of each."""
    told, names = run.answers(), run.config["classes"]
    missing = [
        f"client {client}: {sentence}"
        for client in fates.by_client
        for sentence in told[str(client)].get("no_teacher", ())
    ]
    warnings = {client: collapse_warning(fate, names) for client, fate in fates.by_client.items() if fates.known}
    collapsed = [f"client {client}: {warning}" for client, warning in warnings.items() if warning]
    for lines in (missing, collapsed):
        for line in lines[:_TOLD]:
            console.print(line)
        if len(lines) > _TOLD:
            console.print(f"and {len(lines) - _TOLD} more; --json has all")


run_summaries.register("queries")(RunSummary(queries_section, show_answers))
