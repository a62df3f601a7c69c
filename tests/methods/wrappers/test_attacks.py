"""The attack simulator: who attacks, what is changed and what is not, and which method survives what."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.client import answer
from fedstill.core.dataset import ArrayDataset, Proxy
from fedstill.core.errors import InputError
from fedstill.core.kinds import COUNTERS
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Engine, Exchange, Method, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.engines import InProcess
from fedstill.methods import methods
from fedstill.methods.wrappers.attacks import ByClients
from fedstill.methods.wrappers.choices import NoAttack, attacks
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import Plan
from fedstill.runtime.reply_validation import validate_reply
from fedstill.runtime.run import execute
from fedstill.tasks.classification import Classification

TASK = Classification(("a", "b", "c"), (1, 8, 8), ("cnn-bn",))
TURN = RoundContext(0, 1, 5, "train", Streams(1).at("round", 0, "train"))
WHO = Profile(2, 20, "cnn-bn")
KINDS = [name for name in attacks.names() if name != "none"]
TAMPERING = [name for name in KINDS if name != "label-flip"]


def shard() -> ArrayDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, 1, 8, 8, generator=generator)
    return ArrayDataset(inputs=inputs, labels=torch.randint(3, (20,), generator=generator))


PROXY = Proxy(shard().unlabelled(), "ab" * 32)


def made(name: str) -> Method:
    kind = methods[name]
    training = Training(epochs=1, batch=10, momentum=0.0 if name == "scaffold" else 0.9)
    own: dict[str, Any] = {"selection": None} if "selection" in kind.Options.model_fields else {}
    if name == "fed3d":
        own["share"] = "all"  # it is a detector that it freezes a part of
    return kind(kind.Options(**own), TASK, training, *([{"shared samples": PROXY}] if kind.wants else []))


def exchange_of(name: str, attack: str, server: Tensors, **settings: Any) -> Exchange:
    around = attacks[attack](clients=[WHO.id], **settings).around(made(name), 5, Streams(1))
    return around.exchanges(server, 0)[0]


def answers(name: str, attack: str, who: Profile = WHO, **settings: Any) -> tuple[Message, Message, Message]:
    """What was asked, the honest reply to it, and the attacker's."""
    method = made(name)
    server = method.start(Streams(1))
    request = method.request(server, who, TURN)
    assert request is not None
    found = []
    for exchange in (method, exchange_of(name, attack, server, **settings)):
        outcome = answer(client, exchange, who, request, {}, TURN)
        assert isinstance(outcome, Reply), outcome
        found.append(outcome.message)
    return request, found[0], found[1]


def client(profile: Profile, state: Tensors, context: RoundContext) -> Client:
    return Client(profile, TASK, shard(), context.streams.at("client", profile.id), state, proxy=PROXY)


# -- what an attacker sends


@pytest.mark.parametrize(("attack", "factor"), [("sign-flip", -5.0), ("huge", 1e6)])
def test_updates_by_hand(attack: str, factor: float) -> None:
    """Sent 2, trained to 3: an update of 1. Flipped five times it is 2 - 5 = -3; a million times, 1,000,002."""
    request, reply = (Message({"model/parameters/w": torch.tensor([value])}) for value in (2.0, 3.0))
    sent = attacks[attack]().tamper(request, reply, Streams(0))
    assert sent["model/parameters/w"].tolist() == [2 + factor]


@pytest.mark.parametrize(("attack", "factor"), [("sign-flip", -5.0), ("huge", 1e6)])
def test_weights_and_statistics_are_moved_about_what_was_sent(attack: str, factor: float) -> None:
    request, honest, sent = answers("fedavg", attack)
    for name in (name for name in request if not name.startswith("model/" + COUNTERS)):
        expected = request[name].double() + factor * (honest[name].double() - request[name].double())
        assert torch.equal(sent[name], expected.to(honest[name].dtype)), name


def test_the_scale_can_be_set() -> None:
    request, honest, sent = answers("fedavg", "sign-flip", scale=1.0)
    name = "model/parameters/" + next(iter(request.part("model/parameters/")))
    assert torch.allclose(sent[name], 2 * request[name] - honest[name], atol=1e-6)


