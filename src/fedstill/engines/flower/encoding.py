"""A message as Flower carries it: named arrays, and beside them a header of plain values.

Flower fetches every array with requests of its own. So an array holds one part of a message (`model`, `loss`, `logits`:
the tensors whose names begin with that word), in the format that messages have everywhere: names, types and shapes are
inside, no pickle and not numpy's format. What comes from elsewhere is checked before a tensor is made of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedstill.core.message import DEFAULT_LIMIT, Message, MessageError

Header = Mapping[str, str | int | float]

_ARRAYS, _HEADER, _SALTED = "tensors", "header", "salted"
_SALT = 16  # bytes
_FORM = ("uint8", "safetensors")  # what Flower calls the type and the way of writing of an array


def packed(message: Mapping[str, Tensor], header: Header) -> RecordDict:
    """A message and its header as one Flower record.

    >>> import torch
    >>> records = packed({"model/a": torch.ones(2), "model/b": torch.ones(1), "steps": torch.tensor(4)}, {"round": 3})
    >>> message, header = unpacked(records)
    >>> list(records["tensors"]), message["model/a"].tolist(), header
    (['model', 'steps'], [1.0, 1.0], {'round': 3})
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in message.items():
        parts.setdefault(_part(name), {})[name] = tensor
    arrays = {part: _array(Message(tensors).encode()) for part, tensors in sorted(parts.items())}
    return RecordDict({_ARRAYS: ArrayRecord(arrays), _HEADER: ConfigRecord(dict(header))})


def unpacked(records: RecordDict, limit: int = DEFAULT_LIMIT) -> tuple[Message, dict[str, str | int | float]]:
    """The inverse of `packed`; anything else, or more than `limit` bytes, is a `MessageError`."""
    arrays, header = records.get(_ARRAYS), records.get(_HEADER)
    if not isinstance(arrays, ArrayRecord) or not isinstance(header, ConfigRecord):
        raise MessageError("not a message: it lacks its tensors or its header")
    size = sum(len(array.data) for array in arrays.values())
    if size > limit:
        raise MessageError(f"a message of {size} bytes is over the limit of {limit}")
    tensors: dict[str, Tensor] = {}
    for part, array in arrays.items():
        if (array.dtype, array.stype) != _FORM:
            raise MessageError(f"array {part!r} is written as {array.stype!r}, which is not a message's way")
        for name, tensor in Message.decode(array.data).items():
            if _part(name) != part:
                raise MessageError(f"array {part!r} holds {name!r}, which belongs elsewhere")
            tensors[name] = tensor
    plain = {str(name): value for name, value in header.items() if isinstance(value, str | int | float)}
    return Message(tensors), plain


def new_salt() -> bytes:
    return os.urandom(_SALT)


def salted(records: RecordDict, salt: bytes | None = None) -> RecordDict:
    """The same with random bytes before each array's and in the header: nobody can tell beforehand what it hashes to.

    Flower stores what is sent by its hash, for all sites in one place; anyone who knew a hash in advance could put
    something in the way. Messages that go out together may share the salt, and so their arrays.
    """
    salt = salt or new_salt()
    arrays, header = records[_ARRAYS], records[_HEADER]
    changed = {name: Array(one.dtype, one.shape, one.stype, salt + one.data) for name, one in arrays.items()}
    return RecordDict({_ARRAYS: ArrayRecord(changed), _HEADER: ConfigRecord({**header, _SALTED: new_salt().hex()})})


def unsalted(records: RecordDict) -> RecordDict:
    """The inverse of `salted`; anything else is a `MessageError`."""
    arrays, header = records.get(_ARRAYS), records.get(_HEADER)
    if not isinstance(arrays, ArrayRecord) or not isinstance(header, ConfigRecord) or _SALTED not in header:
        raise MessageError("not a message: it lacks its tensors or its header")
    if any(len(array.data) <= _SALT for array in arrays.values()):
        raise MessageError("not a message: some of its tensors hold nothing")
    plain = {name: Array(one.dtype, one.shape, one.stype, one.data[_SALT:]) for name, one in arrays.items()}
    rest = {name: value for name, value in header.items() if name != _SALTED}
    return RecordDict({_ARRAYS: ArrayRecord(plain), _HEADER: ConfigRecord(rest)})


def _part(name: str) -> str:
    return name.partition("/")[0]


def _array(data: bytes) -> Array:
    dtype, stype = _FORM
    return Array(dtype, (len(data),), stype, data)
