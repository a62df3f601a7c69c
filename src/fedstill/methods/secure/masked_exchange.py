"""The exchange that trains or evaluates, and sends its vector with masks that cancel in the sum only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from fedstill.core.egress import Egress
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.sums import SkipRound, added
from fedstill.core.task import Tensors
from fedstill.methods.secure.keyrings import keyring_of
from fedstill.methods.secure.membership import (
    FIRST,
    NOTE,
    NOTES,
    SENDERS,
    SURVIVORS,
    TOTAL,
    ClientView,
    Secrets,
    TamperedError,
    bytes_of,
    octets,
    pair_seed,
    received,
    self_seed,
    some,
)
from fedstill.methods.secure.primitives import KEY, mask
from fedstill.methods.secure.sum_settings import MaskSettings
from fedstill.methods.secure.summed_exchange import SUM, SummedExchange, plain_request, vector_of

T = TypeVar("T", bound=Exchange)


class MaskedExchange(SummedExchange):
    """The exchange that does the work, whose vector leaves masked."""

    single_answer = True
    site = False
    settings: MaskSettings

    def __init__(self, inner: Exchange, settings: MaskSettings, most: int) -> None:
        super().__init__(inner, settings, most)
        self.egress = (*self.egress, Egress(NOTE, "metrics", "a note to itself: with whom it shares its masks"))

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
        if asked is None or SENDERS not in state:
            return None
        fresh = self.inner.request(state, replace(who, last_round=None), context)
        first = {} if fresh is None else self._at_first_contact(fresh)
        added = {FIRST: octets(bytes.fromhex(digest(first)))} if first else {}
        return Message({**asked, **added, **received(state, who)})

    def _at_first_contact(self, request: Message) -> Tensors:
        """The part of a request that is not sent to every client."""
        asked = plain_request(request)
        common = self.inner.common(Message(asked))
        return {name: tensor for name, tensor in asked.items() if name not in common}

    def common(self, request: Message) -> Tensors:
        """What masks are derived from: of what is sent at first contact only, the digest that all clients hold."""
        return {**super().common(request), **some(request, FIRST)}

    def digest(self, request: Message) -> bytes:
        return bytes.fromhex(digest(self.common(request)))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        keyring = keyring_of(client, self.site)
        hidden = Secrets.of(keyring, context.round, self.inner.name)
        view = ClientView.of(request, context, self.inner.name, client, keyring, hidden)
        if len(view.senders) < self.settings.needed(self.most):
            raise TamperedError("too few clients sent shares to take masks off again")
        self._check_first(client, request)
        vector, clear = self.prepared(client, request, context)
        if FIRST in request:
            client.state = {**client.state, self._kept: request[FIRST]}
        common = self.digest(request)
        masked = vector + mask(self_seed(hidden.seed, view.membership), len(vector))
        for other in view.senders:
            if other != view.own:
                public = view.membership.mask_key(other)
                seed = pair_seed(hidden.masking, public, view.membership, view.own, other, common)
                add_signed(masked, mask(seed, len(vector)), view.own < other)
        return Message({**clear, SUM: torch.from_numpy(masked.view(np.int64)), NOTE: octets(view.note(hidden))})

    @property
    def _kept(self) -> str:
        return f"{FIRST}/{self.inner.name}"

    def _check_first(self, client: Client, request: Message) -> None:
        """Refuse another first contact than the others had: it may be long ago, so that clients keep its digest."""
        sent, claimed, kept = self._at_first_contact(request), request.get(FIRST), client.state.get(self._kept)
        have = [] if kept is None else [bytes_of(kept)]
        have += [bytes.fromhex(digest(sent))] if sent else []
        wanted = None if claimed is None else bytes_of(claimed)
        if any(one != wanted for one in have) or (wanted is not None and not have):
            raise TamperedError("what this client was sent at first contact is not what the server names now")

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {**super().expect(state, who, request), NOTE: ((KEY,), torch.uint8)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        needed = self.settings.needed(self.most)
        if len(replies) < needed:
            raise SkipRound(f"{len(replies)} clients sent a masked update, and {needed} are needed to add them up")
        total = added([vector_of(reply.message[SUM]) for reply in replies])
        survivors = torch.tensor([reply.profile.id for reply in replies])
        notes = torch.stack([reply.message[NOTE] for reply in replies])
        return {**state, SURVIVORS: survivors, NOTES: notes, TOTAL: torch.from_numpy(total.view(np.int64))}


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
