"""A site in the test's own process, over the real wire, that answers as it should or as a test says."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event, Lock, Thread
from typing import Any

from flwr.app import Context, RecordDict

from fedstill.data.catalogue import load
from fedstill.deploy.apps import client_app
from fedstill.deploy.site import change_key
from fedstill.deploy.site_connection import SiteConnection, SiteConnectionError
from fedstill.deploy.site_service import SiteService

_IN_TURN = Lock()  # sites in one process share torch's generator, from which dropout draws; real ones do not


class OddSite(Thread):
    """A site in this process that answers as it should, except where `answer` says something else."""

    def __init__(
        self, made: Any, site: int, answer: Any = None, options: Any = None, alter: Any = None, **changes: Any
    ) -> None:
        super().__init__(daemon=True)
        self.alter = alter or (lambda request, reply: reply)  # what it makes of its answer before it leaves
        self.options = options or {}  # of the site's command
        self.made, self.site, self.answer = made, site, answer
        self.bundle = replace(load(f"npz:{made.shard(site)}"), **changes)
        self.closing = Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        folder = self.made.site_folder(self.site)
        service = SiteService(folder, self.bundle, self.made.notes, **self.options)
        app, context = client_app(service), Context(0, 0, {}, RecordDict(), {})
        while not self.closing.is_set():
            try:
                with SiteConnection(f"127.0.0.1:{self.made.port}", folder.keys(), folder.ca) as line:
                    while not self.closing.is_set():
                        change_key(folder, line, service)
                        message = line.receive()
                        if message is None:
                            time.sleep(0.05)
                            continue
                        reply = self.answer(message) if self.answer else None
                        with _IN_TURN:
                            reply = reply or app(message, context)
                        line.send(self.alter(message, reply))
            except SiteConnectionError:
                time.sleep(0.1)
            except Exception as error:
                self.error = error
                return

    def __enter__(self) -> OddSite:
        self.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self.closing.set()
        self.join(timeout=10)
