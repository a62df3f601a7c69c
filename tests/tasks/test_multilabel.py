"""Samples with any number of classes: loss and metrics against torch and scikit-learn, and every path of a run."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score
from torch import nn

import fedstill
from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.data.lookup import load
from fedstill.deploy.site_registry import SiteFacts
from fedstill.models import build_model
from fedstill.models.classifier import log_sigmoid
from fedstill.runtime.result import Run
from fedstill.tasks.class_intervals import _WeightedSeveral
from fedstill.tasks.multilabel import MultiLabel

COLUMNS = "edema,effusion,mass"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three findings that three numbers tell, at two sites."""
    path = tmp_path_factory.mktemp("several") / "lungs.csv"
    draw = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["x", "y", "z", *COLUMNS.split(","), "site"])
        for number in range(120):
            held = (draw.random(3) < (0.5, 0.4, 0.3)).astype(int)
            rows.writerow([*(held + 0.3 * draw.normal(size=3)).round(3), *held, "NS"[number % 2]])
    return path


@pytest.fixture(scope="module")
def run(table: Path) -> Run:
    return fedstill.run(
        "fedavg",
        data=f"table:{table},labels={COLUMNS}",
        partition="sites",
        rounds=2,
        training={"epochs": 4, "rate": 0.1},
        out=table.parent / "runs",
    )


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(3)
    labels = draw.random((50, 4)) < 0.4
    return torch.from_numpy(draw.normal(size=(50, 4)) + labels).float(), torch.from_numpy(labels)


def task_of_odds(odds: torch.Tensor, labels: torch.Tensor) -> tuple[MultiLabel, ArrayDataset]:
    """A task and data whose inputs are the logits of an identity."""
    names = tuple(map(str, range(odds.shape[1])))
    return MultiLabel(names, (odds.shape[1],), ("mlp:targets=several",)), ArrayDataset(inputs=odds, labels=labels)


def test_the_loss_is_torchs_binary_cross_entropy_and_so_is_its_gradient() -> None:
    odds, labels = drawn()
    task, data = task_of_odds(odds, labels)
    found, wanted = (odds.clone().requires_grad_() for _ in range(2))
    loss = task.forward(nn.Identity(), {**data.batch(torch.arange(50)), "inputs": found}).terms["cross-entropy"]
    same = nn.functional.binary_cross_entropy_with_logits(wanted, labels.float())
    loss.backward()
    same.backward()
    torch.testing.assert_close(loss, same)
    torch.testing.assert_close(found.grad, wanted.grad)


def test_a_model_of_the_package_has_the_same_loss_from_its_log_probabilities() -> None:
    model = build_model("mlp:targets=several", (3,), 4).eval()
    inputs, labels = torch.randn(6, 3) * 20, torch.rand(6, 4) < 0.5
    task = MultiLabel(("a", "b", "c", "d"), (3,), ("mlp:targets=several",))
    logits = model.head(model.extractor(inputs))
    loss = task.forward(model, {"inputs": inputs, "labels": labels}).terms["cross-entropy"]
    torch.testing.assert_close(loss, nn.functional.binary_cross_entropy_with_logits(logits, labels.float()))
    torch.testing.assert_close(log_sigmoid(logits), nn.functional.logsigmoid(logits))


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_are_those_of_scikit_learn_and_sums_add_up(classes: int) -> None:
    odds, labels = (some[:, :classes] for some in drawn())
    task, data = task_of_odds(odds, labels)
    scores = task.score([nn.Identity()], data)
    said, each = odds.numpy() > 0, range(classes)
    found = task.class_metrics(scores).overall
    assert found["auc"] == pytest.approx(roc_auc_score(labels, odds, average="macro"))
    assert found["f1"] == pytest.approx(f1_score(labels, said, average="macro"))
    balanced = np.mean([balanced_accuracy_score(labels[:, one], said[:, one]) for one in each])
    assert found["balanced_accuracy"] == pytest.approx(balanced)
    summary = task.summarise(scores)
    assert summary["accuracy"] == pytest.approx(float((said == labels.numpy()).mean()))
    assert summary["class_accuracy"] == pytest.approx(balanced)
    assert summary["exact"] == pytest.approx(float((said == labels.numpy()).all(axis=1).mean()))
    weighted = _WeightedSeveral(odds.double().numpy(), labels.numpy())(np.ones((1, 50)))
    assert {name: weighted[name][0] for name in found} == pytest.approx(dict(found), abs=1e-6)
    counting = MultiLabel(task.classes, task.shape, task.architectures, counts_scores=True)
    halves = [
        counting.sums(counting.score([nn.Identity()], ArrayDataset(inputs=odds[some], labels=labels[some])))
        for some in (slice(0, 20), slice(20, 50))
    ]
    whole = {name: halves[0][name] + halves[1][name] for name in halves[0]}
    assert counting.summarise(whole) == pytest.approx(summary)
    assert counting.class_metrics(whole).overall == pytest.approx(dict(found), abs=0.01)


