from __future__ import annotations

import pytest
import torch

from fedstill.core.egress import Egress, UndeclaredEgressError, check_egress
from fedstill.core.errors import RunError
from fedstill.core.message import Message

DECLARED = (Egress("model/*", "parameters", "weights"), Egress("steps", "metrics", "work"))


def sent(*names: str) -> Message:
    return Message({name: torch.zeros(1) for name in names})


@pytest.mark.parametrize("names", [(), ("steps",), ("model/w", "model/deep/er.weight", "steps")])
def test_declared_names_may_leave(names: tuple[str, ...]) -> None:
    check_egress(sent(*names), DECLARED, "train")


@pytest.mark.parametrize("name", ["labels", "model", "models/w", "Model/w", "steps2", "my/model/w", "STEPS", "step"])
def test_anything_else_may_not(name: str) -> None:
    with pytest.raises(UndeclaredEgressError) as caught:
        check_egress(sent("steps", name), DECLARED, "train")
    text = str(caught.value)
    assert repr(name) in text
    assert "'train'" in text
    assert "model/*, steps" in text
    assert "\n" not in text


def test_nothing_declared_lets_nothing_out() -> None:
    check_egress(sent(), (), "silent")
    with pytest.raises(UndeclaredEgressError, match="declared: nothing"):
        check_egress(sent("x"), (), "silent")


def test_one_declared_tensor_does_not_let_another_out() -> None:
    with pytest.raises(UndeclaredEgressError, match="'secret'"):
        check_egress(sent("model/w", "secret"), DECLARED, "train")


def test_the_receiver_is_the_server_unless_said_otherwise() -> None:
    assert Egress("x", "logits", "why").to == "server"


def test_an_undeclared_egress_is_a_failure_while_running() -> None:
    assert issubclass(UndeclaredEgressError, RunError)
    assert UndeclaredEgressError.exit_code == 1
