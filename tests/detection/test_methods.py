"""Methods that know nothing of boxes, on detectors: their exchange calls work there as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedstill.core.dataset import Batch, Subset
from fedstill.core.kinds import state_of
from fedstill.core.message import digest, part
from fedstill.core.protocols import Reply
from fedstill.core.task import Output
from fedstill.detection.scene_augmentation import SceneAugmentation
from fedstill.runtime.reply_validation import validate_reply

from ..methods.sites import Site, build
from .small_scenes import SCENES, STEADY, SmallDetection, rooms

TASK = replace(SCENES, augmentation=SceneAugmentation())
ADAM = {"epochs": 1, "batch": 2, "rate": 2e-3, "optimiser": "adamw", "weight_decay": 0.05, "clip": 0.1}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.1},
    "scaffold": {"correction": "gradient"},
    "moon": {},
    "feddyn": {},
    "local-only": {},
    "local-only, early": {"patience": 1, "hold_out": 0.4},
    "centralised": {},
    "fed3d": {},
}


def site(name: str, task: SmallDetection = TASK, **settings: Any) -> Site:
    method = build(name.split(",")[0], task, ADAM, **{**METHODS.get(name, {}), **settings})
    data = [rooms(9)] if method.pooled else [rooms(5), rooms(4, 5)]
    return Site(method, task, data, rounds=2)


@pytest.mark.parametrize("name", METHODS)
def test_two_rounds_of_every_method_train_a_detector(name: str) -> None:
    """Replies are as expected, all losses are reported, and what comes out finds boxes with finite numbers."""
    one = site(name)
    method, start = one.method, one.server
    for round in (0, 1):
        for client in range(len(one.data)):
            request = method.request(one.server, one.profile(client), one.context(round))
            reply = one.ask(client, round)
            assert isinstance(reply, Reply), reply
            assert (
                validate_reply(reply.message, request, method.expect(one.server, one.profile(client), request)) is None
            )
            assert {f"loss/{term}" for term in TASK.terms} <= set(reply.message)
            assert min(reply.message[f"loss/{term}"].item() for term in ("class", "centre", "size", "giou")) > 0
        one.play_round(round)
    if method.models(one.server):
        (model,) = method.models(one.server).values()
        assert digest(model) != digest(method.models(start)["tiny"])
    else:
        models = [method.personalise(one.server, state) for state in one.states]
        assert digest(models[0]) != digest(models[1])
        model = models[0]
    scores = TASK.summarise(TASK.score([TASK.build("tiny", model)], rooms(3, 20)))
    assert scores["non_finite"] == 0
    assert 0 <= scores["accuracy"] == scores["map_25"] <= 1


@pytest.mark.parametrize(
    ("name", "settings"), [("fedprox", {"mu": 0.0}), ("moon", {"mu": 0.0})], ids=["fedprox", "moon"]
)
def test_without_their_terms_these_are_fedavg_to_the_bit(name: str, settings: dict[str, Any]) -> None:
    ours, fedavg = (part(site(one, **more).play(), "model/") for one, more in ((name, settings), ("fedavg", {})))
    assert digest(ours) == digest(fedavg)


def test_moon_compares_mean_tokens_and_other_models_see_no_labels() -> None:
    """z is the mean of the encoder's tokens; by hand, of the first batch of the second round."""
    seen: list[set[str]] = []

    class Watched(SmallDetection):
        def forward(self, model: torch.nn.Module, batch: Batch) -> Output:
            seen.append(set(batch))
            return super().forward(model, batch)

    watched = Watched(STEADY.classes, STEADY.shape, STEADY.architectures, dropout=0.0)
    one = Site(build("moon", watched, {**ADAM, "batch": 5}), watched, [rooms(5)], rounds=2)
    one.play_round(0)
    assert all("labels" in columns for columns in seen)
    seen.clear()
    # The shared model is the previous one but for some noise, so that both similarities differ.
    noise = torch.Generator().manual_seed(0)
    one.server = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=noise) if "/parameters/" in name else tensor
        for name, tensor in one.server.items()
    }
    reply = one.ask(0, 1).message
    assert ["labels" in columns for columns in seen] == [False, False, True]
    assert ["boxes" in columns for columns in seen] == [False, False, True]  # where things are is an answer too
    batch = {"inputs": rooms(5).columns["inputs"]}
    shared, previous = (
        STEADY.build("tiny", part(tensors, place))
        for tensors, place in ((one.server, "model/"), (one.states[0], "previous/"))
    )
    with torch.no_grad():
        z = shared.train()(batch["inputs"]).features
        shared = STEADY.build("tiny", part(one.server, "model/")).eval()
        others = [model.eval()(batch["inputs"]).features for model in (shared, previous)]
    assert z.shape == (5, 16)
    close, old = (F.cosine_similarity(z, other) / 0.5 for other in others)
    expected = -(close.exp() / (close.exp() + old.exp())).log().mean()
    assert reply["loss/contrastive"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_scaffold_keeps_the_mean_of_the_clients_controls() -> None:
    """Control variates are the means of gradients, for every parameter that has one; c is the mean of the c_i."""
    one = site("scaffold")
    server = one.play_round()
    controls = [part(state, "control/") for state in one.states]
    for name, control in part(server, "control/").items():
        torch.testing.assert_close(control, (controls[0][name] + controls[1][name]) / 2, rtol=1e-4, atol=1e-7)
    silent = {name for name, control in controls[0].items() if not control.any()}
    assert all(name.startswith("tokens.") for name in silent)  # biases before BatchNorm


def test_encoders_learn_at_a_rate_of_their_own_unless_they_are_frozen() -> None:
    """Plain SGD, one step: at a tenth of the rate the encoder moves a tenth as far, the rest as far as ever."""
    moves = {}
    for rate in (1.0, 0.1):
        training = {"batch": 9, "rate": 0.1, "momentum": 0.0, "encoder_rate": rate}
        one = Site(build("fedavg", STEADY, training), STEADY, [rooms(5)])
        start, end = part(one.server, "model/parameters/"), part(one.ask(0).message, "model/parameters/")
        moves[rate] = {name: end[name] - start[name] for name in start}
    slow = ("tokens.", "encoder.")
    for name, move in moves[1.0].items():
        expected = 0.1 * move if name.startswith(slow) else move
        torch.testing.assert_close(moves[0.1][name], expected, rtol=1e-2, atol=1e-6)
    frozen = Site(build("fed3d", STEADY, {**ADAM, "encoder_rate": 0.1}), STEADY, [rooms(5)])
    usual = Site(build("fed3d", STEADY, ADAM), STEADY, [rooms(5)])
    assert frozen.ask(0).message.encode() == usual.ask(0).message.encode()


def test_scenes_left_over_make_no_batch() -> None:
    one = site("fedavg")
    one.data = [Subset(rooms(5), torch.tensor([2]))]
    assert "no step" in one.ask(0).detail


def test_a_shared_model_is_what_its_state_says() -> None:
    one = site("feddyn")
    one.play_round()
    for state in (one.method.models(one.server)["tiny"], *one.method.extra_models(one.server).values()):
        assert digest(state_of(TASK.build("tiny", state))) == digest(state)
