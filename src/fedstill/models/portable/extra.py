"""The packages of the optional extra `export`, checked when they are needed."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.logs import only_from

WRITING = ("onnx", "onnxscript", "onnxruntime")
_TALKATIVE = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "root")


def missing(names: tuple[str, ...] = WRITING) -> list[str]:
    """Those of the packages that are not installed."""
    return [name for name in names if find_spec(name) is None]


def need_extra() -> None:
    """Raise an error before any work if packages of the extra are missing."""
    if lacking := missing():
        raise InputError(f"ONNX files need {', '.join(lacking)}: install them with pip install 'fedstill[export]'")
    for name in WRITING:
        package(name)


def package(name: str) -> Any:
    """A package of the extra, or an error that explains how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"{name} cannot be loaded ({error}): pip install 'fedstill[export]' brings it") from error


@contextmanager
def hushed() -> Iterator[None]:
    """Suppress the messages that exporters write for their developers; failures are still raised."""
    with only_from(logging.CRITICAL, _TALKATIVE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
