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
from typing import Any, Protocol

from fedstill.core.errors import FedstillError, InputError, RunError
from fedstill.core.files import write_atomically
from fedstill.core.message import Message
from fedstill.core.protocols import Failure, Reply
from fedstill.data.bundle import Bundle
from fedstill.data.roots import data_root
from fedstill.deploy.deployment_folder import SiteFolder
from fedstill.deploy.received_model import write_received
from fedstill.deploy.site_registry import SiteFacts, plugins, versions
from fedstill.deploy.site_session import Agreement, SiteSession
from fedstill.engines.flower.grid_engine import answered
from fedstill.methods import methods

_log = logging.getLogger(__name__)

Header = dict[str, str | int | float]

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
        return {"status": "here", "facts": facts.model_dump_json()}

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
            manifest = part.rehearsed()
            self.watcher.manifest(manifest, part.digest)
            facts = {"fingerprint": self.fingerprint, "shared": header.get("shared"), "manifest": manifest}
            part.agreement = agreement.model_copy(update=facts)
            if (refusal := self._refusal(part)) is not None:
                return self._refused(refusal)
            place = self._agreements / f"{run}.json"
            place.parent.mkdir(exist_ok=True)
            write_atomically(place, part.agreement.model_dump_json(indent=2).encode() + b"\n")
        except (FedstillError, OSError) as error:
            return self._refused(str(error))
        self.parts[run] = part
        if self.query is not None and "queries" not in methods[part.experiment.method.name].wants:
            self.watcher.note(f"{part.experiment.method.name} asks no peer for classes: --query is not used")
        self.watcher.note(f"this site takes part in experiment {part.digest} as client {agreement.client}")
        _log.info("run %s: takes part as client %d", run, agreement.client)
        return {"status": "ready", "samples": part.plan.profiles[0].samples}

    def exchange(self, request: Message, header: Mapping[str, Any]) -> tuple[Message, Header]:
        try:
            part = self._part(str(header.get("run")))
            if (refusal := self._refusal(part)) is not None:
                raise InputError(refusal)
            outcome, kept = part.answer(request, header, self._withheld(part, str(header.get("exchange"))))
            notes = part.kept_notes(request, header, outcome, self.folder.path) if isinstance(outcome, Reply) else ()
        except FedstillError as error:
            self.watcher.note(f"request not answered: {error}")
            _log.info("a request of the server is not answered", exc_info=True)
            return Message({}), {"status": "failed", "detail": self._told(str(error)), "work": 0.0}
        self.watcher.answered(str(header["exchange"]), int(header["round"]), part.plan.rounds, outcome)
        for line in notes:
            self.watcher.note(line)
        ended = outcome.detail if isinstance(outcome, Failure) else "replied"
        _log.info("round %d, %s: %s", int(header["round"]) + 1, header["exchange"], ended)
        return answered(
            replace(outcome, detail=self._told(outcome.detail)) if isinstance(outcome, Failure) else outcome, kept
        )

    def finish(self, models: Message, header: Mapping[str, Any]) -> Header:
        """Store the final models, and this site's own, where `fedstill export` finds them."""
        try:
            part = self._part(str(header.get("run")))
            self.watcher.received(write_received(self.folder.path, part.plan, part.states, models, header))
        except FedstillError as error:
            self.watcher.note(f"the final model could not be kept: {error}")
            _log.info("the final model could not be kept", exc_info=True)
            return {"status": "failed", "detail": self._told(str(error))}
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
            agreement = Agreement.read(place.read_text())
            if agreement.fingerprint != self.fingerprint:
                raise RunError(f"this site accepted run {run} with other data than it has now, or another --query")
            part = self._made(agreement, run)
            part.check_shared(agreement.shared)
            self.parts[run] = part
        return self.parts[run]

    def _made(self, agreement: Agreement, run: str) -> SiteSession:
        states = self.folder.path / "states" / run
        return SiteSession(agreement, self.bundle, states, self.data_root, self.proxies, self.device, self.query)

    @cached_property
    def fingerprint(self) -> str:
        """What the server recognises this site's data and query by; the site's key keeps it from finding the query."""
        plain = self.bundle.fingerprint()
        if self.query is None:
            return plain
        return hmac.new(self.folder.key.read_bytes(), json.dumps([plain, self.query]).encode(), sha256).hexdigest()

    def _withheld(self, part: SiteSession, exchange: str) -> list[str]:
        """Patterns of tensors that this site's policy takes out of its replies in an exchange."""
        lines = self.folder.policy().withheld(part.agreement.manifest["leaves"])
        return [str(line["name"]) for line in lines if line.get("exchange") == exchange]

    def _refusal(self, part: SiteSession) -> str | None:
        """Read with each request: a policy may be tightened while an experiment runs."""
        return self.folder.policy().refusal(part.agreement.manifest, self.folder.site, part.digest)

    def _refused(self, why: str) -> Header:
        self.watcher.note(f"this site does not take part: {why}")
        _log.info("declined to take part: %s", why)
        return {"status": "refused", "detail": self._told(why)}

    def _told(self, text: str) -> str:
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
