from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.dataset import ArrayDataset, Batch
from fedstill.core.fit import Learner, Schedule, Trained, fit, task_loss
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.core.training import Training


class Regression:
    """Half the mean squared error of a model's single output; all of the task that `fit` needs."""

    def trained_on(self, data: ArrayDataset) -> Regression:
        return self

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        out = model(batch["inputs"])
        return Output(out, out, {"half-square": 0.5 * (out[:, 0] - batch["labels"]).square().mean()})


def scalar(start: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, start)
    return model


def constant_data(*targets: float) -> ArrayDataset:
    return ArrayDataset(inputs=torch.ones(len(targets), 1), labels=torch.tensor(targets))


def run(
    learner: Learner, data: ArrayDataset, epochs: range = range(1), batch: int = 100, clip: float | None = None
) -> Trained:
    (trained,) = fit([learner], Regression(), data, Schedule(epochs, batch, clip), Streams(5), Meter())
    return trained


def learner(model: nn.Module, training: Training, name: str = "learner", **more: object) -> Learner:
    return Learner(model, task_loss, training.make_optimiser(model.parameters()), Streams(3).at(name), **more)


def test_one_plain_step_by_hand() -> None:
    """f(w) = mean of (w - 1)^2 / 2 and (w - 3)^2 / 2 has gradient w - 2; from w = 4 at rate 1/4: 4 - 2/4 = 3.5.

    The loss at w = 4 is (9 + 1) / 4 = 2.5.
    """
    model = scalar(4)
    trained = run(learner(model, Training(rate=0.25, momentum=0)), constant_data(1, 3))
    assert model.weight.item() == 3.5
    assert trained == Trained(1, {"half-square": 2.5})


def test_momentum_and_weight_decay_by_hand() -> None:
    """Gradient w - 2 plus decay w / 2, momentum 1/2, rate 1/4, from w = 4.

    Step 1: g = 2 + 2 = 4,      v = 4,            w = 4 - 1 = 3.       Loss at 4: 2.5
    Step 2: g = 1 + 1.5 = 2.5,  v = 2 + 2.5 = 4.5, w = 3 - 1.125 = 1.875. Loss at 3: (4 + 0) / 4 = 1
    Step 3: g = -0.125 + 0.9375 = 0.8125, v = 2.25 + 0.8125 = 3.0625, w = 1.875 - 0.765625 = 1.109375.
            Loss at 1.875: (0.765625 + 1.265625) / 4 = 0.5078125
    Mean loss: (2.5 + 1 + 0.5078125) / 3 = 1.3359375
    """
    model = scalar(4)
    training = Training(rate=0.25, momentum=0.5, weight_decay=0.5)
    trained = run(learner(model, training), constant_data(1, 3), range(3))
    assert model.weight.item() == 1.109375
    assert trained.steps == 3
    assert trained.terms["half-square"] == pytest.approx(1.3359375, abs=1e-7)


def test_clipping_by_hand() -> None:
    """The gradient at w = 4 is 2; clipped to norm 1/2 a step of rate 1 gives 3.5. A large limit changes nothing."""
    for clip, expected in ((0.5, 3.5), (5.0, 2.0), (None, 2.0)):
        model = scalar(4)
        run(learner(model, Training(rate=1, momentum=0)), constant_data(1, 3), clip=clip)
        assert model.weight.item() == pytest.approx(expected, abs=1e-5)


def test_named_terms_are_added_up_and_reported_apart() -> None:
    """Terms (w - 2)^2/2-ish and 3 w: gradient (w - 2) + 3 = 5 at w = 4; rate 1/5 gives 3. Terms there: 2.5 and 12."""
    model = scalar(4)

    def loss(output: Output, batch: Batch, shared: object) -> dict[str, Tensor]:
        return {**output.terms, "pull": 3 * model.weight.sum()}

    one = Learner(model, loss, Training(rate=0.2, momentum=0).make_optimiser(model.parameters()), Streams(0))
    trained = run(one, constant_data(1, 3))
    assert model.weight.item() == pytest.approx(3, abs=1e-6)
    assert trained.terms == {"half-square": 2.5, "pull": 12.0}


@pytest.mark.parametrize(
    ("samples", "batch", "steps"), [(7, 3, 2), (6, 3, 2), (8, 3, 3), (1, 4, 0), (5, 1, 0), (0, 4, 0), (2, 100, 1)]
)
def test_batches_of_one_are_skipped(samples: int, batch: int, steps: int) -> None:
    """7 samples by threes are 3 + 3 + 1: two steps. What is skipped is neither counted nor metered."""
    data = ArrayDataset(inputs=torch.ones(samples, 1), labels=torch.zeros(samples))
    meter = Meter()
    one = learner(scalar(1), Training(momentum=0))
    (trained,) = fit([one], Regression(), data, Schedule(range(2), batch), Streams(0), meter)
    assert trained.steps == 2 * steps
    seen = 2 * (samples - 1 if samples % batch == 1 or batch == 1 else samples) if steps else 0
    assert (meter.forward, meter.backward) == (seen, seen)
    if not steps:
        assert trained.terms == {}


