from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.client import answer
from fedstill.core.dataset import ArrayDataset, Dataset
from fedstill.core.message import Message, digest, part, under
from fedstill.core.protocols import Client, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.data.point_labels import shape_kinds
from fedstill.data.splits import split_validation
from fedstill.methods.fedavg import FedAvg, FedAvgSettings
from fedstill.methods.local_only import Best, LocalOnly, LocalSettings, held_out
from fedstill.tasks.classification import Classification

TASK = Classification(("a", "b", "c"), (1, 8, 8), ("cnn-bn",))
TRAINING = Training(epochs=2, batch=6)
METHOD = LocalOnly(LocalSettings(), TASK, TRAINING)
WHO = Profile(1, 13, "cnn-bn")
SERVER = METHOD.start(Streams(0))


def context(round: int) -> RoundContext:
    return RoundContext(round, 3, 2, "train", Streams(0).at("round", round, "train"))


def shard() -> ArrayDataset:
    generator = torch.Generator().manual_seed(1)
    return ArrayDataset(
        inputs=torch.randn(13, 1, 8, 8, generator=generator), labels=torch.randint(3, (13,), generator=generator)
    )


def make(profile: Profile, state: Tensors, now: RoundContext) -> Client:
    return Client(profile, TASK, shard(), now.streams.at("client", profile.id), state)


def ask(round: int, who: Profile, state: Tensors) -> Reply:
    reply = answer(make, METHOD, who, METHOD.request(SERVER, who, context(round)), state, context(round))
    assert isinstance(reply, Reply)
    return reply


def test_no_weights_leave_a_client() -> None:
    reply = ask(0, WHO, {})
    assert set(reply.message) == {"steps", "loss/cross-entropy"}
    assert reply.message["steps"].item() == 4  # 13 rows by sixes: 6 + 6 + 1, the last skipped, twice
    assert all(line.kind == "metrics" for line in METHOD.egress)
    expected = METHOD.expect(SERVER, WHO, Message({}))
    assert {name: (tuple(t.shape), t.dtype) for name, t in reply.message.items()} == dict(expected)


def test_only_a_first_contact_is_sent_the_model() -> None:
    first = METHOD.request(SERVER, WHO, context(0))
    assert digest(first.part("model/")) == digest(part(SERVER, "start/cnn-bn/"))
    assert len(METHOD.request(SERVER, replace(WHO, last_round=0), context(1))) == 0


def test_a_late_first_contact_is_sent_the_model_too() -> None:
    assert len(METHOD.request(SERVER, WHO, context(2))) == len(METHOD.request(SERVER, WHO, context(0))) > 0


def test_a_client_goes_on_from_its_own_model() -> None:
    first = ask(0, WHO, {})
    second = ask(1, replace(WHO, last_round=0), first.state)
    assert digest(first.state) != digest(second.state)
    restarted = ask(1, WHO, {})
    assert digest(restarted.state) != digest(second.state)


def test_a_client_whose_first_reply_was_lost_starts_again_from_the_shared_start() -> None:
    """Its state was not committed and `since` is still None: round 1 must look like a first contact in round 1."""
    ask(0, WHO, {})  # lost on the way
    again = ask(1, WHO, {})
    fresh = ask(1, Profile(1, 13, "cnn-bn"), {})
    assert digest(again.state) == digest(fresh.state)


