"""Servers that want one update out of a sum, and what a client refuses: lists, notes, first contacts, few clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedstill.core.message import Message, digest
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext
from fedstill.core.sums import SkipRound
from fedstill.core.task import Tensors
from fedstill.methods.secure.keyrings import StreamKeyring
from fedstill.methods.secure.masked_exchange import MaskedExchange
from fedstill.methods.secure.membership import (
    FIRST,
    MEMBERS,
    NOTE,
    SENDERS,
    SHARES,
    SURVIVORS,
    Membership,
    Secrets,
    TamperedError,
    pair_seed,
    self_seed,
)
from fedstill.methods.secure.primitives import mask
from fedstill.methods.secure.protocol import protected
from fedstill.methods.secure.secure_method import MaskedSums
from fedstill.methods.secure.summed_exchange import SUM

from .test_protocol import SIZE, STREAMS, Numbers, added_up, replies_of, same

START = {"w": torch.zeros(SIZE, dtype=torch.float64)}


def context_of(exchange: Exchange, clients: int = 5) -> RoundContext:
    return RoundContext.of(STREAMS, 3, 5, clients, exchange.name)


def client_of(number: int, state: Tensors | None = None) -> Client:
    who = Profile(number, 10 + number, "any")
    return Client(who, cast(Any, None), cast(Any, None), STREAMS, state=dict(state or {}))


def test_more_clients_than_were_asked_are_refused() -> None:
    """Of three that are asked two suffice; among six, two pairs could each reveal another share of a third one."""
    first, second, *_ = protected(Numbers(), MaskedSums(), 3)
    state = first.aggregate({}, list(replies_of(first, {}, range(6), same, context_of(first))), context_of(first))
    with pytest.raises(TamperedError, match="6 clients would be in the sum, and this one takes part with 2 to 3"):
        list(replies_of(second, state, [0], same, context_of(second)))


def only(senders: Sequence[int], request: Message) -> Message:
    """The request with shares of these clients alone."""
    places = [request[SENDERS].tolist().index(one) for one in senders]
    return Message({**request, SENDERS: torch.tensor(senders), SHARES: request[SHARES][places]})


def test_a_server_cannot_have_an_update_masked_with_clients_that_it_then_calls_lost() -> None:
    """Client 0 shares masks with 3 and 4 alone. Their keys and its seed, which three others reveal, leave its update.

    It answers without a memory of what it was sent before, and must yet not sign the list of survivors 0, 1 and 2.
    """
    seen: dict[str, list[Reply]] = {}

    def strangers(step: str, client: int, request: Message) -> Message:
        return only([0, 3, 4], request) if (step, client) == ("add", 0) else request

    with pytest.raises(TamperedError, match="did not mask its update with the clients that the server names now"):
        added_up(5, {"add": [3, 4]}, strangers, seen)
    sent = seen["add"][0].message[SUM].numpy().view(np.uint64).copy()
    secrets = [Secrets.of(StreamKeyring(STREAMS.seed, one), 3, "add") for one in range(5)]
    membership = Membership(3, "add", tuple(range(5)), tuple(range(5)), tuple(one.keys for one in secrets))
    sent -= mask(self_seed(secrets[0].seed, membership), len(sent))
    (masked,) = (one for one in protected(Numbers(), MaskedSums(), 5) if isinstance(one, MaskedExchange))
    for lost in (3, 4):
        common = masked.digest(Message(START))
        seed = pair_seed(secrets[lost].masking, membership.mask_key(0), membership, lost, 0, common)
        sent -= mask(seed, len(sent))
    assert sent.tolist() == [10, 0, 2, *[2**30 * 10] * SIZE]  # what it would have come to


@pytest.mark.parametrize("step", ["add: survivors", "add: unmask"])
def test_who_sent_shares_cannot_change_after_the_upload(step: str) -> None:
    """A sender more has a key revealed that nobody was told to be lost."""

    def fewer_at_first(asked: str, client: int, request: Message) -> Message:
        if client == 0 and asked == "add":
            return only([0, 1, 2, 3], request)
        if client == 0 and asked == "add: survivors" != step:
            return only([0, 1, 2, 3], request)
        return request

    with pytest.raises(TamperedError, match="did not mask its update with"):
        added_up(5, {"add": [4]}, fewer_at_first)


@pytest.mark.parametrize("step", ["add: survivors", "add: unmask"])
@pytest.mark.parametrize("note", ["other", "none", "short"])
def test_a_note_of_another_client_is_none_of_its_own(step: str, note: str) -> None:
    def change(asked: str, client: int, request: Message) -> Message:
        if asked != step or client != 0:
            return request
        other = {"none": torch.zeros(32, dtype=torch.uint8), "short": torch.zeros(0, dtype=torch.uint8)}
        return Message({**request, NOTE: other.get(note, notes[1])})

    notes: dict[int, torch.Tensor] = {}
    seen: dict[str, list[Reply]] = {}
    added_up(5, seen=seen)
    notes |= {reply.profile.id: reply.message[NOTE] for reply in seen["add"]}
    with pytest.raises(TamperedError, match="did not mask its update with"):
        added_up(5, change=change)


@pytest.mark.parametrize(
    ("step", "name"),
    [("add: shares", MEMBERS), ("add", SENDERS), ("add: survivors", SURVIVORS), ("add: unmask", SURVIVORS)],
)
@pytest.mark.parametrize("form", [torch.float64, "square"])
def test_lists_in_another_form_are_refused(step: str, name: str, form: Any) -> None:
    """0.0 equals 0, and is signed as something else."""

    def change(asked: str, client: int, request: Message) -> Message:
        if asked != step or client != 0:
            return request
        return Message({**request, name: request[name][None] if form == "square" else request[name].to(form)})

    with pytest.raises(TamperedError, match="no list of whole numbers"):
        added_up(5, change=change)


def test_three_clients_and_what_the_thresholds_mean() -> None:
    """With `majority` a sum of two is finished, of which each knows the other's part; not with the other settings."""
    state = added_up(3, {"add": [2]})
    assert torch.allclose(state["w"], torch.full((SIZE,), (10 * 1 + 11 * 2) / 4 / 21, dtype=torch.float64), atol=1e-9)
    with pytest.raises(SkipRound, match="2 clients sent a masked update, and 3 are needed"):
        added_up(3, {"add": [2]}, threshold="two-thirds")
    with pytest.raises(SkipRound, match="2 clients sent a masked update, and 3 are needed"):
        added_up(3, {"add": [2]}, least=3)

    def leaving_out(step: str, client: int, request: Message) -> Message:
        return Message({**request, SURVIVORS: torch.tensor([0, 1])}) if step == "add: survivors" else request

    with pytest.raises(TamperedError, match="2 clients would be in the sum, and 3 are needed"):
        added_up(3, change=leaving_out, threshold="two-thirds")


