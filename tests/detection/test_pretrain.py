"""Pre-training into a file: the same bits always, never half of it, nothing of labels, and a run can start from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import BusyError, InputError, RunError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message
from fedstill.data.bundle import Bundle
from fedstill.data.unlabelled import load_proxy
from fedstill.detection.model import part_of
from fedstill.detection.pretrain import Pretrained, pretrain_encoder
from fedstill.detection.pretraining import Pretraining, make_pretraining
from fedstill.detection.rooms import make_rooms
from fedstill.detection.rooms.furniture import CLASSES
from fedstill.detection.supervised_task import Supervised
from fedstill.models import build_model
from fedstill.runtime import checkpoint
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run_folder import RunFolder
from fedstill.tracking.tracker import TrackedRun

MODEL = "small-detr3d-lite"


class Watch:
    """Records its calls, and may stop after some epoch as a crash would."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.begun = stop, -1
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.losses: list[float] = []

    def start(self, settings: Pretraining, losses: Sequence[float]) -> None:
        self.begun = len(losses)

    def epoch(self, loss: float) -> None:
        self.losses.append(loss)
        if len(self.losses) == self.stop:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture(scope="module")
def rooms() -> Bundle:
    scenes = make_rooms(5, points=256)
    data = ArrayDataset(inputs=scenes.points, labels=scenes.classes, boxes=scenes.boxes)
    return Bundle("tiny", train=data, test=data, classes=CLASSES, kind="scene", shape=(256, 3))


def settings(*assignments: str, **given: Any) -> Pretraining:
    return make_pretraining({"data": "tiny", "model": MODEL, "epochs": 3, **given}, ["batch=4", *assignments])


def made(rooms: Bundle, folder: Path, *assignments: str, **more: Any) -> Pretrained:
    return pretrain_encoder(settings(*assignments), folder / "encoder.safetensors", bundle=rooms, **more)