def test_a_model_with_batchnorm_survives_a_last_batch_of_one() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    trained = run(learner(model, Training()), constant_data(1, 2, 3, 4, 5), batch=2)
    assert trained.steps == 2
    assert model[1].num_batches_tracked.item() == 2


def test_every_row_is_seen_once_an_epoch_in_an_order_of_its_own() -> None:
    data = ArrayDataset(inputs=torch.ones(20, 1), labels=torch.zeros(20))
    seen: list[list[int]] = []

    def loss(output: Output, batch: Batch, shared: object) -> dict[str, Tensor]:
        seen.append(batch["sample_id"].tolist())
        return dict(output.terms)

    model = scalar(1)
    one = Learner(model, loss, Training().make_optimiser(model.parameters()), Streams(0))
    fit([one], Regression(), data, Schedule(range(3), 10), Streams(1), Meter())
    epochs = [seen[0] + seen[1], seen[2] + seen[3], seen[4] + seen[5]]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    expected = Streams(1).draw("order", 2).permutation(20).tolist()
    assert epochs[2] == expected


def network(name: str) -> nn.Sequential:
    with Streams(8).ambient("network", name):
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1), nn.Dropout(0.1)
        )


def rows(count: int = 23) -> ArrayDataset:
    generator = Streams(1).draw("data")
    inputs = torch.from_numpy(generator.standard_normal((count, 4))).float()
    return ArrayDataset(inputs=inputs, labels=inputs.sum(dim=1))


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def together(names: list[str], shared: Callable | None = None) -> dict[str, tuple[dict[str, Tensor], Trained]]:
    learners = [learner(network(name), Training(optimiser="adam", rate=0.01), name) for name in names]
    schedule = Schedule(range(3), 5)
    trained = fit(learners, Regression(), rows(), schedule, Streams(5), Meter(), shared)
    return {name: (bits(one.model), done) for name, one, done in zip(names, learners, trained, strict=True)}


def test_learners_together_get_the_bits_they_get_alone() -> None:
    pair, reverse = together(["a", "b", "c"]), together(["c", "b", "a"])
    for name in "abc":
        alone = together([name])[name]
        for company in (pair, reverse):
            assert equal(company[name][0], alone[0])
            assert company[name][1] == alone[1]
    assert not equal(pair["a"][0], pair["b"][0])


def test_what_is_shared_may_draw_without_touching_the_learners_streams() -> None:
    """A teacher with Dropout, or a random geometry, must not change what a student alone would have drawn."""
    drawn = []

    def shared(batch: Batch) -> dict[str, Tensor]:
        drawn.append(torch.rand(3))
        return {}

    plain = together(["a"])
    assert equal(together(["a"], shared)["a"][0], plain["a"][0])
    assert equal(together(["a", "b"], shared)["a"][0], plain["a"][0])
    assert not torch.equal(drawn[0], drawn[1]), "every batch has draws of its own"


def test_learners_on_equal_streams_from_equal_models_stay_equal() -> None:
    learners = [learner(network("a"), Training(), "same") for _ in range(2)]
    fit(learners, Regression(), rows(), Schedule(range(2), 5), Streams(5), Meter())
    assert equal(bits(learners[0].model), bits(learners[1].model))


def test_dropout_differs_between_epochs_and_depends_on_the_epochs_number_alone() -> None:
    def masks(epochs: range) -> list[Tensor]:
        model, seen = network("a"), []
        model[3].register_forward_hook(lambda module, inputs, output: seen.append(output != 0))
        model[2] = nn.Sigmoid()  # never zero, so that zeros are Dropout's
        run(learner(model, Training()), rows(), epochs)
        return seen

    first, second = masks(range(2))
    assert not torch.equal(first, second)
    assert torch.equal(masks(range(1, 2))[0], second)


def test_dropout_really_differs_between_learners() -> None:
    same_start = [learner(network("a"), Training(), name) for name in ("x", "y")]
    fit(same_start, Regression(), rows(), Schedule(range(1), 5), Streams(5), Meter())
    assert not equal(bits(same_start[0].model), bits(same_start[1].model))


def test_what_is_shared_runs_once_a_batch_and_reaches_every_loss() -> None:
    calls: list[int] = []
    got: list[float] = []

    def teacher(batch: Batch) -> dict[str, Tensor]:
        calls.append(len(batch["inputs"]))
        return {"answer": torch.tensor(float(len(calls)))}

    def loss(output: Output, batch: Batch, shared: dict[str, Tensor]) -> dict[str, Tensor]:
        got.append(shared["answer"].item())
        return dict(output.terms)

    models = [scalar(1), scalar(2)]
    learners = [
        Learner(model, loss, Training().make_optimiser(model.parameters()), Streams(index))
        for index, model in enumerate(models)
    ]
    fit(learners, Regression(), rows_of_one_column(9), Schedule(range(2), 4), Streams(0), Meter(), teacher)
    assert calls == [4, 4, 4, 4]
    assert got == [1, 1, 2, 2, 3, 3, 4, 4]


def rows_of_one_column(count: int) -> ArrayDataset:
    return ArrayDataset(inputs=torch.ones(count, 1), labels=torch.zeros(count))


