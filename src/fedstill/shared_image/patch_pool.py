"""Rows that are computed when first requested, and cached while memory allows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedstill.core.errors import InputError

_ROOM = 2**28  # bytes: 87,000 patches of 32 x 32 in colour; a larger pool is recomputed batch by batch
_AT_ONCE = 1024  # rows computed together, which bounds the memory


class PatchPool:
    """A column of `count` rows, each a function of its number alone."""

    def __init__(
        self, count: int, shape: tuple[int, ...], kind: torch.dtype, make: Callable[[Tensor], Tensor], room: int = _ROOM
    ) -> None:
        self.count, self.make = count, make
        size = count * int(torch.tensor(shape).prod()) * kind.itemsize
        self._kept = torch.empty((count, *shape), dtype=kind) if size <= room else None
        self._known = torch.zeros(count, dtype=torch.bool) if self._kept is not None else None

    def take(self, rows: Tensor) -> Tensor:
        """These rows, in this order."""
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.count:
            wrong = rows[(rows < 0) | (rows >= self.count)][0]
            raise InputError(f"there is no patch {int(wrong)}: the pool holds {self.count:,}, counted from 0")
        if self._kept is None or self._known is None:
            return torch.cat([self.make(some) for some in rows.split(_AT_ONCE)])
        missing = rows[~self._known[rows]].unique()
        for some in missing.split(_AT_ONCE) if len(missing) else ():
            self._kept[some] = self.make(some)
            self._known[some] = True
        return self._kept[rows]
