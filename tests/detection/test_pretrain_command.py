"""`fedstill pretrain` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
WORDS = ("pretrain", "rooms-unlabelled", "--model", "small-detr3d-lite", "--epochs", "2", "--set", "points=256")


@pytest.fixture(autouse=True)
def _few_rooms(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The two thousand that there are take a while to make."""
    monkeypatch.setattr("fedstill.detection.rooms.unlabelled_rooms.ROOMS", 4)
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path_factory.getbasetemp() / "few-rooms"))


def test_one_json_object(call: Call) -> None:
    code, out, err = call(*WORDS, "--rows", "3", "--seed", "5", "--json")
    assert code == 0, err
    assert len(out.splitlines()) == 1
    told = json.loads(out)
    assert told["file"] == "encoder.safetensors"
    assert told["fresh"] is True
    assert (told["scenes"], len(told["losses"])) == (3, 2)
    assert told["pretraining"]["seed"] == 5
    assert len(told["sha256"]) == 64
    assert Path("encoder.safetensors").is_file()


def test_what_a_person_reads(call: Call) -> None:
    code, out, _ = call(*WORDS, "--out", "made/rooms.safetensors", "--quiet")
    assert code == 0
    assert "4 scenes, 2 epochs, seed 0" in out
    assert "Chamfer distance" in out
    assert "--set initial.file=made/rooms.safetensors" in out
    assert {path.name for path in Path("made").iterdir()} == {"rooms.safetensors", "rooms.json"}
    code, out, _ = call(*WORDS, "--out", "made/rooms.safetensors")
    assert code == 0
    assert "nothing was done" in " ".join(out.split())


def test_an_encoder_is_not_overwritten_unasked(call: Call) -> None:
    assert call(*WORDS)[0] == 0
    code, _, err = call(*WORDS, "--seed", "1")
    assert code == 2
    assert "encoder.safetensors exists, made otherwise" in err
    assert call(*WORDS, "--seed", "1", "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["digits"], "digits holds images", id="images"),
        pytest.param(["roms"], "unknown data set 'roms': did you mean 'rooms'", id="unknown data"),
        pytest.param(["rooms-unlabelled", "--model", "cnn"], "model 'cnn' is no detector", id="model"),
        pytest.param(["rooms-unlabelled", "--rows", "5"], "4 scenes to train on: --rows cannot be 5", id="rows"),
        pytest.param(["rooms-unlabelled", "--epochs", "0"], "epochs: input should be greater", id="epochs"),
        pytest.param(["rooms-unlabelled", "--out", "encoder.pt"], "ends in .safetensors", id="out"),
        pytest.param(["rooms-unlabelled", "--set", "rat=1"], "unknown setting 'rat'", id="setting"),
        pytest.param(["rooms-unlabelled", "--device", "tpu"], "unknown device 'tpu'", id="device"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(call: Call, words: list[str], sentence: str) -> None:
    code, out, err = call("pretrain", *words)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("few_rooms")
def test_supervised_then_imported(call: Call) -> None:
    words = ("pretrain", "rooms[:50%]", "--model", "small-detr3d-lite", "--epochs", "1", "--set", "points=256")
    code, out, err = call(*words, "--kind", "supervised", "--out", "boxes.safetensors")
    assert code == 0, err
    assert "loss of detection" in out
    assert "linear probe, mean recall" in out
    assert "no client may have these scenes" in " ".join(out.split())
    assert "note: epoch 1: a linear probe of the tokens" in err
    code, out, err = call(*words, "--kind", "imported", "--weights", "boxes.safetensors", "--quiet")
    assert code == 0, err
    assert err == ""
    assert "fitting layers: " in out
    assert Path("encoder.safetensors").read_bytes() == Path("boxes.safetensors").read_bytes()
    code, _, err = call("pretrain", "rooms[:50%]", "--weights", "boxes.safetensors", "--out", "other.safetensors")
    assert code == 2
    assert "do not fit detr3d-lite" in err
    assert len(err.splitlines()) == 1
