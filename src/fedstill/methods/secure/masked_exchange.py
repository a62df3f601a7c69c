"""The exchange that trains or evaluates, and sends its vector with masks that cancel in the sum only."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from fedstill.core.egress import Egress
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext
from fedstill.core.sums import SkipRound, added
from fedstill.core.task import Tensors
from fedstill.methods.secure.keyrings import keyring_of
from fedstill.methods.secure.membership import (
    SENDERS,
    SURVIVORS,
    TOTAL,
    ClientView,
    Secrets,
    TamperedError,
    pair_seed,
    received,
    self_seed,
)
from fedstill.methods.secure.primitives import mask
from fedstill.methods.secure.sum_settings import MaskSettings
from fedstill.methods.secure.summed_exchange import SUM, SummedExchange, vector_of

T = TypeVar("T", bound=Exchange)


class MaskedExchange(SummedExchange):
    """The exchange that does the work, whose vector leaves masked."""

    single_answer = True
    site = False
    settings: MaskSettings

    def _line(self) -> Egress:
        line = super()._line()
        return replace(line, why=line.why.replace("whole numbers", "masked numbers", 1), masked=True)

    def on_site(self) -> Exchange:
        return at_site(self)

    def rehearsal(self) -> Exchange:
        """A single client shares masks with no other: its numbers without masks, which are not sent."""
        return SummedExchange(self.inner, self.settings, self.most)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        asked = self.inner.request(state, who, context)
        return None if asked is None or SENDERS not in state else Message({**asked, **received(state, who)})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        keyring = keyring_of(client, self.site)
        hidden = Secrets.of(keyring, context.round, self.inner.name)
        view = ClientView.of(request, context, self.inner.name, client, keyring, hidden)
        if len(view.senders) < self.settings.needed(self.most):
            raise TamperedError("too few clients sent shares to take masks off again")
        vector, clear = self.prepared(client, request, context)
        common = request_digest(self.common(request))
        masked = vector + mask(self_seed(hidden.seed, view.membership), len(vector))
        for other in view.senders:
            if other != view.own:
                public = view.membership.mask_key(other)
                seed = pair_seed(hidden.masking, public, view.membership, view.own, other, common)
                add_signed(masked, mask(seed, len(vector)), view.own < other)
        return Message({**clear, SUM: torch.from_numpy(masked.view(np.int64))})

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        needed = self.settings.needed(self.most)
        if len(replies) < needed:
            raise SkipRound(f"{len(replies)} clients sent a masked update, and {needed} are needed to add them up")
        total = added([vector_of(reply.message[SUM]) for reply in replies])
        survivors = torch.tensor([reply.profile.id for reply in replies])
        return {**state, SURVIVORS: survivors, TOTAL: torch.from_numpy(total.view(np.int64))}


def request_digest(common: Tensors) -> bytes:
    return bytes.fromhex(digest(common))


def add_signed(vector: np.ndarray, other: np.ndarray, plus: bool) -> None:
    if plus:
        vector += other
    else:
        vector -= other


def at_site(exchange: T) -> T:
    """The exchange at a real site."""
    there = copy(exchange)
    there.site = True  # type: ignore[attr-defined]
    return there
