"""The server's process: enrol the sites, plan, run the rounds, send the sites the result."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from fedstill.core.errors import InputError
from fedstill.core.protocols import StateVersion
from fedstill.deploy.apps import FINISH, server_app
from fedstill.deploy.deployment_folder import ServerFolder
from fedstill.deploy.enrolment import Enrolment, ServerWatcher
from fedstill.deploy.private_files import only_one
from fedstill.deploy.received_model import last_message
from fedstill.deploy.server_endpoint import Certificates, ServerEndpoint
from fedstill.deploy.server_options import ServerOptions, check_port
from fedstill.deploy.server_status import Status
from fedstill.deploy.site_registry import for_sites
from fedstill.engines.flower.grid_engine import Flower, Letter, corresponded
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.client_store import SiteStore
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.observers import Observer
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

_log = logging.getLogger(__name__)


def serve(
    folder: ServerFolder,
    experiment: Experiment,
    out: Path,
    watcher: ServerWatcher,
    terms: ServerOptions,
    observers: Sequence[Observer] = (),
) -> RunFolder:
    """Run or resume an experiment with a deployment's sites, and send the final model to those connected."""
    keys = folder.public_keys()
    sites = tuple(terms.sites) or tuple(sorted(keys))
    if unknown := sorted(set(sites) - set(keys)):
        raise InputError(
            f"the server has no key of site {unknown[0]}: it knows sites {', '.join(map(str, sorted(keys)))}"
        )
    certificates = None
    if not terms.insecure:
        folder.check()
        certificates = Certificates(folder.certificate, folder.key)
    port = folder.port if terms.port is None else terms.port
    check_port(port, least=0)  # before the folder is locked: bad input leaves no trace
    wanted = for_sites(experiment, len(sites), folder.name)
    done: list[RunFolder] = []
    with (
        only_one(folder.path, "server"),
        ServerEndpoint(terms.host, port, {site: keys[site] for site in sites}, certificates, terms.limit) as link,
        Status(folder.path, link, sites) as status,
    ):
        watcher.note(f"listening on {terms.host} port {link.port}")
        _log.info("listening on %s port %d for sites %s", terms.host, link.port, sites)

        def play(grid: Any) -> None:
            reception = Enrolment(link, wanted, sites, watcher, terms, folder.path / "rosters")
            plan = reception.gather()
            status.run(plan)
            _log.info("%s: all sites enrolled, %d rounds", plan.folder_name, plan.rounds)
            nodes = {client: link.nodes[site] for client, site in enumerate(sites)}
            engine = Flower(link, nodes, plan.identity, terms.patience, terms.limit)
            done.append(execute(plan, engine, out, [*observers, status]))
            missing = _hand_out(link, sites, plan.identity, done[0], terms)
            lacking = f"site {', '.join(map(str, missing))} did not get the final model: run the same command again"
            watcher.note(lacking if missing else "every site has the final model")
            _log.info("%s: final model sent, not received by sites %s", done[0].path.name, missing)

        server_app(play)(grid=link, context=Context(link.run.run_id, 0, {}, RecordDict(), {}))
    return done[0]


def _hand_out(
    link: ServerEndpoint, sites: Sequence[int], run: str, folder: RunFolder, terms: ServerOptions
) -> list[int]:
    """Send the final models to all connected sites; returns the sites that did not receive them."""
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
    answers = corresponded(link, letters, terms.patience, terms.limit)
    has = {answer.letter.to for answer in answers if answer.header.get("status") == "kept"}
    return sorted(set(sites) - has)
