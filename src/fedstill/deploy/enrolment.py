"""Enrolment: sites connect, describe their data, and accept the experiment or are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from fedstill.core.errors import InputError
from fedstill.core.files import read_json, write_json
from fedstill.deploy.apps import ACCEPT, ENROL
from fedstill.deploy.deployment_plan import DataFacts, server_plan, shared_digest, with_samples
from fedstill.deploy.server_endpoint import ServerEndpoint
from fedstill.deploy.server_options import ServerOptions
from fedstill.deploy.site_registry import SiteFacts, experiment_digest, other_label_spaces, plugins, versions
from fedstill.engines.flower.grid_engine import Letter, corresponded
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.plan import Plan

_log = logging.getLogger(__name__)

_POLL = 0.05  # seconds


class ServerWatcher(Protocol):
    """Shows the server's messages to its operator."""

    def note(self, text: str) -> None: ...

    def waiting(self, for_sites: Sequence[int]) -> None: ...


@dataclass
class Enrolment:
    """Sites describe their data and accept the experiment before it starts."""

    link: ServerEndpoint
    experiment: Experiment
    sites: Sequence[int]
    watcher: ServerWatcher
    terms: ServerOptions
    rosters: Path
    refused: dict[int, str] = field(default_factory=dict)  # connection time of refused sites: no second request

    def gather(self) -> Plan:
        """The plan, once every site has accepted; a resumed run waits a limited time for missing sites."""
        place = self.rosters / f"{experiment_digest(self.experiment)}.json"
        before = {} if self.terms.fresh else _read_roster(place, self.sites)
        until = monotonic() + self.terms.wait if before else None
        facts = self._facts(before, until)
        roster = [facts[site] for site in self.sites]
        plan, question = server_plan(self.experiment, roster, self.terms.data_root, self.terms.device)
        counts = self._agreed(plan, question, facts, until)
        facts = {site: one.model_copy(update={"samples": counts.get(site, one.samples)}) for site, one in facts.items()}
        if not before:
            self.rosters.mkdir(exist_ok=True)
            content = {str(site): one.model_dump(mode="json") for site, one in facts.items()}
            write_json(place, content)
        return with_samples(plan, [facts[site].samples for site in self.sites])

    def _facts(self, before: Mapping[int, SiteFacts], until: float | None) -> dict[int, SiteFacts]:
        """Each site's description of its data; a resumed run requires the same fingerprint as before."""
        facts: dict[int, SiteFacts] = {}
        while len(facts) < len(self.sites):
            new = {site: _greeting() for site in self.sites if site not in facts}
            self.watcher.waiting(list(new))
            for site, header in self._ask_who_is_new(ENROL, new):
                try:
                    told = SiteFacts.read(str(header.get("facts")))
                except InputError as error:
                    self._refuse(site, str(error))
                    continue
                if before and told.fingerprint != before[site].fingerprint:
                    self._refuse(site, "its data has changed since this run started: start a new run with --fresh")
                    continue
                facts[site] = before.get(site, told)
            if len(facts) == len(self.sites):
                for site, why in other_label_spaces(facts).items():
                    del facts[site]
                    self._refuse(site, why)
            if self._tired(until, len(facts)):
                return dict(before)
        return facts

    def _agreed(
        self, plan: Plan, question: DataFacts, facts: Mapping[int, SiteFacts], until: float | None
    ) -> dict[int, int]:
        """The number of training samples of each site that accepted."""
        counts: dict[int, int] = {}
        left = {site: self._offer(plan, question, client, facts[site]) for client, site in enumerate(self.sites)}
        while left:
            self.watcher.waiting(list(left))
            for site, header in self._ask_who_is_new(ACCEPT, left):
                samples = header.get("samples")
                if not isinstance(samples, int) or not 0 <= samples <= facts[site].samples:
                    self._refuse(site, f"it says that it trains on {samples!r} samples")
                    continue
                counts[site] = samples
                del left[site]
                self.watcher.note(f"site {site} takes part")
                _log.info("site %d joined with %d training samples", site, samples)
            if left and self._tired(until, len(counts)):
                self.watcher.note(f"resuming without site {', '.join(map(str, left))}")
                _log.info("resuming without sites %s", sorted(left))
                break
        return counts

    def _tired(self, until: float | None, here: int) -> bool:
        """Whether a resumed run has waited long enough and some site is connected."""
        return until is not None and monotonic() > until and here > 0

    def _offer(self, plan: Plan, question: DataFacts, client: int, facts: SiteFacts) -> dict[str, str | int | float]:
        agreement = {
            "experiment": plan.experiment.model_dump(mode="json"),
            "question": asdict(question),
            "client": client,
        }
        return {
            **_greeting(),
            "run": plan.identity,
            "experiment": experiment_digest(plan.experiment),
            "fingerprint": facts.fingerprint,
            "shared": shared_digest(plan),
            "agreement": json.dumps(agreement),
        }

    def _ask_who_is_new(
        self, what: str, headers: Mapping[int, Mapping[str, str | int | float]]
    ) -> Iterable[tuple[int, Mapping[str, Any]]]:
        """Valid replies of connected sites, except those refused since they connected."""
        online = set(self.link.get_node_ids())
        letters = [
            Letter(site, node, what, {}, header)
            for site, header in headers.items()
            if (node := self.link.nodes[site]) in online and self.refused.get(site) != self.link.since(node)
        ]
        for answer in corresponded(self.link, letters, self.terms.patience, self.terms.limit):
            site, header = answer.letter.to, answer.header
            if header.get("status") in ("here", "ready"):
                yield site, header
            elif answer.unreadable or not answer.trouble:
                self._refuse(site, str(header.get("detail", "its reply cannot be read")))
        sleep(_POLL)

    def _refuse(self, site: int, why: str) -> None:
        self.refused[site] = self.link.since(self.link.nodes[site])
        _log.info("site %d refused: %s", site, why)
        self.watcher.note(f"site {site} cannot take part: {' '.join(why.split())[:500]}")


def _greeting() -> dict[str, str | int | float]:
    return {**versions(), "plugins": plugins()}


def _read_roster(place: Path, sites: Sequence[int]) -> dict[int, SiteFacts]:
    """The sites that took part when this experiment started; empty if it has not started."""
    content = read_json(place) or {}
    try:
        return {site: SiteFacts.model_validate(content[str(site)]) for site in sites}
    except (ValueError, KeyError):
        if content:
            _log.warning("the list of sites in %s cannot be used: a new run begins", place, exc_info=True)
        return {}