def test_augmentation_is_applied_and_depends_on_the_epoch_alone() -> None:
    """The inputs become a number drawn per epoch; with a target of 0 and w = 1 the loss is half its square."""
    drawn: list[float] = []

    def augment(batch: Batch, generator: object) -> Batch:
        drawn.append(generator.random())
        return {**batch, "inputs": torch.full_like(batch["inputs"], drawn[-1])}

    def go(epochs: range) -> Trained:
        one = learner(scalar(1), Training(rate=1e-30, momentum=0))
        schedule = Schedule(epochs, 4)
        return fit([one], Regression(), rows_of_one_column(4), schedule, Streams(2), Meter(), augment=augment)[0]

    go(range(3))
    expected = [Streams(2).draw("augment", epoch).random() for epoch in range(3)]
    assert drawn == expected
    assert go(range(2, 3)).terms["half-square"] == pytest.approx(0.5 * expected[2] ** 2, rel=1e-6)


@pytest.mark.parametrize(
    "training",
    [Training(rate=0.05, momentum=0.9), Training(optimiser="adam", rate=0.01), Training(momentum=0)],
    ids=["momentum", "adam", "plain"],
)
def test_stopping_after_an_epoch_and_going_on_gives_the_same_bits(training: Training) -> None:
    straight = network("a")
    run(learner(straight, training), rows(), range(3), batch=5)

    first = learner(network("a"), training)
    run(first, rows(), range(1), batch=5)
    moments, halfway = first.optimiser.moments(), bits(first.model)
    torch.rand(17)  # another process would have another global generator
    model = network("b")
    model.load_state_dict(halfway)
    second = learner(model, training)
    second.optimiser.load(moments)
    run(second, rows(), range(1, 3), batch=5)
    assert equal(bits(model), bits(straight))
    if moments:
        without = network("b")
        without.load_state_dict(halfway)
        run(learner(without, training), rows(), range(1, 3), batch=5)
        assert not equal(bits(without), bits(straight))


def test_the_global_generator_is_not_touched_and_does_not_matter() -> None:
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.randn(3)
        before = torch.default_generator.get_state()
        model = network("a")
        run(learner(model, Training()), rows(), range(2), batch=5)
        assert torch.equal(torch.default_generator.get_state(), before)
        results.append(bits(model))
    assert equal(*results)


def test_the_global_generator_is_put_back_after_an_exception() -> None:
    def loss(output: Output, batch: Batch, shared: object) -> dict[str, Tensor]:
        raise KeyError

    model = network("a")
    one = Learner(model, loss, Training().make_optimiser(model.parameters()), Streams(0))
    before = torch.default_generator.get_state()
    with pytest.raises(KeyError):
        run(one, rows())
    assert torch.equal(torch.default_generator.get_state(), before)


def test_correct_comes_between_the_gradient_and_the_step() -> None:
    """The gradient at w = 4 is 2 (data 1 and 3); adding 6 makes it 8, and rate 1/4 gives 4 - 2 = 2.

    Seen by the hook: the fresh gradient of 2, and the weight before the step. It is called in every step.
    """
    model, seen = scalar(4), []

    def correct(corrected: nn.Module) -> None:
        seen.append((corrected.weight.grad.item(), corrected.weight.item()))
        corrected.weight.grad.add_(6)

    run(learner(model, Training(rate=0.25, momentum=0), correct=correct), constant_data(1, 3), range(2))
    assert seen == [(2.0, 4.0), (0.0, 2.0)]
    assert model.weight.item() == 2 - 6 / 4


def test_clipping_sees_the_corrected_gradient() -> None:
    """Corrected to 8 and clipped to 1: a step of rate 1 goes from 4 to 3."""
    model = scalar(4)

    def correct(corrected: nn.Module) -> None:
        corrected.weight.grad.add_(6)

    run(learner(model, Training(rate=1, momentum=0), correct=correct), constant_data(1, 3), clip=1)
    assert model.weight.item() == pytest.approx(3, abs=1e-5)


def test_a_model_handed_over_in_eval_is_trained_in_train_mode() -> None:
    model = network("a").eval()
    run(learner(model, Training()), rows(), batch=5)
    assert model.training
    assert model[1].num_batches_tracked.item() == 5


def test_the_meter_counts_learners_and_passes() -> None:
    """10 samples, 2 epochs, 3 learners: 60 forward and 60 backward passes; work 60 + 2 * 60."""
    meter = Meter()
    learners = [learner(scalar(1), Training(), str(index)) for index in range(3)]
    fit(learners, Regression(), rows_of_one_column(10), Schedule(range(2), 5), Streams(0), meter)
    assert (meter.forward, meter.backward, meter.work) == (60, 60, 180.0)


def test_gradients_do_not_pile_up_between_steps() -> None:
    """Two steps at rate 1/4 on gradient w - 2: 4 -> 3.5 -> 3.125; piled up, the second would be 3.5 - 3.5/4."""
    model = scalar(4)
    run(learner(model, Training(rate=0.25, momentum=0)), constant_data(1, 3), range(2))
    assert model.weight.item() == 3.125
