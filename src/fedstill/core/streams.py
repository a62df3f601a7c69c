"""Named randomness: every draw comes from a stream named by what it is for.

Results then do not depend on the order, the process or the engine that ran a client. The experiment's hash and
the method's name are never part of a stream's name: methods that ought to agree must see the same draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor


@dataclass(frozen=True)
class Streams:
    """A seed and a path of names; `draw` and `ambient` turn a path into randomness.

    >>> root = Streams(7)
    >>> a = root.at("client", 3).draw("order").permutation(5)
    >>> b = root.draw("client", 3, "order").permutation(5)
    >>> bool((a == b).all())
    True
    """

    seed: int
    path: tuple[str | int, ...] = ()

    def at(self, *names: str | int) -> Streams:
        return Streams(self.seed, self.path + names)

    def draw(self, *names: str | int) -> np.random.Generator:
        """A fresh numpy generator with a 128-bit key of its own."""
        key: Any = _Key(self._digest(names))  # any seed sequence will do, though numpy's types name one class only
        return np.random.Generator(np.random.Philox(key))

    @contextmanager
    def ambient(self, *names: str | int) -> Iterator[None]:
        """Point torch's global generator (Dropout, layer initialisation) at this stream, then put it back."""
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self.torch_state(*names))
        if torch.cuda.is_initialized():  # best effort: bits are promised on the CPU only
            torch.cuda.manual_seed_all(self._key(names) & 0x7FFF_FFFF_FFFF_FFFF)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)

    def torch_state(self, *names: str | int) -> Tensor:
        """A state for torch's CPU generator.

        `manual_seed` would use 32 bits of the key, and 200,000 named streams then collide; the twister's 624 words
        are filled directly instead.
        """
        state = _seeded_state().clone()
        words = self.draw(*names, "torch").integers(0, 2**32, size=_TWISTER_WORDS, dtype=np.uint64)
        state.numpy()[_TWISTER_OFFSET : _TWISTER_OFFSET + words.nbytes] = words.view(np.uint8)
        return state

    def _key(self, names: tuple[str | int, ...]) -> int:
        return int.from_bytes(self._digest(names), "little")

    def _digest(self, names: tuple[str | int, ...]) -> bytes:
        # Plain ints only: numpy's print differently, and a name must not depend on who counted.
        path = tuple(str(name) if isinstance(name, str) else index(name) for name in (*self.path, *names))
        text = repr((int(self.seed), *path)).encode()
        return blake2b(text, digest_size=16).digest()


class _Key(ISeedSequence):
    """A generator's key in place of a seed.

    Philox(key=...) draws a seed from the operating system all the same, which costs several times as much as the rest.
    """

    def __init__(self, digest: bytes) -> None:
        self.digest = digest

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> npt.NDArray[Any]:
        if (n_words, np.dtype(dtype)) != (2, np.dtype(np.uint64)):
            raise ValueError(f"a key has two words of 64 bits, not {n_words} of type {dtype}")
        return np.frombuffer(self.digest, "<u8")


@cache
def _seeded_state() -> Tensor:
    return torch.Generator().manual_seed(0).get_state()


# Layout of torch's CPU generator state: seed (8 bytes), left (4), seeded (4), next (8), then 624 64-bit words.
_TWISTER_OFFSET = 24
_TWISTER_WORDS = 624
