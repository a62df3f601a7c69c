"""Split distillation against independent arithmetic, and against what goes wrong when samples are mixed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Engine, Method, Reply
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.data.augmentation import PointAugmentation
from fedstill.devices.split_sides import Received
from fedstill.models import Classifier
from fedstill.runtime.observers import Observer
from fedstill.runtime.reply_validation import validate_reply
from fedstill.runtime.run import execute
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation

from ..methods.sites import Site, build

T = 2.0
TASK = Classification(("a", "b", "c"), (1, 8, 8), ("mlp",))
NORMAL = replace(TASK, architectures=("cnn-bn",))  # with BatchNorm and Dropout


def pictures(count: int, seed: int, ids: Tensor | None = None) -> ArrayDataset:
    generator = torch.Generator().manual_seed(seed)
    return ArrayDataset(
        inputs=torch.randn(count, 1, 8, 8, generator=generator),
        labels=torch.randint(3, (count,), generator=generator),
        sample_id=torch.arange(count) * 3 + 100 * seed if ids is None else ids,
    )


def made(task: Classification, **settings: Any) -> Method:
    return build("fedgkt", task, {"rate": 0.1}, **settings)


def site(*sizes: int, task: Classification = TASK, **settings: Any) -> Site:
    """Clients of these sizes that take one full-batch step a round; the server takes one too."""
    method = made(task, **{"server_epochs": 1, "server_batch": 1000, **settings})
    return Site(method, task, [pictures(size, seed) for seed, size in enumerate(sizes)], rounds=3)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def divergence(student: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """T^2 KL(teacher || student) of each sample."""
    p, q = log_softmax(teacher / T), log_softmax(student / T)
    return T**2 * (np.exp(p) * (p - q)).sum(axis=1)


def numbers(state: Tensors, prefix: str = "model/") -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in state.items() if name.startswith(prefix)}


def small_head_says(server: Tensors, data: ArrayDataset) -> np.ndarray:
    """The perceptron's two hidden layers and the small head, written out."""
    held = {**numbers(server), **numbers(server, "small_head/")}
    x = data.columns["inputs"].double().numpy().reshape(len(data), -1)
    for layer in ("extractor.1", "extractor.3"):
        weight, bias = (held[f"model/parameters/{layer}.{kind}"] for kind in ("weight", "bias"))
        x = np.maximum(x @ weight.T + bias, 0)
    return log_softmax(x @ held["small_head/parameters/weight"].T + held["small_head/parameters/bias"])


def cross_entropy(words: np.ndarray, labels: Tensor) -> float:
    return float(-words[np.arange(len(words)), labels.numpy()].mean())


def test_what_a_client_minimises_is_what_the_paper_says() -> None:
    """With what the server said of five of eight samples: the other three count as zero in the mean over eight."""
    one = site(8)
    data = one.data[0]
    said = torch.randn(5, 3, generator=torch.Generator().manual_seed(5)) * 2
    rows = torch.tensor([6, 1, 0, 7, 3])
    ids = data.columns["sample_id"][rows]
    one.server = {**one.server, "said/0/ids": ids, "said/0/logits": said.log_softmax(1)}
    reply = one.ask(0)
    assert isinstance(reply, Reply), reply
    words = small_head_says(one.server, data)
    expected = divergence(words[rows.numpy()], said.double().numpy()).sum() / 8
    assert reply.message["loss/cross-entropy"].item() == pytest.approx(cross_entropy(words, data.labels()), rel=1e-5)
    assert reply.message["loss/soft-targets"].item() == pytest.approx(expected, rel=1e-5)
    assert expected > 0.1


def test_before_the_server_has_said_anything_a_client_minimises_cross_entropy_alone() -> None:
    first = site(8, temperature=2.0)
    reply = first.ask(0)
    assert reply.message["loss/soft-targets"].item() == 0
    assert not [
        name for name in first.method.request(first.server, first.profile(0), first.context(0)) if "said" in name
    ]
    # What was said of samples that it does not have does not reach it either.
    other = site(8, temperature=5.0)
    strangers = {"said/0/ids": torch.tensor([1, 2, 10**6]), "said/0/logits": torch.zeros(3, 3)}
    other.server = {**other.server, **strangers}
    assert other.ask(0).message.encode() == reply.message.encode()


