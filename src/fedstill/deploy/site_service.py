"""A site's answers to the server: enrol (describe its data), accept or refuse an experiment, reply, keep the model.

Nothing that arrives is run. An experiment is a list of settings for parts that are installed here, by name; a request
names one of that experiment's exchanges, and is answered with the code of this machine. Before a reply leaves, each
time, it is held against what the exchange declares and what the site's policy allows.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from os.path import expanduser
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from fedstill.core.errors import FedstillError, InputError, RunError
from fedstill.core.files import read_text_file, write_atomically
from fedstill.core.message import Message
from fedstill.core.protocols import Failure, Reply
from fedstill.data.bundle import Bundle
from fedstill.data.roots import data_root
from fedstill.deploy.answer_limits import LEARNT, check_budget, check_reply
from fedstill.deploy.answer_log import AnswerLog, QuestionPlace, TakenError, request_digest
from fedstill.deploy.deployment_folder import SiteFolder
from fedstill.deploy.egress_log import EgressLog, described
from fedstill.deploy.key_rotation import fingerprint_key
from fedstill.deploy.policy import rule
from fedstill.deploy.received_model import write_received
from fedstill.deploy.secure_keys import SiteKeyring, forget_secrets
from fedstill.deploy.site_registry import SiteFacts, experiment_digest, plugins, versions, whole_experiment_digest
from fedstill.deploy.site_session import Agreement, SiteSession
from fedstill.deploy.stored_models import OFFERS, check_storage
from fedstill.engines.flower.correspondence import one_line
from fedstill.engines.flower.grid_engine import answered
from fedstill.methods import methods
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.run_folder import RECEIVED

_log = logging.getLogger(__name__)

Header = dict[str, str | int | float]

PLANS = 4  # of experiments that are kept in memory
AGREEMENTS = 100  # that are kept although nothing was answered in them
_RUN = re.compile(r"[0-9a-f]{16}")
_PATH = re.compile(r"…?(?:[A-Za-z]:)?[/\\][^\s:'\",)]+")


class SiteWatcher(Protocol):
    """Shows the site's messages to its operator."""

    def note(self, text: str) -> None: ...

    def manifest(self, manifest: Mapping[str, Any], experiment: str) -> None: ...

    def answered(self, exchange: str, round: int, rounds: int, outcome: Reply | Failure) -> None: ...

    def received(self, folder: Path) -> None: ...


