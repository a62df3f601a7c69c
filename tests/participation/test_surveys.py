from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedstill.core.dataset import ArrayDataset, Dataset, Subset
from fedstill.core.egress import check_egress
from fedstill.core.kinds import state_of
from fedstill.core.message import Message
from fedstill.core.noise import from_operating_system
from fedstill.core.protocols import Abstain, Client, Exchange, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.devices.clusters import Clusters
from fedstill.participation.surveys import LabelMix, SharedLoss, blur, label_shares, moments, not_surveyed
from fedstill.tasks.classification import Classification


def context(name: str, clients: int = 4, seed: int = 0) -> RoundContext:
    return RoundContext(0, 10, clients, name, Streams(seed).at("round", 0, name))


def data(samples: int = 6, labels: list[int] | None = None, seed: int = 0) -> ArrayDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 256, (samples, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ArrayDataset(inputs=inputs, labels=torch.tensor(labels or [0] * samples))


def client(number: int, held: Dataset, now: RoundContext) -> Client:
    task = Classification(("a", "b", "c"), (1, 4, 4), ("mlp",))
    return Client(Profile(number, len(held), "mlp"), task, held, now.streams.at("client", number))


def asked(exchange: Exchange, who: Client, now: RoundContext) -> Reply:
    """What a round does with one client, but for the engine."""
    request = exchange.request({}, who.profile, now)
    assert request is not None
    message = Message.decode(exchange.reply(who, Message.decode(request.encode()), now).encode())
    check_egress(message, exchange.egress, exchange.name)
    expected = exchange.expect({}, who.profile, request)
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in message.items()} == expected
    return Reply(who.profile, message, None)


def by_numpy(values: np.ndarray) -> list[float]:
    values = values.astype(np.float64).ravel()
    apart = values - values.mean()
    deviation = np.sqrt((apart**2).mean())
    return [values.mean(), deviation, (apart**3).mean() / deviation**3]


@pytest.mark.parametrize("samples", [1, 255, 256, 257, 700])
def test_moments_against_numpy(samples: int) -> None:
    """Pieces are of 256 samples; 0..255 is read as -1..1."""
    held = data(samples, seed=samples)
    found = moments(held)
    expected = by_numpy(held.columns["inputs"].numpy() / np.float32(127.5) - np.float32(1))
    assert [found[name].item() for name in ("mean", "std", "skewness")] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(st.integers(1, 600), st.floats(-1000, 1000), st.integers(0, 50))
