"""The server's process: wait for the sites, plan with what they say, play the rounds, give them the result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from flwr.app import Context, Message, RecordDict

from fedstill.config import Experiment
from fedstill.core.errors import InputError
from fedstill.core.files import write_atomically
from fedstill.core.message import MessageError
from fedstill.deploy.apps import AGREE, FINISH, HELLO, server_app
from fedstill.deploy.files import only_one
from fedstill.deploy.folder import ServerFolder
from fedstill.deploy.link import Certificates, Link
from fedstill.deploy.planning import Question, server_plan, with_samples
from fedstill.deploy.received import last_message
from fedstill.deploy.roster import (
    SiteFacts,
    experiment_digest,
    for_sites,
    other_label_spaces,
    plugins,
    versions,
)
from fedstill.deploy.status import Status
from fedstill.engines.flower.carrier import Flower
from fedstill.engines.flower.records import packed, unpacked
from fedstill.federation.checkpoint import candidates
from fedstill.federation.folder import RunFolder
from fedstill.federation.observers import Observer
from fedstill.federation.plan import Plan
from fedstill.federation.run import execute

_POLL = 0.05  # seconds


class ServerWatcher(Protocol):
    """Whoever sits at the server, or its log."""

    def note(self, text: str) -> None: ...

    def waiting(self, for_sites: Sequence[int]) -> None: ...


@dataclass(frozen=True)
class Terms:
    """How a server is run; none of it changes the result."""

    host: str = "0.0.0.0"
    port: int | None = None  # else the deployment's
    insecure: bool = False
    sites: Sequence[int] = ()  # else all
    patience: float = 3600.0  # seconds for one reply
    wait: float = 60.0  # seconds for sites that were there before, when a run goes on
    limit: int = 2**30  # bytes of one reply
    fresh: bool = False  # forget who took part before


def serve(
    folder: ServerFolder,
    experiment: Experiment,
    out: Path,
    watcher: ServerWatcher,
    terms: Terms,
    observers: Sequence[Observer] = (),
) -> RunFolder:
    """Run an experiment with the sites of a deployment, or go on with it; the final model goes to all who are there."""
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
    wanted = for_sites(experiment, len(sites))
    done: list[RunFolder] = []
    port = folder.port if terms.port is None else terms.port
    with (
        only_one(folder.path, "server"),
        Link(terms.host, port, {site: keys[site] for site in sites}, certificates, terms.limit) as link,
        Status(folder.path, link) as status,
    ):
        watcher.note(f"listening on {terms.host} port {link.port}")

        def play(grid: Any) -> None:
            reception = Reception(link, wanted, sites, watcher, terms, folder.path / "rosters")
            plan = reception.gather()
            status.run(plan)
            run = experiment_digest(plan.experiment)
            nodes = {client: link.nodes[site] for client, site in enumerate(sites)}
            engine = Flower(link, nodes, run, terms.patience, terms.limit)
            done.append(execute(plan, engine, out, [*observers, status]))
            _hand_out(link, nodes, run, done[0], watcher)

        server_app(play)(grid=link, context=Context(link.run.run_id, 0, {}, RecordDict(), {}))
    return done[0]


@dataclass
class Reception:
    """Sites come, say what their data is about, and agree to the experiment; only then does it begin."""

    link: Link
    experiment: Experiment
    sites: Sequence[int]
    watcher: ServerWatcher
    terms: Terms
    rosters: Path
    refused: dict[int, str] = field(
        default_factory=dict
    )  # by site, when it had connected: asked again only if restarted

    def gather(self) -> Plan:
        """The plan, once every site has agreed; a run that goes on waits only so long for those who are missing."""
        place = self.rosters / f"{experiment_digest(self.experiment)}.json"
        before = None if self.terms.fresh else _read_roster(place, self.sites)
        facts = before or self._facts()
        plan, question = server_plan(self.experiment, [facts[site] for site in self.sites])
        counts = self._agreed(plan, question, None if before is None else self.terms.wait)
        facts = {site: one.model_copy(update={"samples": counts.get(site, one.samples)}) for site, one in facts.items()}
        if before is None:
            self.rosters.mkdir(exist_ok=True)
            content = {str(site): one.model_dump(mode="json") for site, one in facts.items()}
            write_atomically(place, (json.dumps(content, indent=2) + "\n").encode())
        return with_samples(plan, [facts[site].samples for site in self.sites])

    def _facts(self) -> dict[int, SiteFacts]:
        facts: dict[int, SiteFacts] = {}
        while len(facts) < len(self.sites):
            self.watcher.waiting([site for site in self.sites if site not in facts])
            for site, header in self._ask_who_is_new(
                HELLO, {site: _greeting() for site in self.sites if site not in facts}
            ):
                try:
                    facts[site] = SiteFacts.read(str(header.get("facts")))
                except InputError as error:
                    self._refuse(site, str(error))
            if len(facts) == len(self.sites):
                for site, why in other_label_spaces(facts).items():
                    del facts[site]
                    self._refuse(site, why)
        return facts

    def _agreed(self, plan: Plan, question: Question, wait: float | None) -> dict[int, int]:
        """By site that agreed, how many samples it trains on."""
        counts: dict[int, int] = {}
        run = experiment_digest(plan.experiment)
        left = {site: self._offer(plan, question, client, run) for client, site in enumerate(self.sites)}
        until = None if wait is None else monotonic() + wait
        while left:
            self.watcher.waiting(list(left))
            for site, header in self._ask_who_is_new(AGREE, left):
                samples = header.get("samples")
                if not isinstance(samples, int) or not 0 <= samples <= plan.profiles[self.sites.index(site)].samples:
                    self._refuse(site, f"it says that it trains on {samples!r} samples")
                    continue
                counts[site] = samples
                del left[site]
                self.watcher.note(f"site {site} takes part")
            if until is not None and monotonic() > until and len(left) < len(self.sites):
                self.watcher.note(f"going on without site {', '.join(map(str, left))}")
                break
        return counts

    def _offer(self, plan: Plan, question: Question, client: int, run: str) -> dict[str, str | int | float]:
        agreement = {
            "experiment": plan.experiment.model_dump(mode="json"),
            "question": asdict(question),
            "client": client,
        }
        return {**_greeting(), "run": run, "agreement": json.dumps(agreement)}

    def _ask_who_is_new(
        self, what: str, headers: Mapping[int, Mapping[str, str | int | float]]
    ) -> Iterable[tuple[int, Mapping[str, Any]]]:
        """The good answers of sites that are connected and were not refused since they connected."""
        online = set(self.link.get_node_ids())
        asked: dict[str, int] = {}
        for site, header in headers.items():
            node = self.link.nodes[site]
            if node in online and self.refused.get(site) != self.link.since(node):
                (name,) = self.link.push_messages([Message(packed({}, header), node, what)])
                asked[name] = site
        while asked:
            for reply in self.link.pull_messages(list(asked)):
                site = asked.pop(reply.metadata.reply_to_message_id)
                header = _header(reply)
                if header.get("status") in ("here", "ready"):
                    yield site, header
                elif header.get("status") == "refused":
                    self._refuse(site, str(header.get("detail")))
            sleep(_POLL)
        sleep(_POLL)

    def _refuse(self, site: int, why: str) -> None:
        self.refused[site] = self.link.since(self.link.nodes[site])
        self.watcher.note(f"site {site} cannot take part: {' '.join(why.split())[:500]}")


def _greeting() -> dict[str, str | int | float]:
    return {**versions(), "plugins": plugins()}


def _header(reply: Message) -> Mapping[str, Any]:
    try:
        return {} if reply.has_error() else unpacked(reply.content)[1]
    except MessageError:
        return {"status": "refused", "detail": "its answer cannot be read"}


def _read_roster(place: Path, sites: Sequence[int]) -> dict[int, SiteFacts] | None:
    """Who took part when this experiment began, if it has begun."""
    try:
        content = json.loads(place.read_text())
        return {site: SiteFacts.model_validate(content[str(site)]) for site in sites}
    except (OSError, ValueError, KeyError):
        return None


def _hand_out(link: Link, nodes: Mapping[int, int], run: str, folder: RunFolder, watcher: ServerWatcher) -> None:
    """The final models to all sites that are there; who is not gets them when the server is started again."""
    found, _ = candidates(folder.path)
    reached, online = found[0], set(link.get_node_ids())
    models, result = last_message(folder, reached.server), json.dumps(folder.result())
    sent: dict[str, int] = {}
    for client, node in nodes.items():
        if node in online:
            header: dict[str, str | int | float] = {
                "run": run,
                "name": folder.path.name,
                "result": result,
                "kept": int(reached.clients["rounds"][client]),
            }
            (name,) = link.push_messages([Message(packed(models, header), node, FINISH)])
            sent[name] = client
    kept, asked = set[int](), dict(sent)
    while asked:
        for reply in link.pull_messages(list(asked)):
            client = asked.pop(reply.metadata.reply_to_message_id)
            if _header(reply).get("status") == "kept":
                kept.add(client)
        sleep(_POLL)
    missing = sorted(set(nodes) - kept)
    watcher.note(
        "every site has the final model"
        if not missing
        else f"client {', '.join(map(str, missing))} did not get the final model: run the same command when it is there"
    )
