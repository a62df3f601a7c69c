"""Estimates of the class distribution that clients' models were trained on, from their outputs on noise.

A model is confident in the classes it knows even on noise: its mean output on noise estimates the class distribution it
was trained on (see `queries/transfer_loss.py`), by which a client selects peers as teachers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedstill.core.hardware import one_thread
from fedstill.core.message import part
from fedstill.core.streams import Streams
from fedstill.methods import methods
from fedstill.methods.base import MODEL
from fedstill.methods.local_only import LocalOnly
from fedstill.queries.peers import BEFORE, PeerMethod
from fedstill.queries.qkt import QKTSettings
from fedstill.queries.transfer_loss import probe
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.result import Run

Shares = npt.NDArray[np.float64]  # clients x classes


@dataclass(frozen=True)
class Probed:
    """The clients' true class distributions, and those estimated from noise."""

    clients: tuple[int, ...]
    names: tuple[str, ...]
    true: Shares
    guessed: Shares
    threshold: float

    @property
    def errors(self) -> Shares:
        """The mean squared error of each client's estimate, over classes."""
        squares: Shares = ((self.true - self.guessed) ** 2).mean(axis=1)
        return squares

    @property
    def error(self) -> float:
        return float(self.errors.mean())

    @property
    def precision(self) -> float:
        """Of the classes that models seem to know, the fraction that their clients have samples of.

        >>> true, guessed = np.array([[0.5, 0.5, 0.0, 0.0]]), np.array([[0.98, 0.0, 0.02, 0.0]])
        >>> Probed((0,), ("a", "b", "c", "d"), true, guessed, 0.01).precision
        0.5
        """
        found = self.guessed >= self.threshold
        return float((found & (self.true > 0)).sum() / max(1, found.sum()))

    @property
    def recall(self) -> float:
        """Of the classes that clients have samples of, the fraction that their models seem to know.

        >>> true, guessed = np.array([[0.5, 0.3, 0.2, 0.0]]), np.array([[0.98, 0.02, 0.0, 0.0]])
        >>> round(Probed((0,), ("a", "b", "c", "d"), true, guessed, 0.01).recall, 3)
        0.667
        """
        has = self.true > 0
        return float((has & (self.guessed >= self.threshold)).sum() / max(1, has.sum()))


def probed(run: Run) -> Probed | None:
    """The estimates for the models that clients trained alone, with the noise that peers use; None if there are none.

    They exist for a run of local-only or of a peer method that has queries and whose client states are still present.
    """
    found = run.answers()
    if not found or not issubclass(methods[run.experiment.method.name], LocalOnly | PeerMethod):
        return None
    settings = run.experiment.method.settings
    usual = settings if isinstance(settings, QKTSettings) else QKTSettings()
    store = ClientStore.of(run.path, run.experiment.clients)
    states = {client: store.load(client) for client in sorted(map(int, found))}
    models = {client: part(state, BEFORE) or part(state, MODEL) for client, state in states.items()}
    if not all(models.values()):
        return None
    task, guesses = run.task, dict[int, Shares]()
    with one_thread():
        for client, before in models.items():
            model = task.build(run.experiment.architectures[client], before)
            noise = Streams(run.experiment.seed).at("peer", client)
            guesses[client] = probe(task, model, noise, usual.noise, usual.noise_scale).numpy()
    counts = np.array([found[str(client)]["counts"] for client in guesses], dtype=np.float64)
    return Probed(
        tuple(guesses),
        tuple(run.config["classes"]),
        counts / np.maximum(1.0, counts.sum(axis=1, keepdims=True)),
        np.stack(list(guesses.values())),
        usual.threshold,
    )
