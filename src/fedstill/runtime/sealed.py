"""Tensors and facts in one message with a digest of both, so that damage is noticed when it is read."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstill.core.message import Message, MessageError
from fedstill.core.task import Tensors

FACTS, DIGEST = "facts", "digest"
DAMAGED = (MessageError, OSError, KeyError, ValueError, TypeError)  # what reading a damaged file may raise


def sealed(tensors: Tensors, facts: str) -> Message:
    """The tensors, the facts, which are a JSON object, and the digest of all of it."""
    whole = {**tensors, FACTS: _bytes_tensor(facts.encode())}
    return Message({**whole, DIGEST: _digest_of(whole)})


def unsealed(message: Message) -> tuple[Message, dict[str, Any]]:
    """What was sealed; contents that do not match their digest are a `MessageError`."""
    whole = {name: tensor for name, tensor in message.items() if name != DIGEST}
    if DIGEST not in message or not torch.equal(message[DIGEST], _digest_of(whole)):
        raise MessageError("its contents do not match its digest")
    facts: dict[str, Any] = json.loads(whole.pop(FACTS).numpy().tobytes())
    return Message(whole), facts


def _bytes_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def _digest_of(tensors: Tensors) -> Tensor:
    return _bytes_tensor(sha256(Message(tensors).encode()).digest())
