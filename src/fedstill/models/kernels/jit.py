"""The one door to numba: compiled once for a machine, typed for mypy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums in any order and fused multiply-adds; NaN and infinity keep their meaning.
LOOSE = {"reassoc", "contract", "nsz", "arcp"}


def compiled(*, loose: bool = False) -> Callable[[Function], Function]:
    """Compile a function for this machine and keep the result on disk, so that only a first run waits for it.

    `loose` lets sums be taken eight at a time. Geometry never does: one distance rounded otherwise is another
    neighbour, and its results must equal those of the plain computation to the bit.
    """
    decorate: Any = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=LOOSE if loose else False)
    return cast(Callable[[Function], Function], decorate)
