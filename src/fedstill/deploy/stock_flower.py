"""Both ends of a stock Flower app: experiments on a federation of Flower's own SuperLink and SuperNodes.

Only Flower's public interfaces are used. A site's folder (`fedstill deploy init`), with its policy, its log and its
memory of what it answered, works as in our own deployments. What connects the machines is Flower's: who may connect,
encryption, and the limits on what is received.

SuperLink numbers its nodes itself, so each is first asked which site it is. It is believed: that a node is who it says
is for Flower's authentication of SuperNodes to establish. Each message to a node meets a new process, which finds what
it needs in the site's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedstill.core.errors import InputError, RunError
from fedstill.core.files import read_json
from fedstill.core.protocols import Failure, Reply
from fedstill.data.lookup import load
from fedstill.deploy.apps import client_app
from fedstill.deploy.deployment_folder import open_site
from fedstill.deploy.federation import run_with_sites
from fedstill.deploy.private_files import only_one
from fedstill.deploy.server_options import ServerOptions
from fedstill.deploy.site_registry import for_sites
from fedstill.deploy.site_service import SiteService
from fedstill.engines.flower.correspondence import Letter, corresponded
from fedstill.engines.flower.encoding import packed, salted
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.result import Run

WHICH = "query.which"
_POLL = 1.0  # seconds between looks for nodes


class _Log:
    """What happens, each thing once, for Flower's log of the process."""

    def __init__(self) -> None:
        self.missing = tuple[int, ...]()

    def note(self, text: str) -> None:
        print(text, flush=True)

    def waiting(self, for_sites: Sequence[int]) -> None:
        if for_sites and tuple(for_sites) != self.missing:
            self.missing = tuple(for_sites)
            self.note(f"waiting for site {', '.join(map(str, for_sites))}")

    def manifest(self, manifest: Mapping[str, Any], experiment: str) -> None:
        for line in manifest["leaves"]:
            self.note(f"experiment {experiment}: {line['name']} ({line['kind']}) leaves for the {line['to']}")

    def answered(self, exchange: str, round: int, rounds: int, outcome: Reply | Failure) -> None:
        what = f"{outcome.reason}, {outcome.detail}" if isinstance(outcome, Failure) else "replied"
        self.note(f"round {round + 1} of {rounds}, {exchange}: {what}")

    def received(self, folder: Path) -> None:
        self.note(f"the experiment is over; its models are in {folder}")


def site_app() -> ClientApp:
    """A site's end, whose folder and data are in the SuperNode's `--node-config`."""
    app = ClientApp()

    def answered(message: Message, context: Context) -> Message:
        folder, data = (_configured(context.node_config, name) for name in ("folder", "data"))
        service = _service(folder, data)
        if message.metadata.message_type == WHICH:
            return Message(salted(packed({}, {"status": "site", "site": service.folder.site})), reply_to=message)
        with only_one(service.folder.path, "site"):
            return client_app(service)(message, context)

    for handled in ("which", "enrol", "accept", "refuse", "finish"):
        app.query(handled)(answered)
    app.train("exchange")(answered)
    return app


def _configured(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(
            "start this SuperNode with its site's folder and data, as in --node-config"
            ' \'folder="/srv/site-0" data="npz:/srv/site-0.npz"\''
        )
    return value


@cache
def _service(folder: str, data: str) -> SiteService:
    return SiteService(open_site(Path(folder).expanduser()), load(data, part=True), _Log())


def federation_app(experiment: Path) -> ServerApp:
    """The server's end, which runs the experiment in that file; `flwr run --run-config` changes where and how."""
    app = ServerApp()

    @app.main()
    def _main(grid: Grid, context: Context) -> None:
        config = context.run_config
        sites = int(config["sites"])
        wanted = for_sites(make_experiment(read_json(experiment) or {}), sites, str(config["name"]))
        out = Path(str(config["out"])).expanduser()
        out.mkdir(parents=True, exist_ok=True)
        terms = ServerOptions(patience=float(config["patience"]), wait=float(config["wait"]))
        logging.getLogger("fedstill").setLevel(logging.INFO)
        log, lines = _Log(), StockLines(grid)
        lines.find(sites, terms.patience, log)
        run = run_with_sites(lines, wanted, range(sites), log, terms, out / "rosters", out)
        log.note(f"the run is in {run.path}, sha256 {Run(run.path).sha256}")

    return app


@dataclass
class StockLines:
    """A stock grid, and which node is which site."""

    grid: Grid
    nodes: dict[int, int] = field(default_factory=dict)  # by site

    def find(self, sites: int, patience: float, log: _Log) -> None:
        """Ask all nodes which site they are, until every site is found."""
        asked: set[int] = set()
        until = monotonic() + patience
        while len(self.nodes) < sites:
            new = [node for node in self.get_node_ids() if node not in asked]
            letters = [Letter(node, node, WHICH, {}, {}) for node in new]
            asked |= set(new)
            for answer in corresponded(self, letters, patience, ServerOptions().limit):
                site = answer.header.get("site")
                if answer.trouble or not isinstance(site, int) or not 0 <= site < sites:
                    log.note(f"node {answer.letter.to} is no site of this app: {answer.trouble or f'site {site}'}")
                elif site in self.nodes:
                    raise RunError(f"two nodes are site {site}: give each SuperNode the folder of another site")
                else:
                    self.nodes[site] = answer.letter.to
            missing = [site for site in range(sites) if site not in self.nodes]
            if missing and monotonic() > until:
                raise RunError(f"no node is site {', '.join(map(str, missing))}: start its SuperNode")
            if missing:
                log.waiting(missing)
                sleep(_POLL)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return list(self.grid.push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return list(self.grid.pull_messages(message_ids))

    def drop_messages(self, message_ids: Iterable[str]) -> None:
        """Flower has no public way to take a message back: it expires."""

    def get_node_ids(self) -> Iterable[int]:
        return list(self.grid.get_node_ids())

    def since(self, node: int) -> str:
        """A node that connects anew has another number."""
        return str(node)
