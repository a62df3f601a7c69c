"""The exchanges that mask a sum, and take the mask off that sum alone.

*Practical Secure Aggregation for Privacy-Preserving Machine Learning*, Bonawitz et al., 2017,
https://eprint.iacr.org/2017/281, with the consistency round against an active server.

    keys        each client sends two public keys (c_i to seal shares, s_i for masks) and a commitment to its seed b_i,
                signed
    shares      it checks everybody's signatures, and sends each member its shares of b_i and of the private s_i, sealed
    (the inner  y_i = x_i + PRG(b_i) + sum_(j>i) PRG(k_ij) - sum_(j<i) PRG(k_ij)   modulo 2^64, over those who sent
    exchange)   shares; k_ij comes from X25519(s_i, s_j) and from the digest of the common part of the request
    survivors   it signs the list of those whose y_i was accepted
    unmask      if enough of them signed the same list, it reveals its share of b_j of each j on it, and of s_j of each
                j that sent shares and is not: never both

A client keeps nothing between these exchanges. Its secrets are the same whenever it is asked in one round, and of what
it decided it receives notes back that only it can have made: of the members and their keys (its share for itself), and
of those with whom it masked its update. It answers each of them once a round (`single_answer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, islice

import torch

from fedstill.core.egress import Egress
from fedstill.core.keyring import Keyring
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.sums import SkipRound
from fedstill.core.task import Tensors
from fedstill.methods.secure import shamir
from fedstill.methods.secure.keyrings import keyring_of
from fedstill.methods.secure.masked_exchange import MaskedExchange, add_signed, at_site
from fedstill.methods.secure.membership import (
    ENDORSED,
    HOLDER,
    HOLDERS,
    KEYS,
    KEYS_BYTES,
    MEMBERS,
    NOTE,
    REVEALED,
    SEALED,
    SENDERS,
    SHARES,
    SIGNATURES,
    SIGNED,
    SIGNERS,
    SURVIVORS,
    TOTAL,
    ClientView,
    Membership,
    Secrets,
    TamperedError,
    bytes_of,
    check_own,
    checked_survivors,
    commitment_to,
    keys_statement,
    noted,
    octet_rows,
    octets,
    pair_key,
    pair_seed,
    received,
    self_seed,
    some,
    without,
)
from fedstill.methods.secure.primitives import (
    KEY,
    SIGNATURE,
    coefficients,
    mask,
    public_of,
    seal,
)
from fedstill.methods.secure.sum_settings import MaskSettings
from fedstill.methods.secure.summed_exchange import vector_of

_TRIED = 200  # sets of shares, where some do not fit


def protected(inner: Exchange, settings: MaskSettings, most: int) -> Sequence[Exchange]:
    """The exchanges that take the place of one whose sums suffice."""
    masked = MaskedExchange(inner, settings, most)
    return (
        KeyExchange(inner, settings, most),
        ShareExchange(inner, settings, most),
        masked,
        SurvivorExchange(inner, settings, most),
        UnmaskExchange(inner, settings, most, masked),
    )


class _Step(Exchange):
    """An exchange around the one that trains: small messages, and no client's state changes."""

    auxiliary, single_answer = True, True
    min_replies = 1  # `aggregate` counts
    step = ""
    site = False  # True: at a real site, which has secrets of its own

    def __init__(self, inner: Exchange, settings: MaskSettings, most: int) -> None:
        """`most` clients are asked, of which all know the number: a server cannot lower the threshold by naming few."""
        self.inner, self.most, self.name = inner, most, f"{inner.name}: {self.step}"
        self.needed = settings.needed(most)

    def on_site(self) -> Exchange:
        return at_site(self)

    def membership(self, tensors: Tensors, context: RoundContext) -> Membership:
        return Membership.of(tensors, context, self.inner.name)

    def own(self, client: Client, context: RoundContext) -> tuple[Keyring, Secrets]:
        keyring = keyring_of(client, self.site)
        return keyring, Secrets.of(keyring, context.round, self.inner.name)

    def count(self, replies: Sequence[Reply], needed: int, what: str) -> None:
        if len(replies) < needed:
            raise SkipRound(f"{len(replies)} clients {what}, and {needed} are needed to add up what is masked")


