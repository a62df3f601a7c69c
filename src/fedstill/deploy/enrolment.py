"""Enrolment: sites connect, describe their data, and accept the experiment or are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from fedstill.core.errors import InputError, RunError
from fedstill.core.files import read_json, write_json
from fedstill.deploy.apps import ACCEPT, ENROL, REFUSE
from fedstill.deploy.deployment_plan import DataFacts, server_plan, shared_digest, with_samples
from fedstill.deploy.server_options import ServerOptions
from fedstill.deploy.site_registry import (
    SiteFacts,
    experiment_digest,
    for_sites,
    other_label_spaces,
    plugins,
    versions,
)
from fedstill.engines.flower.correspondence import Correspondence, Letter, Lines, corresponded, one_line
from fedstill.engines.flower.grid_engine import LEAST_WAIT
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.plan import Plan

_log = logging.getLogger(__name__)

_POLL = 0.05  # seconds
_TOLD = 5.0  # seconds for a refused site to take note of the reason


class ServerWatcher(Protocol):
    """Shows the server's messages to its operator."""

    def note(self, text: str) -> None: ...

    def waiting(self, for_sites: Sequence[int]) -> None: ...


class SiteLines(Lines, Protocol):
    """Connections to sites."""

    @property
    def nodes(self) -> Mapping[int, int]:
        """Flower's number of each site's node."""
        ...


@dataclass(frozen=True)
class _Refusal:
    """A site that cannot take part, until it connects anew."""

    connected: str  # when, as the endpoint says it
    why: str
    at: float  # seconds, monotonic: the first time, where it has come again since


def _ignore(site: int, why: str) -> None:
    """The default: report nothing."""


class _Until:
    """How long missing sites are waited for: in a resumed run others may go on without them after `wait` seconds."""

    def __init__(self, wait: float | None, most: float) -> None:
        began = monotonic()
        self.go_on, self.end, self.most = None if wait is None else began + wait, began + most, most

    def tired(self, here: int) -> bool:
        """Whether a resumed run has waited long enough and some site is connected."""
        return self.go_on is not None and monotonic() > self.go_on and here > 0

    def check(self, missing: Callable[[], str]) -> None:
        """Give up after the longest wait."""
        if monotonic() > self.end:
            raise RunError(f"no round could begin within {self.most:.0f} seconds: {missing()}")


