"""Trackers of a run, a study or a query; their package is loaded only where somebody asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.runtime.observers import Observer
    from fedstill.runtime.run_folder import RunFolder
    from fedstill.tracking.tracking import Tracking as Tracking

TrackInput = Any  # a name, an object like `fedstill.Tracker`, or a list of them; None or an empty list: none


def tracking_of(given: TrackInput, out: Path, tell: Callable[[str], None] | None = None) -> Tracking | None:
    """The trackers, ready to be used, or None; refused, before any work, where they cannot be."""
    if given is None or (isinstance(given, list | tuple) and not given):
        return None
    from fedstill.tracking.tracking import tracking

    return tracking(given, out, tell)


def check_track(given: TrackInput) -> None:
    """The same refusals where nothing is to be written, for `--dry-run`; but for stores that cannot be written."""
    if given:
        from fedstill.tracking.tracking import chosen_trackers

        chosen_trackers(given)


@contextmanager
def followed(folder: RunFolder, tracking: Tracking | None) -> Iterator[list[Observer]]:
    """The observer that hands the run in that folder to trackers, where there are any."""
    if tracking is None:
        yield []
        return
    from fedstill.tracking.tracking import RunFollower, tracked_run

    follower = RunFollower(tracking, tracked_run(folder.path, folder.config()))
    try:
        yield [follower]
    except Exception:
        follower.close("failed")
        raise
    except BaseException:  # Ctrl-C: the run can be resumed
        follower.close("stopped")
        raise
    if folder.result() is None:
        follower.close("stopped")
    else:
        follower.finished(folder.path, folder.journal())