def test_what_is_said_goes_by_the_number_of_a_sample_whatever_the_order() -> None:
    """The same shard with its rows the other way round learns the same and receives the same; by row it would not."""
    straight = site(12)
    straight.play_round(0)
    turned = site(12)
    turned.data = [Subset(straight.data[0], torch.arange(11, -1, -1))]
    turned.server, turned.since = straight.server, straight.since
    replies = [one.ask(0, 1).message for one in (straight, turned)]
    assert torch.equal(replies[0]["ids"], replies[1]["ids"])
    assert torch.equal(replies[0]["labels"], replies[1]["labels"])
    for name in ("features", "logits", "loss/soft-targets", "model/parameters/extractor.1.weight"):
        torch.testing.assert_close(replies[0][name], replies[1][name], rtol=1e-4, atol=1e-6)
    mixed = site(12)
    mixed.since = straight.since
    mixed.server = {**straight.server, "said/0/logits": straight.server["said/0/logits"].flip(0)}
    wrong = mixed.ask(0, 1).message["loss/soft-targets"].item()
    assert abs(wrong - replies[0]["loss/soft-targets"].item()) > 0.01 * wrong


def test_the_servers_words_are_the_ones_it_has_for_that_very_sample() -> None:
    one = site(7, 5)
    replies = [one.ask(client) for client in (0, 1)]
    server = one.method.aggregate(one.server, replies, one.context(0))
    weight, bias = (server[f"model/parameters/head.{kind}"].double().numpy() for kind in ("weight", "bias"))
    for client, reply in enumerate(replies):
        assert torch.equal(server[f"said/{client}/ids"], reply.message["ids"])
        expected = log_softmax(reply.message["features"].double().numpy() @ weight.T + bias)
        np.testing.assert_allclose(server[f"said/{client}/logits"], expected, rtol=1e-4, atol=1e-5)


def adam(weights: list[np.ndarray], steps: list[list[np.ndarray]], rate: float = 1e-3) -> list[np.ndarray]:
    moments = [(np.zeros_like(weight), np.zeros_like(weight)) for weight in weights]
    for number, gradients in enumerate(steps, start=1):
        for index, gradient in enumerate(gradients):
            first, second = moments[index]
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            moments[index] = first, second
            step = (first / (1 - 0.9**number)) / (np.sqrt(second / (1 - 0.999**number)) + 1e-8)
            weights[index] = weights[index] - rate * step
    return weights


def server_gradients(weight: np.ndarray, bias: np.ndarray, replies: list[Reply]) -> tuple[list[np.ndarray], float]:
    """Of CE + T^2 KL of a linear layer: (p - y + T (p_T - q_T)) / n, times the features; and the KL itself."""
    features, said = (
        np.concatenate([reply.message[name].double().numpy() for reply in replies]) for name in ("features", "logits")
    )
    labels = np.concatenate([reply.message["labels"].numpy() for reply in replies])
    logits = features @ weight.T + bias
    soft = np.exp(log_softmax(logits / T)) - np.exp(log_softmax(said / T))
    error = (np.exp(log_softmax(logits)) - np.eye(3)[labels] + T * soft) / len(labels)
    return [error.T @ features, error.sum(axis=0)], float(divergence(logits, said).mean())


def test_the_servers_adam_goes_on_from_round_to_round() -> None:
    """Two rounds of one full-batch step are two steps of one Adam in numpy, not twice a first step."""
    one = site(9, 6)
    names = [f"model/parameters/head.{kind}" for kind in ("weight", "bias")]
    start = [one.server[name].double().numpy() for name in names]
    gradients: list[list[np.ndarray]] = []
    for round in (0, 1):
        replies = [one.ask(client, round) for client in (0, 1)]
        now = [one.server[name].double().numpy() for name in names]
        found, kl = server_gradients(*now, replies)
        gradients.append(found)
        one.server = one.method.aggregate(one.server, replies, one.context(round))
        one.since = [round, round]
        assert one.method.metrics(one.server)["server soft-targets"] == pytest.approx(kl, rel=1e-4)
        together = adam(list(start), gradients)
        for name, expected in zip(names, together, strict=True):
            np.testing.assert_allclose(one.server[name].numpy(), expected, rtol=1e-4, atol=2e-6)
    afresh = adam(adam(list(start), gradients[:1]), gradients[1:])
    assert np.abs(afresh[0] - together[0]).max() > 1e-4
    assert one.server["optimiser/0/steps"].item() == 2


