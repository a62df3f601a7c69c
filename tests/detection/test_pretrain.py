"""Pre-training into a file: the same bits always, never half of it, nothing of labels, and a run can start from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from fedstill.models import build_model
from fedstill.runtime import checkpoint
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run_folder import RunFolder

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


def test_unlabelled_rooms_are_other_rooms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedstill.detection.rooms.unlabelled_rooms.ROOMS", 2)
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path))
    bundle = load_proxy("rooms-unlabelled")
    assert bundle.kind == "scene"
    assert bundle.train.labels() is None
    assert set(bundle.train.batch(torch.arange(1))) == {"inputs", "sample_id"}
    assert torch.equal(bundle.train.batch(torch.arange(2))["inputs"], make_rooms(2, seed=1).points)
