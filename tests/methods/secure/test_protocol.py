"""The protocol without training: clients that add up known numbers, losses at every step, and servers that cheat."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedstill.core.egress import Egress, check_egress
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.sums import SkipRound, Summand, Sums
from fedstill.core.task import Tensors
from fedstill.methods.secure.keyrings import StreamKeyring
from fedstill.methods.secure.membership import (
    ENDORSED,
    KEYS,
    REVEALED,
    SIGNERS,
    SURVIVORS,
    TamperedError,
)
from fedstill.methods.secure.protocol import protected
from fedstill.methods.secure.secure_method import MaskedSums
from fedstill.methods.secure.summed_exchange import FACTS, SUM, SummedExchange

SIZE = 6
STREAMS = Streams(7)
Change = Callable[[str, int, Message], Message]


class Numbers(Exchange):
    """Each client adds (id + 1) / 4 to all of the model, weighted by its samples."""

    name = "add"
    egress = (Egress("w", "parameters", "the weights"), Egress("steps", "metrics", "steps"))
    summed = (Summand("w", "update"),)

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def sum_weight(self, who: Profile) -> int:
        return who.samples

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message({"w": state["w"]})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        return Message({"w": request["w"] + (client.profile.id + 1) / 4, "steps": torch.tensor(2)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, Any]:
        return {"w": ((self.size,), torch.float64), "steps": ((), torch.int64)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        raise AssertionError("it is finished from sums")

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        return {**state, "w": state["w"] + sums.mean("w")}


def same(step: str, client: int, request: Message) -> Message:
    return request


def replies_of(
    exchange: Exchange, state: Tensors, clients: Sequence[int], change: Change, context: RoundContext
) -> Iterator[Reply]:
    for number in clients:
        who = Profile(number, 10 + number, "any")
        request = exchange.request(state, who, context)
        assert request is not None
        client = Client(who, cast(Any, None), cast(Any, None), STREAMS)
        reply = exchange.reply(client, change(exchange.name, number, request), context)
        check_egress(reply, exchange.egress, exchange.name)
        expected = exchange.expect(state, who, request)
        assert {name: (tuple(one.shape), one.dtype) for name, one in reply.items()} == dict(expected)
        yield Reply(who, reply, None)


def added_up(
    clients: int = 5,
    lost: Mapping[str, Sequence[int]] | None = None,
    change: Change = same,
    seen: dict[str, list[Reply]] | None = None,
    size: int = SIZE,
    **given: Any,
) -> Tensors:
    """The server's state after all steps; `lost` names the clients whose reply to a step is lost, and do not go on."""
    state: Tensors = {"w": torch.zeros(size, dtype=torch.float64)}
    here = list(range(clients))
    for exchange in protected(Numbers(size), MaskedSums(**given), clients):
        context = RoundContext.of(STREAMS, 3, 5, clients, exchange.name)
        here = [one for one in here if one not in (lost or {}).get(exchange.name, ())]
        replies = list(replies_of(exchange, state, here, change, context))
        if seen is not None:
            seen[exchange.name] = replies
        state = exchange.aggregate(state, replies, context)
    return state


def mean_of(clients: Sequence[int]) -> float:
    return sum((10 + one) * (one + 1) / 4 for one in clients) / sum(10 + one for one in clients)


def test_three_clients_by_hand() -> None:
    """(10 x 1 + 11 x 2 + 12 x 3) / 4 / 33 = 17 / 33."""
    state = added_up(3)
    assert torch.allclose(state["w"], torch.full((SIZE,), 17 / 33, dtype=torch.float64), atol=1e-12, rtol=0)
    assert (float(state[f"{FACTS}clients"]), float(state[f"{FACTS}clipped"])) == (3, 0)
    assert float(state[f"{FACTS}steps"]) == 6
    assert sorted(name for name in state if not name.startswith(FACTS)) == ["w"]


