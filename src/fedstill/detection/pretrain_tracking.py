"""A pre-training in trackers: the loss of each epoch, the linear probe, and the encoder's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedstill.detection.pretraining import Pretraining
from fedstill.tracking.tracker import TrackedRun
from fedstill.tracking.tracking import RunFollower, Tracking


class MadeFile(Protocol):
    """What a pre-training leaves."""

    @property
    def file(self) -> Path: ...
    @property
    def losses(self) -> list[float]: ...
    @property
    def probe(self) -> dict[int, float]: ...


_Made = TypeVar("_Made", bound=MadeFile)


class PretrainFollower:
    """Hands epochs to trackers; without any it does nothing."""

    def __init__(self, tracking: Tracking | None, settings: Pretraining, out: Path, identity: str) -> None:
        given: dict[str, Any] = settings.model_dump(mode="json")
        run = TrackedRun(f"pretraining-{out.stem}-{identity[:16]}", "pretraining", settings=given)
        self.follower = None if tracking is None else RunFollower(tracking, run)

    def catch_up(self, losses: Sequence[float], probe: Mapping[int, float]) -> None:
        """Log the epochs that trackers do not have."""
        if self.follower is not None:
            for epoch, loss in enumerate(losses, 1):
                scores = {"pretraining/probe_recall": probe[epoch]} if epoch in probe else {}
                self.follower.log(epoch, {"pretraining/loss": loss, **scores})

    def finished(self, made: _Made) -> _Made:
        """Add the file, and whatever is missing."""
        self.catch_up(made.losses, made.probe)
        if self.follower is not None:
            self.follower.save({path.name: path for path in (made.file, made.file.with_suffix(".json"))})
            self.follower.close("finished")
        return made

    def stopped(self) -> None:
        """The pre-training ended before it was complete; after `finished` there is nothing left to close."""
        if self.follower is not None:
            self.follower.close("stopped")