def test_a_run_keeps_its_metrics_and_predicts(run: Run, table: Path, tmp_path: Path) -> None:
    assert run.experiment.model == "mlp:targets=several"
    assert run.metrics["last"].overall["auc"] > 0.9
    assert set(run.metrics["last"].intervals) >= {"auc", "f1"}
    np.save(tmp_path / "one.npy", np.array([3.0, -3.0, 3.0], dtype=np.float32))
    (said,) = fedstill.predict(run, tmp_path / "one.npy")
    assert said.several
    assert said.found == ("edema", "mass")


@pytest.mark.slow
def test_an_exported_file_says_the_same(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.array([3.0, -3.0, 3.0], dtype=np.float32))
    fedstill.export(run, tmp_path / "model.onnx")
    said, again = (fedstill.predict(one, tmp_path / "one.npy")[0] for one in (run, tmp_path / "model.onnx"))
    assert again.several
    assert again.probabilities.tolist() == pytest.approx(said.probabilities.tolist(), abs=1e-5)


def test_sites_score_as_one_place_does(run: Run, table: Path) -> None:
    on_site = fedstill.run(
        "fedavg",
        data=f"table:{table},labels={COLUMNS}",
        partition="sites",
        rounds=2,
        training={"epochs": 4, "rate": 0.1},
        evaluation="on-site",
        site_metrics=True,
        out=table.parent,
    )
    ours, theirs = (one.journal[-1].evaluation.test for one in (run, on_site))
    assert dict(theirs) == pytest.approx(dict(ours))


@pytest.mark.parametrize("objective", ["vanilla", "dkd", "logit-mse", "rkd"])
def test_students_are_distilled_class_by_class(run: Run, table: Path, objective: str) -> None:
    student = fedstill.distill(
        run, "mlp:width=8", data=f"table:{table},labels={COLUMNS}", objective=objective, rounds=1, out=table.parent
    )
    assert student.experiment.model == "mlp:targets=several,width=8"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "feddf"}, "one class per sample"),
        ({"method": "fedgkt"}, "one class per sample"),
        ({"method": "qkt"}, "one class per sample"),
        ({"method": "fedavg", "attack": "label-flip"}, "label-flip is for samples with one class"),
        ({"method": "fedavg", "training": {"class_weights": "balanced"}}, "class_weights is for samples with one"),
    ],
)
def test_what_needs_one_class_is_refused(table: Path, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        fedstill.run(**settings, data=f"table:{table},labels={COLUMNS}", clients=2, rounds=1, out=table.parent)


def test_data_with_one_class_has_no_model_for_several() -> None:
    with pytest.raises(InputError, match="set targets=one"):
        fedstill.run("fedavg", data="digits", model="cnn:targets=several", rounds=1, clients=2)


def test_sites_say_that_their_samples_have_several_classes(table: Path) -> None:
    facts = SiteFacts.of(load(f"table:{table},labels={COLUMNS}"))
    assert (facts.shape, facts.several_labels, facts.point_labels) == ((3,), True, False)
    one = SiteFacts.of(load(f"table:{table},label=mass,drop=edema,effusion"))
    assert one.label_space != facts.label_space
