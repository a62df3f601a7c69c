"""Fed3D: what is frozen, what travels and when, and one client's training against plain torch."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.kinds import norm_names, running, state_of
from fedstill.core.message import Message, digest, part
from fedstill.core.protocols import Method, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.detection.class_aware import COUNTS, SUMS
from fedstill.detection.detection_losses import detection_losses
from fedstill.detection.detection_task import Detection
from fedstill.detection.model import part_of
from fedstill.detection.rooms import CLASSES
from fedstill.engines import InProcess
from fedstill.runtime.reply_validation import validate_reply
from fedstill.runtime.run import execute
from fedstill.tasks.classification import Classification

from ..methods.sites import Site, build
from .small_scenes import SCENES, STEADY, bare, rooms

TRAINING = {"epochs": 1, "batch": 2, "rate": 2e-3, "optimiser": "adamw", "weight_decay": 0.05, "clip": 0.1}
SHARES = ["prompts-and-heads", "prompts", "all"]
FROZEN = {"prompts-and-heads": {"encoder"}, "prompts": {"encoder", "heads"}, "all": set()}
PICTURES = Classification(("a", "b", "c"), (1, 8, 8), ("cnn-bn",))


def made(task: Any = SCENES, training: dict[str, Any] | None = None, **settings: Any) -> Method:
    return build("fed3d", task, {**TRAINING, **(training or {})}, **settings)


def site(task: Any = SCENES, training: dict[str, Any] | None = None, **settings: Any) -> Site:
    """Three clients with 5, 3 and 4 rooms."""
    return Site(made(task, training, **settings), task, [rooms(5), rooms(3, 5), rooms(4, 8)], rounds=2)


def pictures(count: int, seed: int) -> ArrayDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 1, 8, 8, generator=generator)
    return ArrayDataset(inputs=inputs, labels=torch.randint(3, (count,), generator=generator))


def moved(before: Tensors, after: Tensors) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def request_of(one: Site, client: int, round: int = 0) -> Message:
    request = one.method.request(one.server, one.profile(client), one.context(round))
    assert request is not None
    return request


# What is frozen


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("keep", [False, True], ids=["fresh", "kept"])
def test_what_is_frozen_stays_to_the_bit_and_all_else_learns(share: str, keep: bool) -> None:
    """Two rounds; BatchNorm's statistics and counters are in the encoder, and move only where it learns."""
    one = site(share=share, training={"keep_optimiser": keep})
    before = part(one.server, "model/")
    norms = set(norm_names(SCENES.build("tiny")))
    after = part(one.play(), "model/")
    changed = moved(before, after)
    assert {part_of(name) for name in changed} == {"encoder", "prompts", "heads"} - FROZEN[share]
    # A bias before BatchNorm has no effect, and the frequencies of positions never change.
    idle = {name for name in before if name == "buffers/fourier" or ("tokens." in name and name.endswith(".bias"))}
    assert {name for name in before if part_of(name) not in FROZEN[share]} - idle - norms <= changed
    assert norms
    assert bool(norms & changed) == (share == "all")
    assert all(part_of(name) == "encoder" for name in norms)


@pytest.mark.parametrize("share", SHARES)
def test_a_client_keeps_what_is_frozen_as_it_was_sent(share: str) -> None:
    one = site(share=share)
    frozen = {name for name in part(one.server, "model/") if part_of(name) in FROZEN[share]}
    start = part(one.server, "model/")
    one.play()
    for state in one.states:
        kept = part(state, "frozen/")
        assert set(kept) == frozen
        assert not moved(kept, {name: start[name] for name in frozen})


def test_what_is_frozen_drops_nothing_out() -> None:
    """With prompts alone all that could is frozen: training is the same whatever the rate of Dropout."""
    few, many = (site(replace(SCENES, dropout=rate), share="prompts").ask(0).message for rate in (0.0, 0.9))
    assert few.encode() == many.encode()
    model = SCENES.build("tiny")
    made().hold(model)
    model.train()
    training = {part_of(f"/{name}") for name, module in model.named_modules() if name and module.training}
    assert training == {"heads"}


