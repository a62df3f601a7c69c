"""Transfer of a helper's most significant parameters, in the style of CLUE.

*CLUE: Systems Support for Knowledge Transfer in Collaborative Learning With Neural Nets*, Daga et al., 2023,
https://doi.org/10.1109/TCC.2023.3294490

A client copies the significant parameters of one peer, the helper, into its own model, and combines the old and the new
model by a boosted vote.

    helper       of the peers that know a queried class (see `probe_rule.py`), the one with the largest sum over queried
                 classes of its mean probability on noise
    F(w)         = sum over batches of the client's own samples, and over q, of (d -log p_helper(q | x) / d w)^2
    w_new        = w_helper where F(w) is among the largest share `significant`, else w_own
    e_m, a_m     = error of model m on the client's own samples as weighted so far, log((1 - e_m) / e_m) + log(K - 1)
    p(c | x)     = sum over m in (own, new) of a_m p_m(c | x), normalised

The significance measure is our adaptation: the article computes significance on samples of the class, which are not
available here, since the helper's data stays local and the client has none of the class. F therefore measures which of
the helper's weights would change its probability of the class on inputs that the client has. a_m is the multi-class
rule of *Multi-class AdaBoost*, Zhu et al., 2009, https://doi.org/10.4310/SII.2009.v2.n3.a8: samples that the first
model gets wrong weigh exp(a_1) times as much for the second, an error is at least half a sample, and a model no better
than chance has weight zero. Probabilities are added instead of votes, because of two votes the heavier one always wins.
Running statistics stay the client's own.

Only a peer with the same architecture can help. If there is none, or none knows a class, the client keeps its model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.dataset import Dataset, Relabelled, every_row
from fedstill.core.fit import Trained
from fedstill.core.kinds import PARAMETERS, state_of
from fedstill.core.message import part, under
from fedstill.core.protocols import Client, RoundContext
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, methods
from fedstill.methods.local_only import LocalSettings
from fedstill.models.model_outputs import read_outputs
from fedstill.queries.peers import QUERY, PeerMethod, probed
from fedstill.queries.probe_rule import ProbeSettings, noted, unmatched
from fedstill.queries.transfer_loss import importance, most_important
from fedstill.queries.vote import Vote

MIXED, VOTES = "mixed/", "votes"  # the model with the helper's parameters; the weights of the own and the new model


class ClueSettings(LocalSettings, ProbeSettings):
    added_later: ClassVar[frozenset[str]] = frozenset({"probe_rule", "least_gap"})

    significant: float = Field(
        0.1, gt=0, le=1, description="fraction of the helper's weights, the most significant, that are copied"
    )


@methods.register("clue", behaviour=2)
class Clue(PeerMethod):
    """CLUE-style transfer: copies the most significant parameters of one peer, then votes with the old model."""

    Options = ClueSettings
    settings: ClueSettings

    def learn(self, client: Client, peers: Mapping[int, nn.Module], context: RoundContext) -> Trained:
        own = client.task.build(client.profile.architecture, part(client.state, MODEL))
        query = torch.nonzero(client.state[QUERY]).flatten().tolist()
        client.state = {name: tensor for name, tensor in client.state.items() if not name.startswith((MIXED, VOTES))}
        helper = self.helper(client, own, peers, query)
        if helper is None:
            return Trained(0, {})
        mixed = self.mixed(client, own, helper, query)
        wrong = [_mistakes(client, model) for model in (own, mixed)]
        votes = boosted(wrong, len(self.task.classes))
        client.state = {**client.state, **under(MIXED, state_of(mixed)), VOTES: votes}
        return Trained(0, {})

    def helper(
        self, client: Client, own: nn.Module, peers: Mapping[int, nn.Module], query: list[int]
    ) -> nn.Module | None:
        """The peer of this architecture with the highest probe scores for the queried classes; ties go to the first."""
        shapes = _shapes(own)
        alike = {number: model for number, model in peers.items() if query and _shapes(model) == shapes}
        known = {number: probed(client, number, model, self.settings.noise) for number, model in alike.items()}
        client.state = noted(client.state, unmatched(self.settings.rule, known, query))
        able = [number for number in alike if self.settings.rule.admits(known[number], query)]
        best = max(able, key=lambda number: float(known[number].probabilities[query].sum()), default=None)
        return None if best is None else alike[best]

    def mixed(self, client: Client, own: nn.Module, helper: nn.Module, query: list[int]) -> nn.Module:
        """The client's model with the helper's significant parameters."""
        chosen = most_important(self.significance(client, helper, query), self.settings.significant)
        state, theirs = state_of(own), state_of(helper)
        for name, which in chosen.items():
            state[PARAMETERS + name] = torch.where(which.cpu(), theirs[PARAMETERS + name], state[PARAMETERS + name])
        return client.task.build(client.profile.architecture, state)

    def significance(self, client: Client, helper: nn.Module, query: list[int]) -> dict[str, Tensor]:
        """F: the significance of each of the helper's parameters for the queried classes."""
        sums: dict[str, Tensor] = {}
        for number in query:
            client.meter.add(len(client.data), len(client.data))
            asked: Dataset = Relabelled(client.data, torch.full((len(self.task.classes),), number))
            streams = client.streams.at("significance", number)
            found = importance(Evaluated(helper), client.task, asked, self.training.batch, streams)
            sums = {name: sums[name] + tensor if sums else tensor for name, tensor in found.items()}
        return part(sums, Evaluated.PREFIX)

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return {name: tensor for name, tensor in state.items() if name.startswith((MODEL, MIXED, VOTES))} or None

    def assemble(self, architecture: str, personal: Tensors) -> nn.Module:
        own = self.task.build(architecture, part(personal, MODEL))
        mixed = part(personal, MIXED)
        return Vote([own, self.task.build(architecture, mixed)], personal[VOTES]) if mixed else own


