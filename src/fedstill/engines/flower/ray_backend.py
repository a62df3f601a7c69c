"""Flower's simulation, started in a thread and held open, with client processes that we can count, replace and stop.

Flower's own Ray backend takes every processor of the cluster, hands messages to processes that have died, waits for the
clients at work before it ends, and then ends Ray itself. `Workers` does none of these; all the rest is Flower's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any
from weakref import WeakSet

import ray
from flwr.app import Context, Error, Message, RecordDict
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.simulation.ray_transport.ray_actor import ClientAppActor, pool_size_from_resources
from ray.exceptions import OutOfMemoryError, RayActorError

from fedstill.core.errors import RunError
from fedstill.engines.ray_connection import ONE_THREAD

_log = logging.getLogger(__name__)

_CLIENT = {"num_cpus": 1, "num_gpus": 0.0}  # Flower's default of two processors would leave every second one idle
CRASHED = 8  # Flower's code for a client process that ended before it replied
_POLL = 0.02  # seconds; Flower's grid cannot be waited for
_PATIENCE = 120.0  # seconds until a simulation that has not started is given up
_LIFETIME = 30 * 24 * 3600.0  # seconds a message may take; Flower's default of half a day is short for some clients
_ACTOR: Any = ClientAppActor  # Ray's decorator gives it more than its type tells
_FLOWERS: Any = raybackend
_substituting = Lock()


class Workers:
    """In place of Flower's backend: so many client processes on the Ray in use, of which the dead are replaced."""

    def __init__(self, workers: int) -> None:
        self.size = min(workers, pool_size_from_resources(_CLIENT))
        self.ready = Event()
        self.app_fn: Callable[[], Any] | None = None
        self._idle: SimpleQueue[Any] = SimpleQueue()
        self._all: set[Any] = set()
        self._stopped = False
        self._lock = Lock()

    def build(self, app_fn: Callable[[], Any]) -> None:
        self.app_fn = app_fn
        with self._lock:
            if not self._stopped:
                for _ in range(self.size):
                    self._idle.put(self._started())
        self.ready.set()

    @property
    def num_workers(self) -> int:
        return self.size

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        worker = self._idle.get()
        try:
            _, reply, context = ray.get(worker.run.remote(self.app_fn, message, str(context.node_id), context))
        except (RayActorError, OutOfMemoryError):
            _log.info("a worker process of Ray ended", exc_info=True)
            with self._lock:
                self._all.discard(worker)
                if not self._stopped:
                    worker = self._started()
            reply = Message(Error(CRASHED, "its worker process ended"), reply_to=message)
        finally:
            self._idle.put(worker)
        return reply, context

    def _started(self) -> Any:
        worker = _ACTOR.options(**_CLIENT, runtime_env=ONE_THREAD).remote()
        self._all.add(worker)
        return worker

    def terminate(self) -> None:
        """End all client processes, those at work too; Ray itself stays."""
        with self._lock:
            self._stopped = True
            for worker in self._all:
                ray.kill(worker)
            self._all.clear()


class FlowerSimulation:
    """A running simulation whose server app does nothing but lend us its grid."""

    def __init__(self, clients: Any, workers: int) -> None:
        self.nodes: list[int] = []
        self._grid: Grid | None = None
        self._backend: Workers | None = None
        self._over, self._built = Event(), Event()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, args=(clients, workers), daemon=True, name="flower-simulation")
        _running.add(self)
        with _substituted(lambda config: self._made(workers)):
            try:
                self._thread.start()
                self._await_start()
            except BaseException:
                self.stop()
                raise
        assert self._grid is not None
        self.nodes = sorted(self._grid.get_node_ids())

    def send(self, node: int, records: RecordDict) -> str:
        """Push a message to a node; gives the id by which its reply is known."""
        assert self._grid is not None
        message = Message(records, dst_node_id=node, message_type="train", ttl=_LIFETIME)
        for pushed in self._grid.push_messages([message]):
            return pushed
        raise RunError("Flower's simulation has refused a message")

    def receive(self, sent: Iterable[str]) -> list[Message]:
        """Wait until some of what was sent is answered."""
        assert self._grid is not None
        while self._thread.is_alive():
            if replies := list(self._grid.pull_messages(sent)):
                return replies
            sleep(_POLL)
        raise self._ended()

    def stop(self) -> None:
        """End it, whatever is under way."""
        self._over.set()
        if self._backend is not None:
            self._backend.terminate()
        if self._thread.ident is not None:
            self._thread.join()
        _running.discard(self)

    def _run(self, clients: Any, workers: int) -> None:
        server = ServerApp()

        @server.main()
        def lend(grid: Grid, context: Context) -> None:
            self._grid = grid
            self._over.wait()

        try:
            run_simulation(server, clients, workers, backend_config={"client_resources": dict(_CLIENT)})
        except BaseException as error:  # raised again where a reply is awaited
            _log.info("the simulation ended with an error", exc_info=True)
            self._failure = error
        finally:
            self._over.set()

    def _made(self, workers: int) -> Workers:
        self._backend = Workers(workers)
        self._built = self._backend.ready  # set when its processes are on their way
        return self._backend

    def _await_start(self) -> None:
        patience = monotonic() + _PATIENCE
        while self._grid is None or not self._built.is_set():
            if not self._thread.is_alive():
                raise self._ended()
            if monotonic() > patience:
                raise RunError(f"Flower's simulation has not started within {_PATIENCE:.0f} s")
            sleep(_POLL)

    def _ended(self) -> RunError:
        reason = self._failure
        while reason is not None and reason.__cause__ is not None:  # Flower wraps it twice
            reason = reason.__cause__
        return RunError(f"Flower's simulation has ended: {reason or 'for an unknown reason'}")


@contextmanager
def _substituted(make: Callable[[dict[str, Any]], Workers]) -> Iterator[None]:
    """Flower makes its Ray backend by this name and offers no other way to hand it one."""
    with _substituting:
        theirs = _FLOWERS.RayBackend
        _FLOWERS.RayBackend = make
        try:
            yield
        finally:
            _FLOWERS.RayBackend = theirs


_running: WeakSet[FlowerSimulation] = WeakSet()


def _stop_all() -> None:
    for simulation in list(_running):
        simulation.stop()


# An interpreter waits for Flower's threads before it comes to `atexit`: one whose engine was never left would not end.
_register: Any = getattr(threading, "_register_atexit", None)
if _register is not None:
    _register(_stop_all)
