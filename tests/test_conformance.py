"""The promise of the house: any method with any engine, order, encoding and interruption gives the same bits.

Every registered method runs here automatically, on a model with Dropout and BatchNorm, with torch's global
generator poisoned between clients, a lost upload, a refused reply and a client that is first contacted late.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedstill.core.kinds import state_of
from fedstill.core.message import Message
from fedstill.core.protocols import Engine
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle
from fedstill.detection.rooms import make_rooms
from fedstill.detection.scene_sets import scene_bundle
from fedstill.engines import make_engine
from fedstill.methods import methods
from fedstill.models import build_model
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import Plan, make_plan
from fedstill.runtime.run import execute

from .conftest import TINY, Tampered

ROUNDS = 4
DATA = "digits[:15%]"  # of each client some batches; what may go wrong does not depend on how many there are
FEW_ROOMS = "few-rooms"
SHORT = {"samples": 40, "steps": 3, "batch": 16}
POOL = {"patches": {"count": 60}, "selection": {"kmeans": 5, "prune": 0.25}}
LESSONS = {"transfer_epochs": 1, "head_epochs": 1, "patience": 1, "frozen": 0.1}
ASKED = {"queries": {"classes": "multi", "under": 20}}
DISTILL = {"name": "distill", "share": 0.15}  # of the data, since one client has it all
# Beside every method as it comes: settings that change what is exchanged or kept.
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in methods.names()},
    "fednova": {"method": "fednova", "training": {"epochs": 1, "batch": 32}},  # its momentum starts afresh
    "fedavg, recalibrated in one pass": {"method": {"name": "fedavg", "buffers": "recalibrate"}},
    "fedavg, recalibrated by layer": {
        "method": {"name": "fedavg", "buffers": "recalibrate", "recalibration": "layer-by-layer"}
    },
    "fedavg, augmented images": {"method": "fedavg", "augmentation": "images"},
    "fedavgm, buffers as parameters": {"method": {"name": "fedavgm", "buffers": "as-parameters"}},
    "scaffold, gradients": {
        "method": {"name": "scaffold", "correction": "gradient"},
        "mitigation": "friend-substitution",
    },
    "fedavg, private": {"method": {"name": "fedavg", "weights": "uniform"}, "privacy": "client-level"},
    "fedavg, recalibrated, secure": {
        "method": {"name": "fedavg", "buffers": "recalibrate"},
        "participation": {"name": "random", "number": 4},
        "dropout": {"name": "independent", "rate": 0.25, "when": "during"},
        "secure": True,
    },
    "scaffold, in fixed point": {"method": "scaffold", "secure": "fixed-point"},
    "fedavgm, secure, with distributed noise": {
        "method": {"name": "fedavgm", "weights": "uniform"},
        "privacy": {"name": "distributed", "colluding": 1},
        "secure": True,
    },
    "scaffold, record by record": {
        "method": "scaffold",
        "model": "cnn-bn:norm=group",
        "privacy": {"name": "record-level", "delta": 0.001},
    },
    "fedbn, secure": {"method": "fedbn", "secure": {"name": "masked", "reports": "clear"}},
    "feddf": {"method": {"name": "feddf", "proxy": "digits", **SHORT, "initialise": 0.5}},
    "feddf, two architectures": {
        "method": {"name": "feddf", "proxy": "digits", **SHORT, "mu": 0.1},
        "models": {"cnn-bn": 3, "mlp": 2},
    },
    "feddf, logits both ways": {
        "method": {"name": "feddf", "proxy": "digits", **SHORT, "initialise": 0.1, "downlink": "logits"}
    },
    "feddf, recalibrated, two architectures, logits both ways": {
        "method": {
            "name": "feddf",
            "proxy": "digits",
            **SHORT,
            "initialise": 0.1,
            "downlink": "logits",
            "statistics": "recalibrate",
        },
        "models": {"cnn-bn": 3, "mlp": 2},
    },
    "feddf, as in the code of the single-image paper": {
        "method": {
            "name": "feddf",
            "proxy": "digits",
            **SHORT,
            "initialise": 0.4,
            "averaging": "multiples",
            "schedule": "cosine",
            "clip_logits": 2.5,
            "keep": "best-step",
            "validate_every": 2,
            "replace": "if-not-worse",
            "selection": {"kmeans": 5, "prune": 0.25},
            "selector": "best",
            "weights": "class-counts",
            "downlink": "logits",
        },
        "models": {"cnn-bn": 3, "mlp": 2},
    },
    "single-image": {"method": {"name": "single-image", "image": "noise:64x64", **POOL, **SHORT}},
    "single-image, as released": {
        "method": {
            "name": "single-image",
            "image": "noise:64x64",
            "patches": {"count": 60},
            "selection": {"kmeans": 0, "prune": 0.3, "drop": "random-as-released"},
            **SHORT,
            "mu": 0.1,
            "proximal": "sum-as-released",
        }
    },
    "fedmd": {"method": {"name": "fedmd", "proxy": "digits", **SHORT}, "models": {"cnn-bn": 3, "mlp": 2}},
    "fedmd, recalibrated": {
        "method": {"name": "fedmd", "proxy": "digits", **SHORT, "statistics": "recalibrate"},
        "models": {"cnn-bn": 3, "mlp": 2},
    },
    "qkt": {"method": {"name": "qkt", **LESSONS}, **ASKED},
    "naive-kd": {"method": {"name": "naive-kd", **LESSONS}, **ASKED, "models": {"cnn-bn": 3, "mlp": 2}},
    "qkt-light": {"method": {"name": "qkt-light", **LESSONS, "first_phase": "volunteer"}, **ASKED},
    "qkt-light, by the server": {
        "method": {"name": "qkt-light", **LESSONS, "first_phase": "server", "proxy": "digits[:10%]"},
        **ASKED,
    },
    "qkt, a mixture within a limit": {
        "method": {"name": "qkt", **LESSONS, "max_forgetting": 30.0, "combine": "mixture"},
        **ASKED,
    },
    "ensemble, for the query": {"method": {"name": "ensemble", "members": "query"}, **ASKED},
    "ensemble": {"method": "ensemble", **ASKED, "models": {"cnn-bn": 3, "mlp": 2}},
    "fine-tuned": {"method": {"name": "fine-tuned", "buffers": "recalibrate"}, "rounds": 3},  # and one to tune
    "clue": {"method": {"name": "clue", "patience": 1, "significant": 0.3}, **ASKED},
    "pfnm": {"method": {"name": "pfnm", "hidden": 12, "sweeps": 1}, **ASKED},
    "fedgkt": {
        "method": {"name": "fedgkt", "precision": "half"},
        "fleet": {"tiers": {"low": {"charge": 0.02}, "high": {}}, "wifi_share": 0.5, "recharge": 0.5},
        "clusters": {"number": 2, "noise": 0.01, "every": 2},
        "participation": {"name": "clustered", "number": 3, "history": True},
        "dropout": {"name": "bursty", "rate": 0.3, "length": 2, "when": "during", "replace": True},
    },
    "fed3d": {"method": {"name": "fed3d", "share": "all"}},
    "fed3d, a frozen encoder": {
        "method": "fed3d",
        "data": FEW_ROOMS,
        "model": "small-detr3d-lite",
        "training": {"epochs": 1, "batch": 4, "keep_optimiser": True},
        "evaluate_every": ROUNDS,
    },
    "fedprox, mimicked, of the highest losses": {
        "method": "fedprox",
        "participation": {"name": "power-of-choice", "number": 3, "losses": "poll"},
        "mitigation": "mimic",
    },
    "fedbn, proxy": {"method": {"name": "fedbn", "proxy": "average"}},
    "distill": {"method": DISTILL},
    "distill, augmented images": {"method": DISTILL, "augmentation": {"name": "images", "flip": False}},
    "distill, adapters": {"method": DISTILL, "objective": "feature"},
    "distill, labels withheld": {
        "method": {"name": "distill", "share": 0.15, "labels": "withhold"},
        "objective": "dkd",
    },
    # Four rounds are two generations of two: the reply that is refused is the last of the first one.
    "distill, two generations": {"method": DISTILL, "objective": "self", "rounds": 2},
}
# What is encoded is tried without processes too: in runs that are interrupted; with `more`, also in one go.
ENGINES, MORE = ["processes-2"], ["wire", "processes-1", "processes-3"]


def nan_from_client_two(reply: Any, turn: Any) -> dict[str, Any] | None:
    if (reply.profile.id, turn.round) != (2, 1) and (reply.profile.id, turn.round) != (0, 1):
        return None
    return {
        name: tensor * float("nan") if tensor.is_floating_point() else tensor for name, tensor in reply.message.items()
    }


@pytest.fixture(scope="session")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Somebody to distil: weights that were drawn and never trained."""
    path = tmp_path_factory.mktemp("conformance") / "teacher.safetensors"
    with Streams(0).ambient("teacher"):
        path.write_bytes(Message(state_of(build_model("cnn", (1, 8, 8), 10))).encode())
    return [{"file": str(path), "model": "cnn"}]


