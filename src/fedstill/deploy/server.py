"""The server's process: enrol the sites, plan, run the rounds, send the sites the result."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from fedstill.core.errors import InputError
from fedstill.deploy.apps import server_app
from fedstill.deploy.connection_limit import allow_open_files
from fedstill.deploy.deployment_folder import ServerFolder
from fedstill.deploy.enrolment import ServerWatcher
from fedstill.deploy.federation import run_with_sites
from fedstill.deploy.private_files import only_one
from fedstill.deploy.server_endpoint import Certificates, ServerEndpoint
from fedstill.deploy.server_log import ServerLog
from fedstill.deploy.server_options import ServerOptions, check_port
from fedstill.deploy.server_status import Status
from fedstill.deploy.site_keys import SiteKeys
from fedstill.deploy.site_registry import for_sites
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.observers import Observer
from fedstill.runtime.run_folder import RunFolder
from fedstill.runtime.tracked import TrackInput, tracking_of

_log = logging.getLogger(__name__)


def serve(
    folder: ServerFolder,
    experiment: Experiment,
    out: Path,
    watcher: ServerWatcher,
    terms: ServerOptions,
    observers: Sequence[Observer] = (),
    track: TrackInput = None,
) -> RunFolder:
    """Run or resume an experiment with a deployment's sites, and send the final model to those connected."""
    keys = folder.public_keys()
    sites = tuple(terms.sites) or tuple(sorted(keys))
    if unknown := sorted(set(sites) - set(keys)):
        raise InputError(
            f"the server has no key of site {unknown[0]}: it knows sites {', '.join(map(str, sorted(keys)))}"
        )
    if terms.min_sites is not None and terms.min_sites > len(sites):
        raise InputError(f"--min-sites {terms.min_sites} is more than the {len(sites)} sites that are asked")
    certificates = None
    if not terms.insecure:
        folder.check()
        certificates = Certificates(folder.certificate, folder.key)
    port = folder.port if terms.port is None else terms.port
    check_port(port, least=0)  # before the folder is locked: bad input leaves no trace
    wanted = for_sites(experiment, len(sites), folder.name)
    registered = SiteKeys({site: keys[site] for site in sites}, folder.registered)
    tracking = tracking_of(track, out, watcher.note)
    allow_open_files()
    log = ServerLog(folder.path)
    done: list[RunFolder] = []
    with (
        only_one(folder.path, "server"),
        ServerEndpoint(terms.host, port, registered, certificates, terms.limit, log) as link,
        Status(folder.path, link, sites) as status,
    ):
        watcher.note(f"listening on {terms.host} port {link.port}")
        _log.info("listening on %s port %d for sites %s", terms.host, link.port, sites)

        def refusal(site: int, why: str) -> None:
            status.refusal(site, why)
            if why:
                told.add((site, why))  # on the screen, by the enrolment
                log.refused(why, site)

        told = set[tuple[int, str]]()

        def refused_request(site: int, why: str) -> None:
            if (site, why) not in told:
                told.add((site, why))
                watcher.note(f"a request of site {site} was refused: {why}")
                status.failure(site, f"a request was refused: {why}")

        log.on_refused = refused_request

        def run_experiment(grid: Any) -> None:
            watchers, rosters = [*observers, status], folder.path / "rosters"
            done.append(
                run_with_sites(
                    link, wanted, sites, watcher, terms, rosters, out, watchers, tracking, refusal, status.run
                )
            )

        server_app(run_experiment)(grid=link, context=Context(link.run.run_id, 0, {}, RecordDict(), {}))
    return done[0]
