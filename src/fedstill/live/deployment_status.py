"""Deployments as the page shows them: what the server writes beside its keys, of which nothing else is read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedstill.live.bounded_files import read_mapping, section_of, short_text, stamp_of, whole

STATUS = "status.json"  # the name that `deploy.server_status` gives it, which needs Flower to be imported
_SILENCE = 15.0  # seconds after which a server that writes every second no longer runs
_MOST = 50  # deployments in one folder
_SITES = 500


def deployments_in(folder: Path) -> list[dict[str, Any]]:
    """The deployment of a server's folder, of the folder above it, or of several in one folder."""
    return [status for path in _places(folder) if (status := _status(path))]


def has_deployment(folder: Path) -> bool:
    """Whether it is the folder of a deployment, if only of one whose server has not run yet."""
    names = ("deployment.yaml", "server/deployment.yaml", STATUS, f"server/{STATUS}")
    return any(stamp_of(folder / name) is not None for name in names)


def _places(folder: Path) -> Iterator[Path]:
    for place in (folder, folder / "server"):
        if stamp_of(place / STATUS) is not None:
            yield place
            return
    try:
        below = [path.parent for pattern in (f"*/{STATUS}", f"*/server/{STATUS}") for path in folder.glob(pattern)]
    except OSError:  # deleted meanwhile
        return
    yield from sorted(below)[:_MOST]


def _status(folder: Path) -> dict[str, Any]:
    told = read_mapping(folder / STATUS)
    sites = section_of(told, "sites")
    if "state" not in told or not isinstance(told.get("sites"), dict):
        return {}
    refusals, failures = section_of(told, "refusals"), section_of(told, "failures")
    names = sorted({*sites, *refusals, *failures}, key=lambda name: (len(name), name))[:_SITES]
    state = short_text(told.get("state"))
    alive = _is_fresh(told.get("at"))
    return {
        "name": short_text(folder.parent.name if folder.name == "server" else folder.name),
        "folder": str(folder),
        "state": state if alive or state == "finished" else f"not running (last: {state})",
        "alive": alive,
        "round": whole(told.get("round")),
        "rounds": whole(told.get("rounds")),
        "run": short_text(told.get("run")),
        "at": short_text(told.get("at")),
        "sites": [
            {
                "site": short_text(name),
                "connected": alive and sites.get(name) is True,
                "refused": short_text(refusals.get(name)),
                "failed": short_text(failures.get(name)),
            }
            for name in names
        ],
    }


def _is_fresh(at: Any) -> bool:
    """Whether a time is that of now."""
    try:
        when = datetime.fromisoformat(at)
        age = (datetime.now(UTC) - when).total_seconds()
    except (TypeError, ValueError):
        return False
    return abs(age) < _SILENCE
