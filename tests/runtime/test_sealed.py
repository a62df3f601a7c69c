"""What is sealed comes back as it was, and anything else is noticed."""

from __future__ import annotations

import pytest
import torch

from fedstill.core.message import Message, MessageError
from fedstill.runtime.sealed import sealed, unsealed


def test_tensors_and_facts_come_back() -> None:
    tensors, facts = unsealed(sealed({"server/w": torch.arange(3)}, '{"round": 2, "score": 0.1}'))
    assert list(tensors) == ["server/w"]
    assert tensors["server/w"].tolist() == [0, 1, 2]
    assert facts == {"round": 2, "score": 0.1}


@pytest.mark.parametrize("changed", ["server/w", "facts", "digest"])
def test_a_changed_tensor_a_changed_fact_and_a_missing_digest_are_noticed(changed: str) -> None:
    message = dict(sealed({"server/w": torch.arange(3)}, '{"round": 2}'))
    if changed == "digest":
        del message["digest"]
    else:
        message[changed] = message[changed].flip(0)
    with pytest.raises(MessageError, match="do not match its digest"):
        unsealed(Message(message))
