"""How far the run in a folder is."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal

from fedstill.core.errors import BusyError, InputError
from fedstill.runtime.result import Run
from fedstill.runtime.run_folder import RunFolder

_log = logging.getLogger(__name__)
State = Literal["finished", "unfinished", "being worked on", "cannot be read"]


def run_state(path: Path) -> State:
    """The state of the run in a folder, as its files and its lock tell it."""
    try:
        if Run(path).finished:
            return "finished"
        if os.access(path, os.W_OK):  # a folder that cannot be written to can still be looked at
            RunFolder(path).lock().release()
    except BusyError:
        return "being worked on"
    except InputError as error:  # of another version, say
        _log.info("%s cannot be read: %s", path, error)
        return "cannot be read"
    return "unfinished"
