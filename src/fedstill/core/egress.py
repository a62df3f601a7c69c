"""Everything that leaves a client is declared, by name pattern, kind and receiver; anything else is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from torch import Tensor

from fedstill.core.errors import EndsRunError

Kind = Literal["parameters", "logits", "features", "labels", "inputs", "statistics", "metrics"]


@dataclass(frozen=True)
class Egress:
    """One line of the manifest that a site's data officer reads."""

    name: str  # a pattern, e.g. "parameters/*"
    kind: Kind
    why: str
    to: Literal["server", "peers"] = "server"
    optional: bool = False  # True: a site whose policy forbids it leaves it out of its replies, and takes part


class UndeclaredEgressError(EndsRunError):
    """A reply held a tensor that its exchange never declared; the reply is not sent, and the run stops."""


def check_egress(message: Mapping[str, Tensor], declared: Iterable[Egress], exchange: str) -> None:
    patterns = [line.name for line in declared]
    for name in message:
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            raise UndeclaredEgressError(
                f"the exchange {exchange!r} tried to send {name!r}, which it does not declare"
                f" (declared: {', '.join(patterns) or 'nothing'}): add an Egress line or do not send it"
            )
