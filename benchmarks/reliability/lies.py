"""What may be wrong with a reply: ways to spoil one, by name, as tensors and as bytes.

Each takes a source of luck and the honest reply. Whether the outcome may pass is not decided here but by `fits`, which
knows only what an honest reply looks like and shares no code with the server's own check.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from random import Random

import torch
from torch import Tensor

from fedstill.core.message import Message

Reply = Mapping[str, Tensor]
Spoilt = dict[str, Tensor]
LARGEST = 2**63 - 1


def fits(lie: Reply, honest: Reply) -> bool:
    """Whether a lie has the names, types and shapes of the honest reply, and nothing in it that is not a number."""
    if sorted(lie) != sorted(honest):
        return False
    alike = all(lie[name].dtype == honest[name].dtype and lie[name].shape == honest[name].shape for name in honest)
    return alike and all(math.isfinite(number) for one in lie.values() for number in one.double().flatten().tolist())


def _any(luck: Random, reply: Reply) -> str:
    return luck.choice(sorted(reply))


def _numbers(luck: Random, reply: Reply) -> str:
    """A tensor of floating-point numbers with something in it, by name; any where there is none."""
    found = [name for name, tensor in sorted(reply.items()) if tensor.is_floating_point() and tensor.numel()]
    return luck.choice(found) if found else _any(luck, reply)


def _counts(luck: Random, reply: Reply) -> str:
    """A tensor of whole numbers; any where there is none."""
    found = [name for name, tensor in sorted(reply.items()) if not tensor.is_floating_point() and tensor.numel()]
    return luck.choice(found) if found else _numbers(luck, reply)


def _one(value: float) -> Callable[[Random, Reply], Spoilt]:
    def spoil(luck: Random, reply: Reply) -> Spoilt:
        name = _numbers(luck, reply)
        changed = reply[name].clone().flatten()
        changed[luck.randrange(len(changed))] = value * _largest(reply[name])
        return {**reply, name: changed.view(reply[name].shape)}

    return spoil


def _all(value: float) -> Callable[[Random, Reply], Spoilt]:
    def spoil(luck: Random, reply: Reply) -> Spoilt:
        name = _numbers(luck, reply)
        return {**reply, name: torch.full_like(reply[name], value * _largest(reply[name]))}

    return spoil


def _largest(tensor: Tensor) -> float:
    """The largest number that its type can hold."""
    return float(torch.finfo(tensor.dtype).max) if tensor.is_floating_point() else 1.0


def _whole(value: int) -> Callable[[Random, Reply], Spoilt]:
    def spoil(luck: Random, reply: Reply) -> Spoilt:
        name = _counts(luck, reply)
        return {**reply, name: torch.full_like(reply[name], value)}

    return spoil


def _missing(luck: Random, reply: Reply) -> Spoilt:
    gone = _any(luck, reply)
    return {name: tensor for name, tensor in reply.items() if name != gone}


def _surplus(luck: Random, reply: Reply) -> Spoilt:
    return {**reply, luck.choice(["inputs", "model/parameters/more", "", "a/b/c", "sample"]): torch.zeros(3)}


def _renamed(luck: Random, reply: Reply) -> Spoilt:
    old = _any(luck, reply)
    return {(f"{name}x" if name == old else name): tensor for name, tensor in reply.items()}


def _swapped(luck: Random, reply: Reply) -> Spoilt:
    one, other = _any(luck, reply), _any(luck, reply)
    return {**reply, one: reply[other], other: reply[one]}


def _retyped(luck: Random, reply: Reply) -> Spoilt:
    name = _any(luck, reply)
    types = [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool]
    return {**reply, name: reply[name].to(luck.choice([one for one in types if one != reply[name].dtype]))}


def _reshaped(luck: Random, reply: Reply) -> Spoilt:
    name = _any(luck, reply)
    tensor = reply[name]
    shapes = [tensor.reshape(1, *tensor.shape), tensor.flatten(), tensor[..., None], torch.cat([tensor.flatten()] * 2)]
    shapes += [tensor[:-1], tensor[:0]] if tensor.ndim else [torch.zeros(0, dtype=tensor.dtype)]
    return {**reply, name: luck.choice([one for one in shapes if one.shape != tensor.shape])}


def _shuffled(luck: Random, reply: Reply) -> Spoilt:
    """Numbers of a tensor in another order: as whole numbers they may be labels or ids of other samples."""
    name = _counts(luck, reply)
    flat = reply[name].flatten()
    order = list(range(len(flat)))
    luck.shuffle(order)
    return {**reply, name: flat[order].view(reply[name].shape)}


def _noise(luck: Random, reply: Reply) -> Spoilt:
    """Any bits at all in a tensor: infinities, numbers that are none, the largest and the smallest."""
    name = _any(luck, reply)
    bits = torch.tensor(list(luck.randbytes(reply[name].nbytes)), dtype=torch.uint8)
    if reply[name].dtype == torch.bool or not len(bits):
        return {**reply, name: reply[name].clone()}
    return {**reply, name: bits.view(reply[name].dtype).view(reply[name].shape)}


TENSORS: dict[str, Callable[[Random, Reply], Spoilt]] = {
    "a tensor missing": _missing,
    "everything missing": lambda luck, reply: {},
    "a tensor too many": _surplus,
    "another name": _renamed,
    "two tensors exchanged": _swapped,
    "another type": _retyped,
    "another shape": _reshaped,
    "one number is none": _one(math.nan),
    "one number infinite": _one(math.inf),
    "one number minus infinity": _one(-math.inf),
    "no numbers at all": _all(math.nan),
    "one number huge": _one(1.0),
    "all numbers huge": _all(-1.0),
    "all numbers zero": _all(0.0),
    "all numbers tiny": _all(1e-300),
    "counts of zero": _whole(0),
    "counts below zero": _whole(-7),
    "the largest counts": _whole(LARGEST),
    "the smallest counts": _whole(-LARGEST - 1),
    "whole numbers out of order": _shuffled,
    "any bits": _noise,
}


def _cut(luck: Random, data: bytes) -> bytes:
    return data[: luck.randrange(len(data))]


def _flipped(luck: Random, data: bytes) -> bytes:
    """Some bits the other way, half of the time in the header."""
    changed = bytearray(data)
    header = 8 + struct.unpack("<Q", data[:8])[0]
    end = min(header, len(data)) if luck.random() < 0.5 else len(data)
    for _ in range(luck.randint(1, 16)):
        changed[luck.randrange(end)] ^= 1 << luck.randrange(8)
    return bytes(changed)


def _header(change: Callable[[Random, dict[str, dict[str, object]]], None]) -> Callable[[Random, bytes], bytes]:
    """The same bytes behind another header."""

    def spoil(luck: Random, data: bytes) -> bytes:
        size = struct.unpack("<Q", data[:8])[0]
        entries = json.loads(data[8 : 8 + size])
        change(luck, entries)
        return _led(json.dumps(entries).encode(), data[8 + size :])

    return spoil


def _led(header: bytes, body: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def _entry(key: str, *values: object) -> Callable[[Random, dict[str, dict[str, object]]], None]:
    def change(luck: Random, entries: dict[str, dict[str, object]]) -> None:
        entries[luck.choice(sorted(entries))][key] = luck.choice(values)

    return change


def _twice(luck: Random, data: bytes) -> bytes:
    """A name that stands in the header twice."""
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + size].rstrip()
    name, entry = next(iter(json.loads(header).items()))
    more = b"," + json.dumps(name).encode() + b":" + json.dumps(entry).encode() + b"}"
    return _led(header[:-1] + more, data[8 + size :])


def _claimed(luck: Random, data: bytes) -> bytes:
    return struct.pack("<Q", luck.choice([0, 2**20, 2**32, 2**62, 2**64 - 1])) + data[8:]


BYTES: dict[str, Callable[[Random, bytes], bytes]] = {
    "nothing": lambda luck, data: b"",
    "cut off": _cut,
    "bytes too many": lambda luck, data: data + luck.randbytes(luck.randint(1, 64)),
    "bits flipped": _flipped,
    "noise": lambda luck, data: luck.randbytes(luck.randint(1, 4096)),
    "a header of any length": _claimed,
    "a header that is no JSON": lambda luck, data: _led(luck.randbytes(64), data),
    "a header without end": lambda luck, data: _led(b"[" * 50_000, data),
    "a name that stands there twice": _twice,
    "an unknown type": _header(_entry("dtype", "F128", "", 7, "f32", None)),
    "a type that does not fit": _header(_entry("dtype", "F64", "U8", "I64", "BOOL")),
    "a shape beyond measure": _header(_entry("shape", [2**62, 2**62], [-1], [2**63], ["x"], 3, [0])),
    "data from elsewhere": _header(_entry("data_offsets", [0, 2**62], [-4, 4], [8, 0], [0, 0], "all")),
    "a message of something else": lambda luck, data: Message({"greeting": torch.zeros(2)}).encode(),
}