@pytest.mark.parametrize(
    ("lost", "counted"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"add: keys": [1]}, [0, 2, 3, 4]),
        ({"add: shares": [4]}, [0, 1, 2, 3]),
        ({"add": [0, 3]}, [1, 2, 4]),  # their keys are recovered
        ({"add: survivors": [2]}, [0, 1, 2, 3, 4]),  # their updates were accepted
        ({"add: unmask": [0, 1]}, [0, 1, 2, 3, 4]),
        ({"add: shares": [0], "add": [3]}, [1, 2, 4]),
    ],
)
def test_clients_lost_before_their_upload_are_left_out_and_others_are_in_the_sum(
    lost: Mapping[str, Sequence[int]], counted: list[int]
) -> None:
    """The same bits as the same clients without masks."""
    state = added_up(5, lost)
    exchange = SummedExchange(Numbers(), MaskedSums(), 5)
    context = RoundContext.of(STREAMS, 3, 5, 5, exchange.name)
    start = {"w": torch.zeros(SIZE, dtype=torch.float64)}
    plain = exchange.aggregate(start, list(replies_of(exchange, start, counted, same, context)), context)
    assert torch.equal(state["w"], plain["w"])
    assert abs(float(state["w"][0]) - mean_of(counted)) < 1e-9
    assert {name: float(one) for name, one in state.items() if name.startswith(FACTS)} == {
        name: float(one) for name, one in plain.items() if name.startswith(FACTS)
    }


@pytest.mark.parametrize(
    ("step", "lost", "why"),
    [
        ("add", [0, 1, 2], "2 clients sent a masked update, and 3 are needed"),
        ("add: survivors", [0, 1, 2], "2 clients signed the list"),
        ("add: unmask", [2, 3, 4], "2 clients helped to take the masks off"),
    ],
)
def test_with_fewer_than_the_threshold_the_round_is_skipped(step: str, lost: list[int], why: str) -> None:
    with pytest.raises(SkipRound, match=why):
        added_up(5, {step: lost})


def test_two_thirds_need_more() -> None:
    added_up(5, {"add": [0]}, threshold="two-thirds")
    with pytest.raises(SkipRound, match="3 clients sent a masked update, and 4 are needed"):
        added_up(5, {"add": [0, 1]}, threshold="two-thirds")


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 6), st.data())
def test_any_losses_that_leave_the_threshold_give_the_sum_of_those_who_uploaded(clients: int, data: Any) -> None:
    needed = clients // 2 + 1
    order = data.draw(st.permutations(range(clients)))
    may_go = list(order[needed:])
    steps = ["add: shares", "add", "add: survivors", "add: unmask"]
    gone = {one: data.draw(st.sampled_from(steps)) for one in may_go}
    lost = {step: [one for one in may_go if gone[one] == step] for step in steps}
    before = set(chain(lost["add: shares"], lost["add"]))
    state = added_up(clients, lost)
    assert abs(float(state["w"][0]) - mean_of([one for one in range(clients) if one not in before])) < 1e-9


def test_what_the_server_receives_is_uniform_and_no_update() -> None:
    """Bytes of masked vectors, of which all but a few bits of the plain ones are zero."""
    seen: dict[str, list[Reply]] = {}
    added_up(3, seen=seen, size=20_000)
    for reply in seen["add"]:
        bytes_seen = reply.message[SUM].numpy().view(np.uint8)
        assert chisquare(np.bincount(bytes_seen, minlength=256)).pvalue > 1e-4
    plain = SummedExchange(Numbers(20_000), MaskedSums(), 3)
    context = RoundContext.of(STREAMS, 3, 5, 3, "add")
    start = {"w": torch.zeros(20_000, dtype=torch.float64)}
    for masked, clear in zip(seen["add"], replies_of(plain, start, range(3), same, context), strict=True):
        difference = masked.message[SUM].numpy() - clear.message[SUM].numpy()
        assert chisquare(np.bincount(difference.view(np.uint8), minlength=256)).pvalue > 1e-4
        assert np.corrcoef(masked.message[SUM].double(), clear.message[SUM].double())[0, 1] < 0.05
    one, two = (reply.message[SUM].numpy() for reply in seen["add"][:2])  # nor does a pair without the third
    assert chisquare(np.bincount((one + two).view(np.uint8), minlength=256)).pvalue > 1e-4


def test_clients_that_were_sent_different_models_produce_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_model(step: str, client: int, request: Message) -> Message:
        return Message({**request, "w": request["w"] + 1e-9}) if (step, client) == ("add", 1) else request

    with pytest.raises(SkipRound, match="what was added up is noise"):
        added_up(5, change=other_model)
    noise = {}
    monkeypatch.setattr(SummedExchange, "finished", lambda self, state, total, *rest: noise.setdefault("total", total))
    added_up(5, change=other_model, size=20_000)
    assert chisquare(np.bincount(noise["total"].view(np.uint8), minlength=256)).pvalue > 1e-4


