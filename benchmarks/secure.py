"""Cost of secure aggregation: bytes and seconds of one sum, beside the same clients without it.

All clients run here, one after the other, so that CPU seconds of a client are those of one and the server's those of
the server. Nothing is trained: the update is given, and what is measured is what masks add to it. Beside it the same of
Flower's SecAgg+, where Flower is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, cast

import numpy as np
import torch

from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.secaggplus import Cost, secaggplus_cost
from benchmarks.sizes import Size
from fedstill.core.egress import Egress
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.sums import Summand, Sums
from fedstill.core.task import Tensors
from fedstill.methods.secure.protocol import protected
from fedstill.methods.secure.secure_method import MaskedSums
from fedstill.methods.secure.summed_exchange import SummedExchange

HEAD = ("clients", "parameters", "bytes up / plain", "bytes down / plain", "CPU seconds of a client", "of the server")
FULL = (*product((100_000, 1_000_000), (3, 10, 50)), (10_000_000, 10))  # parameters and clients
TINY = (*product((1_000, 10_000), (3, 5)),)
MOST = 2.2  # times the bytes that an update has in single precision


class Update(Exchange):
    """Each client's update is its number, in single precision."""

    name = "train"
    egress = (Egress("w", "parameters", "an update"),)
    summed = (Summand("w", "update"),)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message({"w": state["w"]})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        return Message({"w": request["w"] + (client.profile.id + 1) / 256})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, Any]:
        return {"w": (tuple(state["w"].shape), torch.float32)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return {"w": torch.stack([reply.message["w"].double() for reply in replies]).mean(dim=0).float()}

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        return {**state, "w": (state["w"].double() + sums.mean("w")).float()}


class _Cost:
    """Of one sum: the largest bytes and seconds of a client, the server's seconds, and what came out."""

    def __init__(self, exchanges: Sequence[Exchange], clients: int, parameters: int) -> None:
        up, down, spent = [0] * clients, [0] * clients, [0.0] * clients
        state: Tensors = {"w": torch.zeros(parameters)}
        self.server = 0.0
        for exchange in exchanges:
            context, replies = RoundContext.of(Streams(1), 0, 1, clients, exchange.name), []
            for number in range(clients):
                who = Profile(number, 100, "none")
                began = process_time()
                request = exchange.request(state, who, context)
                assert request is not None
                self.server += process_time() - began
                began = process_time()
                client = Client(who, cast(Any, None), cast(Any, None), Streams(1))
                message = exchange.reply(client, request, context)
                spent[number] += process_time() - began
                up[number] += message.nbytes
                down[number] += request.nbytes
                replies.append(Reply(who, message, None))
            began = process_time()
            state = exchange.aggregate(state, replies, context)
            self.server += process_time() - began
        self.up, self.down, self.client, self.mean = max(up), max(down), median(spent), state["w"]


def measure(size: Size, folder: Path) -> Findings:
    findings, lines, others = Findings(), [HEAD], [HEAD]
    tiny = size.samples < 1000
    for parameters, clients in TINY if tiny else FULL:
        plain = _Cost([Update()], clients, parameters)
        fixed = _Cost([SummedExchange(Update(), MaskedSums(), clients)], clients, parameters)
        masked = _Cost(protected(Update(), MaskedSums(), clients), clients, parameters)
        if not torch.equal(fixed.mean, masked.mean):
            raise DifferenceError(f"the sum over {clients} clients differs from that without masks")
        if float((plain.mean - masked.mean).abs().max()) > 1e-6:
            raise DifferenceError(f"the sum over {clients} clients is not that of plain updates")
        lines.append(_line(clients, parameters, masked, plain))
        both = (masked.up + masked.down) / (plain.up + plain.down)
        what = f"{clients} clients, {parameters:,} parameters: bytes up and down / plain"
        findings.rows.append(Row(what, f"{both:.2f}"))
        up = masked.up / plain.up
        if not tiny and up > MOST:
            findings.differences.append(f"{what}: {up:.2f} times the upload, over {MOST}")
        del fixed, masked
        if find_spec("flwr") is not None:
            other = secaggplus_cost(np.zeros(parameters, dtype=np.float32), clients)
            if float(np.abs(other.mean - plain.mean.numpy()).max()) > 1e-4:
                raise DifferenceError(f"SecAgg+ of {clients} clients gives another mean")
            others.append(_line(clients, parameters, other, plain))
        print(*lines[-1], *others[-1], sep=" | ", file=sys.stderr, flush=True)
    findings.tables["secure aggregation of one update"] = lines
    if len(others) > 1:
        findings.tables["the same with Flower's SecAgg+"] = others
    return findings


def _line(clients: int, parameters: int, cost: _Cost | Cost, plain: _Cost) -> tuple[str, ...]:
    return (
        f"{clients}",
        f"{parameters:,}",
        f"{cost.up / plain.up:.2f}",
        f"{cost.down / plain.down:.2f}",
        f"{cost.client:.3f} (plain {plain.client:.3f})",
        f"{cost.server:.3f} (plain {plain.server:.3f})",
    )