SPLIT = replace(TASK, architectures=("split-cnn-lite",))


def head_inputs(server: Tensors, features: np.ndarray) -> np.ndarray:
    """The first linear layer of the head, in double precision."""
    weight, bias = (server[f"model/parameters/head.0.{kind}"].double().numpy() for kind in ("weight", "bias"))
    return features @ weight.T + bias


@pytest.mark.parametrize("precision", ["full", "half"])
def test_the_heads_statistics_are_those_of_all_features_received(precision: str) -> None:
    """Before anything is said to clients: their logits are those of the new statistics, computed in numpy."""
    one = site(70, 300, task=SPLIT, precision=precision, server_epochs=3, server_batch=16)
    for round in (0, 1):
        replies = [one.ask(client, round) for client in (0, 1)]
        one.server = one.method.aggregate(one.server, replies, one.context(round))
        one.since = [round, round]
    features = [reply.message["features"].double().numpy() for reply in replies]
    inputs = head_inputs(one.server, np.concatenate(features))
    mean, variance = (one.server[f"model/buffers/head.1.running_{kind}"].double().numpy() for kind in ("mean", "var"))
    np.testing.assert_allclose(mean, inputs.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, inputs.var(axis=0, ddof=1), rtol=1e-5, atol=1e-7)
    held = numbers(one.server)
    for client, own in enumerate(features):
        normal = (head_inputs(one.server, own) - inputs.mean(axis=0)) / np.sqrt(inputs.var(axis=0, ddof=1) + 1e-5)
        scale, shift = (held[f"model/parameters/head.1.{kind}"] for kind in ("weight", "bias"))
        hidden = np.maximum(normal * scale + shift, 0)
        weight, bias = (held[f"model/parameters/head.4.{kind}"] for kind in ("weight", "bias"))
        expected = log_softmax(hidden @ weight.T + bias)
        np.testing.assert_allclose(one.server[f"said/{client}/logits"].numpy(), expected, rtol=1e-3, atol=1e-4)


