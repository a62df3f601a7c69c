"""An exchange whose replies are one vector of whole numbers, of which the server needs nothing but the sum.

The inner exchange trains (or measures) as always. Its reply stays with the client: what leaves is its contribution to
the declared sums (`Exchange.summed`) in fixed point. What the server cannot check in a sum, the client checks in its
own reply: numbers that are not finite, and a norm over the limit, keep it out of the round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import isfinite, sqrt
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from fedstill.core.egress import Egress, Kind
from fedstill.core.message import Message, part
from fedstill.core.protocols import Abstain, Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.sums import FORMATS, FixedPoint, Format, Layout, SkipRound, Summand, Sums, added
from fedstill.core.task import Tensors
from fedstill.methods.secure.sum_settings import SumSettings
from fedstill.methods.wrappers.wrapper import WrappedExchange

SUM = "secure/sum"  # the vector, in a reply
OWN = "secure/"  # the prefix of what secure aggregation adds to messages and to the server's state
FACTS = OWN + "facts/"  # what the server's state keeps of the last sums, for the journal
MOST_WEIGHT = 2**40  # of one client: a sum of more is none
REPORTS = (Summand("steps", "count", weighted=False), Summand("loss/*", "report"))  # of how training went


class SummedExchange(WrappedExchange):
    """The exchange in fixed point, without masks: for simulations, and to see what single replies would show."""

    def __init__(self, inner: Exchange, settings: SumSettings, most: int) -> None:
        super().__init__(inner)
        assert inner.summed is not None
        self.settings, self.most = settings, most
        self.update_prefix = ""
        self.spill_to_disk = False
        self.egress = (self._line(), *self._clear())

    def _line(self) -> Egress:
        what = "; ".join(dict.fromkeys(line.why for line in self._in_sums())) or "that it took part"
        why = f"whole numbers of which the server needs only the sum over clients: {what}"
        return Egress(SUM, self._kind(), why, by_class=any(line.by_class for line in self._in_sums()))

    def _in_sums(self) -> list[Egress]:
        """The lines of the inner exchange whose tensors are in the sums."""
        clear = {line.name for line in self._clear()}
        left_out = {line.name for line in self.inner.egress if _reports(line) and self.settings.reports == "off"}
        outside = clear | left_out
        return [line for line in self.inner.egress if line.name not in outside and "counters/" not in line.name]

    def _clear(self) -> tuple[Egress, ...]:
        """The lines that still leave in the clear."""
        return tuple(line for line in self.inner.egress if _reports(line) and self.settings.reports == "clear")

    def _kind(self) -> Kind:
        kinds, known = [line.kind for line in self._in_sums()], get_args(Kind)
        return min(kinds, key=known.index, default="metrics")

    def on_site(self) -> Exchange:
        return self

    def common(self, request: Message) -> Tensors:
        return self.inner.common(Message(plain_request(request)))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        vector, clear = self.prepared(client, request, context)
        return Message({**clear, SUM: torch.from_numpy(vector.view(np.int64))})

    def prepared(self, client: Client, request: Message, context: RoundContext) -> tuple[np.ndarray, Tensors]:
        """The client's vector, and what leaves in the clear beside it."""
        asked = Message(plain_request(request))
        found = self.inner.reply(client, asked, context)
        values = self.inner.contribution(asked, found)
        reports = {name: tensor for name, tensor in found.items() if self._is_report(name)}
        layout = self._layout({name: tuple(tensor.shape) for name, tensor in {**values, **reports}.items()})
        noise = self.inner.sum_noise
        if noise is None:
            self._check(values)
        else:
            values = noise.clipped(values, layout)
        vector, _ = layout.encoded({**values, **reports}, self.inner.sum_weight(client.profile), self.most)
        if noise is not None:
            vector += noise.drawn(layout, client.streams)
        clear = [line.name for line in self._clear()]
        return vector, {name: one for name, one in found.items() if any(fnmatchcase(name, line) for line in clear)}

    def _is_report(self, name: str) -> bool:
        lines = [line.name for line in self.inner.egress if _reports(line)]
        return self.settings.reports == "sums" and any(fnmatchcase(name, line) for line in lines)

    def _check(self, values: Tensors) -> None:
        """Keep an update out of the sum if it is not finite or too long: the server cannot see it."""
        squares = 0.0
        for name in sorted(values):
            if values[name].is_floating_point():
                size = float(values[name].double().square().sum())
                if not isfinite(size):
                    raise Abstain(f"its own {name} holds numbers that are not finite: it is not added up")
                squares += size
        norm, limit = sqrt(squares), self.settings.norm
        if limit is not None and norm > limit:
            raise Abstain(f"its own update is longer than secure.norm of {limit:.4g}: it is not added up")

    def _layout(self, shapes: Mapping[str, Shape]) -> Layout:
        assert self.inner.summed is not None
        summed = (*self.inner.summed, *(REPORTS if self.settings.reports == "sums" else ()))
        return Layout(dict(shapes), summed, formats(self.settings))

    def layout(self, state: Tensors, who: Profile, request: Message) -> Layout:
        """What the server expects in the vectors."""
        expected = self.inner.expect(state, who, request)
        reports = {name: shape for name, (shape, _) in expected.items() if self._is_report(name)}
        return self._layout({**self.inner.sum_shapes(state, expected), **reports})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        asked = Message(plain_request(request))
        clear = [line.name for line in self._clear()]
        expected = self.inner.expect(state, who, asked).items()
        shown = {name: what for name, what in expected if any(fnmatchcase(name, line) for line in clear)}
        return {**shown, SUM: ((self.layout(state, who, asked).length,), torch.int64)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        needed = min(self.settings.needed(self.most), self.most)
        if len(replies) < needed:
            raise SkipRound(f"{len(replies)} clients sent an update, and {needed} are needed to add them up")
        total = added([vector_of(reply.message[SUM]) for reply in replies])
        return self.finished(state, total, replies[0].profile, len(replies), context)

    def finished(
        self, state: Tensors, total: np.ndarray, anyone: Profile, clients: int, context: RoundContext
    ) -> Tensors:
        """The server's next state from the sum of the vectors of so many clients; `anyone` is one of them."""
        request = self.inner.request(state, anyone, context)
        assert request is not None
        layout = self.layout(state, anyone, request)
        sums, clipped = layout.decoded(total, clients)
        if not (0 <= clipped <= clients * layout.length and 0 <= sums.weight <= clients * MOST_WEIGHT):
            raise SkipRound("what was added up is noise: clients were sent different requests, or one sent anything")
        if any(layout.line(name).weighted for name in layout.names) and sums.weight < 1:
            raise SkipRound("the sum has no weight: its clients have no samples")
        after = dict(self.inner.finish(state, sums, context))
        return {**after, **facts(sums, clipped)}


def facts(sums: Sums, clipped: int) -> dict[str, Tensor]:
    """What the journal has of a round's sums: how many clients are in them, clipped values, means of reports."""
    found = {"clients": float(sums.clients), "clipped": float(clipped)}
    if "steps" in sums.totals:
        found["steps"] = float(sums.totals["steps"])
    for name, total in part(sums.totals, "loss/").items():
        found[f"loss/{name}"] = float(total) / max(sums.weight, 1)
    return {FACTS + name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}


def formats(settings: SumSettings) -> Mapping[Format, FixedPoint]:
    """The format of each kind; only that of updates is set."""
    return {**FORMATS, "update": FixedPoint(settings.clip, settings.bits)}


def vector_of(tensor: Tensor) -> np.ndarray:
    """A sum's vector as unsigned numbers, whose arithmetic is modulo 2^64."""
    return tensor.numpy().view(np.uint64)


def plain_request(request: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in request.items() if not name.startswith(OWN)}


def _reports(line: Egress) -> bool:
    """Whether a line is about how training went, rather than part of what is aggregated."""
    return line.name == "steps" or line.name.startswith("loss/")
