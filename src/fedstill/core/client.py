"""What every engine does next to the data: construct the client, compute its reply, check egress."""

from __future__ import annotations

import logging

from fedstill.core.egress import check_egress
from fedstill.core.errors import EndsRunError
from fedstill.core.message import Message
from fedstill.core.protocols import Abstain, ClientFactory, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.task import Tensors

_log = logging.getLogger(__name__)


def answer(
    factory: ClientFactory, exchange: Exchange, who: Profile, request: Message, state: Tensors, context: RoundContext
) -> Reply | Failure:
    """One client's reply, or its failure; the failure of a client does not end the round."""
    work = 0.0
    try:
        client = factory(who, state, context)
        try:
            with client.streams.ambient("ambient"):
                message = exchange.reply(client, request, context)
        finally:
            work = client.meter.work
        if not isinstance(message, Message):
            raise TypeError(f"a reply must be a Message, not {type(message).__name__}")
        check_egress(message, exchange.egress, exchange.name)
        return Reply(who, message, client.state, work)
    except Abstain as reason:
        return Failure(who, "abstained", str(reason), work)
    except EndsRunError:
        raise
    except Exception as error:  # whatever a client's code raises, the others go on
        _log.info("client %d failed in %s", who.id, exchange.name, exc_info=True)
        return Failure(who, "failed", f"{type(error).__name__}: {error}", work)