def test_the_shared_model_is_whole() -> None:
    one = site()
    one.play_round()
    state = one.method.models(one.server)["tiny"]
    model = SCENES.build("tiny", state)
    assert digest(state_of(model)) == digest(state)
    assert len(SCENES.detect(model, one.data[0].columns["inputs"])) == 5


# What travels, and when


@pytest.mark.parametrize("share", SHARES)
def test_what_is_frozen_is_sent_at_first_contact_only(share: str) -> None:
    one = site(share=share)
    every = part(one.server, "model/")
    frozen = {f"frozen/{name}" for name in every if part_of(name) in FROZEN[share]}
    learns = {f"model/{name}" for name in every if part_of(name) not in FROZEN[share]}
    assert set(request_of(one, 0)) == frozen | learns | {"class-weights"}
    one.play_round(0, cohort=[0, 1], lost=[1])
    assert set(request_of(one, 0, 1)) == learns | {"class-weights"}
    # Whose upload was lost kept nothing, and who was not asked has nothing.
    assert set(request_of(one, 1, 1)) == set(request_of(one, 2, 1)) == frozen | learns | {"class-weights"}
    one.play_round(1)
    for client in range(3):
        assert set(request_of(one, client, 2)) == learns | {"class-weights"}


@pytest.mark.parametrize("share", SHARES)
def test_replies_carry_what_learns_class_statistics_and_a_report_of_work(share: str) -> None:
    one = site(share=share)
    reply = one.ask(0)
    assert isinstance(reply, Reply), reply
    model = {name.removeprefix("model/") for name in reply.message if name.startswith("model/")}
    assert model == {name for name in part(one.server, "model/") if part_of(name) not in FROZEN[share]}
    rest = {name for name in reply.message if not name.startswith("model/")}
    assert rest == {SUMS, COUNTS, "steps", *(f"loss/{term}" for term in SCENES.terms)}
    if share == "prompts":
        assert model == {"parameters/prompts"}


def test_the_second_contact_learns_from_what_the_first_left() -> None:
    """As if the encoder had been sent again."""
    one = site()
    one.play_round(0)
    kept = one.ask(0, 1).message
    one.since[0], one.states[0] = None, {}
    assert one.ask(0, 1).message.encode() == kept.encode()


@pytest.mark.parametrize("settings", [{}, {"global_weights": False}, {"share": "prompts"}, {"share": "all"}], ids=str)
def test_a_reply_is_exactly_what_is_expected_of_it(settings: dict[str, Any]) -> None:
    one = site(**settings)
    for round in (0, 1):
        request = request_of(one, 1, round)
        reply = one.ask(1, round).message
        expected = one.method.expect(one.server, one.profile(1), request)
        assert validate_reply(reply, request, expected) is None
        if settings.get("global_weights", True):
            short = Message({**reply, SUMS: reply[SUMS][1:]})
            assert f"{SUMS} has shape" in str(validate_reply(short, request, expected))
        more = Message({**reply, "model/buffers/fourier2": torch.zeros(1)})
        assert "which nobody asked for" in str(validate_reply(more, request, expected))
        one.play_round(round)


def test_bytes_of_a_round_in_the_lite_detector() -> None:
    """Down and up, after the first: with prompts and heads at most 60 % of the whole, with prompts alone below 2 %."""
    task = Detection(CLASSES, (2048, 3), ("detr3d-lite",))
    profile, context = Profile(0, 10, "detr3d-lite", last_round=3), RoundContext(4, 9, 20, "train", Streams(0))
    sizes = {}
    for share in SHARES:
        method = made(task, share=share)
        server = method.start(Streams(0))
        request = method.request(server, profile, context)
        expected = method.expect(server, profile, request)
        reply = Message({name: torch.zeros(shape, dtype=kind) for name, (shape, kind) in expected.items()})
        sizes[share] = (request.nbytes, reply.nbytes)
        first = method.request(server, replace(profile, last_round=None), context)
        fixed = sum(tensor.nbytes for name, tensor in first.items() if name.startswith("frozen/"))
        assert (first.nbytes - request.nbytes > fixed) == (share != "all")
    for way in (0, 1):
        assert sizes["prompts-and-heads"][way] <= 0.6 * sizes["all"][way], sizes
        assert sizes["prompts"][way] < 0.02 * sizes["all"][way], sizes


