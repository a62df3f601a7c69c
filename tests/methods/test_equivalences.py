"""Methods that must agree: to the bit where the computation is the same, to 1e-6 where only the algebra is.

The runs are real ones, on a network with Dropout and BatchNorm, with clients that are not asked and uploads that are
lost: whatever draws from a stream it should not draw from shows here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset
from fedstill.core.kinds import BUFFERS, COUNTERS, PARAMETERS, only
from fedstill.core.message import digest, part
from fedstill.core.task import Tensors
from fedstill.data.augmentation import PointAugmentation
from fedstill.data.heads import make_heads
from fedstill.engines import InProcess
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.run import execute
from fedstill.tasks.classification import Classification

from .sites import Site, build


@dataclass(frozen=True)
class Ended:
    """What a run left behind."""

    start: Tensors
    server: Tensors
    states: list[Tensors]
    journal: list[dict[str, Any]]

    @property
    def model(self) -> dict[str, Tensor]:
        return part(self.server, "model/")


Play = Callable[..., Ended]
UNEVEN = {"participation": {"name": "random", "number": 3}, "dropout": 0.25, "seed": 11}
SKEWED = {"partition": {"name": "dirichlet", "alpha": 0.3}}
_PLAYED: dict[str, Ended] = {}


@pytest.fixture
def play(tiny_plan: Any, tmp_path: Path) -> Play:
    """Run an experiment on digits with `cnn-bn`; one that another test has run already is not run again."""

    def run(method: str, rounds: int = 3, training: dict[str, Any] | None = None, **changes: Any) -> Ended:
        settings, outer = changes.pop("settings", {}), changes
        plan = tiny_plan(
            method={"name": method, **settings},
            model="cnn-bn",
            rounds=rounds,
            evaluate_every=rounds,
            training={"epochs": 1, "batch": 64, "momentum": 0.9, **(training or {})},
            **outer,
        )
        if plan.identity not in _PLAYED:
            folder = execute(plan, InProcess(), tmp_path)
            (progress, *_), _ = candidates(folder.path)
            clients = len(plan.profiles)
            store = ClientStore.of(folder.path, clients)
            states = [store.load(client) for client in range(clients)]
            start = part(plan.method.start(plan.streams), "model/")
            _PLAYED[plan.identity] = Ended(start, progress.server, states, folder.journal())
        return _PLAYED[plan.identity]

    return run


def furthest(ours: Tensors, theirs: Tensors) -> float:
    """The largest difference of any element."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)


UNWEIGHTED = {"share": "all", "local_weights": False, "global_weights": False}
EXACT = {"fedprox": {"mu": 0.0}, "moon": {"mu": 0.0}, "ditto": {}, "fed3d": UNWEIGHTED}
OTHERWISE = {"fedprox": {"mu": 0.1}, "moon": {"mu": 1.0}, "fed3d": {"share": "all"}}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("keep", [False, True], ids=["fresh", "kept"])
def test_these_are_fedavg_to_the_bit(name: str, keep: bool, play: Play) -> None:
    """Three rounds, three of five clients asked, a quarter of the uploads lost; moments fresh, and kept."""
    training = {"keep_optimiser": keep}
    fedavg = play("fedavg", training=training, **UNEVEN)
    assert any(record.failures for record in fedavg.journal)
    assert digest(play(name, training=training, settings=EXACT[name], **UNEVEN).model) == digest(fedavg.model)


@pytest.mark.parametrize("name", OTHERWISE)
def test_these_are_fedavg_for_no_other_reason(name: str, play: Play) -> None:
    """The terms do something where they are there: otherwise the equality above would say nothing."""
    fedavg, other = play("fedavg", **UNEVEN), play(name, settings=OTHERWISE[name], **UNEVEN)
    assert digest(other.model) != digest(fedavg.model)


def test_dittos_personal_models_are_not_the_shared_one(play: Play) -> None:
    ditto = play("ditto", **UNEVEN)
    personal = [digest(part(state, "personal/")) for state in ditto.states if state]
    assert len(personal) >= 3
    assert len({*personal, digest(ditto.model)}) == len(personal) + 1


PLAIN_SGD = {"optimiser": "sgd", "momentum": 0.0}


def test_the_first_round_of_scaffold_is_fedavg_with_plain_sgd(play: Play) -> None:
    """Controls are zero in round 1, and the server averages models without weights. From round 2 on they differ."""
    uniform = {"weights": "uniform"}
    for rounds, equal in ((1, True), (2, False)):
        fedavg = play("fedavg", rounds, PLAIN_SGD, settings=uniform, **SKEWED)
        scaffold = play("scaffold", rounds, PLAIN_SGD, **SKEWED)
        assert (digest(scaffold.model) == digest(fedavg.model)) is equal, rounds


