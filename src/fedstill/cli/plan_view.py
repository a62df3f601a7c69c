"""What a dry run shows of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.cli.run import print_plan
from fedstill.cli.screen import CANNOT_RUN
from fedstill.core.errors import InputError

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.runtime.experiment import Experiment


def show_plan(
    experiment: Experiment,
    data_root: Path | None,
    as_json: bool,
    track: Sequence[str] | None,
    device: str,
    out: Path,
    engine: str = "in-process",
    workers: int = 1,
) -> None:
    """The resolved experiment; one that cannot run here is shown, too, with exit code 2."""
    from fedstill.core.files import check_folder
    from fedstill.engines.registered import check_engine
    from fedstill.runtime.estimates import estimate_text
    from fedstill.runtime.plan import make_plan
    from fedstill.runtime.tracked import check_track

    try:
        check_track(track)
        check_folder(out)
        check_engine(engine, workers, device)
        plan = make_plan(experiment, data_root, device)
        said = [f"found; this run is called {plan.folder_name}", estimate_text(plan, 0, measure=True)]
        experiment, found = plan.experiment, "; ".join(filter(None, said))
    except InputError as error:
        found = f"{CANNOT_RUN}: {error}"
    print_plan(experiment, found, as_json)