def test_what_leaves_a_client_is_said_plainly() -> None:
    def lines(**settings: Any) -> dict[str, Any]:
        return {line.name: line for line in made(**settings).egress}

    usual = lines()
    assert usual[COUNTS].kind == usual[SUMS].kind == "statistics"
    assert "which classes a client has" in usual[COUNTS].why
    assert "all but its encoder" in usual["model/parameters/*"].why
    assert "model/buffers/*" not in usual  # BatchNorm is in the encoder
    assert {SUMS, COUNTS} & set(lines(global_weights=False)) == set()
    assert "prompts alone" in lines(share="prompts")["model/parameters/*"].why
    assert "model/buffers/*" in lines(share="all")


# The merge


def test_the_mean_is_weighted_by_samples_and_what_is_frozen_is_the_servers() -> None:
    """5 and 3 rooms: five eighths and three."""
    one = site()
    replies = [one.ask(client) for client in (0, 1)]
    merged = one.method.aggregate(one.server, replies, one.context(0))
    name = "model/parameters/prompts"
    first, second = (reply.message[name].double() for reply in replies)
    torch.testing.assert_close(merged[name].double(), 5 / 8 * first + 3 / 8 * second, rtol=1e-6, atol=1e-8)
    assert merged["model/buffers/fourier"] is one.server["model/buffers/fourier"]


def test_classes_are_weighed_by_what_clients_found_and_the_journal_is_told() -> None:
    one = site()
    assert one.server["class-weights"].tolist() == [math.log(2)] * len(CLASSES)
    replies = [one.ask(client) for client in range(3)]
    server = one.play_round()
    total = [0.0] * len(CLASSES)
    for reply in replies:
        for place, (total_g, count) in enumerate(
            zip(reply.message[SUMS].tolist(), reply.message[COUNTS].tolist(), strict=True)
        ):
            total[place] += total_g / count if count else 0.0
    expected = torch.tensor(total, dtype=torch.float64)
    expected = torch.where(expected > 0, (1 + len(CLASSES) * expected / expected.sum()).log(), math.log(2))
    torch.testing.assert_close(server["class-weights"], expected)
    assert len(set(expected.tolist())) > 5
    facts = one.method.metrics(server)
    assert list(facts) == [f"class weight, {name}" for name in CLASSES]
    assert list(facts.values()) == server["class-weights"].tolist()
    # What is sent next is what was found, and clients learn something else from it.
    told = one.ask(0, 1).message
    one.server = {**one.server, "class-weights": torch.ones_like(expected)}
    assert one.ask(0, 1).message.encode() != told.encode()


def test_classes_can_start_at_one() -> None:
    assert site(initial_weight="one").server["class-weights"].tolist() == [1.0] * len(CLASSES)


def test_without_weights_of_classes_nothing_is_said_of_them() -> None:
    one = site(global_weights=False)
    assert not [name for name in (*one.server, *request_of(one, 0), *one.ask(0).message) if name.startswith("class-")]
    assert one.method.metrics(one.play_round()) == {}


# Equal to FedAvg, and for no other reason


@pytest.mark.parametrize("task", [SCENES, PICTURES], ids=["scenes", "pictures"])
def test_without_both_weights_and_with_all_shared_this_is_fedavg_to_the_byte(task: Any) -> None:
    data = [rooms(5), rooms(3, 5)] if task is SCENES else [pictures(9, 0), pictures(6, 1)]
    off = {"share": "all", "local_weights": False, "global_weights": False}
    fedavg, ours = build("fedavg", task, TRAINING), made(task, **off)
    sites = [Site(method, task, data, rounds=2) for method in (fedavg, ours)]
    for round in (0, 1):
        asked, told = ([one.ask(client, round).message.encode() for client in (0, 1)] for one in sites)
        assert asked == told
        assert digest(sites[0].play_round(round)) == digest(sites[1].play_round(round))
    for other in ({"local_weights": True}, {"global_weights": True}):
        changed = Site(made(task, **{**off, **other}), task, data, rounds=2)
        assert digest(part(changed.play(), "model/")) != digest(part(sites[0].server, "model/"))


