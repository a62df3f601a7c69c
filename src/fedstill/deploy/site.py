"""A site's process: connect, answer requests, and reconnect after a lost connection, until it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedstill.core.errors import FedstillError, InputError, RunError
from fedstill.core.message import DEFAULT_LIMIT
from fedstill.data.bundle import Bundle
from fedstill.deploy.apps import FINISH, client_app, failed
from fedstill.deploy.deployment_folder import SiteFolder
from fedstill.deploy.key_rotation import pending_key, set_aside, take_into_use
from fedstill.deploy.private_files import only_one
from fedstill.deploy.server_options import check_seconds
from fedstill.deploy.site_connection import (
    HEARTBEAT,
    DamagedMessageError,
    SiteConnection,
    SiteConnectionError,
    StillConnectedError,
    UntrustedServerError,
    UnwelcomeMessageError,
)
from fedstill.deploy.site_service import SiteService, SiteWatcher
from fedstill.engines.flower.correspondence import Backoff, one_line
from fedstill.engines.flower.encoding import new_salt

_log = logging.getLogger(__name__)

_POLL = 0.1  # seconds between looks for a message
_STEADY = 1.0  # seconds: a connection that breaks sooner, again and again, is tried less and less often
_UNTRUSTED = 3  # attempts in a row that end the site: a single one may be a bit that was flipped on the way


def take_part(
    folder: SiteFolder,
    bundle: Bundle,
    watcher: SiteWatcher,
    *,
    address: str | None = None,
    insecure: bool = False,
    once: bool = False,
    data_root: Path | None = None,
    proxies: Sequence[str] = (),
    device: str = "cpu",
    query: tuple[str, ...] | None = None,
    wait: float | None = None,
) -> None:
    """Serve this site's data to the deployment's server; returns only with `once`, after an experiment has ended.

    A server that cannot be reached is tried again, for `wait` seconds if they are given.
    """
    check_seconds("--wait", wait)
    limit = folder.policy().largest_request  # an invalid policy is refused now, not when the server asks
    if (old := folder.earlier_policy()) is not None:
        watcher.note(old)
    context = Context(0, 0, {"partition-id": folder.site}, RecordDict(), {})
    where = address or f"{f'[{folder.address}]' if ':' in folder.address else folder.address}:{folder.port}"
    authority = None if insecure else folder.ca
    most = DEFAULT_LIMIT if limit is None else int(limit * 2**20)
    token, outage = new_salt().hex(), _Outage(where, watcher, wait)
    with only_one(folder.path, "site"):  # before anything is read: another process may be answering until then
        service = SiteService(folder, bundle, watcher, data_root, proxies, device, query)
        _check_logs(service)
        app, has_model = client_app(service), False
        while True:
            try:
                with SiteConnection(where, folder.keys(), authority, token, most, wait) as line:
                    while True:
                        change_key(folder, line, service)
                        try:
                            message = line.receive()
                        except UnwelcomeMessageError as error:
                            outage.over()
                            line.send(_declined(error, watcher, service))
                            continue
                        outage.over()
                        if message is None:
                            sleep(_POLL)
                            continue
                        reply = _answer(app, message, context, watcher, service)
                        has_model = once and message.metadata.message_type == FINISH
                        line.send(reply)
                        if has_model:
                            return
            except (SiteConnectionError, UntrustedServerError) as error:
                if has_model and outage.began is not None:
                    return  # the server has ended: whether it got the last reply matters to nobody
                if isinstance(error, DamagedMessageError):
                    with suppress(FedstillError):
                        service.unanswered("a message", str(error))
                sleep(outage.delay(error))


def _check_logs(service: SiteService) -> None:
    """Compare what was answered with the log of what left: each tells what was taken out of the other."""
    departed = service.egress.departed()
    service.answers.check_holds(departed.times)
    missing = service.answers.unlogged(departed.known) if departed.whole else 0
    if missing > bool(service.egress.files()):  # one may have been about to leave when the site was killed
        service.note_event(
            f"the log has no line for {missing} replies of this site: lines were taken out of it, or the site was"
            " killed before it wrote them"
        )


class _Outage:
    """The time in which the server cannot be reached: each attempt is logged, and they come less and less often."""

    def __init__(self, where: str, watcher: SiteWatcher, wait: float | None) -> None:
        self.where, self.watcher, self.wait = where, watcher, wait
        self.began: float | None = None
        self.reached: float | None = None  # when the server answered last, after an outage
        self.attempts = self.untrusted = 0
        self.backoff = Backoff()

    def over(self) -> None:
        """The server was reached: it has answered a question, and not only taken a connection."""
        if self.began is None and self.reached is not None:
            return
        self.watcher.note(f"connected to {self.where}")
        _log.info("connected to %s", self.where)
        self.began, self.reached, self.attempts, self.untrusted = None, monotonic(), 0, 0

    def delay(self, error: SiteConnectionError | UntrustedServerError) -> float:
        """Seconds until the next attempt; raises where there is no use, or not enough time."""
        self.untrusted = self.untrusted + 1 if isinstance(error, UntrustedServerError) else 0
        if self.untrusted >= _UNTRUSTED:
            raise error
        if self.began is None:
            self.began = monotonic()
            if self.reached is None or self.began - self.reached > _STEADY:
                self.backoff.reset()
            limit = "until it can be reached" if self.wait is None else f"for {self.wait:g} seconds"
            self.watcher.note(f"{error}: trying again {limit}")
        away = monotonic() - self.began
        if isinstance(error, StillConnectedError) and away > 6 * HEARTBEAT:
            raise InputError(f"{error}: stop the other one") from None
        if self.wait is not None and away >= self.wait:
            raise RunError(
                f"{error}: given up after {self.wait:g} seconds; see to the network, or give --wait more of them"
            ) from None
        self.attempts += 1
        delay = self.backoff.next()
        if self.wait is not None:
            delay = min(delay, self.wait - away)
        _log.info("attempt %d at %s failed, the next one is in %.1f s: %s", self.attempts, self.where, delay, error)
        return delay


def _answer(app: ClientApp, message: Message, context: Context, watcher: SiteWatcher, service: SiteService) -> Message:
    """Answer a message; an error is shown at the site, and the next message is still answered."""
    try:
        return app(message, context)
    except Exception as error:
        _log.info("a message of the server could not be answered", exc_info=True)
        watcher.note(f"a message of the server could not be answered: {type(error).__name__}: {one_line(error)}")
        why = str(error) if isinstance(error, FedstillError) else f"{type(error).__name__}: it could not be answered"
        with suppress(FedstillError):  # where no log can be written, as on a full disk, nothing left
            service.unanswered(message.metadata.message_type, why)
        return failed(message, service.told(why))


def _declined(error: UnwelcomeMessageError, watcher: SiteWatcher, service: SiteService) -> Message:
    """The reply to a message that is not taken: the site's operator, its log and the server get the reason."""
    why = f"a message of the server is not taken: {one_line(error)}"
    watcher.note(why)
    with suppress(FedstillError):
        service.unanswered(error.envelope.metadata.message_type, why)
    return failed(error.envelope, service.told(why))


def change_key(folder: SiteFolder, line: SiteConnection, service: SiteService) -> None:
    """Take the key into use that `fedstill deploy rotate` has made, if there is one, on the same connection."""
    new = pending_key(folder)
    if new is None:
        return
    if line.propose_key(folder.site, new):
        take_into_use(folder)
        line.use_key(new)
        service.note_event("this site's key was changed")
    else:
        service.note_event(f"the server did not accept this site's new key: it is in {set_aside(folder).name}")
