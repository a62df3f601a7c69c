"""Who is in a masked sum: keys, secrets and shares, and what a client checks of what it is sent of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hmac import compare_digest

import torch
from torch import Tensor

from fedstill.core.errors import RunError
from fedstill.core.keyring import Keyring
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Profile, RoundContext
from fedstill.core.task import Tensors
from fedstill.methods.secure import shamir
from fedstill.methods.secure.primitives import KEY, SEAL, agreed, derived, digest_of, labelled, public_of, unseal
from fedstill.methods.secure.summed_exchange import OWN

KEYS, HOLDER, SIGNED = OWN + "keys", OWN + "holder", OWN + "signature"
MEMBERS, HOLDERS, SIGNATURES = OWN + "members", OWN + "holders", OWN + "signatures"
SENDERS, SHARES = OWN + "senders", OWN + "shares"
NOTE, NOTES, FIRST = OWN + "note", OWN + "notes", OWN + "first"
SURVIVORS, SIGNERS, ENDORSED, REVEALED = OWN + "survivors", OWN + "signers", OWN + "endorsed", OWN + "revealed"
TOTAL = OWN + "total"
KEYS_BYTES = 3 * KEY  # two public keys and a commitment
SEALED = 2 * shamir.BYTES + SEAL


class TamperedError(RunError):
    """What the server sent does not fit together, so that this client does not go on."""


@dataclass(frozen=True)
class Membership:
    """Who takes part in one sum, and with which keys: with others, nothing can be opened that is sealed."""

    round: int
    exchange: str
    members: tuple[int, ...]
    holders: tuple[int, ...]
    keys: tuple[bytes, ...]

    @classmethod
    def of(cls, tensors: Tensors, context: RoundContext, exchange: str) -> Membership:
        members, holders = (tuple(numbers(tensors[name])) for name in (MEMBERS, HOLDERS))
        keys = tuple(map(bytes_of, tensors[KEYS]))
        if not len(members) == len(holders) == len(keys) or {len(key) for key in keys} != {KEYS_BYTES}:
            raise TamperedError("the list of clients is not complete")
        if list(members) != sorted(set(members)) or len(set(holders)) < len(holders):
            raise TamperedError("the list of clients names one of them twice")
        return cls(context.round, exchange, members, holders, keys)

    @property
    def digest(self) -> bytes:
        return digest_of(labelled("members", self.round, self.exchange, self.members, self.holders), *self.keys)

    def place(self, member: int) -> int:
        if member not in self.members:
            raise TamperedError(f"client {member} is not among those that sent keys")
        return self.members.index(member)

    def sealing_key(self, member: int) -> bytes:
        return self.keys[self.place(member)][:KEY]

    def mask_key(self, member: int) -> bytes:
        return self.keys[self.place(member)][KEY : 2 * KEY]

    def commitment(self, member: int) -> bytes:
        return self.keys[self.place(member)][2 * KEY :]

    def statement(self, member: int) -> bytes:
        """What a member signs of its keys."""
        place = self.place(member)
        return keys_statement(self.round, self.exchange, member, self.holders[place], self.keys[place])

    def endorsement(self, survivors: Sequence[int]) -> bytes:
        """What survivors sign of their list."""
        return labelled("survivors", self.digest, list(survivors))


def keys_statement(round: int, exchange: str, member: int, holder: int, keys: bytes) -> bytes:
    return labelled("keys", round, exchange, member, holder, keys)


@dataclass(frozen=True)
class Secrets:
    """What a client has for one sum."""

    sealing: bytes
    masking: bytes
    seed: bytes
    sharing: bytes

    @classmethod
    def of(cls, keyring: Keyring, round: int, exchange: str) -> Secrets:
        return cls(*(keyring.secret(round, exchange, what) for what in ("sealing", "masking", "seed", "sharing")))

    @property
    def keys(self) -> bytes:
        return public_of(self.sealing) + public_of(self.masking) + commitment_to(self.seed)


def commitment_to(seed: bytes) -> bytes:
    return digest_of(b"seed", seed)


def pair_key(hidden: Secrets, membership: Membership, sender: int, receiver: int, own: int) -> bytes:
    """The key under which one member seals shares for another."""
    other = receiver if sender == own else sender
    secret = agreed(hidden.sealing, membership.sealing_key(other))
    return derived(secret, "shares", membership.digest, sender, receiver)


def pair_seed(private: bytes, public: bytes, membership: Membership, one: int, other: int, request: bytes) -> bytes:
    """The seed of the mask that two members share, if they were sent the same."""
    secret = agreed(private, public)
    return derived(secret, "mask", membership.digest, min(one, other), max(one, other), request)


def self_seed(seed: bytes, membership: Membership) -> bytes:
    return derived(seed, "own mask", membership.digest)


def received(state: Tensors, who: Profile) -> dict[str, Tensor]:
    """What every later request contains: the members, those who sent shares, and the shares for this client."""
    place = state[MEMBERS].tolist().index(who.id)
    return {**some(state, MEMBERS, HOLDERS, KEYS, SENDERS), SHARES: state[SHARES][:, place].contiguous()}


@dataclass(frozen=True)
class ClientView:
    """What a client was sent, checked against what it agreed to when it sent its shares."""

    own: int
    membership: Membership
    senders: tuple[int, ...]
    shares: Mapping[int, bytes]  # sealed, by sender

    @classmethod
    def of(
        cls, request: Message, context: RoundContext, exchange: str, client: Client, keyring: Keyring, hidden: Secrets
    ) -> ClientView:
        membership, own = Membership.of(request, context, exchange), client.profile.id
        check_own(membership, own, keyring, hidden)
        senders = tuple(numbers(request[SENDERS]))
        if list(senders) != sorted(set(senders)) or not set(senders) <= set(membership.members):
            raise TamperedError("the list of clients that sent shares is wrong")
        if own not in senders or len(request[SHARES]) != len(senders):
            raise TamperedError("the shares of this client are not among those that it was sent")
        view = cls(own, membership, senders, dict(zip(senders, map(bytes_of, request[SHARES]), strict=True)))
        view.opened(own, hidden)  # sealed by itself: it has agreed to these members and keys, and no others
        return view

    def opened(self, sender: int, hidden: Secrets) -> tuple[bytes, bytes]:
        """A sender's shares for this client: of its seed, and of its key."""
        key = pair_key(hidden, self.membership, sender, self.own, self.own)
        try:
            text = unseal(key, self.shares[sender], self.membership.digest)
        except ValueError as error:
            raise TamperedError(f"the shares of client {sender}: {error}") from None
        return text[: shamir.BYTES], text[shamir.BYTES :]

    def note(self, hidden: Secrets) -> bytes:
        """What a client sends with its masked update, and no other can make: with whom it shares its masks."""
        return derived(hidden.sharing, "note", self.membership.digest, self.senders)

    def check_note(self, note: Tensor, hidden: Secrets) -> None:
        """Refuse others than those with whom this client masked its update.

        A server could name strangers as senders when the update is masked, and later have their keys revealed, as those
        of clients that were lost: no mask would be left.
        """
        if not compare_digest(bytes_of(note), self.note(hidden)):
            raise TamperedError("this client did not mask its update with the clients that the server names now")