@pytest.mark.parametrize("task", [SCENES, PICTURES], ids=["scenes", "pictures"])
def test_while_classes_weigh_alike_weights_of_classes_change_nothing(task: Any) -> None:
    """The first round, in which every G is 1: FedAvg's models, and class statistics beside them."""
    data = [rooms(5)] if task is SCENES else [pictures(9, 0)]
    ours = Site(made(task, share="all", local_weights=False), task, data).ask(0).message
    fedavg = Site(build("fedavg", task, TRAINING), task, data).ask(0).message
    assert set(ours) - set(fedavg) == {SUMS, COUNTS}
    assert all(torch.equal(ours[name], tensor) for name, tensor in fedavg.items())


# One client's training, written out


@pytest.mark.parametrize("settings", [{}, {"local_weights": False}, {"global_weights": False}], ids=str)
@pytest.mark.parametrize("share", SHARES)
def test_local_training_against_plain_torch(share: str, settings: dict[str, Any]) -> None:
    """Two epochs of batches of two of five rooms (the fifth is left out), classes weighing differently.

    Written out: batches, what learns, matched objects' weights in both layers of the decoder, clipping, SGD (Adam would
    make steps of the rounding errors of keys' biases, whose true gradient is zero).
    """
    plain = {"epochs": 2, "optimiser": "sgd", "rate": 0.2, "momentum": 0.9, "weight_decay": 0.01}
    one = site(STEADY, plain, share=share, **settings)
    across = torch.linspace(0.5, 1.5, len(CLASSES), dtype=torch.float64)
    if settings.get("global_weights", True):
        one.server = {**one.server, "class-weights": across}
    else:
        across = torch.ones_like(across)
    reply = one.ask(0).message

    model = STEADY.build("tiny", part(one.server, "model/"))
    held = [child for name, child in model.named_children() if part_of(f"/{name}") in FROZEN[share]]
    still = {id(parameter) for child in held for parameter in child.parameters()}
    learning = [parameter for parameter in model.parameters() if id(parameter) not in still]
    optimiser = torch.optim.SGD(learning, lr=0.2, momentum=0.9, weight_decay=0.01)
    model.train()
    for child in held:
        child.eval()
    sums, counts = torch.zeros(len(CLASSES), dtype=torch.float64), torch.zeros(len(CLASSES), dtype=torch.int64)
    streams = one.context(0).streams.at("client", 0)
    for epoch in range(2):
        order = streams.draw("order", epoch).permutation(5)
        for rows in (order[:2], order[2:4]):
            batch = one.data[0].batch(torch.from_numpy(rows))
            losses = detection_losses(model(batch["inputs"]), batch["labels"], batch["boxes"])
            total = sum(losses.tokens.values()) * 0
            for layer in losses.layers:
                g = 1 - layer.probability
                pull = torch.tensor([across[label] for label in layer.labels.tolist()])
                share_of = (g if settings.get("local_weights", True) else torch.ones_like(g)) * pull
                weights = (len(g) * share_of / share_of.sum()).float() if len(g) else g
                box = sum((weights * layer.terms[name]).sum() for name in ("centre", "size", "giou", "angle"))
                total = total + box / max(len(g), 1)
                queries = len(g) + 0.25 * (2 * 9 - len(g))
                total = total + ((weights * layer.terms["class"]).sum() + layer.others) / queries
            total = total + losses.tokens["objectness"] / losses.counts["tokens"]
            total = total + losses.tokens["votes"] / losses.counts["tokens-in-objects"].clamp(min=1)
            for label, gradient in zip(layer.labels.tolist(), g.tolist(), strict=True):
                sums[label] += gradient
                counts[label] += 1
            optimiser.zero_grad()
            total.backward()
            torch.nn.utils.clip_grad_norm_(learning, 0.1)
            optimiser.step()
    state = state_of(model)
    start = part(one.server, "model/")
    for name, tensor in part(reply, "model/").items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-6, msg=lambda text, name=name: name + text)
    assert float((state["parameters/prompts"] - start["parameters/prompts"]).abs().max()) > 1e-3
    if settings.get("global_weights", True):
        assert torch.equal(reply[COUNTS], counts)
        torch.testing.assert_close(reply[SUMS], sums, rtol=1e-4, atol=1e-4)


