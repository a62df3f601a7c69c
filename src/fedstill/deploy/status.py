"""What a server is doing, in a file beside its keys, for `fedstill deploy status`."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from fedstill.config import Experiment
from fedstill.core.files import write_atomically
from fedstill.deploy.files import in_use
from fedstill.federation.plan import Plan

NAME = "status.json"
_EVERY = 1.0  # seconds


class Nodes(Protocol):
    """Who is connected."""

    nodes: Mapping[int, int]

    def get_node_ids(self) -> Any: ...


class Status:
    """Writes the file while the server runs."""

    def __init__(self, folder: Path, link: Nodes, sites: Sequence[int]) -> None:
        self.path, self.link, self.sites = folder / NAME, link, sites
        self.facts: dict[str, Any] = {"state": "waiting for sites", "round": 0, "rounds": 0, "lost": {}, "run": None}
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

    def run(self, plan: Plan) -> None:
        self.facts |= {"state": "running", "run": plan.folder_name, "rounds": plan.rounds}

    def start(self, experiment: Experiment, journal: Sequence[dict[str, Any]]) -> None:
        for record in journal:
            self.round(record)

    def round(self, record: dict[str, Any]) -> None:
        self.facts["round"] = record["round"] + 1
        for lost in record["lost"]:
            self.facts["lost"][str(self.sites[lost["client"]])] = f"round {record['round'] + 1}: {lost['detail']}"

    def note(self, text: str) -> None:
        """Not kept: the server's own display shows it."""

    def warn(self, text: str) -> None:
        """Nor are these."""

    def finish(self) -> None:
        self.facts["state"] = "finished"

    def _keep_writing(self) -> None:
        while not self._closing.wait(_EVERY):
            self._write()

    def _write(self) -> None:
        online = set(self.link.get_node_ids())
        content = {
            **self.facts,
            "sites": {str(site): node in online for site, node in self.link.nodes.items()},
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_atomically(self.path, (json.dumps(content, indent=2) + "\n").encode())


def read_status(folder: Path) -> dict[str, Any] | None:
    """What the server said last, and under `alive` whether it still runs; None if it never ran here."""
    try:
        content: dict[str, Any] = json.loads((folder / NAME).read_text())
    except (OSError, ValueError):
        return None
    return {**content, "alive": in_use(folder)}
