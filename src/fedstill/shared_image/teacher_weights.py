"""How much each client's logits count in their average, the signal that the server's models are distilled towards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedstill.core.egress import Egress
from fedstill.core.protocols import Client, Reply
from fedstill.methods.base import LOGITS
from fedstill.methods.fedavg import weigh

TeacherWeighting = Literal["samples", "uniform", "confidence", "class-counts"]
CLASS_COUNTS = "class_counts"
COUNTS_EGRESS = Egress(
    CLASS_COUNTS, "labels", "how many of the client's training samples have each label", by_class=True
)


def consensus(replies: Sequence[Reply], weights: TeacherWeighting) -> Tensor:
    """The weighted mean of the clients' logits; summed in the order of their ids, in double precision.

    With `confidence` a client's weight for a proxy sample is its number of samples times its highest probability there.
    With `class-counts` its weight for a class is its number of samples of that class; a class that no client has is
    weighted by samples. Clients send log-probabilities, so that classes can be weighted apart.
    """
    total = torch.zeros(replies[0].message[LOGITS].shape, dtype=torch.float64)
    mass = torch.zeros_like(total)
    if weights in ("samples", "uniform"):
        counts = weigh(replies, "uniform" if weights == "uniform" else "samples")
        for count, reply in zip(counts, replies, strict=True):
            total += count * reply.message[LOGITS].double()
        return (total / sum(counts)).float()
    for weight, reply in zip(_by_element(replies, weights), replies, strict=True):
        total += weight * reply.message[LOGITS].double()
        mass += weight
    return (total / mass).float()


def _by_element(replies: Sequence[Reply], weights: TeacherWeighting) -> list[Tensor]:
    """A weight of each client for each proxy sample, or for each class."""
    samples = [float(reply.profile.samples) for reply in replies]
    if weights == "confidence":
        confidence = [reply.message[LOGITS].double().softmax(dim=1).amax(dim=1, keepdim=True) for reply in replies]
        return [count * one for count, one in zip(samples, confidence, strict=True)]
    counts = [reply.message[CLASS_COUNTS].double().clamp(min=0) for reply in replies]
    absent = torch.stack(counts).sum(dim=0) == 0
    return [torch.where(absent, count, held) for count, held in zip(samples, counts, strict=True)]


def class_counts_of(client: Client, classes: int) -> dict[str, Tensor]:
    """How many of a client's samples have each label, as it is sent."""
    labels = client.data.labels()
    assert labels is not None
    return {CLASS_COUNTS: torch.bincount(labels, minlength=classes)}
