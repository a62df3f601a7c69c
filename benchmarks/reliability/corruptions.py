"""Ways to corrupt a reply, by name, as tensors and as bytes.

Each takes a random generator and the honest reply. `fits` decides whether the result may be accepted. It compares
names, types and shapes with the honest reply and shares no code with the server's validation.
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
Corrupted = dict[str, Tensor]
LARGEST = 2**63 - 1


def fits(reply: Reply, honest: Reply) -> bool:
    """Whether a reply has the names, types and shapes of the honest reply, and only finite numbers."""
    if sorted(reply) != sorted(honest):
        return False
    alike = all(reply[name].dtype == honest[name].dtype and reply[name].shape == honest[name].shape for name in honest)
    return alike and all(math.isfinite(number) for one in reply.values() for number in one.double().flatten().tolist())


def _any(rng: Random, reply: Reply) -> str:
    return rng.choice(sorted(reply))


def _numbers(rng: Random, reply: Reply) -> str:
    """The name of a non-empty floating-point tensor; of any tensor if there is none."""
    found = [name for name, tensor in sorted(reply.items()) if tensor.is_floating_point() and tensor.numel()]
    return rng.choice(found) if found else _any(rng, reply)


def _counts(rng: Random, reply: Reply) -> str:
    """The name of a non-empty integer tensor; of another tensor if there is none."""
    found = [name for name, tensor in sorted(reply.items()) if not tensor.is_floating_point() and tensor.numel()]
    return rng.choice(found) if found else _numbers(rng, reply)


def _one(value: float) -> Callable[[Random, Reply], Corrupted]:
    def corrupt(rng: Random, reply: Reply) -> Corrupted:
        name = _numbers(rng, reply)
        changed = reply[name].clone().flatten()
        changed[rng.randrange(len(changed))] = value * _largest(reply[name])
        return {**reply, name: changed.view(reply[name].shape)}

    return corrupt


def _all(value: float) -> Callable[[Random, Reply], Corrupted]:
    def corrupt(rng: Random, reply: Reply) -> Corrupted:
        name = _numbers(rng, reply)
        return {**reply, name: torch.full_like(reply[name], value * _largest(reply[name]))}

    return corrupt


def _largest(tensor: Tensor) -> float:
    """The largest number of the tensor's type."""
    return float(torch.finfo(tensor.dtype).max) if tensor.is_floating_point() else 1.0


def _whole(value: int) -> Callable[[Random, Reply], Corrupted]:
    def corrupt(rng: Random, reply: Reply) -> Corrupted:
        name = _counts(rng, reply)
        return {**reply, name: torch.full_like(reply[name], value)}

    return corrupt


def _missing(rng: Random, reply: Reply) -> Corrupted:
    gone = _any(rng, reply)
    return {name: tensor for name, tensor in reply.items() if name != gone}


def _surplus(rng: Random, reply: Reply) -> Corrupted:
    return {**reply, rng.choice(["inputs", "model/parameters/more", "", "a/b/c", "sample"]): torch.zeros(3)}


def _renamed(rng: Random, reply: Reply) -> Corrupted:
    old = _any(rng, reply)
    return {(f"{name}x" if name == old else name): tensor for name, tensor in reply.items()}


def _swapped(rng: Random, reply: Reply) -> Corrupted:
    one, other = _any(rng, reply), _any(rng, reply)
    return {**reply, one: reply[other], other: reply[one]}


def _retyped(rng: Random, reply: Reply) -> Corrupted:
    name = _any(rng, reply)
    types = [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool]
    return {**reply, name: reply[name].to(rng.choice([one for one in types if one != reply[name].dtype]))}


def _reshaped(rng: Random, reply: Reply) -> Corrupted:
    name = _any(rng, reply)
    tensor = reply[name]
    shapes = [tensor.reshape(1, *tensor.shape), tensor.flatten(), tensor[..., None], torch.cat([tensor.flatten()] * 2)]
    shapes += [tensor[:-1], tensor[:0]] if tensor.ndim else [torch.zeros(0, dtype=tensor.dtype)]
    return {**reply, name: rng.choice([one for one in shapes if one.shape != tensor.shape])}