def test_noise_has_the_scale_that_was_set_and_nothing_of_the_training() -> None:
    """Thousands of weights: the sample's standard deviation is within 5 % of 0.5, its mean within 0.05 of zero."""
    request, _, sent = answers("fedavg", "noise", scale=0.5)
    away = torch.cat([(sent[name] - request[name]).flatten() for name in request if "parameters/" in name])
    assert len(away) > 2000
    assert float(away.std()) == pytest.approx(0.5, rel=0.05)
    assert abs(float(away.mean())) < 0.05
    trained_otherwise = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in sent.items()}
    streams = TURN.streams.at("client", WHO.id, "attack")
    again = attacks["noise"](scale=0.5).tamper(request, Message(trained_otherwise), streams)
    assert all(torch.equal(again[name], sent[name]) for name in request)


def test_noise_differs_between_clients_rounds_and_tensors() -> None:
    request = Message({"model/parameters/a": torch.zeros(4), "model/parameters/b": torch.zeros(4)})
    draws = [
        attacks["noise"]().tamper(request, request, Streams(0).at("round", round, "client", who, "attack"))[name]
        for round in (0, 1)
        for who in (0, 1)
        for name in request
    ]
    assert len({tuple(draw.tolist()) for draw in draws}) == 8


def test_scaffolds_control_is_a_change_already() -> None:
    """c_i+ - c_i is sent, so its flip is -5 times that, whatever c the request held: a change of 2 becomes -10."""
    request, reply = (Message({"control/w": torch.tensor([value])}) for value in (7.0, 2.0))
    assert attacks["sign-flip"]().tamper(request, reply, Streams(0))["control/w"].tolist() == [-10]
    _, honest, sent = answers("scaffold", "sign-flip")
    controls = honest.part("control/")
    assert controls
    assert all(torch.allclose(sent["control/" + name], -5 * tensor) for name, tensor in controls.items())


@pytest.mark.parametrize("name", ["head/parameters/w", "small_head/parameters/w"])
def test_weights_beside_the_model_are_moved_about_what_was_sent_too(name: str) -> None:
    """PFNM's and FedGKT's heads are sent whole: from 2 trained to 3, flipped it is 2 - 5 = -3, and not -15."""
    request, reply = (Message({name: torch.tensor([value])}) for value in (2.0, 3.0))
    assert attacks["sign-flip"]().tamper(request, reply, Streams(0))[name].tolist() == [-3]


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "scaffold", "fednova", "local-only"])
@pytest.mark.parametrize("attack", KINDS)
def test_what_is_sent_looks_like_what_was_asked_for(attack: str, method: str) -> None:
    """Names, shapes and types stay; counters and metrics are the attacker's own; only `nan` is refused."""
    request, honest, sent = answers(method, attack)
    inner = made(method)
    server = inner.start(Streams(1))
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in sent.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in honest.items()
    }
    if attack != "label-flip":
        kept = [name for name in honest if name not in request or not honest[name].is_floating_point()]
        assert {"steps", "loss/cross-entropy"} <= set(kept)
        assert all(torch.equal(sent[name], honest[name]) for name in kept)
    wrong = validate_reply(sent, request, inner.expect(server, WHO, request))
    refused = attack == "nan" and method != "local-only"
    assert wrong is None or (refused and "not finite" in wrong)
    assert (wrong is not None) == refused


@pytest.mark.parametrize("method", [name for name in methods.names() if not methods[name].pooled])
@pytest.mark.parametrize("attack", TAMPERING)
def test_every_method_can_be_attacked(attack: str, method: str) -> None:
    """The attacker's model is not the honest one; only methods that send no model have nothing to tamper with."""
    request, honest, sent = answers(method, attack)
    changed = [name for name in honest if not torch.equal(sent[name], honest[name])]
    weights = [name for name in request if name.startswith("model/parameters/") and name in honest]
    assert set(weights) <= set(changed)
    assert bool(weights) == (method not in ("local-only", "fedmd"))
    assert ("logits" in honest) == ("logits" in changed) == (method in ("feddf", "fedgkt", "fedmd", "single-image"))


@pytest.mark.parametrize("attack", KINDS)
def test_everybody_else_behaves_to_the_bit(attack: str) -> None:
    _, honest, sent = answers("fedavg", attack, who=Profile(3, 20, "cnn-bn"))
    assert sent.encode() == honest.encode()


@pytest.mark.parametrize("attack", KINDS)
def test_an_attacked_exchange_travels_to_workers(attack: str) -> None:
    exchange = exchange_of("fedavg", attack, made("fedavg").start(Streams(1)))
    again = pickle.loads(pickle.dumps(exchange))
    request = made("fedavg").request(made("fedavg").start(Streams(1)), WHO, TURN)
    one, other = (answer(client, each, WHO, request, {}, TURN).message.encode() for each in (exchange, again))
    assert one == other


