"""A helper's significant parameters, and the boosted vote with the model from before."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import digest, part, under
from fedstill.core.protocols import Client, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.training import Training
from fedstill.queries.clue import Clue, ClueSettings, boosted
from fedstill.queries.transfer_loss import probe
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.tasks.classification import Classification

from .asked import MIXED, planned, played

CLASSES = 4
TASK = Classification(("a", "b", "c", "d"), (1, 8, 8), ("cnn-bn", "mlp"))
TURN = RoundContext(0, 1, 3, "transfer", Streams(0).at("round", 0, "transfer"))
NAMES = [name for name, _ in TASK.build("cnn-bn").named_parameters()]


def clue(**settings: Any) -> Clue:
    return Clue(ClueSettings(**settings), TASK, Training(batch=100))


def model(seed: int, architecture: str = "cnn-bn", bias: list[float] | None = None) -> Any:
    """Drawn; with a bias it says that of everything, hardly moved by its weights."""
    made = TASK.build(architecture, streams=Streams(seed))
    if bias is not None:
        with torch.no_grad():
            last = made.head[1] if architecture == "cnn-bn" else made.head
            last.weight.mul_(0.01)
            last.bias.copy_(torch.tensor(bias))
    return made


def client(query: list[int], own: Any = None) -> Client:
    generator = torch.Generator().manual_seed(3)
    data = ArrayDataset(
        inputs=torch.randn(20, 1, 8, 8, generator=generator), labels=torch.randint(2, (20,), generator=generator)
    )
    asked = torch.zeros(CLASSES, dtype=torch.bool)
    asked[query] = True
    state = {**under("model/", state_of(own or model(1))), "query": asked}
    return Client(Profile(0, 20, "cnn-bn"), TASK, data, TURN.streams.at("client", 0), state)


# The vote


def test_a_model_without_mistakes_counts_as_having_half_a_one() -> None:
    """Ten samples, three classes: an error of 1/20 gives log(19) + log(2); the second errs on five of ten: log(2)."""
    none, half = torch.zeros(10, dtype=torch.bool), torch.arange(10) < 5
    assert boosted([none, half], 3).tolist() == pytest.approx([log(38), log(2)])


def test_a_model_no_better_than_chance_has_no_say() -> None:
    """Chance of three classes is an error of 2/3; with two such models the first one speaks alone."""
    two_of_three, none = torch.tensor([True, True, False]), torch.zeros(3, dtype=torch.bool)
    assert boosted([none, two_of_three], 3)[1] == pytest.approx(0.0, abs=1e-12)
    assert boosted([~none, ~none], 3).tolist() == [1.0, 0.0]


def test_what_the_first_gets_wrong_counts_more_for_the_second() -> None:
    """Nine of ten right; the tenth then weighs 9 x 2 = 18 of 27. Who errs on it alone, errs on 2/3: no better than
    chance; who errs on two others, errs on 2/27: log(12.5) + log(2)."""
    first, others = torch.arange(10) == 0, torch.arange(10) > 7
    assert boosted([first, first], 3).tolist() == pytest.approx([log(18), 0.0], abs=1e-9)
    assert boosted([first, others], 3).tolist() == pytest.approx([log(18), log(25)])


# Who helps


KNOWING: dict[int, list[float]] = {1: [0.0, 0.0, -1.0, -9.0], 2: [0.0, -9.0, 0.0, -9.0], 3: [0.0, 0.0, -9.0, -9.0]}


def test_the_helper_is_the_peer_that_knows_most_of_what_is_asked_for() -> None:
    method, peers = clue(), {number: model(number, bias=bias) for number, bias in KNOWING.items()}
    sure = {number: probe(TASK, peer, Streams(0).at("peer", number)).probabilities for number, peer in peers.items()}
    assert float(sure[1][2]) == pytest.approx(0.155, abs=0.02)  # 1 / (1 + 1 + e) of the last, about
    for query, best in (([2], 2), ([1], 3), ([1, 2], 1)):
        assert float(sure[best][query].sum()) == max(float(one[query].sum()) for one in sure.values())
        assert method.helper(client(query), model(1), peers, query) is peers[best]


def test_nobody_helps_who_knows_nothing_of_it() -> None:
    peers = {number: model(number, bias=bias) for number, bias in KNOWING.items()}
    assert clue().helper(client([3]), model(1), peers, [3]) is None
    assert clue(threshold=0.0).helper(client([3]), model(1), peers, [3]) is not None
    assert clue().helper(client([]), model(1), peers, []) is None
    assert clue().helper(client([2]), model(1), {}, [2]) is None


def test_of_another_architecture_nothing_can_be_taken() -> None:
    peers = {1: model(1, "mlp", [0.0, 0.0, 5.0, 0.0]), 2: model(2, bias=[0.0, 0.0, -1.0, 0.0])}
    assert clue().helper(client([2]), model(1), peers, [2]) is peers[2]
    assert clue().helper(client([2]), model(1), {1: peers[1]}, [2]) is None


# What is taken over


def by_autograd(helper: Any, inputs: Tensor, query: list[int]) -> dict[str, Tensor]:
    """The squared gradient of the mean of -log p(q) over one batch of everything, in evaluation, in plain torch."""
    sums = {name: torch.zeros_like(weight) for name, weight in helper.named_parameters()}
    helper.eval()
    for number in query:
        helper.zero_grad()
        F.nll_loss(helper(inputs)[0], torch.full((len(inputs),), number)).backward()
        for name, weight in helper.named_parameters():
            sums[name] += weight.grad.square()
    helper.zero_grad()
    return sums


@pytest.mark.parametrize("query", [[2], [2, 3]], ids=["one class", "two"])
def test_significance_is_the_squared_gradient_of_the_class(query: list[int]) -> None:
    """BatchNorm and Dropout as in use, and the helper is left as it was."""
    helper, asking = model(2), client(query)
    before = digest(state_of(helper))
    found = clue().significance(asking, helper, query)
    expected = by_autograd(model(2), asking.data.columns["inputs"], query)
    assert list(found) == NAMES
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-9)
    assert digest(state_of(helper)) == before
    assert asking.meter.backward == 20 * len(query)


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_the_most_significant_share_is_taken_and_the_rest_stays(share: float) -> None:
    own, helper, asking = model(1), model(2), client([2])
    for module in helper.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.add_(3.0)
            module.weight.data.add_(0.5)
    mixed = clue(significant=share).mixed(asking, own, helper, [2])
    squares = by_autograd(helper, asking.data.columns["inputs"], [2])
    every = torch.cat([squares[name].flatten() for name in NAMES])
    least = every.topk(round(share * len(every))).values[-1]
    for name, weight in mixed.named_parameters():
        sure = (squares[name] - least).abs() > 1e-4 * least  # but for rounding at the very border
        expected = torch.where(squares[name] >= least, helper.get_parameter(name), own.get_parameter(name))
        assert torch.equal(weight[sure], expected[sure]), name
    assert {name: t.tolist() for name, t in mixed.named_buffers()} == {
        name: t.tolist() for name, t in own.named_buffers()
    }


def test_all_of_the_helper_is_the_helper_with_other_statistics() -> None:
    mixed = clue(significant=1.0).mixed(client([2]), model(1), model(2), [2])
    assert all(torch.equal(weight, model(2).get_parameter(name)) for name, weight in mixed.named_parameters())


def test_two_models_speak_as_one() -> None:
    """The mean of what both say, weighted by their votes; features are the own model's."""
    method, asking = clue(significant=0.3), client([2])
    method.learn(asking, {1: model(2), 2: model(3)}, TURN)
    votes = asking.state["votes"]
    assert votes.shape == (2,)
    personal = method.personalise({}, asking.state)
    assert personal is not None
    inputs = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    parts = [TASK.build("cnn-bn", part(asking.state, place)).eval() for place in ("model/", "mixed/")]
    with torch.no_grad():
        said, features = method.assemble("cnn-bn", personal).eval()(inputs)
        mean = sum(float(vote) * one(inputs)[0].exp() for vote, one in zip(votes, parts, strict=True)) / float(
            votes.sum()
        )
        torch.testing.assert_close(said.exp(), mean, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(features, parts[0](inputs)[1])
    wrong = [one(asking.data.columns["inputs"])[0].argmax(dim=1) != asking.data.columns["labels"] for one in parts]
    assert torch.equal(votes, boosted(wrong, CLASSES))


def test_who_finds_no_helper_any_more_speaks_alone() -> None:
    method, asking = clue(), client([2])
    method.learn(asking, {1: model(2)}, TURN)
    assert "votes" in asking.state
    trained = method.learn(asking, {}, TURN)
    assert trained.steps == 0
    assert {name.split("/")[0] for name in asking.state} == {"model", "query", "unmatched"}
    personal = method.personalise({}, asking.state)
    assert personal is not None
    assert digest(state_of(method.assemble("cnn-bn", personal))) == digest(part(asking.state, "model/"))
    assert method.personalise({}, {}) is None


# As a run


def test_a_client_offers_what_it_trained_alone_and_keeps_it(tmp_path: Path) -> None:
    alone, ended = played(tmp_path, "local-only"), played(tmp_path, "clue", {"threshold": 0.0})
    assert ended.models() == ended.models("before/") == alone.models()
    assert all(mixed != own for mixed, own in zip(ended.models("mixed/"), ended.models(), strict=True))
    assert {name.split("/")[0] for name in ended.server} == {"start"}
    assert ended.run.result.personal.clients == 4


def test_a_class_that_nobody_knows_leaves_everybody_as_they_were(tmp_path: Path) -> None:
    answers = played(tmp_path, "clue", {"threshold": 1.0}).run.answers()
    assert all(one["before"] == one["recalls"] for one in answers.values())


def test_clients_of_two_architectures_help_those_of_their_own(tmp_path: Path) -> None:
    ended = played(tmp_path, "clue", {"threshold": 0.0}, **MIXED)
    names = [sorted(part(state, "mixed/parameters/")) for state in ended.states]
    assert names[0] == names[1] != names[2] == names[3]


def test_what_leaves_goes_to_peers() -> None:
    leaves = egress_manifest(planned("clue"))["leaves"]
    assert {line["to"] for line in leaves if line["kind"] == "parameters"} == {"peers"}
    assert {line["kind"] for line in leaves if line["exchange"] == "transfer"} == {"metrics"}


@pytest.mark.parametrize(
    "settings", [{"significant": 0}, {"significant": 1.1}, {"noise": 0}, {"threshold": -1}], ids=str
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        planned("clue", settings)


def test_settings_are_described() -> None:
    assert all(field.description for field in ClueSettings.model_fields.values())
