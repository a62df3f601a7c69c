"""Where log records go. Modules log with `logging.getLogger(__name__)`; a library user sees nothing unless asked.

A command that is given `--log-level` or `--log-file` shows or writes the records of the whole process tree: worker
processes find both in the environment, and append to the same file line by line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedstill.core.errors import InputError, did_you_mean

LEVEL, FILE = "FEDSTILL_LOG_LEVEL", "FEDSTILL_LOG_FILE"
LEVELS = ("debug", "info", "warning", "error")
_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
_OURS, _FLOWER = "fedstill", "flwr"


@contextmanager
def logging_to(level: str | None, file: Path | None) -> Iterator[None]:
    """Show log records on stderr, or write them to a file, until the end of the block.

    What is not given is taken from the environment. Without any of it warnings are shown. A file gets records from
    `info` on unless another level is given.
    """
    level = _checked(level, "--log-level") or _checked(os.environ.get(LEVEL), LEVEL)
    file = file or (Path(os.environ[FILE]) if os.environ.get(FILE) else None)
    undo = _attach(level or ("info" if file else "warning"), file, chosen=bool(level or file))
    before = {name: os.environ.get(name) for name in (LEVEL, FILE)}
    _set_environment({LEVEL: level, FILE: str(file.absolute()) if file else None})
    try:
        yield
    finally:
        undo()
        _set_environment(before)


@contextmanager
def only_from(level: int, names: Iterable[str]) -> Iterator[None]:
    """Other packages' loggers pass only records of this level and above, until the end of the block.

    >>> with only_from(logging.ERROR, ["talkative"]):
    ...     logging.getLogger("talkative").isEnabledFor(logging.INFO)
    False
    >>> logging.getLogger("talkative").level == logging.NOTSET
    True
    """
    loggers = [logging.getLogger(None if name == "root" else name) for name in names]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(level)
        yield
    finally:
        for logger, its in zip(loggers, before, strict=True):
            logger.setLevel(its)


def log_as_parent_does() -> None:
    """In a worker process: send records where those of the process go that started it."""
    level, file = _checked(os.environ.get(LEVEL), LEVEL), os.environ.get(FILE)
    if level or file:
        _attach(level or "info", Path(file) if file else None, chosen=True)


def _attach(level: str, file: Path | None, chosen: bool) -> Callable[[], None]:
    """Give our logger a handler, and Flower's one too if the user chose a level; gives what undoes it."""
    handler, ours, flower = _handler(level, file), logging.getLogger(_OURS), logging.getLogger(_FLOWER)
    # Flower sets the level of its logger when it is imported, which may be later; a filter stays.
    only_errors = _AtLeast(logging.ERROR)
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel(handler.level)
    if chosen:
        flower.addHandler(handler)
    else:
        flower.addFilter(only_errors)

    def undo() -> None:
        ours.removeHandler(handler)
        ours.setLevel(before)
        flower.removeHandler(handler)
        flower.removeFilter(only_errors)
        handler.close()

    return undo


class _AtLeast(logging.Filter):
    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= self.level


def _handler(level: str, file: Path | None) -> logging.Handler:
    handler: logging.Handler
    try:
        handler = logging.StreamHandler() if file is None else logging.FileHandler(file, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the log file {file}: {error.strerror or error}") from None
    handler.setLevel(level.upper())
    handler.setFormatter(logging.Formatter(_FORMAT))
    return handler


def _checked(level: str | None, source: str) -> str | None:
    """A level by name.

    >>> _checked("Debug", "--log-level")
    'debug'
    """
    if level is None:
        return None
    if level.lower() not in LEVELS:
        raise InputError(f"unknown level {level!r} for {source}: {did_you_mean(level, LEVELS)}")
    return level.lower()


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
