"""A cache for the latest batch: students in joint training receive the same batch one after another.

A batch that its data set keeps (`kept_batch`) has a cache of its own, for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import local
from typing import TypeVar
from weakref import ref

import torch
from torch import Tensor

from fedstill.core.dataset import KNOWN

T = TypeVar("T")


class Latest(local):
    """Caches values for one tensor until another tensor is used or it is modified; one cache per thread."""

    def __init__(self) -> None:
        self.tensor: Callable[[], Tensor | None] = lambda: None
        self.version = 0
        self.known: dict[Hashable, object] = {}

    def of(self, tensor: Tensor, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`; repeated calls with the same key return the same object."""
        # Inference tensors have no version counter to detect modifications; during an export there are no values.
        if tensor.is_inference() or torch.compiler.is_exporting():
            return make()
        known: dict[Hashable, object] | None = getattr(tensor, KNOWN, None)
        if known is not None:
            key = tensor._version, key
        else:
            if self.tensor() is not tensor or self.version != tensor._version:
                self.tensor, self.version, self.known = ref(tensor), tensor._version, {}
            known = self.known
        if key not in known:
            known[key] = make()
        found: T = known[key]  # type: ignore[assignment]
        return found


latest = Latest()
