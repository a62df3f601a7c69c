"""Distillation as a run: label modes, generations, students that learn together, and a teacher that never changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, digest, part
from fedstill.core.protocols import Client, Engine, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Tensors
from fedstill.distillation import objectives
from fedstill.distillation.distill import Distillation, JointStudent, before, moments, together
from fedstill.distillation.features import Feature
from fedstill.models import build_model
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.launch import distillation
from fedstill.runtime.plan import Plan, make_plan
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute
from fedstill.runtime.teacher_loader import TeacherLoader
from fedstill.tasks.classification import Classification

SHARE = 0.2  # of the digits: 288 of 1438
BATCH = 64
ONE_TEACHER = [
    name
    for name in objectives.names()
    if objectives[name].least_teachers == 1 and "classifier" in objectives[name].students
]


def weights(path: Path, model: str, shape: tuple[int, ...], classes: int, seed: int = 5) -> dict[str, Any]:
    with Streams(seed).ambient("teacher"):
        path.write_bytes(Message(state_of(build_model(model, shape, classes))).encode())
    return {"file": str(path), "model": model}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A teacher with BatchNorm and Dropout that has learnt nothing, which is as good as any for bits."""
    return weights(tmp_path_factory.mktemp("teacher") / "teacher.safetensors", "cnn-bn", (1, 8, 8), 10)


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Sixty clouds of 24 points, which training augments, and a teacher for them."""
    folder = tmp_path_factory.mktemp("clouds")
    draw = np.random.default_rng(3)
    labels = np.arange(60) % 3
    points = draw.standard_normal((60, 24, 3)) * (1 + labels[:, None, None] * np.array([1, 0, 0]))
    np.savez(folder / "clouds.npz", x=points.astype(np.float32), y=labels)
    return f"npz:{folder / 'clouds.npz'}", weights(folder / "teacher.safetensors", "pointnet", (24, 3), 3)


def planned(
    teacher: Any,
    student: str = "mlp",
    objective: Any = "vanilla",
    labels: str = "use",
    staff: TeacherLoader | None = None,
    **more: Any,
) -> Plan:
    given = {"rounds": 2, "seed": 3, "training": {"batch": BATCH}, **distillation(teacher, student, objective, labels)}
    given["method"] |= {"share": SHARE, **more.pop("method", {})}
    return make_plan(make_experiment({**given, **more}), staff=staff)


def method_of(plan: Plan) -> Distillation:
    assert isinstance(plan.method, Distillation)
    return plan.method


def turn_of(plan: Plan, round: int) -> RoundContext:
    return RoundContext(round, plan.rounds, 1, "train", plan.streams.at("round", round, "train"))


def client_of(plan: Plan, round: int, state: Tensors) -> Client:
    return plan.clients(plan.profiles[0], state, turn_of(plan, round))


def states(plan: Plan, rounds: int) -> list[tuple[Tensors, Tensors]]:
    """The server's and the client's state before each round, and after the last."""
    server, own = plan.method.start(plan.streams), {}
    found = [(server, own)]
    for round in range(rounds):
        context = turn_of(plan, round)
        server = plan.method.prepare(server, context)
        client = client_of(plan, round, own)
        message = method_of(plan).reply(client, Message(server), context)
        server = {**server, **{name: tensor for name, tensor in message.items() if name in server}}
        own = client.state
        found.append((server, own))
    return found


@pytest.fixture
def engine(engines: dict[str, Engine]) -> Engine:
    return engines["in-process"]


def finished(plan: Plan, engine: Engine, out: Path) -> Run:
    return Run(execute(plan, engine, out).path)


# Labels


@pytest.mark.parametrize("objective", ["vanilla", "dkd", "feature"])
def test_the_two_controls_are_one_computation(teacher: Any, objective: str, engine: Engine, tmp_path: Path) -> None:
    """Equal bits of whole runs; and not because labels never mattered (feature's have no weight at alpha = beta)."""
    runs = {
        labels: finished(planned(teacher, objective=objective, labels=labels), engine, tmp_path)
        for labels in ("use", "no-ce", "withhold")
    }
    assert len({run.path for run in runs.values()}) == 3
    assert runs["no-ce"].sha256 == runs["withhold"].sha256
    assert runs["no-ce"].journal == runs["withhold"].journal
    assert (runs["use"].sha256 == runs["no-ce"].sha256) == (objective == "feature")
    assert all("cross-entropy" not in record.loss for record in runs["no-ce"].journal)


def test_withheld_labels_are_not_there_at_all(teacher: Any) -> None:
    withheld, kept = (planned(teacher, labels=labels) for labels in ("withhold", "no-ce"))
    data = client_of(withheld, 0, {}).data
    assert data.labels() is None
    assert set(data.batch(torch.arange(4))) == {"inputs", "sample_id"}
    assert client_of(kept, 0, {}).data.labels() is not None


# Together


def alone_and_together(plans: list[Plan], rounds: int) -> None:
    """Every round of every plan, alone and in one pass: the same messages, client states and counted work."""
    alone = [states(plan, rounds) for plan in plans]
    for round in range(rounds):
        students, clients, expected = [], [], []
        for plan, known in zip(plans, alone, strict=True):
            context = turn_of(plan, round)
            request = Message(plan.method.prepare(known[round][0], context))
            single = client_of(plan, round, known[round][1])
            expected.append((method_of(plan).reply(single, request, context), single))
            clients.append(client_of(plan, round, known[round][1]))
            students.append(JointStudent(method_of(plan), clients[-1], request, context))
        messages = together(students)
        for plan, message, client, (wanted, single) in zip(plans, messages, clients, expected, strict=True):
            assert plan.experiment.objective is not None
            who = f"{plan.experiment.objective.name} in round {round}"
            assert message.encode() == wanted.encode(), who
            assert digest(client.state) == digest(single.state), who
            assert client.meter == single.meter, who


def test_students_that_learn_together_get_the_bits_they_get_alone(teacher: Any) -> None:
    """Unaugmented digits: words are remembered. Labels are there for some, and the first in line gets none."""
    same, staff = {"same_model": True}, TeacherLoader()
    plans = [
        planned(teacher, "cnn-bn", "dkd", "withhold", staff, rounds=4, method=same),
        planned(teacher, "mlp", "vanilla", staff=staff, rounds=4),
        planned(teacher, "cnn-bn", "feature", "no-ce", staff, rounds=4, method=same),
        planned(teacher, "cnn-bn", "self", staff=staff, rounds=2, method=same),
        planned(teacher, "mlp", "crd", staff=staff, rounds=4),
    ]
    assert [plan.rounds for plan in plans] == [4] * 5
    alone_and_together(plans, 4)


def test_students_of_augmented_clouds_get_the_bits_they_get_alone(clouds: tuple[str, dict[str, Any]]) -> None:
    data, teacher = clouds
    more = {"data": data, "method": {"share": 1.0}, "training": {"batch": 16}, "staff": TeacherLoader()}
    plans = [
        planned(teacher, "pointnet-tiny", {"name": "self", "generations": 2}, rounds=1, **more),
        planned(teacher, "pointnet-tiny", "feature", "withhold", **more),
        planned(teacher, "small-pointnet-tiny", "dkd", **more),
    ]
    assert plans[0].task.augments
    alone_and_together(plans, 2)


def test_students_of_augmented_images_get_the_bits_they_get_alone(teacher: Any) -> None:
    more: dict[str, Any] = {"augmentation": {"name": "images", "flip": False}, "staff": TeacherLoader()}
    plans = [planned(teacher, "mlp", "vanilla", **more), planned(teacher, "cnn", "dkd", "withhold", **more)]
    assert plans[0].task.augments
    alone_and_together(plans, 2)


def test_teacher_and_student_see_the_same_augmented_batches(teacher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs of both models, in order, are equal; and they are crops, not the stored samples."""
    seen: dict[bool, list[Tensor]] = {True: [], False: []}
    forward = Classification.forward

    def spied(task: Classification, model: nn.Module, batch: Batch) -> Output:
        seen[model.training].append(batch["inputs"].clone())
        return forward(task, model, batch)

    plan = planned(teacher, "mlp", augmentation={"name": "images", "flip": False})
    client = client_of(plan, 0, {})
    stored = client.data.batch(torch.arange(len(client.data)))["inputs"].flatten(1)
    monkeypatch.setattr(Classification, "forward", spied)
    method_of(plan).reply(client, Message(plan.method.start(plan.streams)), turn_of(plan, 0))
    assert len(seen[True]) == len(seen[False]) == 5  # 288 samples in batches of 64
    assert all(torch.equal(student, teacher) for student, teacher in zip(seen[True], seen[False], strict=True))
    given = torch.cat(seen[True]).flatten(1)
    unmoved = (given[:, None] == stored[None]).all(dim=2).any(dim=1).float().mean().item()
    assert unmoved == pytest.approx(1 / 9, abs=0.06)  # one crop of nine is the image itself


def as_students(*plans: Plan) -> list[JointStudent]:
    return [
        JointStudent(method_of(one), client_of(one, 0, {}), Message(one.method.start(one.streams)), turn_of(one, 0))
        for one in plans
    ]


def test_only_students_with_the_same_lesson_can_learn_together(
    teacher: Any, clouds: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Also not with a teacher who only has the other one's name and model, nor where clouds are augmented otherwise."""
    staff = TeacherLoader()
    plan = planned(teacher, staff=staff)
    namesake = weights(tmp_path / Path(teacher["file"]).name, "cnn-bn", (1, 8, 8), 10, seed=6)
    others = [
        planned(teacher, staff=staff, training={"batch": 32}),
        planned(namesake, staff=staff),
        planned(teacher, staff=staff, method={"proxy": "digits"}),
        planned(teacher, staff=staff, method={"share": SHARE + 1e-4}),  # as many samples
    ]
    assert len({len(client_of(one, 0, {}).data) for one in (plan, others[0], others[1], others[3])}) == 1
    pairs = [(plan, other) for other in others]
    data, of_clouds = clouds
    more = {"data": data, "staff": staff, "training": {"batch": 16}}
    shifted = [
        planned(of_clouds, "pointnet-tiny", augmentation={"name": "points", "shift": by}, **more) for by in (0.1, 0.2)
    ]
    for one, other in [*pairs, (shifted[0], shifted[1])]:
        with pytest.raises(ValueError, match="the same proxy, teachers"):
            together(as_students(one, other))


# What is counted


def test_work_counts_who_speaks_anew(teacher: Any, clouds: tuple[str, dict[str, Any]]) -> None:
    """A sample costs its student 1 forward and 1 backward (2); remembered words nothing, spoken ones 1 a teacher."""

    def work(plan: Plan, round: int = 0) -> float:
        server, own = states(plan, round)[-1]
        client = client_of(plan, round, own)
        context = turn_of(plan, round)
        plan.method.reply(client, Message(plan.method.prepare(server, context)), context)
        return client.meter.work / len(client.data)

    data, cloud_teacher = clouds
    more = {"data": data, "method": {"share": 1.0}, "training": {"batch": 16}}
    born_again = planned(teacher, objective="self", rounds=1)
    assert (work(born_again, 0), work(born_again, 1)) == (3, 4)
    assert work(planned(cloud_teacher, "pointnet-tiny", **more)) == 4
    assert work(planned([cloud_teacher, cloud_teacher], "pointnet-tiny", "multi-teacher", **more)) == 5


@pytest.mark.parametrize("objective", ONE_TEACHER)
def test_the_journal_holds_every_term(teacher: Any, objective: str, engine: Engine, tmp_path: Path) -> None:
    plan = planned(teacher, objective=objective, rounds=1)
    run = finished(plan, engine, tmp_path)
    for record in run.journal:
        assert set(record.loss) == set(method_of(plan).terms)
        assert all(math.isfinite(value) for value in record.loss.values())
    assert run.result.teachers[0].model == "cnn-bn"


def test_adapters_are_kept_with_the_run_and_never_ship(teacher: Any, engine: Engine, tmp_path: Path) -> None:
    plan = planned(teacher, objective="feature")
    run = finished(plan, engine, tmp_path)
    (progress, *_), _ = candidates(run.path)
    adapters = part(progress.server, "adapters/")
    first = part(plan.method.start(plan.streams), "adapters/")
    assert adapters.keys() == first.keys() != set()
    assert not any(torch.equal(adapters[name], first[name]) for name in adapters)
    for which in ("last", "best"):
        packed = Message.decode((run.path / f"model-{which}.safetensors").read_bytes())
        assert {name.split("/")[0] for name in packed} == {"mlp"}
        assert set(packed.part("mlp/")) == set(state_of(plan.task.build("mlp")))


# Generations


def test_the_first_generation_is_vanilla(teacher: Any) -> None:
    plain, born_again = planned(teacher, rounds=2), planned(teacher, objective="self", rounds=2)
    for (left, own), (right, also) in zip(states(plain, 2), states(born_again, 2), strict=True):
        assert digest(left) == digest(right)
        assert digest(own) == digest(also)


def test_a_generation_starts_afresh_and_learns_from_the_one_before(teacher: Any) -> None:
    """Two rounds of five batches each: moments count the second student's own five steps, and its rate starts over."""
    plan = planned(teacher, objective="self", rounds=2, training={"batch": BATCH, "schedule": "cosine"})
    known = states(plan, 3)
    handed_on = part(known[2][0], "model/")
    prepared = plan.method.prepare(known[2][0], turn_of(plan, 2))
    assert digest(part(prepared, before(1))) == digest(handed_on)
    assert digest(part(prepared, "model/")) != digest(part(known[0][0], "model/"))
    assert {name.rsplit("/", 1)[0].split("/")[1] for name in known[3][1]} == {"1"}
    assert known[3][1][f"{moments(1)}0/steps"].item() == math.ceil(round(1438 * SHARE) / BATCH) == 5
    rates = []
    for number, (server, own) in enumerate(states(plan, 3)):
        context = turn_of(plan, number)
        request = Message(plan.method.prepare(server, context))
        rates.append(JointStudent(method_of(plan), client_of(plan, number, own), request, context).optimiser.rate)
    assert rates[:2] == rates[2:]
    assert rates[0] > rates[1]


def test_a_generation_starts_late_where_its_first_round_was_lost(
    teacher: Any, engine: Engine, tampered: Any, tmp_path: Path
) -> None:
    def lose_the_border(reply: Any, context: RoundContext) -> dict[str, Tensor] | None:
        return {"nonsense": torch.zeros(1)} if context.round == 2 else None

    plan = planned(teacher, objective="self", rounds=2)
    run = finished(plan, tampered(engine, lose_the_border), tmp_path)
    assert [record.accepted for record in run.journal] == [(0,), (0,), (), (0,)]
    (progress, *_), _ = candidates(run.path)
    assert digest(part(progress.server, before(1))) == digest(part(states(plan, 2)[-1][0], "model/"))
    (held,) = (run.path / "clients").glob("0.3.*")
    kept = Message.decode(held.read_bytes())
    assert kept[f"{moments(1)}0/steps"].item() == 5


class FeatureAgain(Feature):
    """Two generations that compare features."""

    @property
    def generations(self) -> int:
        return 2


def test_adapters_fit_whoever_teaches(teacher: Any) -> None:
    """From the student's 200 features to the teacher's 128; in the second generation to 200, the student's own."""
    plan = planned(teacher, objective="feature", rounds=1)
    method_of(plan).objective = FeatureAgain()
    name = "adapters/parameters/student.weight"
    first, second = (server[name].shape for server, _ in states(plan, 2)[1:])
    assert (tuple(first), tuple(second)) == ((128, 200), (200, 200))


def test_only_the_last_generation_can_lead(teacher: Any, engine: Engine, tmp_path: Path) -> None:
    plan = planned(teacher, objective={"name": "self", "generations": 3}, rounds=2, validation=0.1)
    run = finished(plan, engine, tmp_path)
    assert run.result.rounds == 6
    assert [plan.method.selectable(round, 6) for round in range(6)] == [False] * 4 + [True] * 2
    assert run.result.round_of["best"] >= 5
    assert run.result.round_of["selected"] >= 5


# The teacher


@pytest.mark.parametrize("what", ["digits", "clouds"])
def test_a_teacher_never_changes(what: str, teacher: Any, clouds: tuple[str, dict[str, Any]]) -> None:
    """Evaluation mode in every pass, no gradient, no new BatchNorm statistics, no draw from the global generator."""
    data, cloud_teacher = clouds
    if what == "clouds":
        plan = planned(cloud_teacher, "pointnet-tiny", "feature", data=data, training={"batch": 16})
    else:
        plan = planned(teacher, objective="feature")
    model = method_of(plan).teachers[0].model
    state, passes = digest(state_of(model)), []
    model.register_forward_hook(lambda module, given, said: passes.append((module.training, said[0].requires_grad)))
    outside = torch.get_rng_state()
    states(plan, 2)
    assert torch.equal(torch.get_rng_state(), outside)
    assert passes
    assert set(passes) == {(False, False)}
    assert digest(state_of(model)) == state
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.parameters())


def test_nothing_a_teacher_sees_has_labels(teacher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(teacher)
    seen = []
    forward = type(plan.task).forward

    def spy(task: Any, model: Any, batch: Batch) -> Output:
        seen.append((model.training, "labels" in batch))
        return forward(task, model, batch)

    monkeypatch.setattr(type(plan.task), "forward", spy)
    states(plan, 1)
    assert set(seen) == {(False, False), (True, True)}  # the teacher, and the student, whose mode is `use`


# What is refused


def test_what_cannot_be_taught_is_refused(teacher: Any) -> None:
    for objective, teachers, student, sentence in (
        ("multi-teacher", [teacher], "mlp", "needs 2 teachers or more, and 1 were named"),
        ("vanilla", [teacher, teacher], "mlp", "learns from one teacher, and 2 were named: choose"),
        ("vanilla", [teacher], "cnn-bn", "the student is the teacher: both are cnn-bn"),
    ):
        with pytest.raises(InputError, match=sentence):
            planned(teachers, student, objective)
    assert planned(teacher, "cnn-bn", method={"same_model": True}).method.rounds(3) == 3


def test_crd_without_labels_is_not_assessable(teacher: Any) -> None:
    with pytest.raises(InputError, match="not assessable without labels"):
        planned(teacher, objective="crd", labels="withhold")