# -- label flipping


def test_labels_are_reversed_or_shifted() -> None:
    """Three classes: 0, 1, 2 become 2, 1, 0; shifted by one 1, 2, 0; shifted by five as by two: 2, 0, 1."""
    data = ArrayDataset(inputs=torch.zeros(3, 1), labels=torch.tensor([0, 1, 2]))
    for shift, expected in ((None, [2, 1, 0]), (1, [1, 2, 0]), (5, [2, 0, 1])):
        victim = Client(WHO, TASK, data, Streams(0))
        attacks["label-flip"](shift=shift).corrupt(victim)
        assert victim.data.labels().tolist() == expected
        assert victim.data.batch(torch.tensor([2, 0]))["labels"].tolist() == [expected[2], expected[0]]
    assert data.labels().tolist() == [0, 1, 2]


def test_a_label_flipper_does_as_much_work_and_learns_something_else() -> None:
    _, honest, sent = answers("fedavg", "label-flip")
    assert sent["steps"].item() == honest["steps"].item()
    weights = [name for name in honest if name.startswith("model/parameters/")]
    assert not any(torch.equal(sent[name], honest[name]) for name in weights)


@pytest.mark.parametrize("shift", [3, 6])
def test_a_shift_that_changes_nothing_is_refused(shift: int) -> None:
    with pytest.raises(InputError, match=f"attack.shift is {shift}"):
        attacks["label-flip"](shift=shift).around(made("fedavg"), 5, Streams(0))


# -- who attacks


def attackers(clients: int = 10, seed: int = 0, **settings: Any) -> frozenset[int]:
    return attacks["sign-flip"](**settings).attackers(clients, Streams(seed))


def test_a_share_is_drawn_once_from_a_stream_of_its_own() -> None:
    assert len(attackers()) == 2
    assert attackers() == attackers()
    assert attackers() == {int(who) for who in Streams(0).draw("attackers").permutation(10)[:2]}
    assert len({attackers(seed=seed) for seed in range(10)}) > 3
    assert attackers(share=0.2) < attackers(share=0.5)
    assert [len(attackers(clients=clients, share=0.3)) for clients in (1, 2, 5, 10)] == [1, 1, 2, 3]
    assert attackers(share=0.0) == frozenset()
    assert attackers(share=1.0) == frozenset(range(10))


def test_every_attack_has_the_same_attackers() -> None:
    drawn = {attacks[name]().attackers(10, Streams(4)) for name in KINDS}
    assert len(drawn) == 1


def test_attackers_by_name() -> None:
    assert attackers(clients=10) == attackers(share=0.2)
    named = attacks["sign-flip"](clients=[7, 1, 7])
    assert named.attackers(8, Streams(0)) == {1, 7}
    with pytest.raises(InputError, match=r"names client 7, but the last of 7 is 6"):
        named.attackers(7, Streams(0))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"share": 0.2, "clients": [1]}, "give either share or clients"),
        ({"share": 1.5}, "attack.share"),
        ({"share": -0.1}, "attack.share"),
        ({"clients": [-1]}, "attack.clients"),
        ({"scale": 0}, "attack.scale"),
        ({"scale": float("inf")}, "attack.scale"),
        ({"strength": 2}, "unknown setting 'attack.strength'"),
    ],
    ids=["both", "over-one", "below-zero", "negative-id", "no-scale", "infinite-scale", "unknown"],
)
def test_bad_settings_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint.replace(".", r"\.")):
        make_experiment({"method": "fedavg", "attack": {"name": "sign-flip", **given}})


def test_ids_outside_are_refused_before_any_work(tiny_plan: Any) -> None:
    with pytest.raises(InputError, match=r"attack\.clients names client 5"):
        tiny_plan(attack={"name": "nan", "clients": [5]})


@pytest.mark.parametrize("name", KINDS)
def test_settings_survive_being_written_down(name: str) -> None:
    experiment = make_experiment({"method": "fedavg", "attack": name})
    written = experiment.model_dump(mode="json")
    assert written["attack"]["share"] == 0.2
    assert make_experiment(written) == experiment
    named = make_experiment({"method": "fedavg", "attack": {"name": name, "clients": [0, 3]}})
    assert make_experiment(named.model_dump(mode="json")) == named
    assert named.digest("data") != experiment.digest("data")


def test_no_attack_wraps_nothing() -> None:
    method = made("fedavg")
    assert NoAttack().around(method, 5, Streams(0)) is method
    assert all(issubclass(attacks[name], ByClients) for name in KINDS)
    assert set(KINDS) == {"huge", "label-flip", "nan", "noise", "sign-flip"}