@pytest.fixture(scope="session")
def few_rooms() -> Bundle:
    splits = {"train": make_rooms(20, points=256), "test": make_rooms(4, points=256, first=20)}
    return scene_bundle(FEW_ROOMS, splits)


@pytest.fixture(scope="module")
def plan(teachers: list[dict[str, str]], few_rooms: Bundle, request: pytest.FixtureRequest) -> Plan:
    settings: dict[str, Any] = {
        **TINY,
        "data": DATA,
        "model": "cnn-bn",
        "rounds": ROUNDS,
        "seed": 11,
        "participation": {"name": "random", "number": 3},
        "dropout": 0.25,
        "validation": 0.1,
        "training": {"epochs": 1, "batch": 32, "keep_optimiser": True},
    }
    if request.param.startswith("distill"):
        settings["teachers"] = teachers
    settings |= VARIANTS[request.param]
    return make_plan(make_experiment(settings), bundle=few_rooms if settings["data"] == FEW_ROOMS else None)


def everything(run: Path) -> dict[str, bytes]:
    """All files of a run that are promised to be equal byte for byte."""
    left_out = {"timing.json", ".lock", "checkpoint-previous.safetensors"}
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in left_out]
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(files)}


class CopyAfterEach:
    """An observer that copies what is on disk after every round: what a run that was killed then would have left."""

    def __init__(self, out: Path, copies: Path) -> None:
        self.out, self.copies = out, copies

    def start(self, experiment: Any, journal: Any) -> None: ...

    def round(self, record: dict[str, Any]) -> None:
        shutil.copytree(self.out, self.copies / str(record.round))

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def finish(self) -> None: ...