class Begun(Numbers):
    """With something that is sent at first contact only, as a frozen part of a model is."""

    first_contact_prefix = "frozen"

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        first = {"frozen": torch.ones(2)} if who.last_round is None else {}
        return Message({"w": state["w"], **first})


def test_all_clients_have_the_same_first_contact() -> None:
    """A server could make the part of a model that it sends once to others such that their updates are zero."""
    exchanges, state = protected(Begun(), MaskedSums(), 3), dict(START)
    for exchange in exchanges[:2]:
        replies = list(replies_of(exchange, state, range(3), same, context_of(exchange, 3)))
        state = dict(exchange.aggregate(state, replies, context_of(exchange, 3)))
    masked = exchanges[2]
    who = Profile(0, 10, "any")
    fresh, later = (masked.request(state, one, context_of(masked, 3)) for one in (who, replace(who, last_round=1)))
    assert fresh is not None
    assert later is not None
    assert torch.equal(fresh[FIRST], later[FIRST])
    begun = client_of(0)
    one = masked.reply(begun, fresh, context_of(masked, 3))
    assert torch.equal(masked.reply(begun, later, context_of(masked, 3))[SUM], one[SUM])  # same masks either way
    assert torch.equal(masked.reply(begun, fresh, context_of(masked, 3))[SUM], one[SUM])

    def refuses(client: Client, request: Mapping[str, torch.Tensor]) -> None:
        with pytest.raises(TamperedError, match="what this client was sent at first contact is not what"):
            masked.reply(client, Message(request), context_of(masked, 3))

    refuses(client_of(0), {**fresh, "frozen": torch.zeros(2)})
    refuses(client_of(0), later)  # it has none
    refuses(client_of(0), {name: one for name, one in fresh.items() if name != FIRST})
    refuses(begun, {name: one for name, one in later.items() if name != FIRST})
    refuses(begun, {**later, FIRST: later[FIRST].flip(0)})
    other = {"frozen": torch.zeros(2)}
    named = torch.frombuffer(bytearray.fromhex(digest(other)), dtype=torch.uint8)
    crafted = masked.reply(client_of(0), Message({**fresh, **other, FIRST: named}), context_of(masked, 3))
    assert not torch.equal(crafted[SUM], one[SUM])  # another digest, other masks: they cancel with nobody's
