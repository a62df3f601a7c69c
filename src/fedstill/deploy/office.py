"""What a site does when the server asks: say what its data is about, agree to an experiment or not, answer, take home.

Nothing that arrives is run. An experiment is a list of settings for parts that are installed here, by name; a request
names one of that experiment's exchanges, and is answered with the code of this machine. Before a reply leaves, each
time, it is held against what the exchange declares and what the site's policy allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, ValidationError

from fedstill.config import Experiment, make_experiment
from fedstill.core.client import answer
from fedstill.core.errors import FedstillError, InputError, RunError
from fedstill.core.files import write_atomically
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Exchange, Lost, Profile, Reply, Turn
from fedstill.core.settings import Settings
from fedstill.data.bundle import Bundle
from fedstill.deploy.folder import SiteFolder
from fedstill.deploy.planning import Question, sites_plan
from fedstill.deploy.received import write_received
from fedstill.deploy.roster import SiteFacts, experiment_digest, plugins, versions
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

    def __init__(self, agreement: Agreement, bundle: Bundle, folder: Path) -> None:
        self.agreement = agreement
        self.experiment: Experiment = make_experiment(agreement.experiment)
        self.bundle = bundle if self.experiment.points is None else bundle.with_points(self.experiment.points)
        self.digest = experiment_digest(self.experiment)
        self.plan = self._planned(self.experiment)
        self.states = States(folder / "states" / self.digest)
        self.exchanges: dict[str, Exchange] = {one.name: one for one in self.plan.method.every_exchange()}
        assert isinstance(self.plan.evaluator, OnSiteEvaluator)
        scores = self.plan.evaluator.exchange(self.plan.method)
        self.exchanges[scores.name] = scores

    def _planned(self, experiment: Experiment) -> Plan:
        client = self.agreement.client
        train, _ = parted(self.bundle.train, experiment.validation, experiment.seed, client)
        who = Profile(client, len(train), str(experiment.model))
        return sites_plan(experiment, self.agreement.question, [who], self.agreement.fingerprint, self.bundle)

    def rehearsed(self) -> dict[str, Any]:
        """What will leave, from a rehearsal on the data here: one pass over it instead of a round's many."""
        short = self.experiment.training.model_copy(update={"epochs": 1})
        plan = self._planned(self.experiment.model_copy(update={"training": short}))
        with one_thread():
            manifest = egress_manifest(plan, rehearse=True)
        return {**manifest, "leaves": [FACTS, *manifest["leaves"]]}

    def answer(self, request: Message, header: Mapping[str, Any]) -> tuple[Reply | Lost, str]:
        """The reply to a request, and the digest of the state it left here (empty: it left none)."""
        name, round, since, kept = (header.get(key) for key in ("exchange", "round", "since", "kept"))
        exchange = self.exchanges.get(str(name))
        if exchange is None or not all(isinstance(number, int) for number in (round, since, kept)):
            raise InputError(f"{self.experiment.method.name} has no exchange {name!r} in round {round!r}")
        assert isinstance(round, int)
        assert isinstance(since, int)
        assert isinstance(kept, int)
        (own,) = self.plan.profiles
        who = Profile(own.id, own.samples, own.architecture, since=_never(since), kept=_never(kept))
        streams = self.plan.streams.at("round", round, exchange.name)
        turn = Turn(round, self.plan.rounds, self.experiment.clients, exchange.name, streams)
        state = self.states.load(who.kept)
        with one_thread():
            outcome = answer(self.plan.clients, exchange, who, request, state, turn)
        if isinstance(outcome, Lost) or outcome.state is None or outcome.state is state:
            return outcome, ""
        if not outcome.state and who.kept is None:
            return outcome, ""  # it never had a state, and has none now
        self.states.save(round, outcome.state)
        return outcome, digest(outcome.state)


class Office:
    """Answers the server's messages for one site; whatever is wrong with one is said, and the next is awaited."""

    def __init__(self, folder: SiteFolder, bundle: Bundle, watcher: SiteWatcher) -> None:
        self.folder, self.bundle, self.watcher = folder, bundle, watcher
        self.parts: dict[str, Part] = {}

    def hello(self, header: Mapping[str, Any]) -> Header:
        """The first question: do we speak the same language, and what is your data about?"""
        for what, own in versions().items():
            if header.get(what) != own:
                named = {"fedstill": "version of fedstill"}.get(what, what)
                return self._refused(f"it has {named} {own}, and the server has {header.get(what)}: install the same")
        if header.get("plugins") != plugins():
            return self._refused("its plugins are not those of the server: start both with the same --plugin files")
        return {"status": "here", "facts": SiteFacts.of(self.bundle).model_dump_json()}

    def agree(self, header: Mapping[str, Any]) -> Header:
        """The second: will you take part in this? Shown to the site, with what will leave it, before it answers."""
        try:
            agreement = Agreement.read(str(header.get("agreement")))
            part = Part(agreement, self.bundle, self.folder.path)
            if part.digest != header.get("run"):
                called = header.get("run")
                return self._refused(f"it makes {part.digest} of the experiment {called}: their recipes differ")
            manifest = part.rehearsed()
            self.watcher.manifest(manifest, part.digest)
            facts = {"fingerprint": self.bundle.fingerprint(), "manifest": manifest}
            part.agreement = agreement.model_copy(update=facts)
            if (refusal := self._refusal(part)) is not None:
                return self._refused(refusal)
        except FedstillError as error:
            return self._refused(str(error))
        place = self._agreements / f"{part.digest}.json"
        place.parent.mkdir(exist_ok=True)
        write_atomically(place, part.agreement.model_dump_json(indent=2).encode() + b"\n")
        self.parts[part.digest] = part
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
            return Message({}), {"status": "failed", "detail": str(error), "work": 0.0}
        self.watcher.answered(str(header["exchange"]), int(header["round"]), part.plan.rounds, outcome)
        return answered(outcome, kept)

    def finish(self, models: Message, header: Mapping[str, Any]) -> Header:
        """The experiment is over: its models, and this site's own, are put where `fedstill export` finds them."""
        try:
            part = self._part(str(header.get("run")))
            self.watcher.received(write_received(self.folder.path, part.plan, part.states, models, header))
        except FedstillError as error:
            self.watcher.note(f"the final model could not be kept: {error}")
            return {"status": "failed", "detail": str(error)}
        return {"status": "kept"}

    @property
    def _agreements(self) -> Path:
        return self.folder.path / "agreements"

    def _part(self, run: str) -> Part:
        """An experiment that this site has agreed to, now or before it was restarted."""
        if run not in self.parts:
            place = self._agreements / f"{run}.json"
            if not run.isalnum() or not place.is_file():
                raise InputError(f"this site has not agreed to experiment {run}")
            agreement = Agreement.read(place.read_text())
            if agreement.fingerprint != self.bundle.fingerprint():
                raise RunError(f"this site agreed to experiment {run} with other data than it has now")
            self.parts[run] = Part(agreement, self.bundle, self.folder.path)
        return self.parts[run]

    def _refusal(self, part: Part) -> str | None:
        """Asked again with each request: a policy may be tightened while an experiment runs."""
        return self.folder.policy().refusal(part.agreement.manifest, self.folder.site, part.digest)

    def _refused(self, why: str) -> Header:
        self.watcher.note(f"this site does not take part: {why}")
        return {"status": "refused", "detail": why}


def _never(round: int) -> int | None:
    return None if round < 0 else round
