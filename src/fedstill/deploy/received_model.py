"""The final models at a site: a run's folder with the shared models and the site's own, for `fedstill export`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.core.errors import RunError
from fedstill.core.files import disk_trouble
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import StateVersion
from fedstill.core.records import read_result
from fedstill.core.task import Tensors
from fedstill.data.feature_preparation import Preparation
from fedstill.deploy.site_state import SiteStates
from fedstill.runtime import checkpoint
from fedstill.runtime.checkpoint import Progress
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.plan import Plan
from fedstill.runtime.run import described
from fedstill.runtime.run_folder import MODELS, RECEIVED, RunFolder, pack_models

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,120}")  # of a run: it becomes a folder here
_SERVER = "server/"  # the part of the server's state that makes a personal model complete


def last_message(folder: RunFolder, server: Tensors) -> Message:
    """The server's last message: its models, and the tensors that complete personal ones."""
    models = {
        f"{which}/{architecture}/{name}": tensor
        for which in MODELS
        if folder.model_path(which).is_file()
        for architecture, state in folder.load_models(which).items()
        for name, tensor in state.items()
    }
    return Message({**models, **under(_SERVER, under("model/", part(server, "model/")))})


def write_received(
    site: Path,
    plan: Plan,
    states: SiteStates,
    models: Message,
    header: Mapping[str, Any],
    preparation: Preparation | None = None,
) -> Path:
    """Write the folder, and give its place; with the site's own `preparation` of its table, which stays here."""
    try:
        result = read_result(json.loads(str(header["result"])))
        name, round = str(header["name"]), int(header["kept"])
        kept = None if round < 0 else StateVersion(round, str(header["state"]))
    except (KeyError, ValueError, OverflowError, RecursionError):
        _log.info("the server's last message cannot be read", exc_info=True)
        result, kept, name = None, None, ""
    if result is None or not _NAME.fullmatch(name):
        raise RunError("the server's last message cannot be read")
    folder = RunFolder(site / RECEIVED / name)
    try:
        folder.create(described(plan))
        for which in MODELS:
            if state := models.part(f"{which}/"):
                models_of = {name: _of(plan, name, state) for name in plan.task.architectures}
                folder.save_models(which, pack_models(models_of))
        if plan.method.personal:
            _write_own(folder.path, plan, models.part(_SERVER), states, kept)
        if preparation is not None:
            folder.save_preparation(preparation)
        folder.save_result(result)
    except OSError as error:
        raise disk_trouble(folder.path, error) from error
    return folder.path


def _of(plan: Plan, architecture: str, state: Tensors) -> Tensors:
    """The model of one architecture; what does not fit it is an error."""
    own = part(state, f"{architecture}/")
    try:
        plan.task.build(architecture, own)
    except (RuntimeError, KeyError, ValueError) as error:
        raise RunError(f"the server's last message holds no {architecture}: {error}") from None
    return own


def _write_own(path: Path, plan: Plan, server: Tensors, states: SiteStates, kept: StateVersion | None) -> None:
    """This client's state as a run keeps it, so that its own model is found as any other client's is."""
    (who,) = plan.profiles
    if kept is None:
        return
    store = ClientStore(path / "clients", plan.experiment.clients)
    store.stage(who.id, kept.round, states.load(kept))
    checkpoint.save(path, Progress(plan.rounds, server, {}, store.versions()))
