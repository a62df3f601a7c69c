"""Messages, the only data exchanged by client and server: named tensors, encoded as safetensors, never pickle."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from operator import index
from pickle import PickleBuffer
from typing import Any, NamedTuple, SupportsIndex

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

# The wire's type names, in the order in which the format lays tensors out (widest first, then by name).
TYPES: dict[torch.dtype, str] = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_RANK = {dtype: rank for rank, dtype in enumerate(TYPES)}
DEFAULT_LIMIT = 4 * 2**30
ALIGNED = 64  # bytes, as in torch's own memory

Part = tuple[str, torch.dtype, torch.Size]


class MessageError(ValueError):
    """Bytes that are not a message, or tensors that cannot be one."""


class Message(Mapping[str, Tensor]):
    """Named CPU tensors, sorted by name, contiguous and detached; scalars are 0-d tensors.

    Tensors are not copied without need: put in what will not be changed any more (`state_of(model)` is a copy).

    >>> message = Message({"b": torch.ones(2), "a": torch.tensor(3)})
    >>> list(message), message.nbytes == len(message.encode())
    (['a', 'b'], True)
    >>> Message.decode(message.encode())["b"].tolist()
    [1.0, 1.0]
    """

    __slots__ = ("_known_form", "_tensors")

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._known_form: Form | None = None
        seen: set[int] = set()
        for name in sorted(tensors):
            _check_name(name)
            tensor = tensors[name].detach().cpu().contiguous()
            if tensor.dtype not in TYPES:
                raise MessageError(f"tensor {name!r} has type {tensor.dtype}, which a message cannot carry")
            # Views and tied tensors share memory: on the wire every tensor stands alone, so it does here too.
            if tensor.nbytes != tensor.untyped_storage().nbytes() or tensor.data_ptr() in seen:
                tensor = tensor.clone()
            if tensor.nbytes:
                seen.add(tensor.data_ptr())
            self._tensors[name] = tensor

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Message({len(self)} tensors, {self.nbytes} bytes)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Between processes that trust each other: tensors as buffers, which need not be copied into the pickle."""
        if index(protocol) < 5:
            return super().__reduce_ex__(protocol)
        parts = [(*key, PickleBuffer(_raw(self[key[0]]))) for key in self._parts()]
        return _unpickled, (parts,)

    def is_same(self, other: Message) -> bool:
        """Whether the other one has the same tensors, in the same memory."""
        if self._parts() != other._parts():
            return False
        return all(self[name].data_ptr() == other[name].data_ptr() for name in self)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, named without it."""
        return part(self._tensors, prefix)

    @property
    def nbytes(self) -> int:
        """The exact encoded length, from the header alone: nothing is copied."""
        return self._form().nbytes

    def encode(self) -> bytes:
        """Safetensors without metadata (whose order is random); the same tensors always give the same bytes."""
        return b"".join(self.pieces())

    def pieces(self) -> list[bytes | memoryview]:
        """The encoded message in pieces, which are not copied: the header, then each tensor's memory."""
        form = self._form()
        return [form.header, *(_raw(self._tensors[name]) for name in form.layout)]

    @classmethod
    def decode(cls, data: bytes, limit: int = DEFAULT_LIMIT) -> Message:
        """The message in `data`; anything else, or more than `limit` bytes, is a `MessageError`."""
        if len(data) > limit:
            raise MessageError(f"a message of {len(data)} bytes is over the limit of {limit}")
        try:
            loaded = safetensors.torch.load(data)
        except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
            raise MessageError(f"not a message: {str(error).splitlines()[0]}") from None
        # A clone lies in torch's own aligned memory; arithmetic on misaligned tensors gives other bits.
        return cls({name: tensor.clone() for name, tensor in loaded.items()})

    def _form(self) -> Form:
        """Looked up once: who is sent a message, and what it costs, asks for its size several times."""
        if self._known_form is None:
            self._known_form = _form_of(self._parts())
        return self._known_form

    def _parts(self) -> tuple[Part, ...]:
        return tuple((name, tensor.dtype, tensor.shape) for name, tensor in self._tensors.items())


def _unpickled(parts: list[tuple[str, torch.dtype, torch.Size, Any]]) -> Message:
    message = Message({})
    message._tensors = {name: _from_buffer(dtype, shape, buffer) for name, dtype, shape, buffer in parts}
    return message


def _from_buffer(dtype: torch.dtype, shape: torch.Size, buffer: Any) -> Tensor:
    """A tensor in this memory, where it can be written and lies as torch's own does; else a copy."""
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    view = memoryview(buffer)
    tensor = torch.frombuffer(view if not view.readonly else bytearray(view), dtype=dtype).view(shape)
    return tensor if tensor.data_ptr() % ALIGNED == 0 else tensor.clone()


class Form(NamedTuple):
    """What names, types and shapes say of an encoded message."""

    header: bytes
    layout: tuple[str, ...]  # the names in the order of their tensors
    nbytes: int


@lru_cache(maxsize=64)  # a round's messages differ in their numbers, rarely in their form
def _form_of(parts: tuple[Part, ...]) -> Form:
    entries, offset = {}, 0
    layout = sorted(parts, key=lambda part: (_RANK[part[1]], part[0]))
    for name, dtype, shape in layout:
        span = [offset, offset + shape.numel() * dtype.itemsize]
        entries[name] = {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": span}
        offset = span[1]
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    return Form(header, tuple(name for name, _, _ in layout), len(header) + offset)


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise MessageError(f"a tensor's name must be text: {name!r}") from None
    if name == "__metadata__":
        raise MessageError("the format keeps the name '__metadata__' for itself")


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below a prefix, named without it.

    >>> part({"model/w": torch.zeros(1), "samples": torch.ones(())}, "model/").keys()
    dict_keys(['w'])
    """
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `part`: put every name below a prefix."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bits: equal exactly when the tensors are."""
    return sha256(Message(tensors).encode()).hexdigest()


def _raw(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
