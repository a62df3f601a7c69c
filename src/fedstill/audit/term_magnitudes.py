"""How large the terms of objectives are, and which of them are too small to matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from statistics import fmean

from fedstill.audit.evidence import Student

IDLE = 0.01  # of the largest term of its objective: what is smaller decides nothing


def students_with_terms(students: Iterable[Student], objective: str) -> list[Student]:
    """Those whose terms are known: with labels, where such students left any, else without."""
    known = [one for one in students if one.objective == objective and one.terms]
    return [one for one in known if not one.free] or known


def term_sizes(students: Iterable[Student]) -> dict[str, float]:
    """The mean size of each term over these students; a size that is not finite says nothing."""
    found: dict[str, list[float]] = {}
    for student in students:
        for name, size in student.terms.items():
            if isfinite(size):
                found.setdefault(name, []).append(abs(size))
    return {name: fmean(sizes) for name, sizes in found.items()}


def parts(sizes: Mapping[str, float]) -> dict[str, float]:
    """Each term as a share of the largest.

    >>> parts({"soft-targets": 2.0, "hint": 0.01})
    {'soft-targets': 1.0, 'hint': 0.005}
    """
    largest = max(sizes.values(), default=0.0)
    return {name: size / largest if largest else 0.0 for name, size in sizes.items()}


def idle_terms(sizes: Mapping[str, float]) -> list[str]:
    """Terms too small to matter; where all are nothing, none is smaller than another."""
    if not any(sizes.values()):
        return []
    return [name for name, share in parts(sizes).items() if share < IDLE]
