"""What a reader hands over: arrays as the files hold them, and what was found wrong on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError

Array = NDArray[Any]
Part = Literal["train", "validation", "test", "whole"]  # `whole`: the files know no split


class Split(NamedTuple):
    """Inputs and labels of one split, in the files' own layout; `where` names the files in error messages."""

    inputs: Array
    labels: Array
    where: str


@dataclass
class Raw:
    """One data set as read, not yet judged."""

    splits: dict[Part, Split]
    classes: tuple[str, ...] | None = None


@dataclass
class Findings:
    """Everything worth telling about some files. Reading goes on after a fault, so that all of them are seen.

    >>> found = Findings()
    >>> for name in ("a.gz", "b.gz"):
    ...     with found.collecting():
    ...         raise InputError(f"{name} is empty")
    >>> found.faults
    ['a.gz is empty', 'b.gz is empty']
    """

    faults: list[str] = field(default_factory=list)  # the data cannot be used like this
    doubts: list[str] = field(default_factory=list)  # it can be used, but results may mislead
    notes: list[str] = field(default_factory=list)  # what was done to it

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Turn an error about one file into a fault on the list."""
        try:
            yield
        except InputError as error:
            self.faults.append(str(error))
        except OSError as error:  # a folder that may not be listed, a disk that fails
            self.faults.append(f"{error.filename} cannot be read: {error.strerror or error}")

    def refuse(self, name: str) -> None:
        """Raise the first fault, saying how to see the others."""
        if self.faults:
            more = len(self.faults) - 1
            tail = f" (and {more} more: `fedstill data check {name}` lists them)" if more else ""
            raise InputError(f"data set {name!r}: {self.faults[0]}{tail}")


def content(path: Path) -> bytes:
    """The bytes of a file, or a sentence."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if not data:
        raise InputError(f"{path} is empty (0 bytes): fetch it again")
    return data


def joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
