"""What is shown while steps are measured for an estimate: a bar in a terminal, some lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.progress import Progress

from fedstill.cli.progress import bar_of, fitting
from fedstill.cli.screen import errors
from fedstill.core.numbers import count

_EVERY = 20.0  # seconds between lines where there is no terminal


@contextmanager
def measuring_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A function to call with the number of kinds of runs that are measured, of how many, and the next one."""
    bar: Progress | None = None
    shown = 0.0

    def show(done: int, kinds: int, what: str) -> None:
        nonlocal bar, shown
        if done == 0:
            shown = monotonic()
            errors.print(f"measuring a step of {count(kinds, 'kind')} of runs on this machine, once", soft_wrap=True)
            if errors.is_terminal:
                bar = bar_of("kind", guesses=False)
                bar.start()
                bar.add_task(fitting(what), total=kinds, text="")
        elif bar is not None:
            bar.update(bar.task_ids[0], completed=done, description=fitting(what))
        elif monotonic() - shown >= _EVERY:
            shown = monotonic()
            errors.print(f"measured {done} of {kinds}; next: {what}", soft_wrap=True)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()
