"""What each method sends: measured bytes of a client's round, on a model and data set that are built in."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedstill.core.errors import InputError
from fedstill.engines import InProcess
from fedstill.methods import methods
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.plan import make_plan
from fedstill.runtime.round import Federation
from fedstill.runtime.round_outcome import Traffic

_log = logging.getLogger(__name__)

CLIENTS = 2
MODEL = "cnn-bn"  # has BatchNorm, which some methods treat apart
SHORT: dict[str, Any] = {  # settings of work that does not change what is sent
    "transfer_epochs": 1,
    "head_epochs": 1,
    "sweeps": 1,
    "steps": 1,
    "patches": {"count": 1000},
    "selection": None,
}


def client_traffic(method: str) -> Traffic | None:
    """Bytes a client sends and receives in its second round; None for a method that needs more than its name.

    The first round is played too: some methods send more, or less, to a client that they meet for the first time.
    """
    training = {"epochs": 1, "batch": 512}  # hardly any: only what is sent matters
    fields = methods[method].Options.model_fields
    shortened = {name: value for name, value in SHORT.items() if name in fields}
    chosen = {"name": method, **shortened}
    given = {"method": chosen, "model": MODEL, "data": "digits", "clients": CLIENTS, "training": training}
    try:
        plan = make_plan(make_experiment(given))
    except InputError:
        _log.debug("the traffic of %s cannot be measured", method, exc_info=True)
        return None
    clients = len(plan.profiles)
    with TemporaryDirectory(prefix="fedstill-") as folder, InProcess() as engine:
        engine.open(plan.clients)
        store = ClientStore(Path(folder) / "clients", clients)
        federation = Federation(
            plan.method, plan.participants, engine, plan.profiles, plan.streams, rounds=plan.method.rounds(2)
        )
        progress, _ = federation.run_round(federation.begin(store), store)
        store.committed()
        _, outcome = federation.run_round(progress, store)
    return Traffic(outcome.traffic.up // clients, outcome.traffic.down // clients)