def check_own(membership: Membership, own: int, keyring: Keyring, hidden: Secrets) -> None:
    place = membership.place(own)
    if membership.keys[place] != hidden.keys or membership.holders[place] != keyring.holder:
        raise TamperedError("the list of clients has other keys of this one than it sent")


def checked_survivors(view: ClientView, named: Tensor, needed: int) -> list[int]:
    """The list of survivors, if a client can agree to it."""
    survivors = numbers(named)
    if survivors != sorted(set(survivors)) or not set(survivors) <= set(view.senders) or view.own not in survivors:
        raise TamperedError("the list of survivors names clients that sent no shares, or leaves this one out")
    if len(survivors) < needed:
        raise TamperedError(f"{len(survivors)} clients would be in the sum, and {needed} are needed")
    return survivors


def without(state: Tensors) -> dict[str, Tensor]:
    """The server's state without what the protocol keeps in it during a round."""
    facts = OWN + "facts/"
    return {name: one for name, one in state.items() if not name.startswith(OWN) or name.startswith(facts)}


def noted(state: Tensors, who: Profile) -> dict[str, Tensor]:
    """The note that came with this client's masked update."""
    place = state[SURVIVORS].tolist().index(who.id)
    return {NOTE: state[NOTES][place].contiguous()}


def numbers(tensor: Tensor) -> list[int]:
    """A list of whole numbers: others that compare equal to them would be signed as another list."""
    if tensor.dtype != torch.int64 or tensor.dim() != 1:
        raise TamperedError("a list of clients is no list of whole numbers")
    found: list[int] = tensor.tolist()
    return found


def some(tensors: Tensors, *names: str) -> dict[str, Tensor]:
    return {name: tensors[name] for name in names if name in tensors}


def octets(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def octet_rows(rows: Sequence[bytes]) -> Tensor:
    return torch.stack([octets(row) for row in rows])


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()