class Reference(NamedTuple):
    """A run in one go, and copies of its folder after each of its rounds."""

    files: dict[str, bytes]
    copies: Path


@pytest.fixture(scope="module")
def reference(plan: Plan, engines: dict[str, Engine], tmp_path_factory: pytest.TempPathFactory) -> Reference:
    out, copies = tmp_path_factory.mktemp("reference"), tmp_path_factory.mktemp("copies")
    engine = Tampered(engines["in-process"], nan_from_client_two)
    return Reference(everything(execute(plan, engine, out, [CopyAfterEach(out, copies)]).path), copies)


@pytest.mark.parametrize("names", [ENGINES, pytest.param(MORE, marks=pytest.mark.slow)], ids=["usual", "more"])
@pytest.mark.parametrize("plan", VARIANTS, indirect=True)
def test_every_engine_gives_the_same_bits(
    plan: Plan, reference: Reference, engines: dict[str, Engine], tampered: Any, tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        run = execute(plan, tampered(engines[name], nan_from_client_two), tmp_path / name)
        assert everything(run.path) == reference.files, name


@pytest.fixture(scope="module")
def flower_ray() -> Iterator[Engine]:
    with make_engine("flower-ray", 2) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("plan", VARIANTS, indirect=True)
def test_flower_on_ray_gives_the_same_bits(
    plan: Plan, reference: Reference, flower_ray: Engine, tampered: Any, tmp_path: Path
) -> None:
    run = execute(plan, tampered(flower_ray, nan_from_client_two), tmp_path / "flower-ray")
    assert everything(run.path) == reference.files


@pytest.mark.parametrize("plan", VARIANTS, indirect=True)
def test_resuming_after_any_round_gives_the_same_bits(
    plan: Plan, reference: Reference, engines: dict[str, Engine], tampered: Any, stop_after: Any, tmp_path: Path
) -> None:
    """Interrupted after every round, with the disk then as a kill would have left it; and killed, to go on at length.

    What was interrupted is, byte for byte, what the kill left: going on from the one is going on from the other.
    Every other round, and all that follow the kill, are those of an engine that encodes its messages.
    """
    assert plan.rounds == ROUNDS
    plain, wire = (tampered(engines[name], nan_from_client_two) for name in ("in-process", "wire"))
    for stop in range(1, ROUNDS + 1):
        with pytest.raises(KeyboardInterrupt):
            execute(plan, wire if stop % 2 else plain, tmp_path, [stop_after(stop)])
        assert everything(tmp_path) == everything(reference.copies / str(stop)), stop
    assert everything(execute(plan, plain, tmp_path).path) == reference.files
    assert everything(execute(plan, wire, reference.copies / "1").path) == reference.files


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_order_of_many_replies_shows_nowhere(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, seed: int
) -> None:
    """Of clients that are lost on the way shares of work are counted, and sums of such depend on their order."""
    plan = tiny_plan(
        model="mlp", clients=20, rounds=2, seed=seed, dropout={"name": "independent", "rate": 0.5, "when": "during"}
    )
    once, again = (execute(plan, engines[name], tmp_path / name) for name in ("in-process", "wire"))
    assert any(record.work % 1 for record in once.journal())
    assert everything(once.path) == everything(again.path)


def test_the_conformance_run_has_everything_that_can_go_wrong(
    tiny_plan: Any, engines: dict[str, Engine], tampered: Any, tmp_path: Path
) -> None:
    plan = tiny_plan(
        data=DATA,
        rounds=ROUNDS,
        seed=11,
        participation={"name": "random", "number": 3},
        dropout=0.25,
    )
    run = execute(plan, tampered(engines["in-process"], nan_from_client_two), tmp_path)
    journal = run.journal()
    reasons = [lost.reason for record in journal for lost in record.failures]
    assert "dropped" in reasons
    assert "refused" in reasons
    assert any(record.accepted for record in journal)
    heard_in_first = set(journal[0].accepted)
    later = {client for record in journal[1:] for client in record.accepted}
    assert later - heard_in_first - set(journal[0].sampled), "nobody was contacted late"
