"""Live progress of a pre-training."""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.cli.progress import BarDisplay, bar_of, fitting
from fedstill.cli.screen import errors
from fedstill.detection.pretraining import Pretraining


class PretrainDisplay(BarDisplay):
    """An observer that draws one line in the terminal."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(quiet or not errors.is_terminal)

    def start(self, settings: Pretraining, losses: Sequence[float]) -> None:
        if losses and len(losses) < settings.epochs:
            self.note(f"going on after epoch {len(losses)}")
        if self.quiet:
            return
        self.bar = bar_of("epoch")
        self.bar.start()
        text = distance(losses[-1]) if losses else ""
        name = fitting(f"pre-training {settings.model} on {settings.data}")
        self.bar.add_task(name, total=settings.epochs, completed=len(losses), text=text)

    def epoch(self, loss: float) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], advance=1, text=distance(loss))


def distance(loss: float) -> str:
    return f"Chamfer distance {loss:.4f}"