@dataclass
class Enrolment:
    """Sites describe their data and accept the experiment before it starts.

    A site that refuses, or does not fit, may connect again within `wait` seconds. Then the run goes on without it, as
    an experiment of fewer clients, if the operator said that so few sites are enough; otherwise it ends.
    """

    link: SiteLines
    experiment: Experiment
    sites: Sequence[int]  # those that take part, once gathered
    watcher: ServerWatcher
    terms: ServerOptions
    rosters: Path
    on_refusal: Callable[[int, str], None] = _ignore  # called with a site and why; an empty reason: it takes part now
    refused: dict[int, _Refusal] = field(default_factory=dict)
    facts: dict[int, SiteFacts] = field(default_factory=dict)

    def gather(self) -> Plan:
        """The plan, once every site has accepted; a resumed run waits a limited time for missing sites."""
        least = self.terms.min_sites or len(self.sites)
        while (plan := self._gathered()) is None:
            self._leave_out(least)
        return plan

    def _gathered(self) -> Plan | None:
        """The plan with these sites; None if one of them has refused for good."""
        place = self.rosters / f"{experiment_digest(self.experiment)}.json"
        before = {} if self.terms.fresh else _read_roster(place, self.sites)
        wait = self.terms.wait
        until = _Until(wait, max(wait, LEAST_WAIT)) if before else _Until(None, self.terms.patience)
        with closing(self._correspondence()) as letters:
            facts = self._facts(letters, before, until)
        if facts is None:
            return None
        enrolled = [facts[site] for site in self.sites]
        plan, question = server_plan(self.experiment, enrolled, self.terms.data_root, self.terms.device)
        with closing(self._correspondence()) as letters:
            counts = self._agreed(letters, plan, question, facts, until)
        if counts is None:
            return None
        facts = {site: one.model_copy(update={"samples": counts.get(site, one.samples)}) for site, one in facts.items()}
        if not before:
            self.rosters.mkdir(exist_ok=True)
            content = {str(site): one.model_dump(mode="json") for site, one in facts.items()}
            write_json(place, content)
        return with_samples(plan, [facts[site].samples for site in self.sites])

    def _leave_out(self, least: int) -> None:
        """Go on without the sites that refused, or end if too few remain."""
        gone = [site for site in self.sites if site in self.refused]
        left = [site for site in self.sites if site not in gone]
        if len(left) < max(least, 1):
            why = "; ".join(f"site {site} does not take part: {self.refused[site].why}" for site in gone)
            others = f", or leave it out with --only {','.join(map(str, left))}" if left else ""
            raise RunError(f"{why}. Mend it there and start both again{others}")
        self.watcher.note(f"going on without site {', '.join(map(str, gone))}: {len(left)} sites are enough")
        _log.info("going on without sites %s", gone)
        self.sites = left
        self.experiment = for_sites(self.experiment, len(left), self.experiment.data)

    def _correspondence(self) -> Correspondence:
        """For one question to all sites; one that loses its connection is asked again when it is back."""
        return Correspondence(self.link, self.terms.patience, self.terms.limit)

    def _facts(
        self, letters: Correspondence, before: Mapping[int, SiteFacts], until: _Until
    ) -> dict[int, SiteFacts] | None:
        """Each site's description of its data; a resumed run requires the same fingerprint as before."""
        facts = {site: one for site, one in self.facts.items() if site in self.sites}
        while True:
            new = {site: _greeting() for site in self.sites if site not in facts}
            self.watcher.waiting(list(new))
            for site, header in self._ask_who_is_new(letters, ENROL, new):
                try:
                    told = SiteFacts.read(str(header.get("facts")))
                except InputError as error:
                    self._turn_away(site, str(error))
                    continue
                if before and told.fingerprint != before[site].fingerprint:
                    self._turn_away(site, "its data has changed since this run started: start a new run with --fresh")
                    continue
                facts[site] = before.get(site, told)
            if len(facts) == len(self.sites):
                for site, why in other_label_spaces(facts).items():
                    del facts[site]
                    self._turn_away(site, why)
            self.facts = dict(facts)
            if len(facts) == len(self.sites):
                return facts
            if until.tired(len(facts)):
                return dict(before)
            if self._refused_for_good(set(self.sites) - facts.keys()):
                return None
            until.check(lambda: self._missing(letters, set(self.sites) - facts.keys()))

    def _agreed(
        self, letters: Correspondence, plan: Plan, question: DataFacts, facts: Mapping[int, SiteFacts], until: _Until
    ) -> dict[int, int] | None:
        """The number of training samples of each site that accepted; None if one has refused for good."""
        counts: dict[int, int] = {}
        left = {site: self._offer(plan, question, client, facts[site]) for client, site in enumerate(self.sites)}
        while left:
            self.watcher.waiting(list(left))
            for site, header in self._ask_who_is_new(letters, ACCEPT, left):
                samples = header.get("samples")
                if not isinstance(samples, int) or not 0 <= samples <= facts[site].samples:
                    self._turn_away(site, f"it says that it trains on {samples!r} samples")
                    continue
                counts[site] = samples
                del left[site]
                self.refused.pop(site, None)
                self.on_refusal(site, "")
                self.watcher.note(f"site {site} takes part")
                _log.info("site %d joined with %d training samples", site, samples)
            if left and until.tired(len(counts)):
                self.watcher.note(f"resuming without site {', '.join(map(str, left))}")
                _log.info("resuming without sites %s", sorted(left))
                break
            if left and self._refused_for_good(set(left)):
                return None
            until.check(lambda: self._missing(letters, set(left)))
        return counts

    def _missing(self, letters: Correspondence, sites: set[int]) -> str:
        """Who is missing, and why."""
        silent, online = set(letters.receivers), set(self.link.get_node_ids())

        def why(site: int) -> str:
            if site in self.refused:
                return f"does not take part: {self.refused[site].why}"
            if self.link.nodes[site] not in online:
                return "is not connected"
            return "is connected and has not answered" if site in silent else "has just connected"

        return "; ".join(f"site {site} {why(site)}" for site in sorted(sites))

    def _refused_for_good(self, missing: set[int]) -> bool:
        """Whether all missing sites were refused, and none has come again in time."""
        if not missing <= self.refused.keys():
            return False
        return monotonic() > max(self.refused[site].at for site in missing) + self.terms.wait

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
        self, letters: Correspondence, what: str, headers: Mapping[int, Mapping[str, str | int | float]]
    ) -> Iterable[tuple[int, Mapping[str, Any]]]:
        """Ask each site as soon as it is connected, unless refused since then; gives the valid replies so far.

        Nobody is waited for here, so that a site that does not answer holds up no other.
        """
        online = set(self.link.get_node_ids())
        for site in headers.keys() - set(letters.receivers):
            node = self.link.nodes[site]
            if node in online and not self._refused_since(site, self.link.since(node)):
                letters.send(Letter(site, node, what, {}, headers[site]))
        for answer in letters.poll():
            site, header = answer.letter.to, answer.header
            if header.get("status") in ("here", "ready"):
                yield site, header
            elif answer.unreadable or not answer.trouble:
                self._refuse(site, str(header.get("detail", "its reply cannot be read")))
        sleep(_POLL)

    def _refused_since(self, site: int, connected: str) -> bool:
        return site in self.refused and self.refused[site].connected == connected

    def _turn_away(self, site: int, why: str) -> None:
        """Refuse a site that wants to take part, and send it the reason before anything else happens."""
        self._refuse(site, why)
        letter = Letter(site, self.link.nodes[site], REFUSE, {}, {"detail": why})
        for answer in corresponded(self.link, [letter], _TOLD, self.terms.limit):
            _log.info("site %d was told why: %s", site, answer.trouble or "yes")

    def _refuse(self, site: int, why: str) -> None:
        told, before = one_line(why), self.refused.get(site)
        began = (
            monotonic() if before is None else before.at
        )  # one that comes again and again holds up nobody for longer
        self.refused[site] = _Refusal(self.link.since(self.link.nodes[site]), told, began)
        _log.info("site %d refused: %s", site, told)
        self.on_refusal(site, told)
        self.watcher.note(f"site {site} cannot take part: {told}")


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
