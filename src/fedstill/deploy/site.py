"""A site's process: connect, answer requests, and reconnect after a lost connection, until it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.deploy.apps import FINISH, client_app, failed
from fedstill.deploy.deployment_folder import SiteFolder
from fedstill.deploy.private_files import only_one
from fedstill.deploy.site_connection import HEARTBEAT, SiteConnection, SiteConnectionError, StillConnectedError
from fedstill.deploy.site_service import SiteService, SiteWatcher

_log = logging.getLogger(__name__)

_POLL = 0.1  # seconds between looks for a message
_AGAIN = 1.0  # seconds before the next attempt to connect


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
) -> None:
    """Serve this site's data to the deployment's server; returns only with `once`, after an experiment has ended."""
    folder.policy()  # refused now, not when the server asks
    app = client_app(SiteService(folder, bundle, watcher, data_root, proxies, device, query))
    context = Context(0, 0, {"partition-id": folder.site}, RecordDict(), {})
    where = address or f"{f'[{folder.address}]' if ':' in folder.address else folder.address}:{folder.port}"
    keys, authority = folder.keys(), None if insecure else folder.ca
    with only_one(folder.path, "site"):
        lost_at: float | None = None
        while True:
            try:
                with SiteConnection(where, keys, authority) as line:
                    watcher.note(f"connected to {where}")
                    _log.info("connected to %s", where)
                    lost_at = None
                    while True:
                        message = line.receive()
                        if message is None:
                            sleep(_POLL)
                            continue
                        line.send(_answer(app, message, context, watcher))
                        if once and message.metadata.message_type == FINISH:
                            return
            except SiteConnectionError as error:
                if lost_at is None:
                    lost_at = monotonic()
                    watcher.note(f"{error}: trying again until it can be reached")
                    _log.info("connection to %s lost: %s", where, error, exc_info=True)
                if isinstance(error, StillConnectedError) and monotonic() - lost_at > 6 * HEARTBEAT:
                    raise InputError(f"{error}: stop the other one") from None
                sleep(_AGAIN)


def _answer(app: ClientApp, message: Message, context: Context, watcher: SiteWatcher) -> Message:
    """Answer a message; an error is shown at the site, and the next message is still answered."""
    try:
        return app(message, context)
    except Exception as error:
        _log.info("a message of the server could not be answered", exc_info=True)
        watcher.note(f"a message of the server could not be answered: {type(error).__name__}: {error}")
        return failed(message, type(error).__name__)
