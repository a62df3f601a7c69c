"""The server's status, in a file beside its keys, for `fedstill deploy status`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pydantic import ValidationError

from fedstill.core.errors import RunError
from fedstill.core.files import read_file, write_json
from fedstill.core.records import RoundRecord
from fedstill.core.settings import Settings
from fedstill.deploy.private_files import in_use
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.plan import Plan

_log = logging.getLogger(__name__)
NAME = "status.json"
_EVERY = 1.0  # seconds


class _Told(Settings):
    """The file."""

    state: str
    round: int
    rounds: int
    failures: dict[str, str]  # by site, its last failure: in which round, and why
    refusals: dict[str, str]  # by site, why it does not take part
    run: str | None
    sites: dict[str, bool]  # whether each is connected
    at: str


class Nodes(Protocol):
    """Who is connected."""

    nodes: Mapping[int, int]

    def get_node_ids(self) -> Any: ...


class Status:
    """Writes the file while the server runs."""

    def __init__(self, folder: Path, link: Nodes, sites: Sequence[int]) -> None:
        self.path, self.link, self.sites = folder / NAME, link, sites
        self.facts: dict[str, Any] = {
            "state": "waiting for sites",
            "round": 0,
            "rounds": 0,
            "failures": {},
            "refusals": {},
            "run": None,
        }
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()
        self._write()

    def run(self, plan: Plan, sites: Sequence[int]) -> None:
        self.sites = sites  # those that take part, in the order of the plan's clients
        self._now(state="running", run=plan.folder_name, rounds=plan.rounds)

    def refusal(self, site: int, why: str) -> None:
        """A site does not take part, which is written at once; without a reason: now it does."""
        others = {name: one for name, one in self.facts["refusals"].items() if name != str(site)}
        self._now(refusals=others | ({str(site): why} if why else {}))
        with suppress(RunError):  # the thread will write it
            self._write()

    def failure(self, site: int, why: str) -> None:
        """Something of a site failed outside of a round."""
        self._now(failures=self.facts["failures"] | {str(site): why})

    def start(self, experiment: Experiment, journal: Sequence[RoundRecord]) -> None:
        for record in journal:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        failures = {str(self.sites[one.client]): f"round {record.round}: {one.detail}" for one in record.failures}
        self._now(round=record.round, failures=self.facts["failures"] | failures)

    def note(self, text: str) -> None:
        """Not kept: the server's own display shows it."""

    def warn(self, text: str) -> None:
        """Nor are these."""

    def finish(self) -> None:
        self._now(state="finished")

    def _now(self, **facts: Any) -> None:
        """Facts take the place of others and never change: the thread that writes may be in the midst of them."""
        self.facts = self.facts | facts

    def _keep_writing(self) -> None:
        while not self._closing.wait(_EVERY):
            with suppress(RunError):  # a disk that is full now may have room in a second
                self._write()

    def _write(self) -> None:
        online = set(self.link.get_node_ids())
        content = {
            **self.facts,
            "sites": {str(site): node in online for site, node in self.link.nodes.items()},
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(self.path, content)


def read_status(folder: Path) -> dict[str, Any] | None:
    """The server's last status, with `alive` for whether it still runs; None without a readable file."""
    told = _read(folder)
    return None if told is None else {**told.model_dump(), "alive": in_use(folder)}


def refusal(folder: Path) -> str | None:
    """A sentence about the sites that do not take part, by the server's last status; None: there are none."""
    told = _read(folder)
    refusals = {} if told is None else told.refusals
    return "; ".join(f"site {site} does not take part: {why}" for site, why in refusals.items()) or None


def _read(folder: Path) -> _Told | None:
    try:
        return _Told.model_validate_json(read_file(folder / NAME))
    except (OSError, ValidationError) as error:
        _log.debug("no status of a server in %s: %s", folder, error)
        return None
