"""Clients inside Flower's simulation on Ray: our rounds, Flower's messages, processes of the user's Ray.

What a client is sent and what it says travel as Flower messages, states included, and as bits they are what the other
engines carry. Who makes the clients (with all the data), the exchange and the turn are not messages: they lie in Ray's
object store, where every process of this simulation, and nobody else, unpickles them.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self, cast

import ray
import torch
from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from ray.util import deregister_serializer, register_serializer
from torch import Tensor

from fedstill.core.client import answer
from fedstill.core.egress import UndeclaredEgressError
from fedstill.core.errors import EndsRunError, InputError, RunError
from fedstill.core.message import Message, under
from fedstill.core.own_parts import OwnParts
from fedstill.core.protocols import ClientFactory, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.records import Reason
from fedstill.core.task import Tensors
from fedstill.engines.client_job import ClientJob
from fedstill.engines.flower.encoding import packed, unpacked
from fedstill.engines.flower.ray_backend import CRASHED, FlowerSimulation
from fedstill.engines.ray_connection import named_connection

_log = logging.getLogger(__name__)

_SHARE_ABOVE = 2**16  # bytes: larger tensors of the factory are read where Ray keeps them instead of being copied


class FlowerRay:
    """N client processes of Flower's simulation on Ray: a cluster's (RAY_ADDRESS), else one on this machine.

    Started when first needed, which takes some seconds, and reused until the engine is left.
    """

    at_sites = False

    def __init__(self, workers: int = 2) -> None:
        if workers < 1:
            raise InputError(f"workers is {workers}: at least one is needed")
        self.size = workers
        self.report: Callable[[str], None] = _log.info
        self._factory: ClientFactory | None = None
        self._clients = Clients()
        self._simulation: FlowerSimulation | None = None
        self._connection = ExitStack()

    def open(self, factory: ClientFactory) -> None:
        self._factory, self._clients.factory = factory, None

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        simulation = self._started()
        self._clients.exchange = _stored((exchange, context))
        queue = (ClientJob(*job) for job in jobs)
        repeated: list[ClientJob] = []
        idle = list(simulation.nodes)
        busy: dict[str, tuple[ClientJob, int]] = {}
        try:
            while True:
                while idle and (job := repeated.pop() if repeated else next(queue, None)) is not None:
                    node = idle.pop()
                    busy[simulation.send(node, _asked(job.who, job.request, job.state))] = job, node
                if not busy:
                    return
                for reply in simulation.receive(busy):
                    job, node = busy.pop(reply.metadata.reply_to_message_id)
                    idle.append(node)
                    if reply.has_error() and reply.error.code == CRASHED:
                        repeated.append(job.again(context, reply.error.reason, self.report))
                    else:
                        yield _outcome(job.who, reply)
        finally:
            if busy:  # Left in mid-exchange: what these clients would still say belongs to nobody.
                self._stop()

    def _started(self) -> FlowerSimulation:
        if not ray.is_initialized():
            self._connection.enter_context(named_connection(self.size))
        if self._clients.factory is None:
            self._clients.own = OwnParts.here()
            self._clients.factory = _stored(self._factory)
        if self._simulation is None:
            self._simulation = FlowerSimulation(self._clients, self.size)
        return self._simulation

    def _stop(self) -> None:
        simulation, self._simulation = self._simulation, None
        if simulation is not None:
            simulation.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop()
        finally:
            self._clients.factory = self._clients.exchange = None
            self._connection.close()


class Clients:
    """The client app: made here, sent to a client process with each message, called there.

    It is small, since it only refers to what lies in Ray's store; what was fetched is kept by the process.
    """

    def __init__(self) -> None:
        self.own = OwnParts()
        self.factory: Any = None
        self.exchange: Any = None

    def __call__(self, message: FlowerMessage, context: Any) -> FlowerMessage:
        return FlowerMessage(self._replied(message.content), reply_to=message)

    def _replied(self, asked: RecordDict) -> RecordDict:
        message, header = unpacked(asked)
        try:
            factory, exchange, context = self._fetched()
        except Exception as error:
            _log.info("a client process is not ready", exc_info=True)
            return packed({}, {"what": "unready", "detail": f"{type(error).__name__}: {error}"})
        who = Profile(**json.loads(str(header["profile"])))
        try:
            outcome = answer(factory, exchange, who, Message(message.part("request/")), message.part("state/"), context)
        except UndeclaredEgressError as error:
            return packed({}, {"what": "undeclared", "detail": str(error)})
        except EndsRunError as error:
            return packed({}, {"what": "ended", "detail": str(error)})
        if isinstance(outcome, Failure):
            return packed({}, {"what": outcome.reason, "detail": outcome.detail, "work": outcome.work})
        told = under("message/", outcome.message)
        if outcome.state is not None:
            told |= under("state/", outcome.state)
        return packed(told, {"what": "reply", "stateful": int(outcome.state is not None), "work": outcome.work})

    def _fetched(self) -> tuple[ClientFactory, Exchange, RoundContext]:
        """From Ray's store once each: the factory when it is new, each exchange of a round once."""
        torch.set_num_threads(1)
        self.own.install()
        exchange, context = _held("exchange", self.exchange)
        return cast(ClientFactory, _held("factory", self.factory)), exchange, context


_fetched: dict[str, tuple[Any, Any]] = {}  # in a client process: what it holds, and the reference it had it by


def _held(what: str, reference: Any) -> Any:
    if what not in _fetched or _fetched[what][0] != reference:
        _fetched.pop(what, None)
        _fetched[what] = reference, ray.get(reference)
    return _fetched[what][1]


def _asked(who: Profile, request: Message, state: Tensors) -> RecordDict:
    profile = asdict(replace(who, kept=None))  # the state itself is sent along
    return packed(under("request/", request) | under("state/", state), {"profile": json.dumps(profile)})


def _outcome(who: Profile, reply: FlowerMessage) -> Reply | Failure:
    if reply.has_error():
        return Failure(who, "failed", (reply.error.reason or f"Flower's error {reply.error.code}").strip())
    told, header = unpacked(reply.content)
    what, detail, work = str(header["what"]), str(header.get("detail", "")), float(header.get("work", 0.0))
    if what == "undeclared":
        raise UndeclaredEgressError(detail)
    if what == "ended":
        raise EndsRunError(detail)
    if what == "unready":
        raise RunError(f"a client process on Ray cannot load this experiment: {detail}")
    if what != "reply":
        return Failure(who, cast(Reason, what), detail, work)
    return Reply(who, Message(told.part("message/")), told.part("state/") if header["stateful"] else None, work)


def _stored(item: Any) -> Any:
    """A reference to a copy of it in Ray's store, from which all processes of a machine read the same large tensors."""
    register_serializer(Tensor, serializer=_taken_apart, deserializer=_put_together)
    try:
        return ray.put(item)
    except TypeError as error:
        raise InputError(f"the flower-ray engine cannot send this experiment to its processes: {error}") from error
    finally:
        deregister_serializer(Tensor)


def _taken_apart(tensor: Tensor) -> tuple[Any, torch.dtype, tuple[int, ...]]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape)


def _put_together(parts: tuple[Any, torch.dtype, tuple[int, ...]]) -> Tensor:
    data, dtype, shape = parts
    if data.nbytes <= _SHARE_ABOVE:
        data = data.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's memory is read-only, and torch warns of that
        return torch.from_numpy(data).view(dtype).reshape(shape)