def _shuffled(rng: Random, reply: Reply) -> Corrupted:
    """Permute the numbers of a tensor; integers may be labels or ids of samples."""
    name = _counts(rng, reply)
    flat = reply[name].flatten()
    order = list(range(len(flat)))
    rng.shuffle(order)
    return {**reply, name: flat[order].view(reply[name].shape)}


def _noise(rng: Random, reply: Reply) -> Corrupted:
    """Fill a tensor with random bits, which include infinities, NaN, and the largest and smallest numbers."""
    name = _any(rng, reply)
    bits = torch.tensor(list(rng.randbytes(reply[name].nbytes)), dtype=torch.uint8)
    if reply[name].dtype == torch.bool or not len(bits):
        return {**reply, name: reply[name].clone()}
    return {**reply, name: bits.view(reply[name].dtype).view(reply[name].shape)}


# The names of corruptions seed the random draws of the cases: another name gives other cases.
TENSORS: dict[str, Callable[[Random, Reply], Corrupted]] = {
    "a tensor missing": _missing,
    "everything missing": lambda rng, reply: {},
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


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _flipped(rng: Random, data: bytes) -> bytes:
    """Flip some bits, in half of the cases within the header."""
    changed = bytearray(data)
    header = 8 + struct.unpack("<Q", data[:8])[0]
    end = min(header, len(data)) if rng.random() < 0.5 else len(data)
    for _ in range(rng.randint(1, 16)):
        changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _header(change: Callable[[Random, dict[str, dict[str, object]]], None]) -> Callable[[Random, bytes], bytes]:
    """Change the header and keep the data."""

    def corrupt(rng: Random, data: bytes) -> bytes:
        size = struct.unpack("<Q", data[:8])[0]
        entries = json.loads(data[8 : 8 + size])
        change(rng, entries)
        return _with_header(json.dumps(entries).encode(), data[8 + size :])

    return corrupt


def _with_header(header: bytes, body: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def _entry(key: str, *values: object) -> Callable[[Random, dict[str, dict[str, object]]], None]:
    def change(rng: Random, entries: dict[str, dict[str, object]]) -> None:
        entries[rng.choice(sorted(entries))][key] = rng.choice(values)

    return change


def _twice(rng: Random, data: bytes) -> bytes:
    """Repeat a name in the header."""
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + size].rstrip()
    name, entry = next(iter(json.loads(header).items()))
    more = b"," + json.dumps(name).encode() + b":" + json.dumps(entry).encode() + b"}"
    return _with_header(header[:-1] + more, data[8 + size :])


def _claimed(rng: Random, data: bytes) -> bytes:
    return struct.pack("<Q", rng.choice([0, 2**20, 2**32, 2**62, 2**64 - 1])) + data[8:]


BYTES: dict[str, Callable[[Random, bytes], bytes]] = {
    "nothing": lambda rng, data: b"",
    "cut off": _cut,
    "bytes too many": lambda rng, data: data + rng.randbytes(rng.randint(1, 64)),
    "bits flipped": _flipped,
    "noise": lambda rng, data: rng.randbytes(rng.randint(1, 4096)),
    "a header of any length": _claimed,
    "a header that is no JSON": lambda rng, data: _with_header(rng.randbytes(64), data),
    "a header without end": lambda rng, data: _with_header(b"[" * 50_000, data),
    "a name that stands there twice": _twice,
    "an unknown type": _header(_entry("dtype", "F128", "", 7, "f32", None)),
    "a type that does not fit": _header(_entry("dtype", "F64", "U8", "I64", "BOOL")),
    "a shape beyond measure": _header(_entry("shape", [2**62, 2**62], [-1], [2**63], ["x"], 3, [0])),
    "data from elsewhere": _header(_entry("data_offsets", [0, 2**62], [-4, 4], [8, 0], [0, 0], "all")),
    "a message of something else": lambda rng, data: Message({"greeting": torch.zeros(2)}).encode(),
}
