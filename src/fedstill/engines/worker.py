"""The other end of the `processes` engine: a fresh interpreter that answers for clients until its input ends.

Started with `python -c`, not forked (numba and OpenMP do not survive a fork) and not through multiprocessing's
spawn (which would run the user's script a second time). The two ends speak length-prefixed pickles over pipes that
nobody else can reach; what clients send is inside, encoded as messages.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import IO, Any

_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], item: Any) -> None:
    data = item if isinstance(item, bytes) else pickle.dumps(item, protocol=5)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """The next item; EOFError where the other end has gone."""
    length = _LENGTH.unpack(_read(stream, _LENGTH.size))[0]
    return pickle.loads(_read(stream, length))


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer until the parent closes the pipe."""
    import torch

    from fedstill.core.client import answer
    from fedstill.core.egress import UndeclaredEgressError
    from fedstill.core.message import Message
    from fedstill.core.plugins import use_plugins
    from fedstill.core.protocols import Reply

    torch.set_num_threads(1)
    use_plugins(read_frame(requests))
    factory: Any = None
    exchange: Any = None
    turn: Any = None
    while True:
        what, *rest = read_frame(requests)
        if what == "open":
            (factory,) = rest
            continue
        if what == "carry":
            exchange, turn = rest
            continue
        who, request, state = rest
        try:
            outcome: Any = answer(factory, exchange, who, Message.decode(request), Message.decode(state), turn)
        except UndeclaredEgressError as error:
            outcome = error
        if isinstance(outcome, Reply):
            kept = None if outcome.state is None else Message(outcome.state).encode()
            outcome = (who, outcome.message.encode(), kept, outcome.work)
        write_frame(replies, outcome)


def main() -> None:
    # Frames go out on a descriptor of their own, so that a client's print() cannot end up among them.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, replies)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
