"""A run with sites, over whatever connects them: enrol them, run the rounds, send them the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.core.protocols import StateVersion
from fedstill.deploy.apps import FINISH
from fedstill.deploy.enrolment import Enrolment, ServerWatcher, SiteLines
from fedstill.deploy.received_model import last_message
from fedstill.deploy.server_options import ServerOptions
from fedstill.engines.flower.correspondence import Letter, Outages, corresponded, one_line
from fedstill.engines.flower.grid_engine import Flower
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.client_store import SiteStore
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.observers import Observer
from fedstill.runtime.plan import Plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from fedstill.tracking.tracking import Tracking

_log = logging.getLogger(__name__)


def _ignore_refusal(site: int, why: str) -> None:
    """The watcher was told."""


def _ignore_plan(plan: Plan, members: Sequence[int]) -> None:
    """Nobody else wants to know."""


def run_with_sites(
    link: SiteLines,
    experiment: Experiment,
    sites: Sequence[int],
    watcher: ServerWatcher,
    terms: ServerOptions,
    rosters: Path,
    out: Path,
    observers: Sequence[Observer] = (),
    tracking: Tracking | None = None,
    on_refusal: Callable[[int, str], None] = _ignore_refusal,
    on_plan: Callable[[Plan, Sequence[int]], None] = _ignore_plan,
) -> RunFolder:
    """Run or resume an experiment with these sites; `rosters` is where lists of those that took part are kept."""
    enrolment = Enrolment(link, experiment, sites, watcher, terms, rosters, on_refusal)
    plan = enrolment.gather()
    members = tuple(enrolment.sites)
    on_plan(plan, members)
    _log.info("%s: sites %s enrolled, %d rounds", plan.folder_name, members, plan.rounds)
    nodes = {client: link.nodes[site] for client, site in enumerate(members)}
    outages = Outages(terms.wait)
    for node in set(nodes.values()) - set(link.get_node_ids()):
        outages.give_up(node)  # they were waited for when the run was resumed
    engine = Flower(link, nodes, plan.identity, terms.patience, terms.limit, outages, members)
    done = execute(plan, engine, out, observers, tracking=tracking)
    answers = corresponded(
        link, _final(link, members, plan.identity, done), terms.patience, terms.limit, outages, watcher.note
    )
    has = set()
    for answer in answers:
        if answer.header.get("status") == "kept":
            has.add(answer.letter.to)
        elif "detail" in answer.header:
            watcher.note(f"site {answer.letter.to} did not keep the final model: {one_line(answer.header['detail'])}")
    missing = sorted(set(members) - has)
    lacking = f"site {', '.join(map(str, missing))} did not get the final model: run the same command again"
    watcher.note(lacking if missing else "every site has the final model")
    _log.info("%s: final model sent, not received by sites %s", done.path.name, missing)
    return done


def _final(link: SiteLines, sites: Sequence[int], run: str, folder: RunFolder) -> list[Letter]:
    """The final models, for each site."""
    found, _ = candidates(folder.path)
    store = SiteStore(len(sites))
    store.restore(found[0].clients)
    models, result = last_message(folder, found[0].server), folder.result()
    assert result is not None
    letters = []
    for client, site in enumerate(sites):
        kept = store.kept(client) or StateVersion(-1)
        told: dict[str, str | int | float] = {"run": run, "name": folder.path.name, "result": result.to_json()}
        header = {**told, "kept": kept.round, "state": kept.digest}
        letters.append(Letter(site, link.nodes[site], FINISH, models, header))
    return letters