def test_a_server_cannot_invent_a_client_or_change_its_keys() -> None:
    def other_keys(step: str, client: int, request: Message) -> Message:
        if step != "add: shares" or client != 0:
            return request
        keys = request[KEYS].clone()
        keys[3] = keys[2]
        return Message({**request, KEYS: keys})

    with pytest.raises(TamperedError, match="the keys of client 3 are not signed by anybody"):
        added_up(5, change=other_keys)


def test_keys_of_another_round_are_refused() -> None:
    first = protected(Numbers(), MaskedSums(), 3)[0]
    context = RoundContext.of(STREAMS, 2, 5, 3, first.name)
    old = first.aggregate({}, list(replies_of(first, {}, range(3), same, context)), context)

    def replayed(step: str, client: int, request: Message) -> Message:
        if step != "add: shares":
            return request
        mixed = {name: one.clone() for name, one in request.items()}
        for name in mixed:
            mixed[name][2] = old[name][2]
        return Message(mixed)

    with pytest.raises(TamperedError, match="client 2 are not signed"):
        added_up(3, change=replayed)


def changed_after(step: str, **tensors: Any) -> Change:
    def change(named: str, client: int, request: Message) -> Message:
        return Message({**request, **tensors}) if named == step and client == 0 else request

    return change


@pytest.mark.parametrize(
    ("step", "tensors", "why"),
    [
        ("add: survivors", {SURVIVORS: torch.tensor([0, 1])}, "2 clients would be in the sum, and 3 are needed"),
        ("add: survivors", {SURVIVORS: torch.tensor([1, 2, 3])}, "leaves this one out"),
        ("add: survivors", {SURVIVORS: torch.tensor([0, 1, 2, 7])}, "clients that sent no shares"),
        # Both shares: of client 4 the seed was asked for already by all others, and now the key.
        ("add: unmask", {SURVIVORS: torch.tensor([0, 1, 2, 3])}, "names others than survivors"),
        (
            "add: unmask",
            {SURVIVORS: torch.tensor([0, 1, 2, 3]), SIGNERS: torch.tensor([0, 1, 2]), ENDORSED: None},
            "client 0 has not signed this list of survivors",
        ),
        ("add: unmask", {SIGNERS: torch.tensor([0, 1]), ENDORSED: None}, "too few clients signed"),
        ("add: unmask", {SIGNERS: torch.tensor([1, 2, 3]), ENDORSED: None}, "leaves this one out"),
    ],
)
def test_a_client_refuses_lists_that_others_did_not_sign(step: str, tensors: dict[str, Any], why: str) -> None:
    def change(named: str, client: int, request: Message) -> Message:
        if named != step or client != 0:
            return request
        given = {**tensors}
        if ENDORSED in given:
            given[ENDORSED] = request[ENDORSED][: len(given[SIGNERS])]
        return Message({**request, **given})

    with pytest.raises(TamperedError, match=why):
        added_up(5, change=change)


def test_a_server_cannot_lower_the_threshold_by_naming_few_members() -> None:
    """Of five that were asked, three must be members, whoever the server lists: two of them could collude with it."""

    def few(step: str, client: int, request: Message) -> Message:
        return Message({name: one[:2] for name, one in request.items()}) if step == "add: shares" else request

    with pytest.raises(TamperedError, match="2 clients would be in the sum, and this one takes part with 3 to 5"):
        added_up(5, change=few)


def test_members_that_change_between_steps_are_noticed() -> None:
    """The client's own note opens only with the members and keys that it agreed to."""

    def fewer(step: str, client: int, request: Message) -> Message:
        if step != "add" or client != 0:
            return request
        kept = {name: request[name][:3] for name in request if name.startswith("secure/")}
        return Message({**request, **kept})

    with pytest.raises(TamperedError, match="sealed for another"):
        added_up(5, change=fewer)


