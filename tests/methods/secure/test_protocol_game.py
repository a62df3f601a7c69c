"""A game against the protocol: a server that asks each client each question once, with any lists that it likes.

It wins if it learns a sum of fewer honest clients than the threshold leaves when it works together with some others.
What it learns follows from which shares it was given: a client's part is in the clear where its seed is known and each
of its masks is, or cancels with that of a client that is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.message import Message
from fedstill.core.protocols import Exchange, Profile
from fedstill.core.task import Tensors
from fedstill.methods.secure.keyrings import StreamKeyring
from fedstill.methods.secure.membership import (
    NOTES,
    SENDERS,
    SHARES,
    SIGNERS,
    SURVIVORS,
    Membership,
    TamperedError,
    octets,
)
from fedstill.methods.secure.protocol import protected
from fedstill.methods.secure.secure_method import MaskedSums
from fedstill.methods.secure.summed_exchange import OWN

from .test_protocol import SIZE, STREAMS, Numbers, replies_of, same
from .test_protocol_attacks import client_of, context_of

CLIENTS = 5
Lists = Callable[[str, Sequence[Sequence[int]]], list[int]]  # the server chooses one of several


@cache
def shared(threshold: str) -> tuple[Sequence[Exchange], Tensors]:
    """All clients have sent their shares, honestly."""
    exchanges = protected(Numbers(), MaskedSums(threshold=threshold), CLIENTS)
    state: Tensors = {"w": torch.zeros(SIZE, dtype=torch.float64)}
    for exchange in exchanges[:2]:
        replies = list(replies_of(exchange, state, range(CLIENTS), same, context_of(exchange)))
        state = exchange.aggregate(state, replies, context_of(exchange))
    return exchanges, state


def ask(exchange: Exchange, state: Tensors, client: int, senders: Sequence[int], **lists: torch.Tensor) -> Any:
    """What a client replies if the server names these; None: it refuses."""
    named = {f"{OWN}{name}": one for name, one in lists.items()}
    named |= {SENDERS: torch.tensor(senders), SHARES: state[SHARES][list(senders), client]}
    every = {SURVIVORS: torch.arange(CLIENTS), SIGNERS: torch.arange(CLIENTS)}
    request = exchange.request({**every, **state}, Profile(client, 10 + client, "any"), context_of(exchange))
    assert request is not None
    try:
        return exchange.reply(client_of(client), Message({**request, **named}), context_of(exchange))
    except TamperedError:
        return None


def won(threshold: str, colluding: Sequence[int], choose: Lists) -> list[set[int]]:
    """The honest clients in each sum that the server learns."""
    (_, _, masked, sign, unmask), state = shared(threshold)
    honest = [one for one in range(CLIENTS) if one not in colluding]
    context = context_of(masked)
    membership = Membership.of(state, context, "add")
    groups = [[one for one in range(CLIENTS) if one != left] for left in range(CLIENTS)]
    groups += [
        [one for one in range(CLIENTS) if one not in (left, right)] for left in range(CLIENTS) for right in range(left)
    ]
    groups.append([*range(CLIENTS)])
    partners: dict[int, list[int]] = {}
    notes = torch.zeros(CLIENTS, 32, dtype=torch.uint8)
    for client in honest:
        senders = choose("senders", groups)
        reply = ask(masked, state, client, senders)
        if reply is not None:
            partners[client] = senders
            notes[client] = reply[f"{OWN}note"]
    state = {**state, NOTES: notes}
    signatures: dict[tuple[int, ...], dict[int, torch.Tensor]] = {}
    for client in partners:
        named = choose("survivors", groups)
        senders = choose("senders again", [partners[client], [*range(CLIENTS)]])
        reply = ask(sign, state, client, senders, survivors=torch.tensor(named))
        if reply is not None:
            signatures.setdefault(tuple(named), {})[client] = reply[f"{OWN}signature"]
    for named_so, by in signatures.items():
        for client in set(colluding) & set(named_so):
            by[client] = octets(StreamKeyring(STREAMS.seed, client).sign(membership.endorsement(named_so)))
    seeds, keys = {one: len(colluding) for one in range(CLIENTS)}, {one: len(colluding) for one in range(CLIENTS)}
    for client in partners if signatures else ():
        survivors = tuple(choose("unmasked", sorted(signatures)))
        by = dict(sorted(signatures[survivors].items()))
        senders = choose("senders at last", [partners[client], [*range(CLIENTS)]])
        lists = {"signers": torch.tensor([*by]), "endorsed": torch.stack([*by.values()])}
        if ask(unmask, state, client, senders, survivors=torch.tensor(survivors), **lists) is not None:
            for sender in senders:
                (seeds if sender in survivors else keys)[sender] += 1
    return learnt(partners, colluding, seeds, keys, MaskedSums(threshold=threshold).needed(CLIENTS))


def learnt(
    partners: Mapping[int, Sequence[int]],
    colluding: Sequence[int],
    seeds: Mapping[int, int],
    keys: Mapping[int, int],
    needed: int,
) -> list[set[int]]:
    known = {one for one, count in keys.items() if count >= needed} | set(colluding)
    bare = {client for client in partners if seeds[client] >= needed}
    unknown = {one: set(partners[one]) - known - {one} for one in partners}  # with whom it shares an unknown mask
    found: list[set[int]] = []
    for client in sorted(bare):
        group, new = {client}, {client}
        while new:
            new = {other for one in new for other in unknown.get(one, ())} - group
            group |= new
        cancel = all(one in unknown[other] for one in group & bare for other in unknown[one] & bare)
        if group <= bare and cancel and group not in found:
            found.append(group)
    return found


@pytest.mark.parametrize(("threshold", "colluding"), [("majority", ()), ("two-thirds", (4,))])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_server_never_learns_a_sum_of_fewer_than_the_threshold_leaves(
    threshold: str, colluding: Sequence[int], data: Any
) -> None:
    def choose(what: str, lists: Sequence[Sequence[int]]) -> list[int]:
        return list(data.draw(st.sampled_from(list(lists)), label=what))

    least = MaskedSums(threshold=threshold).needed(CLIENTS) - len(colluding)
    assert all(len(group) >= least for group in won(threshold, colluding, choose))


@pytest.mark.parametrize(("threshold", "colluding"), [("majority", ()), ("two-thirds", (4,))])
def test_one_client_that_is_told_of_other_senders_than_the_rest(threshold: str, colluding: Sequence[int]) -> None:
    """Each smallest set of senders that client 0 may be told of, and each smallest list of survivors with it."""
    needed = MaskedSums(threshold=threshold).needed(CLIENTS)
    sets = [one for one in map(list, combinations(range(CLIENTS), needed)) if 0 in one]
    for told in sets:
        for survivors in sets:
            groups = won(threshold, colluding, telling(told, survivors))
            assert all(len(group) >= needed - len(colluding) for group in groups)


def telling(told: list[int], survivors: list[int]) -> Lists:
    """The choices of a server that names these senders to the first client as it uploads, and all to the others."""
    first = iter([told])

    def choose(what: str, lists: Sequence[Sequence[int]]) -> list[int]:
        chosen = {"senders": next(first, [*range(CLIENTS)]), "survivors": survivors}
        return chosen.get(what, list(lists[-1]))

    return choose


def test_an_honest_server_learns_the_sum_of_all() -> None:
    assert won("majority", (), lambda what, lists: list(lists[-1])) == [{*range(CLIENTS)}]