class Evaluated(nn.Module):
    """A model that stays in evaluation mode while its gradients are computed."""

    PREFIX = "model."

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def train(self, mode: bool = True) -> Evaluated:
        return super().train(False)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities, features, _ = read_outputs(self.model, inputs)
        return log_probabilities, features


def boosted(wrong: Sequence[Tensor], classes: int) -> Tensor:
    """The weight of each model by the samples it gets wrong; only the first model if none is better than chance.

    With four samples and three classes the first model is wrong on one: log(3) + log(2). That sample then weighs 6/9;
    the second model is wrong on two others, 2/9: log(3.5) + log(2).

    >>> boosted([torch.tensor([True, False, False, False]), torch.tensor([False, True, True, False])], 3).exp()
    tensor([6.0000, 7.0000], dtype=torch.float64)
    """
    samples = len(wrong[0])
    weights = torch.full((samples,), 1.0 / samples, dtype=torch.float64)
    say = torch.zeros(len(wrong), dtype=torch.float64)
    for place, mistakes in enumerate(wrong):
        error = weights[mistakes].sum().clamp(0.5 / samples, 1 - 0.5 / samples)
        say[place] = (((1 - error) / error).log() + log(classes - 1)).clamp(min=0)
        weights = torch.where(mistakes, weights * say[place].exp(), weights)
        weights = weights / weights.sum()
    if not say.any():
        say[0] = 1.0
    return say


def _mistakes(client: Client, model: nn.Module) -> Tensor:
    """Which of the client's own samples a model gets wrong."""
    model.eval()
    client.meter.add(len(client.data))
    found = []
    for rows in every_row(client.data):
        batch = client.data.batch(rows)
        with torch.no_grad():
            said = client.task.forward(model, batch).log_probabilities.cpu()
        found.append(said.argmax(dim=1) != batch["labels"])
    return torch.cat(found)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}
