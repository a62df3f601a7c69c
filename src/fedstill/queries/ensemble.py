"""An ensemble of the peers' models, without any training.

*Ensemble Methods in Machine Learning*, Dietterich, 2000, https://doi.org/10.1007/3-540-45014-9_1

    p(c | x) = mean over members t of p_t(c | x)        (a client's own model, and all that the others offer)

A client stores every model it receives, and evaluates all of them for each prediction: storage and work grow with the
number of members. It offers the model it trained alone; the received models do not change it.

With `members: query` (ours) the vote is made for the client's query:

    members  its own model, and the peers that know a queried class (see `probe_rule.py`); without any, its own alone
    p(c | x) = sum over t of w_t(x) p_t(c | x) for own and queried classes c, zero for others, normalised
    w_t(x)   in proportion to 1 - H(p_t(. | x)) / log C, the confidence of t in its own prediction
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from fedstill.core.fit import Trained
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Exchange, RoundContext
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, methods, work_report
from fedstill.queries.peers import BEFORE, PEERS, QUERY, PeerMethod, PeerSettings, Transfer, built, own_model, probed
from fedstill.queries.probe_rule import ProbeSettings, noted, unmatched
from fedstill.queries.vote import ConfidentVote, Vote

MEMBERS = "member/"  # member/ID/...: prefix of the received models in a client's state
RELEVANT = "relevant"  # in a client's state: one flag for each class, own or queried


class PeerEnsembleSettings(PeerSettings, ProbeSettings):
    added_later: ClassVar[frozenset[str]] = frozenset(
        {"members", "probe_rule", "threshold", "least_gap", "noise", "noise_scale"}
    )

    members: Literal["all", "query"] = Field(
        "all",
        description="all: the mean prediction of all models; query: only of models that know a queried class, for own"
        " and queried classes only, each weighted by its confidence",
    )
    noise_scale: float = Field(1.0, gt=0, description="standard deviation of the probe's noise; inputs are in -1 to 1")


@methods.register("ensemble")
class Ensemble(PeerMethod):
    """An ensemble at every client: the mean prediction of its own model and all models that its peers offer."""

    Options = PeerEnsembleSettings
    settings: PeerEnsembleSettings

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return (self, Gathering(self))

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return {name: tensor for name, tensor in state.items() if name.startswith((MODEL, MEMBERS, RELEVANT))} or None

    def assemble(self, architecture: str, personal: Tensors) -> nn.Module:
        own = self.task.build(architecture, part(personal, MODEL))
        members = [own, *built(self.task, part(personal, MEMBERS), self.as_program).values()]
        if self.settings.members == "all":
            return Vote(members)
        return own if len(members) == 1 else ConfidentVote(members, personal[RELEVANT])


class Gathering(Transfer):
    """The exchange in which a client stores the received models, replacing earlier ones."""

    method: Ensemble

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        own = own_model(client)
        kept = {name: tensor for name, tensor in client.state.items() if not name.startswith(MEMBERS)}
        client.state = {**kept, **under(BEFORE, own)}
        offered: Tensors = dict(request.part(PEERS))
        if self.method.settings.members == "query":
            offered = self.for_query(client, offered)
        client.state = {**client.state, **under(MEMBERS, offered)}
        return Message(work_report(Trained(0, {})))

    def for_query(self, client: Client, offered: Tensors) -> Tensors:
        """The offered models that know a queried class; the relevant classes are stored in the client's state."""
        settings, asked, labels = self.method.settings, client.state[QUERY], client.data.labels()
        assert labels is not None
        query = torch.nonzero(asked).flatten().tolist()
        relevant = (torch.bincount(labels, minlength=len(asked)) > 0) | asked
        outputs = {
            number: probed(client, number, model, settings.noise, settings.noise_scale)
            for number, model in built(self.method.task, offered).items()
        }
        client.state = {**noted(client.state, unmatched(settings.rule, outputs, query)), RELEVANT: relevant}
        chosen = tuple(f"{number}/" for number, one in outputs.items() if settings.rule.admits(one, query))
        return {name: tensor for name, tensor in offered.items() if name.startswith(chosen)}