def test_published_code_keeps_the_running_statistics_of_training() -> None:
    """The same passes over the same features, so the same weights; one momentum step a pass, from 0 and 1."""
    servers = []
    for statistics in ("batch", "recalibrate"):
        one = site(40, 30, task=SPLIT, statistics=statistics)
        replies = [one.ask(client) for client in (0, 1)]
        servers.append(one.method.aggregate(one.server, replies, one.context(0)))
    batch, measured = servers
    weights = [name for name in batch if name.startswith("model/") and "buffers" not in name]
    assert all(torch.equal(batch[name], measured[name]) for name in weights)
    start = site(40, 30, task=SPLIT).server
    features = np.concatenate([reply.message["features"].double().numpy() for reply in replies])
    seen = head_inputs(start, features).mean(axis=0)  # one full-batch pass, before the step
    found = batch["model/buffers/head.1.running_mean"].double().numpy()
    np.testing.assert_allclose(found, 0.1 * seen, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(batch["said/0/logits"], measured["said/0/logits"], atol=0.01)


def test_noise_on_features_does_not_move_the_accuracy() -> None:
    """1e-8 on the features of the second round; digits of eight clients with skewed labels."""
    digits = load_digits()
    inputs, labels = torch.tensor(digits.images[:, None] / 8 - 1).float(), torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(0)
    shards = (labels[:480] + 5 * torch.rand(480, generator=generator)).argsort().split(60)
    task = Classification(tuple("0123456789"), (1, 8, 8), ("split-cnn-lite",))
    method = build("fedgkt", task, {"rate": 0.01, "momentum": 0.9, "batch": 32})
    data = [ArrayDataset(inputs=inputs[rows], labels=labels[rows], sample_id=rows) for rows in shards]
    one = Site(method, task, data, rounds=2)
    one.play_round(0)
    replies = [one.ask(client, 1) for client in range(len(shards))]

    def accuracy(noise: float) -> float:
        def noisy(reply: Reply) -> Reply:
            features = reply.message["features"]
            moved = features + noise * torch.randn(features.shape, generator=generator)
            return replace(reply, message=Message({**reply.message, "features": moved}))

        server = method.aggregate(one.server, [noisy(reply) for reply in replies], one.context(1))
        model = task.build("split-cnn-lite", method.models(server)["split-cnn-lite"]).eval()
        with torch.no_grad():
            return float((model(inputs[480:])[0].argmax(dim=1) == labels[480:]).double().mean())

    clean = accuracy(0)
    assert clean > 0.7
    assert [accuracy(1e-8) for _ in range(3)] == pytest.approx([clean] * 3, abs=0.01)


def mean_features(server: Tensors, data: ArrayDataset, extractor: Mapping[str, np.ndarray]) -> np.ndarray:
    """The perceptron's hidden layers, written out."""
    x = data.columns["inputs"].double().numpy().reshape(len(data), -1)
    for layer in ("extractor.1", "extractor.3"):
        weight, bias = (extractor[f"model/parameters/{layer}.{kind}"] for kind in ("weight", "bias"))
        x = np.maximum(x @ weight.T + bias, 0)
    return x


def test_the_residual_compares_features_of_the_mean_with_those_sent() -> None:
    """Nine and six samples, three compared of each: the first, and those a third and two thirds on."""
    one = site(9, 6, compared=3)
    sent = [one.ask(client).message for client in (0, 1)]
    first = one.play_round(0)
    assert "feature residual" not in one.method.metrics(first)  # nothing was sent before
    assert sent[0]["residual/moved"] == sent[0]["residual/spread"] == 0
    moved, spread, ratios = 0.0, 0.0, []
    for client, rows in enumerate(([0, 3, 6], [0, 2, 4])):
        own = sent[client]["features"].double().numpy()[rows]
        now = mean_features(first, one.data[client], numbers(first))[rows]
        far, wide = ((now - own) ** 2).sum(), ((own - own.mean(axis=0)) ** 2).sum()
        moved, spread = moved + far, spread + wide
        ratios.append(far / wide)
    found = one.method.metrics(one.play_round(1))
    assert found["feature residual"] == pytest.approx(moved / spread, rel=1e-4)
    assert found["feature residual of the median client"] == pytest.approx(sum(ratios) / 2, rel=1e-4)
    assert moved / spread > 1e-6


def test_the_residual_of_one_client_is_zero_and_rounds_apart_are_not_compared() -> None:
    alone = site(9, task=NORMAL)
    alone.play_round(0)
    assert alone.method.metrics(alone.play_round(1))["feature residual"] == 0
    one = site(9, 6)
    one.play_round(0, cohort=[0])
    one.play_round(1, cohort=[1])
    assert "feature residual" not in one.method.metrics(one.play_round(2, cohort=[0]))
    off = site(9, compared=0)
    off.play_round(0)
    assert off.states == [{}]
    assert not [name for name in off.ask(0, 1).message if name.startswith("residual")]
    assert not [line for line in off.method.egress if line.name.startswith("residual")]


def test_a_large_residual_is_a_warning_of_the_run(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watching(Observer):
        def __init__(self) -> None:
            self.warnings: list[str] = []

        def warn(self, text: str) -> None:
            self.warnings.append(text)

    plan, watching = tiny_plan(method="fedgkt", training={}, rounds=2), Watching()
    execute(plan, engines["in-process"], tmp_path / "small", [watching])
    assert not watching.warnings
    monkeypatch.setattr("fedstill.devices.feature_residual.LARGE", 0.0)
    run = execute(plan, engines["in-process"], tmp_path / "large", [watching])
    (said,) = watching.warnings
    measured = run.journal()[1].method_metrics["feature residual of the median client"]
    assert f"the feature residual of the median client was {measured:.2g} on average" in said


def test_clients_parts_and_small_heads_are_averaged_by_samples() -> None:
    """12 and 4 samples: three quarters of one and a quarter of the other."""
    one = site(12, 4, task=NORMAL)
    replies = [one.ask(client) for client in (0, 1)]
    merged = one.method.aggregate(one.server, replies, one.context(0))
    sent = [name for name in replies[0].message if name.startswith(("model/", "small_head/"))]
    assert any("running_mean" in name for name in sent)
    assert not any("head." in name for name in sent)
    for name in sent:
        first, second = (reply.message[name].double() for reply in replies)
        expected = torch.maximum(first, second) if "/counters/" in name else 0.75 * first + 0.25 * second
        torch.testing.assert_close(merged[name].double(), expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(replies[0].message[sent[-1]], replies[1].message[sent[-1]])


@pytest.mark.parametrize("architecture", ["mlp", "cnn-bn", "resnet8", "split-cnn"])
def test_the_shared_model_is_the_averaged_part_and_then_the_servers(architecture: str) -> None:
    task = replace(TASK, architectures=(architecture,))
    one = site(10, 6, task=task)
    server = one.play_round(0)
    state = one.method.models(server)[architecture]
    model = task.build(architecture, state).eval()
    assert isinstance(model, Classifier)
    first, second = model.parts()
    inputs = one.data[0].columns["inputs"]
    with torch.no_grad():
        features = first(inputs).contiguous()
        assert torch.equal(second(features).log_softmax(1), task.forward(model, {"inputs": inputs}).log_probabilities)
    # Every tensor is what a client's mean or the server made of it: nothing is left as it was drawn.
    drawn = one.method.models(one.method.start(Streams(0)))[architecture]
    moved = {name for name in state if not torch.equal(state[name], drawn[name])}
    assert moved == {name for name in state if state[name].is_floating_point() or "counters" in name}


def test_private_parts_stay_at_home() -> None:
    one = site(10, 6, task=NORMAL, extractors="private")
    assert one.method.personal
    start = one.method.request(one.server, one.profile(0), one.context(0))
    assert any(name.startswith("model/") for name in start)
    reply = one.ask(0)
    assert not [name for name in reply.message if name.startswith(("model/", "small_head/"))]
    assert not [line for line in one.method.egress if line.kind in ("parameters", "statistics")]
    server = one.play_round(0)
    later = one.method.request(server, one.profile(0), one.context(1))
    assert set(later) == {"said/ids", "said/logits"}
    assert one.method.models(server) == {}
    own = [one.method.personalise(server, state) for state in one.states]
    first = "parameters/extractor.1.weight"
    assert torch.equal(own[0][first], one.states[0][f"model/{first}"])
    assert not torch.equal(own[0][first], own[1][first])
    assert torch.equal(own[0]["parameters/head.1.weight"], own[1]["parameters/head.1.weight"])
    assert own[0].keys() == state_of(NORMAL.build("cnn-bn")).keys()
    assert one.method.personalise(server, {}) is None
    before = one.states[0]
    one.play_round(1)
    assert not torch.equal(one.states[0][f"model/{first}"], before[f"model/{first}"])  # it goes on from its own


def test_half_precision_halves_the_bytes_of_features_and_nothing_else() -> None:
    full, half = (site(10, precision=precision).ask(0).message for precision in ("full", "half"))
    assert full["features"].nbytes == 10 * 200 * 4
    assert half["features"].nbytes * 2 == full["features"].nbytes
    assert full.nbytes - half.nbytes == half["features"].nbytes
    torch.testing.assert_close(half["features"].float(), full["features"], rtol=1e-3, atol=1e-4)
    server = site(10, precision="half").play_round(0)
    assert {tensor.dtype for name, tensor in server.items() if "parameters" in name} == {torch.float32}


def test_the_server_keeps_no_features() -> None:
    one = site(30, 20)
    server = one.play_round(0)
    assert not [name for name in server if "features" in name]
    more = set(server) - set(one.method.start(Streams(0)))
    kept = sum(server[name].nbytes for name in more if name.startswith("said/"))
    assert kept == (30 + 20) * (8 + 3 * 4)
    assert {name.split("/")[0] for name in more} == {"said", "optimiser", "facts"}


def test_features_stay_where_the_replies_have_them(tmp_path: Path) -> None:
    """The server's data set refers to the clients' tensors, and a merge of mapped files gives the same bits."""
    one = site(30, 20)
    replies = [one.ask(client) for client in (0, 1)]
    received = Received([reply.message for reply in replies])
    assert [a.data_ptr() for a in received.features] == [reply.message["features"].data_ptr() for reply in replies]
    rows = torch.tensor([49, 3, 30, 29])
    batch = received.batch(rows)
    expected = torch.cat([reply.message["features"] for reply in replies])[rows]
    assert torch.equal(batch["inputs"], expected)
    assert torch.equal(batch["labels"], torch.cat([reply.message["labels"] for reply in replies])[rows])
    assert "labels" not in received.unlabelled().batch(rows)

    def mapped(reply: Reply) -> Reply:
        features = reply.message["features"]
        path = tmp_path / str(reply.profile.id)
        path.write_bytes(features.numpy().tobytes())
        lazily = torch.from_file(str(path), size=features.numel()).view(features.shape)
        return replace(reply, message=Message({**reply.message, "features": lazily}))

    in_memory, from_files = (
        one.method.aggregate(one.server, sent, one.context(0))
        for sent in (replies, [mapped(reply) for reply in replies])
    )
    assert digest(in_memory) == digest(from_files)
    assert one.method.spill_to_disk


def test_who_misses_a_round_or_loses_its_upload_is_told_what_was_said_of_it_before() -> None:
    one = site(6, 5, 4)
    first = one.play_round(0, cohort=[0, 1])
    assert "said/2/ids" not in first
    second = one.play_round(1, cohort=[0, 1, 2], lost=[1])
    assert torch.equal(second["said/1/logits"], first["said/1/logits"])
    assert not torch.equal(second["said/0/logits"], first["said/0/logits"])
    request = one.method.request(second, one.profile(1), one.context(2))
    assert torch.equal(request["said/logits"], first["said/1/logits"])
    assert torch.equal(second["said/2/ids"], one.data[2].columns["sample_id"])


@pytest.mark.parametrize("extractors", ["average", "private"])
def test_a_reply_is_exactly_what_is_expected_of_it(extractors: str) -> None:
    one = site(6, task=NORMAL, extractors=extractors, precision="half")
    for round in (0, 1):
        request = one.method.request(one.server, one.profile(0), one.context(round))
        reply = one.ask(0, round)
        expected = one.method.expect(one.server, one.profile(0), request)
        assert validate_reply(reply.message, request, expected) is None
        short = Message({**reply.message, "labels": reply.message["labels"][1:]})
        assert "labels has shape" in str(validate_reply(short, request, expected))
        one.play_round(round)


def test_work_counts_the_pass_in_which_features_are_made() -> None:
    """Six samples forward and back, which is 6 + 2 * 6, and forward once more."""
    assert site(6).ask(0).work == 6 + 12 + 6


def test_labels_that_are_no_classes_are_left_out_of_the_round() -> None:
    one = site(6, 5)
    replies = [one.ask(client) for client in (0, 1)]
    bad = Message({**replies[1].message, "labels": replies[1].message["labels"] + 3})
    merged = one.method.aggregate(one.server, [replies[0], replace(replies[1], message=bad)], one.context(0))
    alone = one.method.aggregate(one.server, replies[:1], one.context(0))
    assert one.method.metrics(merged) == {**one.method.metrics(alone), "unusable replies": 1.0}
    assert digest({n: t for n, t in merged.items() if "facts" not in n}) == digest(
        {n: t for n, t in alone.items() if "facts" not in n}
    )
    nothing = one.method.aggregate(one.server, [replace(replies[1], message=bad)], one.context(0))
    assert digest(one.method.models(nothing)["mlp"]) == digest(one.method.models(one.server)["mlp"])


def test_what_leaves_a_client_is_said_plainly() -> None:
    lines = {line.name: line for line in site(6).method.egress}
    kinds = {name: line.kind for name, line in lines.items()}
    assert (kinds["features"], kinds["logits"], kinds["labels"], kinds["ids"]) == (
        "features",
        "logits",
        "labels",
        "labels",
    )
    assert "in the clear" in lines["labels"].why
    assert kinds["model/parameters/*"] == kinds["small_head/parameters/*"] == "parameters"


def test_point_clouds_are_split_before_their_head() -> None:
    generator = torch.Generator().manual_seed(0)
    task = Classification(("a", "b"), (32, 3), ("pointnet-tiny",), augmentation=PointAugmentation())
    clouds = [
        ArrayDataset(inputs=torch.randn(8, 32, 3, generator=generator), labels=torch.arange(8) % 2) for _ in range(2)
    ]
    one = Site(made(task), task, clouds, rounds=2)
    server = one.play()
    assert one.ask(0, 1).message["features"].shape == (8, 128)
    assert torch.isfinite(server["said/1/logits"]).all()
    assert state_of(task.build("pointnet-tiny")).keys() == one.method.models(server)["pointnet-tiny"].keys()


def test_what_a_client_trains_is_its_part_and_a_linear_layer() -> None:
    """On its own device: 92,672 parameters of the convolutions and 6,272 x 10 + 10 of the small head."""
    task = Classification(tuple("0123456789"), (1, 28, 28), ("split-cnn",))
    model = made(task).at_client("split-cnn")
    assert sum(one.numel() for one in model.parameters()) == 92_672 + 62_730


def test_models_that_label_points_and_models_without_parts_are_refused() -> None:
    points = Segmentation(("a", "b"), (64, 3), ("pointnet2-segmentation-lite",))
    with pytest.raises(InputError, match="classifier of whole samples"):
        made(points)

    class Foreign(Classification):
        def build(self, *_: Any, **__: Any) -> torch.nn.Module:
            return torch.nn.Linear(2, 2)

    with pytest.raises(InputError, match="choose data with one label for each sample, and a model for it"):
        made(Foreign(("a", "b"), (2,), ("own",)))

    class Headless(Classification):
        def build(self, *_: Any, **__: Any) -> torch.nn.Module:
            return Classifier(torch.nn.Linear(2, 2), torch.nn.Identity(), 2)

    with pytest.raises(InputError, match="cannot cut own in two"):
        made(Headless(("a", "b"), (2,), ("own",)))


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"temperature": 0}, "method.temperature"),
        ({"server_batch": 1}, "method.server_batch"),
        ({"extractors": "shared"}, "method.extractors"),
        ({"precision": "int8"}, "method.precision"),
        ({"statistics": "frozen"}, "method.statistics"),
        ({"compared": -1}, "method.compared"),
    ],
    ids=["temperature", "batch", "extractors", "features", "statistics", "compared"],
)
def test_settings_that_cannot_work_are_one_sentence(tiny_plan: Any, setting: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        tiny_plan(method={"name": "fedgkt", **setting})


def test_where_nobody_says_otherwise_training_is_the_literatures(tiny_plan: Any) -> None:
    training = tiny_plan(method="fedgkt", training={}).experiment.training
    assert (training.epochs, training.batch, training.rate, training.weight_decay) == (1, 64, 0.01, 5e-4)
    assert (training.optimiser, training.momentum) == ("sgd", 0.9)


@pytest.mark.parametrize("extractors", ["average", "private"])
def test_digits_are_learnt_and_the_wire_changes_no_bit(
    extractors: str, tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path
) -> None:
    """Ten classes: chance is a tenth. Three rounds with four of five clients each."""
    plan = tiny_plan(
        method={"name": "fedgkt", "extractors": extractors, "precision": "half"},
        model="cnn-bn",
        training={"epochs": 2, "batch": 32, "rate": 0.05},
        participation={"name": "random", "number": 4},
    )
    runs = [execute(plan, engines[name], tmp_path / name) for name in ("in-process", "wire")]
    checkpoints = [(run.path / "checkpoint.safetensors").read_bytes() for run in runs]
    assert checkpoints[0] == checkpoints[1]
    accuracies = [record.metrics["accuracy"] for record in runs[0].journal()]
    assert accuracies[-1] > 0.6, accuracies
    assert accuracies[-1] > accuracies[0]
