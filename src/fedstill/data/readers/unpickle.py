"""Safe reading of untrusted pickles: only arrays of plain numbers, bytes, text and plain containers.

A pickle is a program, and the names it may call determine what it can do. Here the three names with which numpy pickles
an array are mapped to inert placeholders, so that a hostile file can neither call anything nor reach numpy's C code.
"""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fedstill.core.errors import InputError
from fedstill.data.readers.raw import Array, content


class _Dtype:
    """Placeholder for numpy.dtype: a code such as 'u1' and, from the state, a byte order."""

    def __init__(self, code: str | bytes, *_flags: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code
        if np.dtype(self.code).kind not in "biuf":
            raise pickle.UnpicklingError(f"an array of type {self.code!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("an array with fields")
        self.code = order + self.code.lstrip("<>|=")


class _Array:
    """Placeholder for an array under construction."""

    def __init__(self, *_arguments: object) -> None:
        self.value: Array = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array of Python objects")
        self.value = np.frombuffer(data, dtype=np.dtype(dtype.code)).reshape(shape, order="F" if fortran else "C")


_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # numpy 2's name for it
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name}") from None


# Errors that a damaged or hostile stream can cause in the unpickler.
_DAMAGE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    EOFError,
    OverflowError,
    MemoryError,
    struct.error,
)


def unpickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text and its placeholders resolved to arrays."""
    data = content(path)
    try:
        held = _Reader(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} was not opened: only arrays, text and plain containers are read from a pickle ({error})"
        ) from None
    except _DAMAGE as error:
        raise InputError(f"{path} is no whole pickle ({error}): fetch it again") from None
    if not isinstance(held, dict):
        raise InputError(f"{path} holds a {type(held).__name__} where a CIFAR batch is a dictionary")
    return {
        key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key): (
            value.value if isinstance(value, _Array) else value
        )
        for key, value in held.items()
    }