def test_scaffolds_two_corrections_agree_under_plain_sgd(play: Play) -> None:
    """(x - y)/(K eta) - (c - c_i) is the mean of the client's gradients: models and all controls agree to 1e-5."""
    step, gradient = (
        play("scaffold", 3, PLAIN_SGD, settings={"correction": way}, **UNEVEN) for way in ("step", "gradient")
    )
    assert furthest(step.model, gradient.model) < 1e-5
    assert furthest(part(step.server, "control/"), part(gradient.server, "control/")) < 1e-5
    for ours, theirs in zip(step.states, gradient.states, strict=True):
        assert not ours or furthest(ours, theirs) < 1e-5


@pytest.mark.parametrize("settings", [{}, {"buffers": "recalibrate"}], ids=["averaged", "recalibrated"])
def test_scaffolds_control_is_the_mean_of_its_clients_controls(settings: dict[str, str], play: Play) -> None:
    """Over all clients, those that were never heard at zero, whatever was lost on the way. A second exchange in the
    round must not undo what the first left with a client."""
    ended = play("scaffold", 3, PLAIN_SGD, settings=settings, **UNEVEN)
    assert any(record.failures for record in ended.journal)
    for name, control in part(ended.server, "control/").items():
        held = [state.get("control/" + name, torch.zeros_like(control)).double() for state in ended.states]
        assert torch.allclose(torch.stack(held).mean(dim=0), control.double(), rtol=0, atol=1e-6), name


def test_feddyns_drift_is_the_mean_of_its_clients_drifts(play: Play) -> None:
    ended = play("feddyn", 3, settings={"alpha": 0.1}, **UNEVEN)
    for name, drift in part(ended.server, "drift/model/parameters/").items():
        held = [state.get("drift/" + name, torch.zeros_like(drift)).double() for state in ended.states]
        assert torch.allclose(torch.stack(held).mean(dim=0), drift.double(), rtol=0, atol=1e-6), name


def test_fedavgm_with_rate_one_and_no_momentum_is_fedavg(play: Play) -> None:
    fedavg, other = play("fedavg", **UNEVEN), play("fedavgm", settings={"eta": 1.0, "beta": 0.0}, **UNEVEN)
    assert furthest(other.model, fedavg.model) < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(momentum: float, play: Play) -> None:
    """Shards of 287 or 288 digits make five batches of at most 64: equal steps, though not quite equal weights."""
    training = {"momentum": momentum}
    fedavg, fednova = (play(name, 2, training) for name in ("fedavg", "fednova"))
    assert furthest(fednova.model, fedavg.model) < 1e-6


def test_fednova_with_unequal_steps_is_not_fedavg(play: Play) -> None:
    """Statistics are averaged as ever: in a first round the same bits."""
    fedavg, fednova = (play(name, 1, **SKEWED) for name in ("fedavg", "fednova"))
    assert furthest(only(PARAMETERS, fednova.model), only(PARAMETERS, fedavg.model)) > 1e-3
    for kind in (BUFFERS, COUNTERS):
        assert digest(only(kind, fednova.model)) == digest(only(kind, fedavg.model))


def test_feddyns_plain_average_in_round_one_tends_to_fedavg_and_its_corrected_model_does_not(play: Play) -> None:
    """With everybody there h = -alpha (mean - w_g), so that the corrected model is 2 mean - w_g for every alpha."""
    fedavg = play("fedavg", 1, settings={"weights": "uniform"})
    gaps = []
    for alpha in (1.0, 0.1, 1e-8):
        feddyn = play("feddyn", 1, settings={"alpha": alpha})
        gaps.append(furthest(part(feddyn.server, "plain/"), fedavg.model))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-6
    expected = {name: 2 * fedavg.model[name] - start for name, start in only(PARAMETERS, fedavg.start).items()}
    assert furthest(only(PARAMETERS, feddyn.model), expected) < 1e-6
    assert furthest(only(PARAMETERS, feddyn.model), only(PARAMETERS, fedavg.model)) > 1e-2


CLOUDS = Classification(("a", "b", "c", "d"), (64, 3), ("pointnet2-lite",), augmentation=PointAugmentation())


@pytest.mark.parametrize("name", ["fedprox", "moon"])
def test_the_same_on_point_clouds(name: str) -> None:
    """PointNet++ in its fast form, which takes another path in evaluation: MOON's other models must not disturb it."""
    clouds, labels = make_heads(per_class=6, points=64)
    inputs, kinds = torch.from_numpy(clouds), torch.from_numpy(labels)
    shards = [ArrayDataset(inputs=inputs[first::3], labels=kinds[first::3]) for first in range(3)]
    training = {"batch": 4, "optimiser": "adam", "rate": 1e-3}
    servers = [
        Site(build(method, CLOUDS, training, **settings), CLOUDS, shards, rounds=2).play()
        for method, settings in (("fedavg", {}), (name, {"mu": 0.0}), (name, {"mu": 1.0}))
    ]
    fedavg, without, with_term = (digest(part(server, "model/")) for server in servers)
    assert without == fedavg
    assert with_term != fedavg
