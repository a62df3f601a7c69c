"""`fedstill pretrain`: an encoder from scenes that nobody labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from fedstill.cli.plans import print_plan
from fedstill.cli.progress import bar_of, fitting
from fedstill.cli.screen import console, errors, print_json, sparkline
from fedstill.core.errors import InputError
from fedstill.core.numbers import size
from fedstill.core.plugins import use_plugins
from fedstill.detection.pretrain import Pretrained, pretrain_encoder, resolved
from fedstill.detection.pretraining import Pretraining, make_pretraining


class Display:
    """An observer that draws one line in the terminal."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or not errors.is_terminal
        self.bar: Progress | None = None

    def start(self, settings: Pretraining, losses: Sequence[float]) -> None:
        if losses and len(losses) < settings.epochs:
            self.note(f"going on after epoch {len(losses)}")
        if self.quiet:
            return
        self.bar = bar_of("epoch")
        self.bar.start()
        told = _told(losses[-1]) if losses else ""
        name = fitting(f"pre-training {settings.model} on {settings.data}")
        self.bar.add_task(name, total=settings.epochs, completed=len(losses), told=told)

    def epoch(self, loss: float) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], advance=1, told=_told(loss))

    def note(self, text: str) -> None:
        if not self.quiet:
            errors.print(f"note: {text}", soft_wrap=True)

    def warn(self, text: str) -> None:
        errors.print(f"warning: {text}", soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back, also when the work was interrupted."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def assemble(given: Mapping[str, Any], settings: Sequence[str], plugins: Sequence[Path]) -> Pretraining:
    use_plugins(plugins)
    return make_pretraining({key: value for key, value in given.items() if value is not None}, settings)


def show_plan(settings: Pretraining, data_root: Path | None, as_json: bool) -> None:
    """The resolved settings; data that is not here is said, and is no error."""
    try:
        settings, scenes = resolved(settings, data_root)
        status = f"found: {scenes:,} scenes to learn from"
    except InputError as error:
        status = f"cannot run here: {error}"
    print_plan(settings, status, as_json, "pretraining")


def run(
    settings: Pretraining,
    out: Path,
    overwrite: bool,
    data_root: Path | None,
    device: str,
    quiet: bool,
    as_json: bool,
) -> None:
    display = Display(quiet or as_json)
    try:
        made = pretrain_encoder(
            settings, out, data_root=data_root, device=device, overwrite=overwrite, observers=[display]
        )
    finally:
        display.close()
    if as_json:
        print_json({"file": str(made.file), "fresh": made.fresh, **made.record})
    else:
        _show(made)


def _show(made: Pretrained) -> None:
    told, losses = made.record["pretraining"], made.losses
    console.print(
        f"{told['model']}, the encoder, on {told['data']}: {made.record['scenes']:,} scenes, "
        f"{len(losses)} epochs, seed {told['seed']}, {made.record['seconds']:.0f} s"
        + ("" if made.fresh else " (made before: nothing was done)"),
    )
    console.print(f"{_told(losses[0])} → {losses[-1]:.4f}  {sparkline(losses)}")
    console.print(
        f"{made.file}, {size(made.file.stat().st_size)}, sha256 {made.record['sha256'][:16]}…\n"
        f"start a run from it with --set initial.file={made.file}",
        soft_wrap=True,
    )


def _told(loss: float) -> str:
    return f"Chamfer distance {loss:.4f}"