@settings(deadline=None, max_examples=25)
def test_moments_of_clouds_with_any_offset(samples: int, offset: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    clouds = torch.empty(samples, 5, 3).exponential_(generator=generator) + offset
    found = moments(ArrayDataset(inputs=clouds))
    mean, deviation, skewness = by_numpy(clouds.numpy())
    assert found["mean"].item() == pytest.approx(mean, rel=1e-12, abs=1e-12)
    assert found["std"].item() == pytest.approx(deviation, rel=1e-9)
    assert found["skewness"].item() == pytest.approx(skewness, rel=1e-6, abs=1e-9)


def test_moments_at_the_edge() -> None:
    same = moments(ArrayDataset(inputs=torch.full((300, 2), 0.1)))
    assert [same[name].item() for name in ("std", "skewness")] == [0, 0]
    with pytest.raises(Abstain, match="no samples"):
        moments(Subset(data(), torch.zeros(0, dtype=torch.int64)))


def test_the_shard_is_never_copied_whole() -> None:
    """No batch that is read has more than 256 rows."""

    class Watched(ArrayDataset):
        largest = 0

        def batch(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            Watched.largest = max(Watched.largest, len(rows))
            return dict(super().batch(rows))

    moments(Watched(inputs=torch.zeros(1000, 2)))
    assert Watched.largest == 256


def test_shares_of_classes() -> None:
    assert label_shares(data(4, [0, 2, 2, 2]), 3).tolist() == [0.25, 0, 0.75]
    points = ArrayDataset(inputs=torch.zeros(2, 4, 3), labels=torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))
    assert label_shares(points, 2).tolist() == [0.25, 0.75]
    with pytest.raises(Abstain, match="no labels"):
        label_shares(data().unlabelled(), 3)


@pytest.mark.parametrize("statistics", [("mean", "std"), ("skewness",), ("std", "skewness", "mean")], ids="-".join)
def test_statistics_are_sent_in_the_order_named(statistics: tuple[str, ...]) -> None:
    clusters, now = Clusters(number=1, statistics=statistics), context("statistics")
    held = data(9, seed=3)
    reply = asked(clusters.exchange(3), client(2, held, now), now)
    assert reply.message["statistics"].tolist() == [moments(held)[name].item() for name in statistics]


def test_merged_statistics_are_rows_of_the_fleet_and_make_clusters() -> None:
    clusters, now = Clusters(number=2), context("statistics")
    before = clusters.start(4, 3)
    assert before["cluster"].tolist() == [-1] * 4
    dark = ArrayDataset(inputs=torch.zeros(5, 1, 4, 4, dtype=torch.uint8), labels=torch.zeros(5).long())
    replies = [asked(clusters.exchange(3), client(number, held, now), now) for number, held in ((0, data()), (2, dark))]
    after = clusters.exchange(3).aggregate(before, replies, now)
    assert after["statistics"].isnan().any(dim=1).tolist() == [False, True, False, True]
    assert after["statistics"][2].tolist() == [-1, 0]
    assert after["cluster"].tolist() == [0, -1, 1, -1]
    assert before["statistics"].isnan().all()  # replaced, not changed in place


def test_a_client_without_samples_is_not_asked() -> None:
    for exchange in (Clusters().exchange(3), LabelMix(3, 0.0), SharedLoss({"mlp": {}})):
        assert exchange.request({}, Profile(0, 0, "mlp"), context(exchange.name)) is None
        assert exchange.min_replies == 0


def test_labels_become_numbers_of_samples() -> None:
    now = context("labels")
    reply = asked(LabelMix(3, 0.0), client(1, data(4, [0, 2, 2, 2]), now), now)
    after = LabelMix(3, 0.0).aggregate({}, [reply], now)
    assert after["labels"][1].tolist() == [1, 0, 3]
    assert after["labels"][[0, 2, 3]].isnan().all()


def test_noise_is_declared_repeatable_and_as_wide_as_asked() -> None:
    """400 clients with equal data, two numbers each: deviation 0.3 within four standard errors, 0.3 / sqrt(2 * 800)."""
    clusters, now = Clusters(number=1, noise=0.3), context("statistics", 400)
    exchange, held = clusters.exchange(3), data()
    clear = torch.stack([moments(held)[name] for name in ("mean", "std")])
    rows = torch.stack([asked(exchange, client(n, held, now), now).message["statistics"] for n in range(400)])
    again = asked(exchange, client(7, held, now), now).message["statistics"]
    assert torch.equal(rows[7], again)
    spread = rows - clear
    assert spread.std().item() == pytest.approx(0.3, abs=4 * 0.3 / 1600**0.5)
    assert spread.mean().abs().item() < 4 * 0.3 / 800**0.5
    assert "noise of deviation 0.3" in exchange.egress[0].why
    assert "noise" not in Clusters().exchange(3).egress[0].why
    assert {line.kind for line in (*exchange.egress, *LabelMix(3, 0.1).egress)} == {"statistics"}


def test_a_site_can_bring_its_own_noise() -> None:
    exchange = Clusters(number=1, noise=2.0).exchange(3)
    exchange.source = lambda streams: torch.ones
    now = context("statistics")
    clear = moments(data())
    sent = asked(exchange, client(0, data(), now), now).message["statistics"]
    assert sent.double().tolist() == pytest.approx([clear["mean"].item() + 2, clear["std"].item() + 2])


def test_noise_leaves_no_negative_numbers_of_samples() -> None:
    now = context("labels")
    replies = [asked(LabelMix(3, 5.0), client(n, data(), now), now) for n in range(4)]
    labels = LabelMix(3, 5.0).aggregate({}, replies, now)["labels"]
    assert (labels >= 0).all()
    assert (labels == 0).any()


def test_the_loss_of_the_shared_model() -> None:
    """Weights and biases of zero say a third of each class: ln 3, whatever the data; the pass is counted as work."""
    now = context("losses")
    task = Classification(("a", "b", "c"), (1, 4, 4), ("mlp",))
    model = task.build("mlp", streams=Streams(0))
    for part in model.parameters():
        nn.init.zeros_(part)
    exchange, who = SharedLoss({"mlp": state_of(model)}), client(1, data(6, [0, 1, 2, 2, 1, 0]), now)
    reply = asked(exchange, who, now)
    assert reply.message["loss"].item() == pytest.approx(np.log(3), rel=1e-6)
    assert who.meter.work == 6
    before = {"loss": torch.tensor([5.0, 5.0, 5.0, 5.0], dtype=torch.float64)}
    after = exchange.aggregate(before, [reply], now)["loss"]
    assert after[1] == reply.message["loss"]
    assert after[[0, 2, 3]].isnan().all()
    assert exchange.request({}, Profile(0, 5, "cnn"), now) is None  # nobody has a shared model for it


def test_who_has_not_been_heard() -> None:
    rows = torch.tensor([[1.0, 2.0], [float("nan")] * 2, [3.0, 4.0]])
    assert not_surveyed({"labels": rows}, "labels", np.array([1, 2])).tolist() == [1]
    assert not_surveyed({}, "labels", np.array([1, 2])).tolist() == [1, 2]


def test_a_real_site_draws_its_noise_from_the_operating_system() -> None:
    """The exchange of a simulation stays as it is; methods' exchanges have nothing to change."""
    simulated = LabelMix(3, noise=1.0)
    real = simulated.on_site()
    assert isinstance(real, LabelMix)
    assert (real.source, simulated.source) == (from_operating_system, blur)
    assert (real.name, real.egress) == (simulated.name, simulated.egress)
