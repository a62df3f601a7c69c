"""What a site does when the server asks: say what its data is about, agree to an experiment or not, answer, take home.

Nothing that arrives is run. An experiment is a list of settings for parts that are installed here, by name; a request
names one of that experiment's exchanges, and is answered with the code of this machine. Before a reply leaves, each
time, it is held against what the exchange declares and what the site's policy allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, ValidationError

from fedstill.config import Experiment, make_experiment
from fedstill.core.client import answer
from fedstill.core.errors import FedstillError, InputError, RunError
from fedstill.core.files import write_atomically
from fedstill.core.message import Message
from fedstill.core.protocols import Exchange, Kept, Lost, Profile, Reply, Turn
from fedstill.core.settings import Settings
from fedstill.data.bundle import Bundle
from fedstill.deploy.folder import SiteFolder
from fedstill.deploy.planning import Question, sites_plan
from fedstill.deploy.received import write_received
from fedstill.deploy.roster import LEAST_POINTS, SiteFacts, experiment_digest, for_sites, plugins, versions
from fedstill.deploy.states import States
from fedstill.engines.flower.carrier import answered
from fedstill.federation.clients import parted
from fedstill.federation.manifest import egress_manifest
from fedstill.federation.on_site import OnSiteEvaluator
from fedstill.federation.plan import Plan
from fedstill.federation.run import one_thread

Header = dict[str, str | int | float]

# What is told of the data before the first round: part of what leaves, so part of the manifest.
FACTS: dict[str, Any] = {
    "exchange": "hello",
    "name": "facts",
    "kind": "statistics",
    "to": "server",
    "tensors": 0,
    "bytes": 0,
    "why": "numbers of samples, names of classes, shape of a sample, and a digest of the data, once",
}
WORDS: dict[str, Any] = {
    **FACTS,
    "exchange": "any",
    "name": "detail",
    "kind": "metrics",
    "why": "a sentence where it does not answer: what kind of error, no paths and no data",
}
_PUBLIC = re.compile(r"patches:(china|flower|noise:\d+x\d+|heads:\d+|skimage:\w+)")  # what is on every machine
_RUN = re.compile(r"[0-9a-f]{16}")
_PATH = re.compile(r"(?:[A-Za-z]:)?[/\\][^\s:'\",)]+")


class SiteWatcher(Protocol):
    """Whoever sits at the site, or its log."""

    def note(self, text: str) -> None: ...

    def manifest(self, manifest: Mapping[str, Any], experiment: str) -> None: ...

    def answered(self, exchange: str, round: int, rounds: int, outcome: Reply | Lost) -> None: ...

    def received(self, folder: Path) -> None: ...


class Agreement(Settings):
    """What a site has agreed to: kept in its folder, so that a restarted site goes on at once."""

    experiment: dict[str, Any]
    question: Question
    client: int = Field(ge=0)  # which one this site is
    fingerprint: str = ""  # of the data it agreed with
    manifest: dict[str, Any] = Field(default_factory=dict)  # what it was told would leave

    @classmethod
    def read(cls, text: str) -> Agreement:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InputError(f"the experiment cannot be read: {error.errors()[0]['msg']}") from None


class Part:
    """This site's part in one experiment."""

    def __init__(
        self,
        agreement: Agreement,
        bundle: Bundle,
        states: Path,
        data_root: Path | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        self.agreement, self.data_root, self.proxies = agreement, data_root, proxies
        self.experiment: Experiment = make_experiment(agreement.experiment)
        self._check(bundle)
        self.bundle = bundle if self.experiment.points is None else bundle.with_points(self.experiment.points)
        self.digest = experiment_digest(self.experiment)
        self.plan = self._planned(self.experiment)
        self.states = States(states)
        self.exchanges: dict[str, Exchange] = {one.name: one for one in self.plan.method.every_exchange()}
        assert isinstance(self.plan.evaluator, OnSiteEvaluator)
        scores = self.plan.evaluator.exchange(self.plan.method)
        self.exchanges[scores.name] = scores

    def _check(self, bundle: Bundle) -> None:
        """An experiment for real sites, and for data such as is here."""
        experiment, question = self.experiment, self.agreement.question
        proper = for_sites(experiment, experiment.clients, experiment.data)
        if proper.model_dump(mode="json") != experiment.model_dump(mode="json"):
            raise InputError("the experiment is one for simulations: its privacy, partition or evaluation says so")
        if self.agreement.client >= experiment.clients:
            raise InputError(f"there is no client {self.agreement.client} among {experiment.clients}")
        own = SiteFacts.of(bundle)
        fits = question.shape == own.shape
        if own.kind == "cloud":
            fits = question.shape[1:] == own.shape[1:] and LEAST_POINTS <= question.shape[0] <= own.shape[0]
        if question.classes != own.classes or question.point_labels != own.point_labels or not fits:
            raise InputError("the experiment is about other classes or samples than this site's data")

    def _planned(self, experiment: Experiment) -> Plan:
        client = self.agreement.client
        train, _ = parted(self.bundle.train, experiment.validation, experiment.seed, client)
        who = Profile(client, len(train), experiment.architectures[client])
        question, fingerprint = self.agreement.question, self.agreement.fingerprint
        return sites_plan(experiment, question, [who], fingerprint, self.bundle, self.data_root, self._may_share)

    def _may_share(self, name: str) -> None:
        """A server must not choose which of a site's files are opened."""
        if name not in self.proxies and not _PUBLIC.fullmatch(name):
            raise InputError(f"the experiment shares samples that this site was not started with: --proxy {name}")

    def rehearsed(self) -> dict[str, Any]:
        """What will leave, from a rehearsal on the data here: one pass over it instead of a round's many."""
        short = self.experiment.training.model_copy(update={"epochs": 1})
        plan = self._planned(self.experiment.model_copy(update={"training": short}))
        with one_thread():
            manifest = egress_manifest(plan, rehearse=True)
        return {**manifest, "leaves": [FACTS, *manifest["leaves"], WORDS]}

    def answer(self, request: Message, header: Mapping[str, Any]) -> tuple[Reply | Lost, str]:
        """The reply to a request, and the digest of the state it left here (empty: it left none)."""
        exchange = self.exchanges.get(str(header.get("exchange")))
        if exchange is None:
            raise InputError(f"{self.experiment.method.name} has no exchange of that name")
        round, since, kept = _number(header, "round", 0), _number(header, "since"), _number(header, "kept")
        (own,) = self.plan.profiles
        counts = None if kept < 0 else Kept(kept, str(header.get("state")))
        who = replace(own, since=None if since < 0 else since, kept=counts)
        streams = self.plan.streams.at("round", round, exchange.name)
        turn = Turn(round, self.plan.rounds, self.experiment.clients, exchange.name, streams)
        state = self.states.load(who.kept)
        with one_thread():
            outcome = answer(self.plan.clients, exchange, who, request, state, turn)
        if isinstance(outcome, Lost) or outcome.state is None or outcome.state is state:
            return outcome, ""
        if not outcome.state and who.kept is None:
            return outcome, ""  # it never had a state, and has none now
        return outcome, self.states.save(round, outcome.state)


class Office:
    """Answers the server's messages for one site; whatever is wrong with one is said, and the next is awaited."""

    def __init__(
        self,
        folder: SiteFolder,
        bundle: Bundle,
        watcher: SiteWatcher,
        data_root: Path | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        self.folder, self.bundle, self.watcher = folder, bundle, watcher
        self.data_root, self.proxies = data_root, proxies  # shared samples that the site's own people have named
        self.parts: dict[str, Part] = {}

    def hello(self, header: Mapping[str, Any]) -> Header:
        """The first question: do we speak the same language, and what is your data about?"""
        for what, own in versions().items():
            if header.get(what) != own:
                named = {"fedstill": "version of fedstill"}.get(what, what)
                return self._refused(f"it has {named} {own}, and the server has {header.get(what)}: install the same")
        if "statistics" not in self.folder.policy().allow:
            return self._refused("its policy does not let it say what its data is about (statistics)")
        if header.get("plugins") != plugins():
            return self._refused("its plugins are not those of the server: start both with the same --plugin files")
        return {"status": "here", "facts": SiteFacts.of(self.bundle).model_dump_json()}

    def agree(self, header: Mapping[str, Any]) -> Header:
        """The second: will you take part in this? Shown to the site, with what will leave it, before it answers."""
        try:
            run, called = str(header.get("run")), header.get("experiment")
            if not _RUN.fullmatch(run):
                return self._refused("the server's run has no proper name")
            if header.get("fingerprint") != self.bundle.fingerprint():
                return self._refused("its data is not that with which this run began")
            agreement = Agreement.read(str(header.get("agreement")))
            part = self._made(agreement, run)
            if part.digest != called:
                return self._refused(f"it makes {part.digest} of the experiment {called}: their recipes differ")
            manifest = part.rehearsed()
            self.watcher.manifest(manifest, part.digest)
            facts = {"fingerprint": self.bundle.fingerprint(), "manifest": manifest}
            part.agreement = agreement.model_copy(update=facts)
            if (refusal := self._refusal(part)) is not None:
                return self._refused(refusal)
            place = self._agreements / f"{run}.json"
            place.parent.mkdir(exist_ok=True)
            write_atomically(place, part.agreement.model_dump_json(indent=2).encode() + b"\n")
        except (FedstillError, OSError) as error:
            return self._refused(str(error))
        self.parts[run] = part
        self.watcher.note(f"this site takes part in experiment {part.digest} as client {agreement.client}")
        return {"status": "ready", "samples": part.plan.profiles[0].samples}

    def exchange(self, request: Message, header: Mapping[str, Any]) -> tuple[Message, Header]:
        try:
            part = self._part(str(header.get("run")))
            if (refusal := self._refusal(part)) is not None:
                raise InputError(refusal)
            outcome, kept = part.answer(request, header)
        except FedstillError as error:
            self.watcher.note(f"no answer to the server: {error}")
            return Message({}), {"status": "failed", "detail": _told(str(error)), "work": 0.0}
        self.watcher.answered(str(header["exchange"]), int(header["round"]), part.plan.rounds, outcome)
        return answered(replace(outcome, detail=_told(outcome.detail)) if isinstance(outcome, Lost) else outcome, kept)

    def finish(self, models: Message, header: Mapping[str, Any]) -> Header:
        """The experiment is over: its models, and this site's own, are put where `fedstill export` finds them."""
        try:
            part = self._part(str(header.get("run")))
            self.watcher.received(write_received(self.folder.path, part.plan, part.states, models, header))
        except FedstillError as error:
            self.watcher.note(f"the final model could not be kept: {error}")
            return {"status": "failed", "detail": _told(str(error))}
        return {"status": "kept"}

    @property
    def _agreements(self) -> Path:
        return self.folder.path / "agreements"

    def _part(self, run: str) -> Part:
        """An experiment that this site has agreed to, now or before it was restarted."""
        if run not in self.parts:
            place = self._agreements / f"{run}.json"
            if not _RUN.fullmatch(run) or not place.is_file():
                raise InputError("this site has not agreed to this run")
            agreement = Agreement.read(place.read_text())
            if agreement.fingerprint != self.bundle.fingerprint():
                raise RunError(f"this site agreed to run {run} with other data than it has now")
            self.parts[run] = self._made(agreement, run)
        return self.parts[run]

    def _made(self, agreement: Agreement, run: str) -> Part:
        return Part(agreement, self.bundle, self.folder.path / "states" / run, self.data_root, self.proxies)

    def _refusal(self, part: Part) -> str | None:
        """Asked again with each request: a policy may be tightened while an experiment runs."""
        return self.folder.policy().refusal(part.agreement.manifest, self.folder.site, part.digest)

    def _refused(self, why: str) -> Header:
        self.watcher.note(f"this site does not take part: {why}")
        return {"status": "refused", "detail": _told(why)}


def _number(header: Mapping[str, Any], name: str, least: int = -1) -> int:
    """A number of a round as the server names it."""
    number = header.get(name)
    if not isinstance(number, int) or not least <= number < 2**31:
        raise InputError(f"the server's request names no proper {name}")
    return number


def _told(text: str) -> str:
    """What the server may hear of an error: our own sentences without paths; of others' exceptions only the kind."""
    kind, colon, _ = text.partition(": ")
    foreign = colon and kind.isidentifier() and kind.endswith(("Error", "Exception", "Exit", "Warning"))
    ours = kind in ("InputError", "RunError", "UnusableError", "BusyError", "UndeclaredEgressError")
    return kind if foreign and not ours else _PATH.sub("…", text)[:500]