def test_a_client_with_nothing_to_find_takes_part_and_speaks_for_no_class() -> None:
    one = site()
    one.data[1] = bare(rooms(3, 5))
    reply = one.ask(1).message
    assert reply[COUNTS].tolist() == [0] * len(CLASSES)
    alone = one.method.aggregate(one.server, [one.ask(0)], one.context(0))
    both = one.method.aggregate(one.server, [one.ask(0), one.ask(1)], one.context(0))
    assert torch.equal(alone["class-weights"], both["class-weights"])
    assert not torch.equal(alone["model/parameters/prompts"], both["model/parameters/prompts"])


def test_running_statistics_of_an_encoder_that_learns_are_averaged() -> None:
    one = site(share="all")
    replies = [one.ask(client) for client in range(3)]
    merged = one.play_round()
    for name in running(SCENES.build("tiny"), "running_mean").values():
        mean = sum(len(one.data[i]) / 12 * reply.message["model/" + name] for i, reply in enumerate(replies))
        torch.testing.assert_close(merged["model/" + name], mean)


def test_digits_are_learnt_with_class_aware_weights(tiny_plan: Any, tmp_path: Path) -> None:
    """Ten classes, unevenly spread: chance is about a tenth."""
    plan = tiny_plan(
        method={"name": "fed3d", "share": "all"},
        model="mlp",
        rounds=2,
        partition={"name": "dirichlet", "alpha": 0.3},
        training={"epochs": 2, "batch": 32},
    )
    journal = execute(plan, InProcess(), tmp_path).journal()
    assert journal[-1].metrics["accuracy"] > 0.6
    weights = journal[-1].method_metrics
    assert list(weights) == [f"class weight, {name}" for name in plan.task.classes]
    assert min(weights.values()) < max(weights.values())


# What is refused


@pytest.mark.parametrize("share", ["prompts-and-heads", "prompts"])
def test_freezing_needs_a_detector(share: str) -> None:
    with pytest.raises(InputError, match=r"cnn-bn is no detector: .* or set method\.share=all"):
        made(PICTURES, share=share)
    made(PICTURES, share="all")


@pytest.mark.parametrize("setting", [{"share": "heads"}, {"local_weights": "some"}, {"buffers": "average"}], ids=str)
def test_settings_that_cannot_work_are_one_sentence(tiny_plan: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"method\.{next(iter(setting))}"):
        tiny_plan(method={"name": "fed3d", **setting})


@pytest.mark.parametrize("share", SHARES)
def test_the_number_of_prompts_is_a_setting(share: str) -> None:
    one, usual = site(share=share, prompts=7), site(share=share)
    assert one.server["model/parameters/prompts"].shape == (2, 2, 2, 7, 8)
    assert usual.server["model/parameters/prompts"].shape == (2, 2, 2, 3, 8)
    others = [name for name in usual.server if name != "model/parameters/prompts"]
    assert all(torch.equal(one.server[name], usual.server[name]) for name in others)
    before = one.server["model/parameters/prompts"]
    assert float(before.std()) == pytest.approx(0.1, rel=0.3)
    one.play_round()
    after = one.server["model/parameters/prompts"]
    assert after.shape == before.shape
    assert not torch.equal(after, before)
    model = SCENES.build("tiny", part(one.server, "model/"))
    assert torch.equal(model.get_parameter("prompts"), after)


def test_the_number_of_prompts_is_one_of_a_detector() -> None:
    with pytest.raises(InputError, match="cnn-bn is no detector"):
        made(PICTURES, {"optimiser": "sgd"}, share="all", prompts=5).check()
    assert made().settings.hashed() == made(prompts=None).settings.hashed()
    assert "prompts" not in made().settings.hashed()
    assert made(prompts=3).settings.hashed()["prompts"] == 3
