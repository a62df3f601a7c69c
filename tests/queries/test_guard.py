"""A limit on forgetting: what is kept stays within it on samples held out, counted again in plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.dataset import ArrayDataset, Dataset
from fedstill.core.errors import InputError
from fedstill.core.message import part
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.methods.local_only import held_out
from fedstill.queries.guard import Guard, choice_in, collapse_warning
from fedstill.queries.qkt import QKTSettings
from fedstill.queries.query import Answered
from fedstill.tasks.classification import Classification

from .asked import Ended, Table, planned, played

TASK = Classification(("a", "b", "c", "d"), (1, 8, 8), ("mlp",))
LONG = {"transfer_epochs": 4, "head_epochs": 3, "threshold": 0.0, "query_weight": 6.0}
TRAINED = {"training": {"epochs": 8, "batch": 32, "optimiser": "adam", "rate": 3e-3}}
METHODS: dict[str, dict[str, Any]] = {
    "qkt": LONG,
    "qkt-light": LONG,
    "naive-kd": {**LONG, "query_weight": 1.0},
}


def saying(number: int) -> Any:
    """A model that predicts one class."""
    model: Any = TASK.build("mlp", streams=Streams(1))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
        model.head.bias[number] = 5.0
    return model


def test_the_last_epoch_within_the_limit_is_kept() -> None:
    """Ten samples of a and ten of b: from a model of a to one of b, half of the recall over two classes is lost."""
    data = ArrayDataset(inputs=torch.zeros(20, 1, 8, 8), labels=torch.tensor([0] * 10 + [1] * 10))
    guard = Guard(TASK, data, saying(0), 49.9, "head", Meter())
    assert guard.forgetting(saying(0)) == 0.0
    assert guard.forgetting(saying(1)) == pytest.approx(50.0)
    seen: list[tuple[str, int]] = []
    watch = guard.watch(1.5, lambda phase, epoch, model: seen.append((phase, epoch)))
    watch("features", 1, saying(0))
    assert not guard.state  # the first phase is not what is kept
    for epoch, number in enumerate((0, 0, 1), 1):
        watch("head", epoch, saying(number))
    assert guard.chosen == (1.5, 2, 0.0)
    assert choice_in(guard.choice) == {"query_weight": 1.5, "epochs": 2, "forgetting": 0.0}
    assert seen == [("features", 1), ("head", 1), ("head", 2), ("head", 3)]
    assert guard.meter.forward == 20 * 6
    assert choice_in({}) is None


def lost(plan: Any, ended: Ended, client: int) -> float:
    """The mean loss of recall on the samples that a client holds out, in points, sample by sample."""
    maker = Table(plan)
    one = plan.clients(plan.profiles[client], {}, maker.context(plan.method))
    _, apart = held_out(one, 0.1)
    recalls = [_recalls(plan, part(ended.states[client], place), apart) for place in ("before/", "model/")]
    return 100 * sum(max(0.0, recalls[0][label] - recalls[1][label]) for label in recalls[0]) / len(recalls[0])


def _recalls(plan: Any, state: Any, data: Dataset) -> dict[int, float]:
    model = plan.task.build("mlp", state).eval()
    batch = data.batch(torch.arange(len(data)))
    with torch.no_grad():
        said = model(batch["inputs"])[0].argmax(dim=1)
    labels = batch["labels"]
    return {int(one): float((said[labels == one] == one).double().mean()) for one in labels.unique()}


@pytest.mark.parametrize(
    ("name", "limit"),
    [  # each method and each limit; the other pairs are slow
        ("qkt", 0.0),
        ("qkt", 10.0),
        ("qkt-light", 10.0),
        ("naive-kd", 0.0),
        pytest.param("qkt-light", 0.0, marks=pytest.mark.slow),
        pytest.param("naive-kd", 10.0, marks=pytest.mark.slow),
    ],
)
def test_what_is_kept_stays_within_the_limit(tmp_path: Path, name: str, limit: float) -> None:
    settings = {**METHODS[name], "max_forgetting": limit}
    plan = planned(name, settings, **TRAINED)
    ended = played(tmp_path, name, settings, **TRAINED)
    choices = [choice_in(state) for state in ended.states]
    for client, choice in enumerate(choices):
        assert choice is not None
        found = lost(plan, ended, client)
        assert found <= limit + 1e-9
        assert found == pytest.approx(choice["forgetting"], abs=1e-4)
        changed = ended.models()[client] != ended.models("before/")[client]
        assert changed == (choice["epochs"] > 0)
        if changed:
            assert choice["query_weight"] / settings["query_weight"] in (1.0, 0.5, 0.25, 0.125)
    told = ended.run.answers()
    assert [told[str(client)]["choice"] for client in range(4)] == choices


def test_without_a_limit_the_same_clients_lose_more_and_a_loose_one_changes_nothing_but_the_data(
    tmp_path: Path,
) -> None:
    free = played(tmp_path, "qkt", {**LONG, "patience": 20}, **TRAINED)
    plan = planned("qkt", LONG, **TRAINED)
    assert max(lost(plan, free, client) for client in range(4)) > 10.0
    loose = played(tmp_path, "qkt", {**LONG, "patience": 20, "max_forgetting": 100.0}, **TRAINED)
    assert all(
        choice_in(state) is not None and choice_in(state)["query_weight"] == 6.0  # type: ignore[index]
        for state in loose.states
    )
    assert loose.models("before/") == free.models("before/")
    assert "choice" not in free.run.answers()["0"]


def test_only_one_thing_chooses_epochs() -> None:
    with pytest.raises(ValueError, match="leave one of them out"):
        QKTSettings(tune=True, max_forgetting=5.0)
    with pytest.raises(InputError, match="max_forgetting"):
        planned("qkt", {"max_forgetting": -1})
    assert "max_forgetting" not in QKTSettings().hashed()


def test_own_classes_that_collapse_are_named() -> None:
    """b falls from 60 to 35 %, which is more than half of it; c was never recognised; d is asked for."""
    before, after = torch.tensor([0.8, 0.6, 0.1, 0.9]), torch.tensor([0.39, 0.35, 0.0, 0.1])
    fate = Answered(before, after, torch.tensor([30, 10, 5, 0]), (3,))
    assert fate.collapsed == (0,)
    warning = collapse_warning(fate, ("a", "b", "c", "d"))
    assert warning is not None
    assert "a 80.0\u00a0% → 39.0\u00a0%" in warning
    assert "max_forgetting limits" in warning
    assert collapse_warning(Answered(before, before, fate.counts, (3,)), ("a", "b", "c", "d")) is None
