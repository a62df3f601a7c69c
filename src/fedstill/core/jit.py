"""The only use of numba's decorator: compiled once per machine, typed for mypy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums in any order and fused multiply-adds; NaN and infinity keep their meaning.
LOOSE = {"reassoc", "contract", "nsz", "arcp"}


def compiled(*, loose: bool = False, kept: bool = True) -> Callable[[Function], Function]:
    """Compile a function for this machine and keep the result on disk, so that only a first run waits for it.

    `loose` lets sums be taken eight at a time. Geometry never does: one distance rounded otherwise is another
    neighbour, and its results must equal those of the plain computation to the bit. What is not to be `kept` is
    compiled in memory alone.
    """
    decorate: Any = numba.njit(cache=kept, nogil=True, error_model="numpy", fastmath=LOOSE if loose else False)
    return cast(Callable[[Function], Function], decorate)
