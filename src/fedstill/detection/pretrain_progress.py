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
        self.prints = not quiet
        self.kind = ""

    def note(self, text: str) -> None:
        """Also without a terminal: the scores of the probe show whether it is worth going on."""
        if self.prints:
            errors.print(f"note: {text}", soft_wrap=True)

    def start(self, settings: Pretraining, losses: Sequence[float]) -> None:
        self.kind = settings.kind
        if losses and len(losses) < settings.epochs:
            self.note(f"going on after epoch {len(losses)}")
        if self.quiet:
            return
        self.bar = bar_of("epoch")
        self.bar.start()
        text = loss_text(self.kind, losses[-1]) if losses else ""
        name = fitting(f"pre-training {settings.model} on {settings.data}")
        self.bar.add_task(name, total=settings.epochs, completed=len(losses), text=text)

    def epoch(self, loss: float) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], advance=1, text=loss_text(self.kind, loss))


def loss_text(kind: str, loss: float) -> str:
    """A mean loss with its name.

    >>> loss_text("masked", 0.25)
    'Chamfer distance 0.2500'
    """
    return f"{'Chamfer distance' if kind == 'masked' else 'loss of detection'} {loss:.4f}"