class KeyExchange(_Step):
    """Every client sends its public keys for this sum."""

    step = "keys"
    egress = (
        Egress(KEYS, "metrics", "public keys and a commitment, new in each round: they tell nothing of the data"),
        Egress(HOLDER, "metrics", "the number of the site, by which others find its signature's key"),
        Egress(SIGNED, "metrics", "the signature of these keys"),
    )

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message({})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        keyring, hidden = self.own(client, context)
        statement = keys_statement(context.round, self.inner.name, client.profile.id, keyring.holder, hidden.keys)
        signature = keyring.sign(statement)
        return Message({KEYS: octets(hidden.keys), HOLDER: torch.tensor(keyring.holder), SIGNED: octets(signature)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {
            KEYS: ((KEYS_BYTES,), torch.uint8),
            HOLDER: ((), torch.int64),
            SIGNED: ((SIGNATURE,), torch.uint8),
        }

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        self.count(replies, self.needed, "sent keys")
        return {
            **without(state),
            MEMBERS: torch.tensor([reply.profile.id for reply in replies]),
            HOLDERS: torch.stack([reply.message[HOLDER] for reply in replies]),
            KEYS: torch.stack([reply.message[KEYS] for reply in replies]),
            SIGNATURES: torch.stack([reply.message[SIGNED] for reply in replies]),
        }


class ShareExchange(_Step):
    """Every client checks the keys of all, and sends each its shares of this client's secrets."""

    step = "shares"
    egress = (Egress(SHARES, "metrics", "shares of masks, each sealed for one other client: nobody else can read it"),)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message(some(state, MEMBERS, HOLDERS, KEYS, SIGNATURES))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        keyring, hidden = self.own(client, context)
        own, membership = client.profile.id, self.membership(request, context)
        check_own(membership, own, keyring, hidden)
        if not self.needed <= len(membership.members) <= self.most:  # of more, two thresholds would fit in
            raise TamperedError(
                f"{len(membership.members)} clients would be in the sum, and this one takes part with {self.needed} to"
                f" {self.most}"
            )
        for member, holder, signature in zip(membership.members, membership.holders, request[SIGNATURES], strict=True):
            if not keyring.verify(holder, membership.statement(member), bytes_of(signature)):
                raise TamperedError(f"the keys of client {member} are not signed by anybody that is known here")
        return Message({SHARES: octet_rows(self.sealed(membership, hidden, own))})

    def sealed(self, membership: Membership, hidden: Secrets, own: int) -> list[bytes]:
        """For each member its two shares, and for the client itself the note that it has agreed to this membership."""
        count = len(membership.members)
        needed = self.needed
        split = [
            shamir.split(int.from_bytes(secret, "big"), needed, count, self._random(hidden, membership, what, needed))
            for what, secret in (("seed", hidden.seed), ("key", hidden.masking))
        ]
        return [
            seal(
                pair_key(hidden, membership, own, member, own),
                shamir.to_bytes(split[0][place]) + shamir.to_bytes(split[1][place]),
                membership.digest,
            )
            for place, member in enumerate(membership.members)
        ]

    @staticmethod
    def _random(hidden: Secrets, membership: Membership, what: str, needed: int) -> list[int]:
        return coefficients(hidden.sharing, needed - 1, what, membership.digest)

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {SHARES: ((len(request.get(MEMBERS, ())), SEALED), torch.uint8)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        self.count(replies, self.needed, "sent shares")
        senders = torch.tensor([reply.profile.id for reply in replies])
        return {**state, SENDERS: senders, SHARES: torch.stack([reply.message[SHARES] for reply in replies])}


class SurvivorExchange(_Step):
    """The survivors sign the list of survivors, so that the server cannot name others to others."""

    step = "survivors"
    egress = (Egress(SIGNED, "metrics", "the signature of the list of clients whose masked update was accepted"),)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        if SURVIVORS not in state:
            return Message({})
        return Message({**received(state, who), **noted(state, who), **some(state, SURVIVORS)})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        keyring, hidden = self.own(client, context)
        view = ClientView.of(request, context, self.inner.name, client, keyring, hidden)
        view.check_note(request[NOTE], hidden)
        survivors = checked_survivors(view, request[SURVIVORS], self.needed)
        return Message({SIGNED: octets(keyring.sign(view.membership.endorsement(survivors)))})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {SIGNED: ((SIGNATURE,), torch.uint8)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        self.count(replies, self.needed, "signed the list of survivors")
        signers = torch.tensor([reply.profile.id for reply in replies])
        return {**state, SIGNERS: signers, ENDORSED: torch.stack([reply.message[SIGNED] for reply in replies])}


class UnmaskExchange(_Step):
    """The survivors reveal the shares that remove the masks from the sum, and no others; the server finishes."""

    step = "unmask"
    egress = (
        Egress(REVEALED, "metrics", "of each client one share, by which masks are taken off the sum, and only off it"),
    )

    def __init__(self, inner: Exchange, settings: MaskSettings, most: int, masked: MaskedExchange) -> None:
        super().__init__(inner, settings, most)
        self.masked = masked

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        if SIGNERS not in state:
            return Message({})
        return Message({**received(state, who), **noted(state, who), **some(state, SURVIVORS, SIGNERS, ENDORSED)})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        keyring, hidden = self.own(client, context)
        view = ClientView.of(request, context, self.inner.name, client, keyring, hidden)
        view.check_note(request[NOTE], hidden)
        survivors = checked_survivors(view, request[SURVIVORS], self.needed)
        self._check_signers(view, survivors, request, keyring)
        rows = []
        for sender in view.senders:
            of_seed, of_key = view.opened(sender, hidden)
            rows.append(of_seed if sender in survivors else of_key)
        return Message({REVEALED: octet_rows(rows)})

    def _check_signers(self, view: ClientView, survivors: Sequence[int], request: Message, keyring: Keyring) -> None:
        """As many as the threshold must have signed this very list, this client among them."""
        signers, statement = request[SIGNERS].tolist(), view.membership.endorsement(survivors)
        if len(set(signers)) < len(signers) or not set(signers) <= set(survivors) or view.own not in signers:
            raise TamperedError("the list of those who signed names others than survivors, or leaves this one out")
        if len(signers) < self.needed:
            raise TamperedError("too few clients signed the list of survivors")
        for signer, signature in zip(signers, request[ENDORSED], strict=True):
            holder = view.membership.holders[view.membership.place(signer)]
            if not keyring.verify(holder, statement, bytes_of(signature)):
                raise TamperedError(f"client {signer} has not signed this list of survivors")

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {REVEALED: ((len(request.get(SENDERS, ())), shamir.BYTES), torch.uint8)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        membership, needed = self.membership(state, context), self.needed
        self.count(replies, needed, "helped to take the masks off")
        senders, survivors = state[SENDERS].tolist(), state[SURVIVORS].tolist()
        revealed = {membership.place(reply.profile.id) + 1: reply.message[REVEALED] for reply in replies}
        hidden = {
            sender: recovered(
                {x: bytes_of(rows[place]) for x, rows in revealed.items()}, needed, membership, sender, survivors
            )
            for place, sender in enumerate(senders)
        }
        total = vector_of(state[TOTAL]).copy()
        for survivor in survivors:
            total -= mask(self_seed(hidden[survivor], membership), len(total))
        anyone = next(reply.profile for reply in replies)
        asked = self.masked.request(state, anyone, context)
        assert asked is not None
        common = self.masked.digest(asked)
        for lost in sorted(set(senders) - set(survivors)):
            for survivor in survivors:
                public = membership.mask_key(survivor)
                seed = pair_seed(hidden[lost], public, membership, lost, survivor, common)
                add_signed(total, mask(seed, len(total)), survivor > lost)
        return self.masked.finished(without(state), total, anyone, len(survivors), context)


def recovered(
    shares: Mapping[int, bytes], needed: int, membership: Membership, member: int, survivors: Sequence[int]
) -> bytes:
    """A survivor's seed, or the masking key of a client that was lost, from shares of which some may be wrong."""
    known: dict[int, int] = {}
    for x, data in sorted(shares.items()):
        if int.from_bytes(data, "big") < shamir.PRIME:
            known[x] = shamir.from_bytes(data)
    survived = member in survivors
    for chosen in islice(combinations(known.items(), needed), _TRIED):
        number = shamir.combine(dict(chosen))
        if number >= 2 ** (8 * KEY):
            continue
        secret = number.to_bytes(KEY, "big")
        if survived and commitment_to(secret) == membership.commitment(member):
            return secret
        if not survived and public_of(secret) == membership.mask_key(member):
            return secret
    what = "seed" if survived else "key"
    raise SkipRound(
        f"the shares of the {what} of client {member} do not fit what it sent before: someone sent wrong ones"
    )
