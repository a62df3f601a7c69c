"""The server's own log, beside its keys: every message that it sent and received, and every refusal.

A received message has the sha256 with which its site logged that it left: the two logs can be compared line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from flwr.app import Message as Envelope

from fedstill.core.message import MessageError
from fedstill.deploy.egress_log import EgressLog
from fedstill.engines.flower.correspondence import one_line
from fedstill.engines.flower.encoding import unpacked, unsalted

_ASKED = ("run", "round", "exchange", "attempt")
_SHOWN = ("run", "experiment", "attempt", "client", "status")


class ServerLog:
    """Writes the log; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.log = EgressLog(folder)
        self.on_refused: Callable[[int, str], None] = lambda site, why: None  # of a site that is known

    def sent(self, site: int, message: Envelope) -> Mapping[str, Any]:
        """A line before a message leaves; gives what its reply is a reply to."""
        facts = _facts(message)
        self.log.add(what="sent", to=[f"site {site}"], **facts)
        return {name: facts[name] for name in _ASKED if name in facts}

    def received(self, site: int, reply: Envelope, asked: Mapping[str, Any]) -> None:
        """A line before a reply is used; what it answers is our own note, and not what the site writes."""
        if reply.has_error():
            self.log.add(what="failed", sender=f"site {site}", **asked, sentence=one_line(reply.error.reason))
        else:
            self.log.add(what="received", sender=f"site {site}", **{**_facts(reply), **asked})

    def refused(self, why: str, site: int | None = None, shown: bool = True) -> None:
        """A line; what is not `shown` is for the log alone."""
        self.log.refuse(one_line(why), sender="a stranger" if site is None else f"site {site}")
        if site is not None and shown:
            self.on_refused(site, why)

    def event(self, sentence: str) -> None:
        self.log.add(what="event", sentence=sentence)


def _facts(message: Envelope) -> dict[str, Any]:
    """What a message holds, by its header and its tensors."""
    kind = str(message.metadata.message_type).rpartition(".")[2]
    try:
        tensors, header = unpacked(unsalted(message.content))
    except MessageError as error:
        return {"exchange": kind, "sentence": f"it cannot be read: {one_line(error)}"}
    data = tensors.encode()
    found: dict[str, Any] = {name: _short(header[name]) for name in _SHOWN if name in header}
    if isinstance(header.get("round"), int):
        found["round"] = int(header["round"]) + 1
    if "detail" in header:
        found["sentence"] = one_line(header["detail"])
    shapes = [{"name": one_line(name)[:200], "shape": list(tensor.shape)} for name, tensor in tensors.items()]
    about: Mapping[str, Any] = {"tensors": shapes, "bytes": tensors.nbytes, "sha256": sha256(data).hexdigest()}
    return {"exchange": _short(str(header.get("exchange", kind))), **found, **about}


def _short(value: str | int | float) -> str | int | float:
    """What a site wrote into its header, as one line of at most 80 characters."""
    return one_line(value)[:80] if isinstance(value, str) else value