# -- what survives what


@pytest.mark.parametrize("method", ["scaffold", "trimmed-mean"])
@pytest.mark.parametrize("attack", ["noise", "label-flip"])
def test_attacks_have_the_same_bits_in_every_engine(
    method: str, attack: str, tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path
) -> None:
    few = "digits[:30%]"
    plan = tiny_plan(data=few, method=method, attack={"name": attack, "share": 0.4}, model="cnn-bn", rounds=2)
    found = []
    for name in ("in-process", "wire", "processes-2"):
        run = execute(plan, engines[name], tmp_path / name)
        found.append([(run.path / file).read_bytes() for file in ("checkpoint.safetensors", "journal.jsonl")])
    assert found[1] == found[0]
    assert found[2] == found[0]


# Accuracy on the digits after four rounds is near 0.9 without an attack, 0.1 is chance. How far below its own
# unattacked accuracy a method may end, by attack; None: it must have lost half of it or more.
MARGINS: dict[str, dict[str, float | None]] = {
    "fedavg": {"sign-flip": None, "huge": None},
    "fedmedian": {"sign-flip": 0.06, "huge": 0.03},
    "trimmed-mean": {"sign-flip": 0.06, "huge": 0.03},
    "krum": {"sign-flip": 0.06, "huge": 0.06},
    "multi-krum": {"sign-flip": 0.03, "huge": 0.03},
    # Clipping bounds what a liar does and keeps it in the mean: it slows learning down.
    "clipped-mean": {"sign-flip": 0.15, "huge": 0.03},
}


def digits(tiny_plan: Any, method: Any, attack: Any) -> Plan:
    return tiny_plan(
        method=method,
        attack=attack,
        model="mlp",
        clients=10,
        rounds=4,
        seed=3,
        evaluate_every=4,
        training={"epochs": 3, "batch": 64},
    )


def last_accuracy(plan: Plan, out: Path) -> float:
    return float(execute(plan, InProcess(), out).journal()[-1].metrics["accuracy"])


@pytest.mark.parametrize("method", MARGINS)
def test_what_survives_two_attackers_of_ten(method: str, tiny_plan: Any, tmp_path: Path) -> None:
    quiet = last_accuracy(digits(tiny_plan, method, "none"), tmp_path)
    assert quiet > 0.8
    for attack, margin in MARGINS[method].items():
        attacked = last_accuracy(digits(tiny_plan, method, {"name": attack, "clients": [1, 4]}), tmp_path)
        if margin is None:
            assert attacked < quiet / 2, attack
        else:
            assert attacked > quiet - margin, attack


def test_what_is_not_a_number_is_refused_and_the_run_goes_on(tiny_plan: Any, tmp_path: Path) -> None:
    plan = digits(tiny_plan, "fedavg", {"name": "nan", "clients": [1, 4]})
    journal = execute(plan, InProcess(), tmp_path).journal()
    for record in journal:
        assert [(lost.client, lost.reason) for lost in record.failures] == [(1, "refused"), (4, "refused")]
        assert record.accepted == (0, 2, 3, 5, 6, 7, 8, 9)
    assert journal[-1].metrics["accuracy"] > 0.8


def test_running_statistics_are_no_side_door(tiny_plan: Any, tampered: Any, tmp_path: Path) -> None:
    """Two of seven send honest weights and variances of -1e4.

    In FedAvg the mean of the variances is negative and outputs are not numbers; the robust methods do not notice.
    """

    def poison(reply: Any, context: Any) -> Any:
        if reply.profile.id not in (1, 3):
            return None
        return {
            name: torch.full_like(tensor, -1e4) if name.endswith("running_var") else tensor
            for name, tensor in reply.message.items()
        }

    found = {}
    for name in ("fedavg", "trimmed-mean", "krum", "multi-krum", "clipped-mean"):
        method = {"name": name, **({"beta": 0.4} if name == "trimmed-mean" else {})}
        plan = tiny_plan(method=method, model="cnn-bn", rounds=2, evaluate_every=2, clients=7)
        found[name] = execute(plan, tampered(InProcess(), poison), tmp_path).journal()[-1].metrics
    assert found.pop("fedavg")["non_finite"] > 0.5
    assert [metrics["non_finite"] for metrics in found.values()] == [0, 0, 0, 0]
    assert np.mean([metrics["accuracy"] for metrics in found.values()]) > 0.2
