"""A message as Flower carries it: named arrays, and beside them a header of plain values.

Arrays hold the tensor's own bytes, not a pickle and not numpy's format, so that every type a message may have (bfloat16
among them) arrives as it was sent. What comes from elsewhere is checked before a tensor is made of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedstill.core.message import DEFAULT_LIMIT, TYPES, Message, MessageError

Header = Mapping[str, str | int | float]

_ARRAYS, _HEADER, _SALTED = "tensors", "header", "salted"
_SALT = 16  # bytes
_STYPE = "fedstill.raw"  # little-endian, row by row
_DTYPES = {name: dtype for dtype, name in TYPES.items()}


def packed(message: Mapping[str, Tensor], header: Header) -> RecordDict:
    """A message and its header as one Flower record.

    >>> records = packed({"a": torch.ones(2)}, {"round": 3})
    >>> message, header = unpacked(records)
    >>> message["a"].tolist(), header
    ([1.0, 1.0], {'round': 3})
    """
    arrays = {name: _array(tensor) for name, tensor in Message(message).items()}
    return RecordDict({_ARRAYS: ArrayRecord(arrays), _HEADER: ConfigRecord(dict(header))})


def unpacked(records: RecordDict, limit: int = DEFAULT_LIMIT) -> tuple[Message, dict[str, str | int | float]]:
    """The inverse of `packed`; anything else, or more than `limit` bytes, is a `MessageError`."""
    arrays, header = records.get(_ARRAYS), records.get(_HEADER)
    if not isinstance(arrays, ArrayRecord) or not isinstance(header, ConfigRecord):
        raise MessageError("not a message: it lacks its tensors or its header")
    size = sum(len(array.data) for array in arrays.values())
    if size > limit:
        raise MessageError(f"a message of {size} bytes is over the limit of {limit}")
    plain = {str(name): value for name, value in header.items() if isinstance(value, str | int | float)}
    return Message({name: _tensor(name, array) for name, array in arrays.items()}), plain


def new_salt() -> bytes:
    return os.urandom(_SALT)


def salted(records: RecordDict, salt: bytes | None = None) -> RecordDict:
    """The same with random bytes before each array's and in the header: nobody can tell beforehand what it hashes to.

    Flower stores what is sent by its hash, for all sites in one place; whoever knew a hash in advance could put
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


def _array(tensor: Tensor) -> Array:
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    # Flower has no array without data, so that one stray byte stands for an empty tensor.
    return Array(TYPES[tensor.dtype], tuple(tensor.shape), _STYPE, data or b"\0")


def _tensor(name: str, array: Array) -> Tensor:
    dtype = _DTYPES.get(array.dtype)
    if array.stype != _STYPE or dtype is None:
        raise MessageError(f"tensor {name!r} has type {array.dtype!r} ({array.stype!r}), which a message cannot carry")
    sides = all(type(side) is int and side >= 0 for side in array.shape)
    if not sides or max(prod(array.shape) * dtype.itemsize, 1) != len(array.data):
        raise MessageError(f"tensor {name!r} has {len(array.data)} bytes, not what its shape {array.shape} takes")
    if not prod(array.shape):
        try:
            return torch.empty(array.shape, dtype=dtype)
        except (RuntimeError, TypeError, OverflowError):  # nothing, times more than can be counted
            raise MessageError(f"tensor {name!r} has the impossible shape {array.shape}") from None
    return torch.frombuffer(bytearray(array.data), dtype=torch.uint8).clone().view(dtype).reshape(array.shape)
