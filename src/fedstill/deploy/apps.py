"""Flower's two ends of an experiment: a ClientApp for a site's office, and a ServerApp that plays the rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedstill.core.message import MessageError
from fedstill.deploy.site_service import Header, SiteService
from fedstill.engines.flower.records import packed, salted, unpacked, unsalted

HELLO, AGREE, FINISH = "query.hello", "query.agree", "query.finish"


def client_app(office: SiteService) -> ClientApp:
    """Whatever arrives is answered, also what cannot be read."""
    app = ClientApp()

    def replied(message: Message, answer: Callable[[Any, Any], tuple[Any, Header]]) -> Message:
        try:
            tensors, header = unpacked(unsalted(message.content))
        except MessageError as error:
            return failed(message, str(error))
        return Message(salted(packed(*answer(tensors, header))), reply_to=message)

    @app.query("hello")
    def _hello(message: Message, context: Context) -> Message:
        return replied(message, lambda _, header: ({}, office.hello(header)))

    @app.query("agree")
    def _agree(message: Message, context: Context) -> Message:
        return replied(message, lambda _, header: ({}, office.agree(header)))

    @app.train("exchange")
    def _exchange(message: Message, context: Context) -> Message:
        return replied(message, office.exchange)

    @app.query("finish")
    def _finish(message: Message, context: Context) -> Message:
        return replied(message, lambda tensors, header: ({}, office.finish(tensors, header)))

    return app


def failed(message: Message, why: str) -> Message:
    """The answer where there is none."""
    return Message(salted(packed({}, {"status": "failed", "detail": why})), reply_to=message)


def server_app(play: Callable[[Grid], None]) -> ServerApp:
    """The same round loop as everywhere: Flower only gives it a grid."""
    app = ServerApp()

    @app.main()
    def _main(grid: Grid, context: Context) -> None:
        play(grid)

    return app