def test_one_share_of_each_client_is_revealed_and_never_both() -> None:
    seen: dict[str, list[Reply]] = {}
    added_up(5, {"add": [3]}, seen=seen)
    for reply in seen["add: unmask"]:
        assert tuple(reply.message[REVEALED].shape) == (5, 66)  # one row for each of those who sent shares


def test_wrong_shares_of_one_client_do_not_change_the_sum() -> None:
    """The server tries other shares until they fit the commitment."""
    exchanges = protected(Numbers(), MaskedSums(), 5)
    state: Tensors = {"w": torch.zeros(SIZE, dtype=torch.float64)}
    for exchange in exchanges:
        context = RoundContext.of(STREAMS, 3, 5, 5, exchange.name)
        replies = list(replies_of(exchange, state, range(5), same, context))
        if exchange.name == "add: unmask":
            wrong = Message({REVEALED: replies[0].message[REVEALED].flip(0)})
            replies[0] = replace(replies[0], message=wrong)
            every = [replace(one, message=wrong) for one in replies]
            with pytest.raises(SkipRound, match="do not fit what it sent"):
                exchange.aggregate(state, every, context)
        state = exchange.aggregate(state, replies, context)
    assert abs(float(state["w"][0]) - mean_of(range(5))) < 1e-9


def test_a_site_never_takes_secrets_from_streams() -> None:
    for exchange in protected(Numbers(), MaskedSums(), 3):
        there = exchange.on_site()
        client = Client(Profile(0, 1, "any"), cast(Any, None), cast(Any, None), STREAMS)
        with pytest.raises(Exception, match="no secrets for secure aggregation"):
            there.reply(client, Message({}), RoundContext.of(STREAMS, 0, 1, 3, exchange.name))


def expanded(secret: bytes, *facts: Any) -> bytes:
    """HKDF-SHA256 for 32 bytes (RFC 5869), with no salt."""
    label = ["fedstill secure aggregation, version 1", *(one.hex() if isinstance(one, bytes) else one for one in facts)]
    early = hmac.new(bytes(32), secret, sha256).digest()
    return hmac.new(early, json.dumps(label).encode() + b"\x01", sha256).digest()


def hashed(*pieces: bytes) -> bytes:
    return sha256(b"".join(len(one).to_bytes(8, "big") + one for one in pieces)).digest()


def keystream(key: bytes, length: int) -> np.ndarray:
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * length)), dtype="<u8")


def test_what_a_client_sends_is_what_the_paper_says_computed_anew() -> None:
    """y_i = x_i + PRG(b_i) + sum_(j>i) PRG(k_ij) - sum_(j<i) PRG(k_ij), from the clients' secrets alone."""
    seen: dict[str, list[Reply]] = {}
    added_up(4, seen=seen)
    secrets = [
        {what: StreamKeyring(STREAMS.seed, one).secret(3, "add", what) for what in ("sealing", "masking", "seed")}
        for one in range(4)
    ]
    private = [X25519PrivateKey.from_private_bytes(one["masking"]) for one in secrets]
    public = [one.public_key() for one in private]
    keys = [
        X25519PrivateKey.from_private_bytes(one["sealing"]).public_key().public_bytes_raw()
        + public[number].public_bytes_raw()
        + hashed(b"seed", one["seed"])
        for number, one in enumerate(secrets)
    ]
    label = ["fedstill secure aggregation, version 1", "members", 3, "add", [0, 1, 2, 3], [0, 1, 2, 3]]
    members = hashed(json.dumps(label).encode(), *keys)
    request = bytes.fromhex(digest({"w": torch.zeros(SIZE, dtype=torch.float64)}))
    for number, reply in enumerate(seen["add"]):
        weight = 10 + number
        # Weight and clipped values, two steps, and six times (i + 1) / 4 in steps of 2^-32 times the weight.
        numbers = [weight, 0, 2, *[(number + 1) * 2**30 * weight] * SIZE]
        total = np.array(numbers, dtype=np.uint64)
        total += keystream(expanded(secrets[number]["seed"], "own mask", members), len(total))
        for other in range(4):
            if other != number:
                shared = private[number].exchange(public[other])
                low, high = sorted((number, other))
                mask = keystream(expanded(shared, "mask", members, low, high, request), len(total))
                total = total + mask if number < other else total - mask
        assert np.array_equal(reply.message[SUM].numpy().view(np.uint64), total)
