"""Flower's two ends of an experiment: a ClientApp for a site's service, and a ServerApp that runs the rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedstill.core.message import MessageError
from fedstill.deploy.site_service import Header, SiteService
from fedstill.engines.flower.encoding import packed, salted, unpacked, unsalted

_log = logging.getLogger(__name__)

ENROL, ACCEPT, REFUSE, FINISH = "query.enrol", "query.accept", "query.refuse", "query.finish"


def client_app(service: SiteService) -> ClientApp:
    """Every message is answered, even one that cannot be read."""
    app = ClientApp()

    def replied(message: Message, answer: Callable[[Any, Any], tuple[Any, Header]]) -> Message:
        try:
            tensors, header = unpacked(unsalted(message.content))
        except MessageError as error:
            _log.info("a message of the server cannot be read", exc_info=True)
            service.unanswered(message.metadata.message_type, f"a message of the server cannot be read: {error}")
            return failed(message, str(error))
        return Message(salted(packed(*answer(tensors, header))), reply_to=message)

    @app.query("enrol")
    def _enrol(message: Message, context: Context) -> Message:
        return replied(message, lambda _, header: ({}, service.enrol(header)))

    @app.query("accept")
    def _accept(message: Message, context: Context) -> Message:
        return replied(message, lambda _, header: ({}, service.accept(header)))

    @app.query("refuse")
    def _refuse(message: Message, context: Context) -> Message:
        return replied(message, lambda _, header: ({}, service.turned_away(header)))

    @app.train("exchange")
    def _exchange(message: Message, context: Context) -> Message:
        return replied(message, service.exchange)

    @app.query("finish")
    def _finish(message: Message, context: Context) -> Message:
        return replied(message, lambda tensors, header: ({}, service.finish(tensors, header)))

    return app


def failed(message: Message, why: str) -> Message:
    """The reply to a message that could not be answered."""
    return Message(salted(packed({}, {"status": "failed", "detail": why})), reply_to=message)


def server_app(run_experiment: Callable[[Grid], None]) -> ServerApp:
    """The same round loop as everywhere: Flower only gives it a grid."""
    app = ServerApp()

    @app.main()
    def _main(grid: Grid, context: Context) -> None:
        run_experiment(grid)

    return app