def test_a_file_holds_the_encoder_and_says_how_it_was_made(rooms: Bundle, tmp_path: Path) -> None:
    done = made(rooms, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.json", "encoder.safetensors"]
    weights = Message.decode(done.file.read_bytes())
    every = state_of(build_model(MODEL, (256, 3), len(CLASSES)))
    assert set(weights) == {name for name in every if part_of(name) == "encoder"}
    assert {name.split("/")[0] for name in weights} == {"parameters", "buffers", "counters"}
    record = json.loads((tmp_path / "encoder.json").read_text())
    assert record["pretraining"]["training"]["batch"] == 4
    assert record["fingerprint"] == rooms.fingerprint()
    assert record["scenes"] == 5
    assert record["losses"] == done.losses
    assert len(done.losses) == 3
    # Five scenes in batches of four: the last scene alone is skipped, so an epoch is one step.
    assert weights["counters/tokens.level.norm1.num_batches_tracked"] == 3


def test_it_learns(rooms: Bundle, tmp_path: Path) -> None:
    losses = made(rooms, tmp_path, "epochs=12", "warmup=0").losses
    assert losses[-1] < 0.8 * losses[0]


def test_the_same_bits_always_and_others_with_another_seed(rooms: Bundle, tmp_path: Path) -> None:
    files = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(number)  # must not matter
        files.append(made(rooms, tmp_path / str(number), f"seed={seed}").file.read_bytes())
    assert files[0] == files[1] != files[2]


class Tracker:
    """Records what a tracker is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.steps = 0

    def open(self, run: TrackedRun) -> int:
        self.told.append("open")
        return self.steps

    def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
        self.told.append(f"epoch {step}")
        self.steps = step

    def close(self, run: TrackedRun, status: str) -> None:
        self.told.append(status)


def test_a_tracked_run_is_opened_once_by_each_attempt(rooms: Bundle, tmp_path: Path) -> None:
    tracker = Tracker()
    with pytest.raises(KeyboardInterrupt):
        made(rooms, tmp_path, observers=[Watch(stop=2)], track=tracker)
    made(rooms, tmp_path, track=tracker)
    (stopped, *_) = [number for number, word in enumerate(tracker.told) if word == "stopped"]
    assert [tracker.told[:stopped].count("open"), tracker.told[stopped:].count("open")] == [1, 1]
    assert [word for word in tracker.told if word.startswith("epoch")] == ["epoch 1", "epoch 2", "epoch 3"]
    assert tracker.told[-1] == "finished"


def test_made_already_means_nothing_to_do(rooms: Bundle, tmp_path: Path) -> None:
    first = made(rooms, tmp_path)
    before = first.file.stat().st_mtime_ns
    watch = Watch()
    again = made(rooms, tmp_path, observers=[watch])
    assert (first.fresh, again.fresh) == (True, False)
    assert again.record == first.record
    assert first.file.stat().st_mtime_ns == before
    assert watch.begun == -1
    assert "made with these settings already" in watch.notes[0]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_stopped_after_an_epoch_it_goes_on_to_the_same_bits(rooms: Bundle, tmp_path: Path, stop: int) -> None:
    whole = made(rooms, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        made(rooms, tmp_path / "parts", observers=[Watch(stop)])
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["encoder.partial"]
    watch = Watch()
    parts = made(rooms, tmp_path / "parts", observers=[watch])
    assert watch.begun == stop
    assert parts.file.read_bytes() == whole.file.read_bytes()
    assert parts.losses == whole.losses
    assert not (tmp_path / "parts" / "encoder.partial").exists()


def test_what_was_left_of_other_settings_is_not_gone_on_with(rooms: Bundle, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        made(rooms, tmp_path / "parts", "hidden=0.5", observers=[Watch(2)])
    watch = Watch()
    parts = made(rooms, tmp_path / "parts", observers=[watch])
    assert watch.begun == 0
    assert parts.file.read_bytes() == made(rooms, tmp_path / "whole").file.read_bytes()


def test_a_damaged_checkpoint_costs_an_epoch(rooms: Bundle, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        made(rooms, tmp_path / "parts", observers=[Watch(2)])
    newest = tmp_path / "parts" / "encoder.partial" / "checkpoint.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    watch = Watch()
    parts = made(rooms, tmp_path / "parts", observers=[watch])
    assert watch.begun == 1
    assert "damaged" in watch.warnings[0]
    assert parts.file.read_bytes() == made(rooms, tmp_path / "whole").file.read_bytes()


def test_a_kill_in_the_commit_after_a_damage_costs_no_more(
    rooms: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        made(rooms, tmp_path, observers=[Watch(2)])
    newest = tmp_path / "encoder.partial" / "checkpoint.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")

    def killed(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            made(rooms, tmp_path)
    watch = Watch()
    made(rooms, tmp_path, observers=[watch])
    assert watch.begun == 1


def test_what_a_kill_at_the_very_end_left_is_tidied_up(rooms: Bundle, tmp_path: Path) -> None:
    """Killed while the weights are written, and once more while the folder of checkpoints is being removed."""
    partial, half = tmp_path / "encoder.partial", tmp_path / ".encoder.safetensors.123.tmp"
    with pytest.raises(KeyboardInterrupt):
        made(rooms, tmp_path, observers=[Watch(2)])
    half.write_bytes(b"half of it")
    assert made(rooms, tmp_path).fresh
    assert not half.exists()
    partial.mkdir()
    (partial / "checkpoint.safetensors").write_bytes(b"of no more use")
    lock = RunFolder(partial).lock()
    assert not made(rooms, tmp_path).fresh
    assert partial.exists(), "somebody works on it"
    lock.release()
    assert not made(rooms, tmp_path).fresh
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.json", "encoder.safetensors"]


def test_labels_make_no_difference(rooms: Bundle, tmp_path: Path) -> None:
    inputs = rooms.train.batch(torch.arange(5))["inputs"]
    bare = ArrayDataset(inputs=inputs)
    nameless = Bundle("bare", train=bare, test=bare, classes=(), kind="scene", shape=(256, 3))
    plain = made(nameless, tmp_path / "bare").file.read_bytes()
    assert made(rooms, tmp_path / "labelled").file.read_bytes() == plain


def test_what_is_to_be_said_counts(rooms: Bundle, tmp_path: Path) -> None:
    """A reach of 1 is what files from before the setting were made with."""
    plain, far = settings(), settings("reach=2")
    assert plain.identity("data") == settings("reach=1.0").identity("data") != far.identity("data")
    files = [made(rooms, tmp_path / reach, f"reach={reach}").file.read_bytes() for reach in ("1", "2")]
    assert files[0] != files[1]


def test_rows_are_the_first_scenes(rooms: Bundle, tmp_path: Path) -> None:
    inputs = rooms.train.batch(torch.arange(3))["inputs"]
    few = Bundle("few", ArrayDataset(inputs=inputs), ArrayDataset(inputs=inputs), (), "scene", (256, 3))
    some = made(rooms, tmp_path / "rows", "rows=3")
    assert some.record["scenes"] == 3
    assert some.file.read_bytes() == made(few, tmp_path / "few").file.read_bytes()


def test_a_run_starts_from_it(rooms: Bundle, tmp_path: Path) -> None:
    done = made(rooms, tmp_path)
    experiment = make_experiment(
        {"method": "fedavg", "data": "tiny", "model": MODEL, "clients": 2, "initial": {"file": str(done.file)}}
    )
    plan = make_plan(experiment, bundle=rooms)
    assert plan.experiment.initial is not None
    assert plan.experiment.initial.sha256 == done.record["sha256"]
    state = state_of(plan.task.build(MODEL))
    for name, tensor in Message.decode(done.file.read_bytes()).items():
        assert torch.equal(state[name], tensor), name


def test_supervised_it_learns_from_boxes_and_goes_on_to_the_same_bits(rooms: Bundle, tmp_path: Path) -> None:
    whole = made(rooms, tmp_path / "whole", "kind=supervised")
    with pytest.raises(KeyboardInterrupt):
        made(rooms, tmp_path / "parts", "kind=supervised", observers=[Watch(2)])
    parts = made(rooms, tmp_path / "parts", "kind=supervised")
    assert parts.file.read_bytes() == whole.file.read_bytes()
    assert parts.probe == whole.probe
    weights = Message.decode(whole.file.read_bytes())
    assert set(weights) == set(Message.decode(made(rooms, tmp_path / "masked").file.read_bytes()))
    data = rooms.train.batch(torch.arange(5))
    moved = ArrayDataset(inputs=data["inputs"], labels=data["labels"].flip(0), boxes=data["boxes"].flip(0))
    other = replace(rooms, train=moved, test=moved)
    assert made(other, tmp_path / "moved", "kind=supervised").file.read_bytes() != whole.file.read_bytes()


def test_supervised_prompts_are_not_used(rooms: Bundle) -> None:
    """Prompts belong to the federation: an encoder is trained without them."""
    task = Supervised(CLASSES, (256, 3), (MODEL,))
    detector = task.build(MODEL)
    batch = rooms.train.batch(torch.arange(2))
    with torch.no_grad():
        before = task.forward(detector, batch).terms["class"]
        detector.prompts.mul_(50)
        assert torch.equal(task.forward(detector, batch).terms["class"], before)


def test_the_probe_is_shown_recorded_and_changes_no_bit(rooms: Bundle, tmp_path: Path) -> None:
    watch = Watch()
    probed = made(rooms, tmp_path / "probed", observers=[watch])
    assert list(probed.probe) == [0, 1, 2, 3]
    assert [note.split(":")[0] for note in watch.notes] == ["epoch 0", "epoch 1", "epoch 2", "epoch 3"]
    assert f"{100 * probed.probe[3]:.1f} % (chance 9.1 %)" in watch.notes[-1]
    plain = made(rooms, tmp_path / "plain", "probe_every=0")
    assert plain.probe == {}
    assert plain.file.read_bytes() == probed.file.read_bytes()
    assert plain.record["identity"] == probed.record["identity"]
    assert list(settings("probe_every=2").probe_epochs()) == [1, 3]
    assert list(settings("epochs=60").probe_epochs())[-2:] == [54, 60]


def test_an_imported_encoder_is_the_file_s(rooms: Bundle, tmp_path: Path) -> None:
    first = made(rooms, tmp_path / "first", "seed=1")
    watch = Watch()
    same = made(rooms, tmp_path / "same", "kind=imported", f"weights={first.file}", observers=[watch])
    assert same.file.read_bytes() == first.file.read_bytes()
    assert same.losses == []
    assert list(same.probe.values()) == [first.probe[3]]
    assert watch.notes[0].startswith("fitting layers: ")
    further = made(rooms, tmp_path / "further", f"weights={first.file}")
    assert further.record["identity"] != made(rooms, tmp_path / "random").record["identity"]
    assert further.losses[0] < made(rooms, tmp_path / "random").losses[0]


def test_half_an_encoder_is_not_imported(rooms: Bundle, tmp_path: Path) -> None:
    whole = Message.decode(made(rooms, tmp_path / "first").file.read_bytes())
    half = {name: tensor for name, tensor in whole.items() if "encoder.1" not in name}
    (tmp_path / "half.safetensors").write_bytes(Message(half).encode())
    with pytest.raises(InputError, match=r"no tensor 'encoder\.1.* would stay random"):
        made(rooms, tmp_path / "import", "kind=imported", f"weights={tmp_path / 'half.safetensors'}")
    assert not (tmp_path / "import").exists()
    assert made(rooms, tmp_path / "train", f"weights={tmp_path / 'half.safetensors'}").fresh


def test_another_ones_file_is_not_overwritten(rooms: Bundle, tmp_path: Path) -> None:
    before = made(rooms, tmp_path).file.read_bytes()
    with pytest.raises(InputError, match="made otherwise"):
        made(rooms, tmp_path, "epochs=1")
    assert (tmp_path / "encoder.safetensors").read_bytes() == before
    assert made(rooms, tmp_path, "epochs=1", overwrite=True).file.read_bytes() != before


def test_a_file_of_something_else_is_not_overwritten(rooms: Bundle, tmp_path: Path) -> None:
    (tmp_path / "encoder.json").write_text('{"mine": 1}')
    with pytest.raises(InputError, match="something else"):
        made(rooms, tmp_path)
    (tmp_path / "encoder.json").unlink()
    (tmp_path / "encoder.safetensors").write_bytes(b"mine")
    with pytest.raises(InputError, match="made otherwise"):
        made(rooms, tmp_path)


def test_two_processes_do_not_work_on_one_file(rooms: Bundle, tmp_path: Path) -> None:
    (tmp_path / "encoder.partial").mkdir()
    lock = RunFolder(tmp_path / "encoder.partial").lock()
    with pytest.raises(BusyError):
        made(rooms, tmp_path)
    lock.release()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_that_are_not_finite_leave_no_file(rooms: Bundle, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"not finite in epoch \d: lower training.rate"):
        made(rooms, tmp_path, "rate=1e30", "optimiser=sgd", "training.clip=null", "warmup=0")
    assert not list(tmp_path.glob("encoder.*s*n*"))


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        pytest.param(["rows=9"], "5 scenes to train on: --rows cannot be 9", id="rows"),
        pytest.param(["points=999"], "999 cannot be taken of each", id="points"),
        pytest.param(["weights=none.safetensors"], "there is no file none.safetensors", id="weights"),
        pytest.param(["hidden=0.001"], "some tokens must be hidden", id="hidden"),
    ],
)
def test_what_does_not_fit_the_scenes_is_refused(
    rooms: Bundle, tmp_path: Path, assignments: list[str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        made(rooms, tmp_path, *assignments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        pytest.param("hidden", "cannot read the setting 'hidden'", id="no value"),
        pytest.param("hiden=0.5", "unknown setting 'hiden': did you mean 'hidden'", id="unknown"),
        pytest.param("hidden=1.5", "hidden: input should be less than 1", id="too large"),
        pytest.param("training.epochs=4", "leave epochs out here", id="epochs twice"),
        pytest.param("training.rat=4", "unknown setting 'training.rat': did you mean 'rate'", id="unknown in training"),
        pytest.param("augmentation=twist", "augmentation 'twist'", id="unknown augmentation"),
        pytest.param("kind=contrastive", "kind: unknown choice 'contrastive'", id="kind"),
        pytest.param("kind=imported", "needs a file of weights: give --weights", id="nothing to import"),
        pytest.param("model=cnn", "model 'cnn' is no detector", id="no detector"),
    ],
)
def test_bad_settings_are_one_sentence(assignment: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        settings(assignment)


def test_what_is_decided_by_whom() -> None:
    plain = settings()
    assert (plain.hidden, plain.training.optimiser, plain.training.rate) == (0.6, "adamw", 2e-3)
    assert settings("augmentation.turn=5").augmentation.settings.model_dump()["turn"] == 5
    assert settings("turn=5").augmentation.settings.model_dump()["turn"] == 5
    assert make_pretraining({"data": "x", "model": "detr3d"}).training.rate == 7e-4


def test_a_setting_of_the_augmentation_leaves_the_augmentation_that_was_chosen() -> None:
    chosen = settings("augmentation=points", "augmentation.shift=0.5", "scale_low=0.5").augmentation
    assert chosen.name == "points"
    assert chosen.settings.model_dump()["shift"] == 0.5
    assert chosen.settings.model_dump()["scale_low"] == 0.5
    with pytest.raises(InputError, match="turn"):
        settings("augmentation=none", "augmentation.turn=5")


def test_supervised_without_boxes_is_refused(tmp_path: Path) -> None:
    bare = ArrayDataset(inputs=torch.rand(3, 256, 3))
    bundle = Bundle("bare", train=bare, test=bare, classes=(), kind="scene", shape=(256, 3))
    with pytest.raises(InputError, match="tiny has no boxes to learn from"):
        made(bundle, tmp_path, "kind=supervised")
    assert made(bundle, tmp_path).probe == {}


def test_rooms_for_pretraining_are_the_unlabelled_ones_with_boxes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, number in (("ROOMS", 2), ("HELD_OUT", 1)):
        monkeypatch.setattr(f"fedstill.detection.rooms.unlabelled_rooms.{name}", number)
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path))
    labelled, bare = load_proxy("rooms-pretraining"), load_proxy("rooms-unlabelled")
    rows = torch.arange(2)
    assert torch.equal(labelled.train.batch(rows)["inputs"], bare.train.batch(rows)["inputs"])
    assert torch.equal(labelled.test.batch(torch.arange(1))["inputs"], make_rooms(1, seed=1, first=2).points)
    assert set(labelled.train.batch(rows)) >= {"inputs", "labels", "boxes"}


def test_unlabelled_rooms_are_other_rooms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedstill.detection.rooms.unlabelled_rooms.ROOMS", 2)
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path))
    bundle = load_proxy("rooms-unlabelled")
    assert bundle.kind == "scene"
    assert bundle.train.labels() is None
    assert set(bundle.train.batch(torch.arange(1))) == {"inputs", "sample_id"}
    assert torch.equal(bundle.train.batch(torch.arange(2))["inputs"], make_rooms(2, seed=1).points)