def test_a_client_that_lost_a_later_reply_goes_on_from_what_was_committed() -> None:
    committed = ask(0, WHO, {}).state
    known = replace(WHO, last_round=0)
    ask(1, known, committed)  # lost
    again = ask(2, known, committed)
    model = TASK.build("cnn-bn", part(committed, "model/"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert digest(again.state) != digest(committed)
    assert int(again.state["model/counters/extractor.2.num_batches_tracked"]) == 8
    assert int(before["extractor.2.num_batches_tracked"]) == 4


def test_the_given_state_is_replaced_not_changed() -> None:
    committed = ask(0, WHO, {}).state
    before = digest(committed)
    ask(1, replace(WHO, last_round=0), committed)
    assert digest(committed) == before


def test_the_first_round_is_fedavgs_local_training() -> None:
    """Same start, same streams, same data: what the client keeps is what FedAvg's client would send."""
    fedavg = FedAvg(FedAvgSettings(), TASK, TRAINING)
    server = fedavg.start(Streams(0))
    reply = answer(make, fedavg, WHO, fedavg.request(server, WHO, context(0)), {}, context(0))
    assert digest(under("model/", reply.message.part("model/"))) == digest(ask(0, WHO, {}).state)


def test_the_server_keeps_only_the_start() -> None:
    assert METHOD.aggregate(SERVER, [ask(0, WHO, {})], context(0)) is SERVER
    assert METHOD.models(SERVER) == {}


def test_the_personal_model_is_the_clients_own() -> None:
    state = ask(0, WHO, {}).state
    assert digest(METHOD.personalise({}, state)) == digest(part(state, "model/"))
    assert METHOD.personalise({}, {}) is None


def test_every_architecture_in_play_has_its_start() -> None:
    task = Classification(("a", "b"), (1, 8, 8), ("mlp", "cnn"))
    method = LocalOnly(LocalSettings(), task, TRAINING)
    server = method.start(Streams(0))
    for architecture in ("mlp", "cnn"):
        request = method.request(server, Profile(0, 5, architecture), context(0))
        task.build(architecture, request.part("model/"))
    assert {name.split("/")[1] for name in server} == {"mlp", "cnn"}


@pytest.mark.parametrize("keep", [True, False])
def test_kept_moments_are_part_of_the_clients_state(keep: bool) -> None:
    method = LocalOnly(LocalSettings(), TASK, Training(epochs=1, batch=6, keep_optimiser=keep))
    reply = answer(make, method, WHO, method.request(SERVER, WHO, context(0)), {}, context(0))
    assert any(name.startswith("optimiser/") for name in reply.state) == keep
    assert not any(name.startswith("optimiser/") for name in method.personalise({}, reply.state))


def test_what_is_held_out_is_never_trained_on() -> None:
    """The same samples are apart in every round, and they are those that the first round's own stream draws."""
    apart = []
    for round in range(3):
        client = make(WHO, {}, context(round))
        data, held = held_out(client, 0.3)
        both = [set(one.batch(torch.arange(len(one)))["sample_id"].tolist()) for one in (data, held)]
        assert not both[0] & both[1]
        assert len(both[0] | both[1]) == 13
        apart.append(both[1])
    assert apart[0] == apart[1] == apart[2] != set()
    first = make(WHO, {}, context(0))
    _, rows = split_validation(shape_kinds(first.data), 0.3, first.streams.at("hold-out"), may_be_empty=True)
    assert apart[0] == set(rows.tolist())


def test_of_equally_accurate_epochs_the_surest_is_kept() -> None:
    """One sample apart, always right, loss 0.9, 0.5, 0.7, 0.6: with patience 2 the second is kept and the fourth ends
    it; a rule of accuracy alone would have kept the first and stopped after the third."""
    losses = iter([0.9, 0.5, 0.7, 0.6])

    class Told(Classification):
        def score(self, models: Sequence[nn.Module], data: Dataset) -> Mapping[str, Tensor]:
            return {}

        def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
            return {"accuracy": 1.0, "loss": next(losses)}

    client = replace(make(WHO, {}, context(0)), task=Told(TASK.classes, TASK.shape, TASK.architectures))
    model = nn.Linear(1, 1)
    best = Best(client, model, shard(), patience=2)
    seen = []
    for epoch in range(4):
        nn.init.constant_(model.weight, epoch)
        seen.append(best.stop())
    assert seen == [False, False, False, True]
    assert [float(tensor) for name, tensor in best.state.items() if name.endswith("weight")] == [1.0]
