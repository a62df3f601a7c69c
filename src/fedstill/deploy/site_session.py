"""A site's part in one experiment: its plan, made from settings that arrived and from data and code that are here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fedstill.core.client import answer
from fedstill.core.dataset import class_counts
from fedstill.core.errors import InputError
from fedstill.core.hardware import one_thread
from fedstill.core.message import Message
from fedstill.core.protocols import Exchange, Failure, Profile, Reply, RoundContext, StateVersion
from fedstill.core.settings import Settings
from fedstill.core.site_files import KeepsOnSite
from fedstill.data.bundle import Bundle
from fedstill.data.data_kinds import data_kinds
from fedstill.deploy.answer_log import QuestionPlace
from fedstill.deploy.demands import Terms
from fedstill.deploy.deployment_plan import DataFacts, shared_digest, sites_plan
from fedstill.deploy.secure_keys import SiteKeyring
from fedstill.deploy.site_registry import LEAST_POINTS, SiteFacts, experiment_digest, for_sites
from fedstill.deploy.site_state import SiteStates
from fedstill.methods.secure.sum_settings import MaskSettings
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.defaults import prepared
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.on_site_evaluation import OnSiteEvaluator
from fedstill.runtime.plan import Plan
from fedstill.runtime.simulated_clients import parted

# Sent before the first round to describe the data: it leaves the site, so it is part of the manifest.
FACTS: dict[str, Any] = {
    "exchange": "enrol",
    "name": "facts",
    "kind": "statistics",
    "to": "server",
    "tensors": 0,
    "bytes": 0,
    "when": "once",
    "why": "numbers of samples, names of classes, shape of a sample, and a digest of the data",
}
WORDS: dict[str, Any] = {
    **FACTS,
    "exchange": "any",
    "name": "detail",
    "kind": "metrics",
    "when": "if it does not answer",
    "why": "a sentence: what kind of error, no paths and no data",
}
_OTHER_DATA = "the experiment has other classes or sample shapes than this site's data"
_PUBLIC = re.compile(r"patches:(china|flower|noise:\d+x\d+|heads:\d+|skimage:\w+)")  # what is on every machine


class Agreement(Settings):
    """What a site has accepted: kept in its folder, so that a restarted site continues at once."""

    experiment: dict[str, Any]
    question: DataFacts
    client: int = Field(ge=0)  # which one this site is
    fingerprint: str = ""  # of the data it agreed with
    shared: str = ""  # the digest of the samples that it shares with the server
    manifest: dict[str, Any] = Field(default_factory=dict)  # what it was told would leave

    @classmethod
    def read(cls, text: str) -> Agreement:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InputError(f"the experiment cannot be read: {error.errors()[0]['msg']}") from None


class SiteSession:
    """This site's part in one experiment."""

    def __init__(
        self,
        agreement: Agreement,
        bundle: Bundle,
        states: Path,
        data_root: Path | None = None,
        proxies: Sequence[str] = (),
        device: str = "cpu",
        query: tuple[str, ...] | None = None,
        keyring: SiteKeyring | None = None,
    ) -> None:
        self.query = query  # classes that this site asks its peers for, instead of the experiment's choice
        self.agreement, self.data_root, self.proxies, self.device = agreement, data_root, proxies, device
        self.experiment: Experiment = make_experiment(agreement.experiment)
        self.shared = "nothing"  # the name of samples that all sites share with the server
        self._check(bundle)
        self.bundle = prepared(self.experiment, bundle)
        if self.bundle.shape != agreement.question.shape:
            raise InputError(_OTHER_DATA)
        self.digest = experiment_digest(self.experiment)
        self.keyring = keyring if self.experiment.secure is not None else None
        if self.keyring is not None:
            self.keyring.check()
        self.plan = self._planned(self.experiment)
        self.states = SiteStates(states)
        assert isinstance(self.plan.evaluator, OnSiteEvaluator)
        method = self.plan.method
        trained = [*method.every_exchange(), *self.plan.participants.exchanges()]
        known = [*trained, *self.plan.evaluator.exchanges(method)]
        self.exchanges: dict[str, Exchange] = {one.name: one.on_site() for one in known}

    def _check(self, bundle: Bundle) -> None:
        """An experiment for real sites, and for data such as is here."""
        experiment, question = self.experiment, self.agreement.question
        if experiment.model is None or experiment.augmentation is None:
            raise InputError("the experiment leaves its model or augmentation unset, which a server decides for all")
        proper = for_sites(experiment, experiment.clients, experiment.data)
        if proper.model_dump(mode="json") != experiment.model_dump(mode="json"):
            raise InputError("the experiment is one for simulations: its privacy, partition or evaluation says so")
        if self.agreement.client >= experiment.clients:
            raise InputError(f"there is no client {self.agreement.client} among {experiment.clients}")
        own = SiteFacts.of(bundle)
        fits = question.shape == own.shape
        if data_kinds[own.kind].points:  # columns are compared when features have been added
            fits = LEAST_POINTS <= question.shape[0] <= own.shape[0]
        asked, here = ((one.classes, one.kind, one.point_labels, one.several_labels) for one in (question, own))
        if asked != here or not fits:
            raise InputError(_OTHER_DATA)

    def _planned(self, experiment: Experiment) -> Plan:
        client = self.agreement.client
        train, _ = parted(self.bundle.train, experiment.validation, experiment.seed, client)
        who = Profile(client, len(train), experiment.architectures[client])
        question, fingerprint = self.agreement.question, self.agreement.fingerprint
        return sites_plan(
            experiment,
            question,
            [who],
            fingerprint,
            self.bundle,
            self.data_root,
            self._may_share,
            device=self.device,
            own_query=self.query,
            keyring=self.keyring,
        )

    def check_shared(self, digest: object) -> None:
        """Refuse shared samples that are not the server's: what is said of one image would be used for another."""
        own = shared_digest(self.plan)
        if digest != own:
            raise InputError(
                f"{self.shared}, which it shares with the server, has the digest {own[:8]} here and {str(digest)[:8]}"
                " at the server: give both the same image or data set"
            )

    def _may_share(self, name: str) -> None:
        """A server must not choose which of a site's files are opened."""
        if name not in self.proxies and not _PUBLIC.fullmatch(name):
            raise InputError(f"the experiment shares samples that this site was not started with: --proxy {name}")
        self.shared = name

    def rehearsed(self) -> dict[str, Any]:
        """What will leave, from a rehearsal on the data here: one pass over it instead of a round's many."""
        short = self.experiment.training.model_copy(update={"epochs": 1})
        plan = self._planned(self.experiment.model_copy(update={"training": short}))
        with one_thread():
            manifest = egress_manifest(plan, rehearse=True)
        return {**manifest, "leaves": [FACTS, *manifest["leaves"], WORDS]}

    @cached_property
    def terms(self) -> Terms:
        """What the experiment requires of this site, for its policy."""
        noise, (own,) = self.plan.method.reply_noise, self.plan.profiles
        _, held = parted(self.bundle.train, self.experiment.validation, self.experiment.seed, own.id)
        parts = [one for one in (self.bundle.train, self.bundle.test, held) if one is not None and len(one)]
        counts = [class_counts(one, len(self.bundle.classes)) for one in parts]
        return Terms(
            self.experiment.method.name,
            self.plan.rounds,
            min([own.samples, *(len(one) for one in parts)]),
            min((int(some[some > 0].min()) for some in counts if bool(some.any())), default=0),
            None if noise is None else noise.deviation,
            None if noise is None else noise.clip,
            self._shows_sums_only,
            self.plan.method.clients_in_a_sum,
            None if noise is None else noise.colluding,
            self.plan.method.step_noise(own),
        )

    def lines(self, exchange: str) -> list[Mapping[str, Any]]:
        """What an exchange's replies may contain: as it was agreed, or as it declares if it is not in every round."""
        agreed = [one for one in self.agreement.manifest["leaves"] if one.get("exchange") == exchange]
        return agreed or [{"name": one.name, "kind": one.kind, "to": one.to} for one in self.exchanges[exchange].egress]

    @property
    def _shows_sums_only(self) -> bool:
        """Whether the server sees nothing but sums over sites."""
        chosen = None if self.experiment.secure is None else self.experiment.secure.settings
        return isinstance(chosen, MaskSettings) and chosen.reports != "clear"

    def check_attempt(self, place: QuestionPlace) -> None:
        """Refuse to answer again, for whatever reason, what may be answered once a round."""
        if place.attempt and self.exchanges[place.exchange].single_answer:
            raise InputError(f"{place}: under secure aggregation a site answers once a round, and no further attempt")

    def place(self, header: Mapping[str, Any]) -> QuestionPlace:
        """The place of a question in the experiment that this site agreed to; refuses one outside it."""
        exchange, round = str(header.get("exchange")), _number(header, "round", 0)
        if exchange not in self.exchanges:
            raise InputError(f"{self.experiment.method.name} has no exchange of that name")
        if round >= self.plan.rounds:
            raise InputError(f"this site agreed to {self.plan.rounds} rounds, and is asked for round {round + 1}")
        if header.get("client", self.agreement.client) != self.agreement.client:
            raise InputError(f"this site is client {self.agreement.client}, and the request is for another")
        return QuestionPlace(str(header.get("run")), round, exchange, _number({"attempt": 0, **header}, "attempt", 0))

    def answer(
        self, request: Message, header: Mapping[str, Any], withheld: Sequence[str] = ()
    ) -> tuple[Reply | Failure, str]:
        """The reply to a request, and the digest of the state it left here (empty: it left none).

        Tensors that match a `withheld` pattern are left out of the reply.
        """
        exchange, round = self.exchanges[str(header["exchange"])], _number(header, "round", 0)
        since, kept = _number(header, "since"), _number(header, "kept")
        (own,) = self.plan.profiles
        counts = None if kept < 0 else StateVersion(kept, str(header.get("state")))
        who = replace(own, last_round=None if since < 0 else since, kept=counts)
        context = RoundContext.of(self.plan.streams, round, self.plan.rounds, self.experiment.clients, exchange.name)
        state = self.states.load(who.kept, round)
        with one_thread():
            outcome = answer(self.plan.clients, exchange, who, request, state, context)
        if isinstance(outcome, Reply) and withheld:
            outcome = replace(outcome, message=_without(outcome.message, withheld))
        if isinstance(outcome, Failure) or outcome.state is None or outcome.state is state:
            return outcome, ""
        if not outcome.state and who.kept is None:
            return outcome, ""  # it never had a state, and has none now
        return outcome, self.states.save(round, outcome.state)

    def models_to_keep(self, request: Message, exchange: str) -> int | None:
        """The number of models that a request makes this site store; None: it stores nothing."""
        one = self.exchanges[exchange]
        return one.models_to_keep(request) if isinstance(one, KeepsOnSite) else None

    def kept_notes(self, request: Message, header: Mapping[str, Any], reply: Reply, folder: Path) -> Sequence[str]:
        """Let the exchange store files for this site alone, after its reply; gives lines for its operator."""
        exchange = self.exchanges[str(header["exchange"])]
        if not isinstance(exchange, KeepsOnSite):
            return ()
        round = _number(header, "round", 0)
        context = RoundContext.of(self.plan.streams, round, self.plan.rounds, self.experiment.clients, exchange.name)
        client = self.plan.clients(reply.profile, reply.state or {}, context)
        with one_thread():
            return exchange.keep_on_site(client, request, folder, str(header["run"]))


def _without(message: Message, patterns: Sequence[str]) -> Message:
    """The message without tensors whose names match a pattern."""
    return Message(
        {name: one for name, one in message.items() if not any(fnmatchcase(name, pattern) for pattern in patterns)}
    )


def _number(header: Mapping[str, Any], name: str, least: int = -1) -> int:
    """A number of a round as the server names it."""
    number = header.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**31:
        raise InputError(f"the server's request has an invalid {name}")
    return number
