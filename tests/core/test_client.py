from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedstill.core.client import answer
from fedstill.core.dataset import ArrayDataset
from fedstill.core.egress import Egress, UndeclaredEgressError
from fedstill.core.message import Message
from fedstill.core.protocols import Abstain, Client, Exchange, Failure, Meter, Profile, Reply, RoundContext
from fedstill.core.streams import Streams

WHO = Profile(3, 4, "none")
TURN = RoundContext(0, 1, 1, "probe", Streams(0).at("round", 0, "probe"))


class Probe(Exchange):
    """An exchange whose reply is whatever a test says."""

    name = "probe"
    egress = (Egress("out/*", "metrics", "for the test"),)

    def __init__(self, act: Callable[[Client], Message]) -> None:
        self.act = act

    def request(self, state, who, context):
        return Message({})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        return self.act(client)

    def expect(self, state, who, request):
        return {}

    def aggregate(self, state, replies, context):
        return state


def factory(profile: Profile, state: dict, context: RoundContext) -> Client:
    data = ArrayDataset(inputs=torch.zeros(profile.samples, 1))
    return Client(profile, None, data, context.streams.at("client", profile.id), state)


def ask(act: Callable[[Client], Message], make=factory, who: Profile = WHO) -> Reply | Failure:
    return answer(make, Probe(act), who, Message({}), {"kept": torch.ones(1)}, TURN)


def sent(client: Client) -> Message:
    return Message({"out/x": torch.tensor(1.0)})


def test_a_reply_comes_with_state_and_work() -> None:
    def act(client: Client) -> Message:
        client.meter.add(10, 5)
        client.state = {**client.state, "more": torch.zeros(2)}
        return sent(client)

    reply = ask(act)
    assert isinstance(reply, Reply)
    assert reply.profile == WHO
    assert list(reply.message) == ["out/x"]
    assert set(reply.state) == {"kept", "more"}
    assert reply.work == 20.0


def test_a_client_that_abstains_is_not_a_fault() -> None:
    def act(client: Client) -> Message:
        client.meter.add(7)
        raise Abstain("one sample only")

    assert ask(act) == Failure(WHO, "abstained", "one sample only", 7.0)


@pytest.mark.parametrize("error", [ValueError("no such thing"), KeyError("x"), ZeroDivisionError(), RuntimeError("?")])
def test_a_client_that_fails_is_lost_with_its_reason_and_work(error: Exception) -> None:
    def act(client: Client) -> Message:
        client.meter.add(2, 2)
        raise error

    lost = ask(act)
    assert isinstance(lost, Failure)
    assert lost.reason == "failed"
    assert lost.detail == f"{type(error).__name__}: {error}"
    assert lost.work == 6.0


def test_a_client_that_cannot_be_made_has_failed_too() -> None:
    def broken(profile, state, context):
        raise OSError("its disk is gone")

    assert ask(sent, make=broken) == Failure(WHO, "failed", "OSError: its disk is gone", 0.0)


def test_an_undeclared_tensor_is_not_sent_and_stops_the_run() -> None:
    def act(client: Client) -> Message:
        return Message({"out/x": torch.ones(1), "labels": torch.ones(1)})

    with pytest.raises(UndeclaredEgressError, match="'labels'"):
        ask(act)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_person_at_the_keyboard_is_not_a_failing_client(error: type[BaseException]) -> None:
    def act(client: Client) -> Message:
        raise error

    with pytest.raises(error):
        ask(act)


def test_ambient_randomness_is_the_clients_own() -> None:
    def act(client: Client) -> Message:
        return Message({"out/x": torch.rand(3)})

    torch.manual_seed(0)
    first = ask(act).message["out/x"]
    torch.manual_seed(1)
    before = torch.default_generator.get_state()
    assert torch.equal(ask(act).message["out/x"], first)
    assert torch.equal(torch.default_generator.get_state(), before)
    other = ask(act, who=Profile(4, 4, "none")).message["out/x"]
    assert not torch.equal(other, first)


def test_the_generator_is_put_back_after_a_failure() -> None:
    def act(client: Client) -> Message:
        torch.rand(3)
        raise ValueError

    before = torch.default_generator.get_state()
    ask(act)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_work_by_hand() -> None:
    """A backward pass costs two forward ones: 3 + 4 forward and 2 backward make 11."""
    meter = Meter()
    meter.add(3, 2)
    meter.add(4)
    assert meter.work == 11.0
