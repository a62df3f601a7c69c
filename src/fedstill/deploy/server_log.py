"""The server's own log, beside its keys: every message that it sent and received, and every refusal.

A received message has the sha256 with which its site logged that it left: the two logs can be compared line by line.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from flwr.app import Message as Envelope

from fedstill.core.message import MessageError
from fedstill.deploy.egress_log import EgressLog
from fedstill.engines.flower.correspondence import one_line
from fedstill.engines.flower.encoding import unpacked, unsalted

_SHOWN = ("run", "experiment", "attempt", "client", "status")


class ServerLog:
    """Writes the log; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.log = EgressLog(folder)

    def sent(self, site: int, message: Envelope) -> None:
        """A line before a message leaves."""
        self.log.add(what="sent", to=[f"site {site}"], **_facts(message))

    def received(self, site: int, reply: Envelope) -> None:
        """A line before a reply is used."""
        if reply.has_error():
            self.log.add(what="failed", sender=f"site {site}", sentence=one_line(reply.error.reason))
        else:
            self.log.add(what="received", sender=f"site {site}", **_facts(reply))

    def refused(self, why: str, site: int | None = None) -> None:
        self.log.refuse(one_line(why), sender="a stranger" if site is None else f"site {site}")

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
    found: dict[str, Any] = {name: header[name] for name in _SHOWN if name in header}
    if isinstance(header.get("round"), int):
        found["round"] = int(header["round"]) + 1
    if "detail" in header:
        found["sentence"] = one_line(header["detail"])
    shapes = [{"name": name, "shape": list(tensor.shape)} for name, tensor in tensors.items()]
    about: Mapping[str, Any] = {"tensors": shapes, "bytes": tensors.nbytes, "sha256": sha256(data).hexdigest()}
    return {"exchange": str(header.get("exchange", kind)), **found, **about}