class SiteService:
    """Answers the server's messages for one site; an invalid message gets an error reply."""

    def __init__(
        self,
        folder: SiteFolder,
        bundle: Bundle,
        watcher: SiteWatcher,
        data_root: Path | None = None,
        proxies: Sequence[str] = (),
        device: str = "cpu",
        query: tuple[str, ...] | None = None,
    ) -> None:
        self.folder, self.bundle, self.watcher, self.device = folder, bundle, watcher, device
        self.query = query  # classes that this site asks its peers for; they are never sent
        self.data_root, self.proxies = data_root, proxies  # shared samples that the site's own people have named
        self.parts: dict[str, SiteSession] = {}
        self.answers, self.egress = AnswerLog(folder.path / "answers"), EgressLog(folder.path)
        self._one_at_a_time = Lock()  # two requests for one place must not both find it free

    def enrol(self, header: Mapping[str, Any]) -> Header:
        """Compare versions with the server, and describe the data."""
        for what, own in versions().items():
            if header.get(what) != own:
                named = {"fedstill": "version of fedstill"}.get(what, what)
                return self._refused(f"it has {named} {own}, and the server has {header.get(what)}: install the same")
        try:
            allowed = self.folder.policy().allow
        except InputError as error:
            return self._refused(str(error))
        if "statistics" not in allowed:
            return self._refused("its policy does not allow it to describe its data (statistics)")
        if header.get("plugins") != plugins():
            return self._refused("its plugins are not those of the server: start both with the same --plugin files")
        facts = SiteFacts.of(self.bundle).model_copy(update={"fingerprint": self.fingerprint})
        told = facts.model_dump_json()
        self.egress.add(
            what="sent",
            exchange="enrol",
            to=["server"],
            facts=json.loads(told),
            bytes=len(told),
            sha256=sha256(told.encode()).hexdigest(),
            rules=["allow statistics: server"],
        )
        return {"status": "here", "facts": told}

    def accept(self, header: Mapping[str, Any]) -> Header:
        """Accept or refuse an experiment, after showing the site's operator what will leave."""
        try:
            run, called = str(header.get("run")), header.get("experiment")
            if not _RUN.fullmatch(run):
                return self._refused("the server's run has an invalid name")
            if header.get("fingerprint") != self.fingerprint:
                return self._refused("its data has changed since this run started")
            agreement = Agreement.read(str(header.get("agreement")))
            part = self._made(agreement, run)
            if part.digest != called:
                return self._refused(f"it computes {part.digest} as the digest of {called}: their recipes differ")
            part.check_shared(header.get("shared"))
            self._check_same(run, part)
            manifest = part.rehearsed()
            self.watcher.manifest(manifest, part.digest)
            facts = {"fingerprint": self.fingerprint, "shared": header.get("shared"), "manifest": manifest}
            part.agreement = agreement.model_copy(update=facts)
            if reasons := self._reasons(part):
                return self._refused(reasons[0])
            if not self.answers.runs.get(run):  # a run that has begun may need nothing but what was answered already
                every = part.agreement.manifest["leaves"]
                check_budget(self.folder.policy(), self.answers, part.terms, every, QuestionPlace(run, 0, "any"))
            place = self._agreements / f"{run}.json"
            place.parent.mkdir(exist_ok=True)
            write_atomically(place, part.agreement.model_dump_json(indent=2).encode() + b"\n")
            self._clear_agreements()
        except (FedstillError, OSError) as error:
            return self._refused(str(error))
        self._remember(run, part)
        samples = part.plan.profiles[0].samples
        told = {"run": run, "experiment": part.digest, "rounds": part.plan.rounds, "facts": {"samples": samples}}
        self.egress.add(what="agreed", exchange="accept", to=["server"], **told, rules=["allow statistics: server"])
        if self.query is not None and "queries" not in methods[part.experiment.method.name].wants:
            self.watcher.note(f"{part.experiment.method.name} asks no peer for classes: --query is not used")
        self.watcher.note(f"this site takes part in experiment {part.digest} as client {agreement.client}")
        _log.info("run %s: takes part as client %d", run, agreement.client)
        return {"status": "ready", "samples": samples}

    def note_event(self, what: str) -> None:
        """Something happened at this site that belongs in its log."""
        self.watcher.note(what)
        _log.info("%s", what)
        self.egress.add(what="event", sentence=what)

    def unanswered(self, what: str, why: str) -> None:
        """A message that could not be read, or ended in an error of ours: it belongs in the log, too."""
        _log.info("%s is not answered: %s", what, why)
        self.egress.refuse(self.told(one_line(why)), exchange=one_line(what)[:80])

    def turned_away(self, header: Mapping[str, Any]) -> Header:
        """The server did not take this site: its operator sees why, and so does the log."""
        why = f"the server does not take this site: {one_line(header.get('detail', 'it gave no reason'))}"
        self.watcher.note(why)
        _log.info("%s", why)
        self.egress.refuse(why, exchange="enrol or accept")
        return {"status": "noted"}

    def exchange(self, request: Message, header: Mapping[str, Any]) -> tuple[Message, Header]:
        """The reply to a request; one that was answered before gets the same bytes again."""
        with self._one_at_a_time:
            return self._exchange(request, header)

    def _exchange(self, request: Message, header: Mapping[str, Any]) -> tuple[Message, Header]:
        try:
            part = self._part(str(header.get("run")))
            place, policy = part.place(header), self.folder.policy()
            if reasons := self._reasons(part):
                raise InputError(f"site {self.folder.site} does not take part: {reasons[0]}")
            withheld, asked = tuple(self._withheld(part, place.exchange)), request_digest(request, header)
            if (before := self.answers.find(place, asked, withheld)) is not None:
                self.watcher.note(f"{place}: asked again, the same reply is sent")
                self._note_departure(part, place, before[0], "sent again")
                return before
            part.check_attempt(place)
            check_budget(policy, self.answers, part.terms, part.lines(place.exchange), place)
            if (models := part.models_to_keep(request, place.exchange)) is not None:
                check_storage(policy, self.folder.path, self.folder.path / OFFERS / place.run, models, request.nbytes)
        except FedstillError as error:
            return Message({}), self._not_answered(header, error)
        try:
            outcome, kept = part.answer(request, header, withheld)
            if isinstance(outcome, Reply):
                check_reply(policy, part.lines(place.exchange), place, outcome.message)
            notes = part.kept_notes(request, header, outcome, self.folder.path) if isinstance(outcome, Reply) else ()
        except FedstillError as error:  # it was computed: no other request may be tried at this place
            told = self._not_answered(header, error)
            self.answers.add(place, asked, None, told, withheld)
            return Message({}), told
        if isinstance(outcome, Failure):
            outcome = replace(outcome, detail=self.told(outcome.detail))
        message, told = answered(outcome, kept)
        sent = message if isinstance(outcome, Reply) else None
        noise = self._noise(part, place.exchange, message)
        self.answers.add(place, asked, sent, told, withheld, noise, None if noise is None else part.terms.steps)
        if isinstance(outcome, Failure):
            self._note_departure(part, place, message, "failed", sentence=outcome.detail)
        else:
            self._note_departure(part, place, message, "sent")
        self.watcher.answered(place.exchange, place.round, part.plan.rounds, outcome)
        for line in notes:
            self.watcher.note(line)
        _log.info("%s: %s", place, outcome.detail if isinstance(outcome, Failure) else "replied")
        return message, told

    def _not_answered(self, header: Mapping[str, Any], error: FedstillError) -> Header:
        """The reply to a request that this site does not answer, which is logged."""
        self.watcher.note(f"request not answered: {one_line(error)}")
        _log.info("a request of the server is not answered", exc_info=True)
        asked = {"exchange": one_line(header.get("exchange"))[:80], "round": _shown(header.get("round"))}
        self.egress.refuse(one_line(error), **asked)
        status = "refused" if isinstance(error, InputError) else "failed"
        taken: Header = {"taken": 1} if isinstance(error, TakenError) else {}
        return {"status": status, "detail": self.told(str(error)), "work": 0.0, **taken}

    @staticmethod
    def _noise(part: SiteSession, exchange: str, message: Message) -> float | None:
        """The noise in a reply that contains something learnt from single samples; None without such content."""
        kinds = {one["kind"] for one in described(message, part.lines(exchange))}
        if not kinds & LEARNT:
            return None
        return part.terms.noise or 0.0

    def _note_departure(
        self, part: SiteSession, place: QuestionPlace, message: Message, what: str, **more: str
    ) -> None:
        """A line of the log for a message, before it leaves."""
        tensors = described(message, part.lines(place.exchange))
        rules = sorted({rule(one) for one in tensors})
        self.egress.add(
            what=what,
            run=place.run,
            experiment=part.digest,
            round=place.round + 1,
            exchange=place.exchange,
            attempt=place.attempt + 1,
            to=sorted({one["to"] for one in tensors}) or ["server"],
            tensors=tensors,
            bytes=message.nbytes,
            sha256=sha256(message.encode()).hexdigest(),
            rules=rules or ["allow metrics: server"],
            **more,
        )

    def finish(self, models: Message, header: Mapping[str, Any]) -> Header:
        """Store the final models, and this site's own, where `fedstill export` finds them."""
        try:
            part, place = self._part(str(header.get("run"))), self.folder.path / RECEIVED / str(header.get("name"))
            if not place.name.endswith(f"-{header['run']}"):  # or it would take the place of another run's models
                raise RunError("the server's last message names the folder of another run")
            check_storage(self.folder.policy(), self.folder.path, place, 0, models.nbytes)
            made = self.bundle.preparation
            self.watcher.received(write_received(self.folder.path, part.plan, part.states, models, header, made))
            forget_secrets(self.folder.path, str(header.get("run")))
        except FedstillError as error:
            self.watcher.note(f"the final model could not be kept: {one_line(error)}")
            _log.info("the final model could not be kept", exc_info=True)
            self.egress.refuse(one_line(error), exchange="finish")
            return {"status": "failed", "detail": self.told(str(error))}
        self.egress.add(
            what="received",
            sender="server",
            exchange="finish",
            run=str(header.get("run")),
            experiment=part.digest,
            bytes=models.nbytes,
            sha256=sha256(models.encode()).hexdigest(),
        )
        return {"status": "kept"}

    @property
    def _agreements(self) -> Path:
        return self.folder.path / "agreements"

    def _part(self, run: str) -> SiteSession:
        """An experiment that this site has agreed to, now or before it was restarted."""
        if run not in self.parts:
            place = self._agreements / f"{run}.json"
            if not _RUN.fullmatch(run) or not place.is_file():
                raise InputError("this site has not accepted this run")
            agreement = Agreement.read(read_text_file(place))
            if agreement.fingerprint != self.fingerprint:
                raise RunError(f"this site accepted run {run} with other data than it has now, or another --query")
            part = self._made(agreement, run)
            part.check_shared(agreement.shared)
            self._remember(run, part)
        return self.parts[run]

    def _remember(self, run: str, part: SiteSession) -> None:
        """Keep the plans of the last experiments in memory: each is made again from its file when it is needed."""
        self.parts.pop(run, None)
        self.parts[run] = part
        while len(self.parts) > PLANS:
            del self.parts[next(iter(self.parts))]

    def _clear_agreements(self) -> None:
        """Delete the oldest agreements in which nothing was answered: a server can have any number of them made."""
        unanswered = [path for path in self._agreements.glob("*.json") if not self.answers.runs.get(path.stem)]
        unanswered.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in unanswered[:-AGREEMENTS]:
            path.unlink(missing_ok=True)

    def _check_same(self, run: str, part: SiteSession) -> None:
        """Refuse to go on with a run as another experiment than the one in which this site has answered."""
        place = self._agreements / f"{run}.json"
        if not self.answers.runs.get(run) or not place.exists():
            return
        before = Agreement.read(read_text_file(place))
        same = (before.question, before.client) == (part.agreement.question, part.agreement.client)
        if not same or experiment_digest(make_experiment(before.experiment)) != part.digest:
            raise InputError(
                f"this site has answered in run {run} as another experiment: another experiment needs a run of its own"
            )

    def _made(self, agreement: Agreement, run: str) -> SiteSession:
        states = self.folder.path / "states" / run
        digest = whole_experiment_digest(make_experiment(agreement.experiment))
        keyring = SiteKeyring(self.folder.path, self.folder.site, run, digest)
        rest = (self.data_root, self.proxies, self.device, self.query, keyring)
        return SiteSession(agreement, self.bundle, states, *rest)

    @cached_property
    def fingerprint(self) -> str:
        """What the server recognises this site's data and query by; the site's key keeps it from finding the query."""
        plain = self.bundle.fingerprint()
        if self.query is None:
            return plain
        return hmac.new(fingerprint_key(self.folder), json.dumps([plain, self.query]).encode(), sha256).hexdigest()

    def _withheld(self, part: SiteSession, exchange: str) -> list[str]:
        """Patterns of tensors that this site's policy takes out of its replies in an exchange."""
        lines = self.folder.policy().withheld(part.agreement.manifest["leaves"])
        return [str(line["name"]) for line in lines if line.get("exchange") == exchange]

    def _reasons(self, part: SiteSession) -> list[str]:
        """Why the policy refuses; it is read with each request, since it may be tightened while an experiment runs."""
        return self.folder.policy().reasons(part.agreement.manifest, part.digest, part.terms)

    def _refused(self, why: str) -> Header:
        why = one_line(why)  # some of it may be what the server sent
        self.watcher.note(f"this site does not take part: {why}")
        _log.info("declined to take part: %s", why)
        self.egress.refuse(why, exchange="enrol or accept")
        return {"status": "refused", "detail": self.told(why)}

    def told(self, text: str) -> str:
        """The part of an error that is sent to the server: our messages without paths, otherwise only the type."""
        kind, colon, _ = text.partition(": ")
        foreign = colon and kind.isidentifier() and kind.endswith(("Error", "Exception", "Exit", "Warning"))
        ours = kind in ("InputError", "RunError", "UnusableError", "BusyError", "UndeclaredEgressError")
        if foreign and not ours:
            return kind
        for place in self._places:  # whole: what a path with blanks in it is cannot be told from the sentence
            text = re.sub(rf"{re.escape(place)}(?![\w-])", "…", text)
        return _PATH.sub("…", text)[:500]

    @cached_property
    def _places(self) -> list[str]:
        """Where this site's files are, in every spelling, the longest first."""
        named = [name.rpartition(":")[2] for name in (self.bundle.name, *self.proxies) if ":" in name]
        paths = [str(self.folder.path), str(data_root(self.data_root)), "~", *named]
        found = [(path, Path(expanduser(path))) for path in paths]
        spelt = {str(one) for path, here in found for one in (path, here, here.absolute(), here.resolve())}
        # A bare word may well stand in a sentence and mean something else.
        telling = (one for one in spelt if Path(one).name and (Path(one).suffix or {"/", "\\"} & set(one)))
        return sorted(telling, key=len, reverse=True)


def _shown(number: Any) -> int | None:
    """The round of a request as a log shows it, counted from 1; None if it names none."""
    return number + 1 if isinstance(number, int) and abs(number) < 2**31 else None
