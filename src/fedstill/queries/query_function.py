"""`fedstill.query`: a query to the clients of a run, or to models that peers have offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedstill.core.errors import InputError
from fedstill.core.plugins import use_plugins
from fedstill.data.lookup import hold
from fedstill.data.objects import dataset
from fedstill.models.own_models import ModelInput
from fedstill.queries.offers import question_to_offers
from fedstill.queries.query_tracking import track_query
from fedstill.queries.transfer import Asked, answer, make_question
from fedstill.queries.transfer_loss import QueryObserver
from fedstill.runtime.callbacks import QUERY_HOOKS, CallbackInput, Callbacks, former_observers
from fedstill.runtime.result import Run
from fedstill.runtime.tracked import TrackInput, tracking_of
from fedstill.tracking.tracking import Tracking


def query(
    run: str | Path | Run | Mapping[str, nn.Module] | Sequence[nn.Module],
    client: int | None = None,
    classes: str | int | Sequence[str | int] = (),
    *,
    method: str = "qkt",
    data: Any = None,
    model: ModelInput | None = None,
    own: str | Path | nn.Module | None = None,
    head: str | None = None,
    compare: bool = False,
    out: str | Path = "runs",
    data_root: str | Path | None = None,
    device: str = "cpu",
    plugins: Sequence[str | Path] = (),
    callbacks: CallbackInput = (),
    track: TrackInput = None,
    observers: Sequence[QueryObserver] | None = None,
    **settings: Any,
) -> Asked:
    """Let a client of a run query the others for classes, by number or name, and learn from the peers that know them.

    `settings` are those of the method. `data` is the data of the run, where it was passed as an object in another
    process. Nothing is written before `keep` is called on the result, but for what `track` writes, which is as in
    `fedstill.run`. Of `callbacks` the hooks `on_epoch`, `on_finish` and `on_error` are called, and a function as
    `on_epoch`. `observers` is deprecated. With `compare` the client also learns by naive distillation, whose model is
    among `stages` of the result and on its page.

    Without a run, `run` is a folder of checkpoints (`.safetensors`), or torch modules by peer or in a list. `data` is
    then the asker's own (see `dataset`), and `own` its model, a file or a module; without it one is first trained
    alone, as a run in `out`. `model` is the model of all files, a name or as in `Model`, and `head` its last layer.

    >>> import fedstill
    >>> skewed = {"name": "pathological", "classes_per_client": 3}
    >>> folder = getfixture("tmp_path")
    >>> alone = fedstill.run("local-only", model="mlp", clients=4, rounds=1, partition=skewed, out=folder)
    >>> asked = fedstill.query(alone, 0, 7, transfer_epochs=1, head_epochs=1, threshold=0)
    >>> asked.teachers, asked.keep(folder).finished
    ((1, 2, 3), True)
    """
    use_plugins(plugins)
    watching = QueryCallbacks(callbacks)
    everyone = [watching, *former_observers(observers)]
    root = None if data_root is None else Path(data_root)
    tracking = tracking_of(track, Path(out))
    if are_offers(run, data):
        assert not isinstance(run, Run)
        if client is not None:
            raise InputError("offered models are asked by the owner of the data: leave client out")
        given: dict[str, Any] = {"model": model, "own": own, "head": head, "method": method, "compare": compare}
        return watching.watch(
            lambda: _tracked(
                tracking,
                question_to_offers(run, classes, data, settings, data_root=root, device=device, **given).answer(
                    Path(out), everyone
                ),
            )
        )
    assert isinstance(run, str | Path | Run)
    if client is None:
        raise InputError("say which client of the run asks, e.g. client=3")
    if data is not None:
        hold(replace(dataset(data), name=Run.of(run).experiment.data))
    asked = (run, client, classes, settings, method, root, device, compare)
    return watching.watch(lambda: _tracked(tracking, answer(make_question(*asked), everyone)))


def _tracked(tracking: Tracking | None, asked: Asked) -> Asked:
    track_query(tracking, asked)
    return asked


def are_offers(run: Any, data: Any) -> bool:
    """Whether these are offered models and the asker's data, and no run."""
    if isinstance(run, Run):
        return False
    if not isinstance(run, str | Path):
        if data is None:
            raise InputError("offered models are asked with data of your own: pass it as data")
        return True
    folder = Path(run)
    if (folder / "config.json").exists():
        return False
    if data is None and folder.is_dir() and any(folder.glob("*.safetensors")):
        raise InputError(f"{folder} holds checkpoints and is no run: name your own data, e.g. --data npz:mine.npz")
    return data is not None


class QueryCallbacks(Callbacks):
    """Callbacks of a query, as the observer that it calls."""

    def __init__(self, given: CallbackInput) -> None:
        super().__init__(given, QUERY_HOOKS, "on_epoch")

    def epoch(self, phase: str, epochs: int, accuracy: float) -> None:
        self.call("on_epoch", phase, epochs, accuracy)
