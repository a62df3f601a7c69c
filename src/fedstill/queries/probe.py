"""Estimates of the classes that clients' models know, from their outputs on noise.

A model is confident in the classes it knows even on noise: its mean output on noise estimates the class distribution it
was trained on, and a rule decides which classes it knows (see `probe_rule.py`), by which a client selects peers as
teachers. There are two truths to compare with: the classes that the client has samples of, and the classes that its
model recognises, with a recall of at least one half on test data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fedstill.core.hardware import one_thread
from fedstill.core.message import part
from fedstill.core.streams import Streams
from fedstill.methods import methods
from fedstill.methods.base import MODEL
from fedstill.methods.local_only import LocalOnly
from fedstill.queries.peers import BEFORE, PeerMethod
from fedstill.queries.probe_rule import NearMiss, NoiseOutputs, ProbeRule, unmatched
from fedstill.queries.qkt import QKTSettings
from fedstill.queries.transfer_loss import probe
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.result import Run

Shares = npt.NDArray[np.float64]  # clients x classes
Flags = npt.NDArray[np.bool_]
RECOGNISED = 0.5  # smallest recall of a class that a model recognises


@dataclass(frozen=True)
class Probed:
    """The clients' true class distributions and recalls, and what their models' outputs on noise say of them."""

    clients: tuple[int, ...]
    names: tuple[str, ...]
    true: Shares
    guessed: Shares  # mean probabilities on noise
    logs: Shares  # mean log-probabilities on noise
    rule: ProbeRule
    recalls: Shares | None = None  # of the clients' models on test data, where they are known

    @property
    def errors(self) -> Shares:
        """The mean squared error of each client's estimated class distribution, over classes."""
        squares: Shares = ((self.true - self.guessed) ** 2).mean(axis=1)
        return squares

    @property
    def error(self) -> float:
        return float(self.errors.mean())

    def outputs(self, place: int) -> NoiseOutputs:
        """The outputs of the client in this row."""
        return NoiseOutputs(torch.from_numpy(self.guessed[place]), torch.from_numpy(self.logs[place]))

    @property
    def known(self) -> Flags:
        """The classes that each model knows by the rule."""
        flags = [self.rule.known(self.outputs(place)).numpy() for place in range(len(self.clients))]
        return np.stack(flags).astype(np.bool_)

    def by(self, rule: ProbeRule) -> Probed:
        """The same outputs, judged by another rule."""
        return replace(self, rule=rule)

    def unmatched(self, query: Sequence[int], asking: int) -> dict[int, list[NearMiss]]:
        """The queried classes that no peer knows by the rule, each with the peers that come nearest to it."""
        peers = {client: self.outputs(place) for place, client in enumerate(self.clients) if client != asking}
        return unmatched(self.rule, peers, query)

    @property
    def precision(self) -> float:
        """Of the classes that models know by the rule, the fraction that their clients have samples of.

        >>> shares, outputs = np.array([[0.5, 0.5, 0.0, 0.0]]), np.array([[0.98, 0.0, 0.02, 0.0]])
        >>> Probed((0,), ("a", "b", "c", "d"), shares, outputs, outputs, ProbeRule("threshold")).precision
        0.5
        """
        return _precision(self.known, self.true > 0)

    @property
    def recall(self) -> float:
        """Of the classes that clients have samples of, the fraction that their models know by the rule.

        >>> shares, outputs = np.array([[0.5, 0.3, 0.2, 0.0]]), np.array([[0.98, 0.02, 0.0, 0.0]])
        >>> round(Probed((0,), ("a", "b", "c", "d"), shares, outputs, outputs, ProbeRule("threshold")).recall, 3)
        0.667
        """
        return _recall(self.known, self.true > 0)

    @property
    def precision_recognised(self) -> float | None:
        """Of the classes that models know by the rule, the fraction that they recognise."""
        return None if self.recalls is None else _precision(self.known, self.recalls >= RECOGNISED)

    @property
    def recall_recognised(self) -> float | None:
        """Of the classes that models recognise, the fraction that they know by the rule."""
        return None if self.recalls is None else _recall(self.known, self.recalls >= RECOGNISED)

    def figures(self) -> dict[str, float]:
        """Precision and recall against both truths."""
        every = {
            "precision": self.precision,
            "recall": self.recall,
            "precision_recognised": self.precision_recognised,
            "recall_recognised": self.recall_recognised,
        }
        return {name: value for name, value in every.items() if value is not None}


def _precision(known: Flags, truth: Flags) -> float:
    return float((known & truth).sum() / max(1, known.sum()))


def _recall(known: Flags, truth: Flags) -> float:
    return float((known & truth).sum() / max(1, truth.sum()))


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
    task, outputs = run.task, dict[int, NoiseOutputs]()
    with one_thread():
        for client, before in models.items():
            model = task.build(run.experiment.architectures[client], before)
            noise = Streams(run.experiment.seed).at("peer", client)
            outputs[client] = probe(task, model, noise, usual.noise, usual.noise_scale)
    return tabulated(
        outputs,
        tuple(run.config["classes"]),
        np.array([found[str(client)]["counts"] for client in outputs], dtype=np.float64),
        usual.rule,
        np.array([found[str(client)]["before"] or found[str(client)]["recalls"] for client in outputs]),
    )


def tabulated(
    outputs: Mapping[int, NoiseOutputs],
    names: tuple[str, ...],
    counts: Shares,
    rule: ProbeRule,
    recalls: Shares | None = None,
) -> Probed:
    """Clients' outputs on noise as tables, beside the classes of their samples."""
    return Probed(
        tuple(outputs),
        names,
        counts / np.maximum(1.0, counts.sum(axis=1, keepdims=True)),
        np.stack([one.probabilities.numpy() for one in outputs.values()]),
        np.stack([one.log_probabilities.numpy() for one in outputs.values()]),
        rule,
        recalls,
    )
