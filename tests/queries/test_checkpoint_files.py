"""Files of weights from others: what is read, and what is refused in one sentence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.models.own_models import SplitModel
from fedstill.queries.checkpoint_files import fit_weights, peer_facts, peer_files, read_weights

from .offered import net


def test_three_ways_of_naming_tensors_give_the_same_model(tmp_path: Path) -> None:
    """As torch names them, as a state of Fedstill does, and as a run's file does, in one piece or split."""
    source = net()
    kinds = state_of(source)
    split = state_of(SplitModel.of(net(), "3", (1, 6, 6)))
    split |= {name.replace("/1.", "/extractor.1.").replace("/3.", "/head."): one for name, one in kinds.items()}
    files = {
        "torch": dict(source.state_dict()),
        "kinds": kinds,
        "run": {f"small/{name}": tensor for name, tensor in kinds.items()},
        "split": split,
    }
    for name, tensors in files.items():
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path)
        loaded = net()
        assert not torch.equal(loaded[1].weight, source[1].weight)
        fit_weights(loaded, read_weights(path), path, "small")
        assert all(torch.equal(one, source.state_dict()[key]) for key, one in loaded.state_dict().items()), name


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (net(12).state_dict(), "'parameters/1.weight' is 12x36 there and 8x36 here, so it is another model"),
        (net(classes=5).state_dict(), "'parameters/3.weight' is 5x8 there and 4x8 here, .* another number of classes"),
        ({"1.weight": torch.zeros(8, 36)}, "the file lacks 'parameters/1.bias'"),
        ({**net().state_dict(), "extra": torch.zeros(1)}, "it has no tensor 'extra'"),
    ],
)
def test_weights_of_another_model(tmp_path: Path, tensors: dict[str, torch.Tensor], sentence: str) -> None:
    path = tmp_path / "peer.safetensors"
    save_file(dict(tensors), path)
    with pytest.raises(InputError, match=f"do not fit the model small: {sentence}"):
        fit_weights(net(), read_weights(path), path, "small")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(tmp_path: Path, value: float) -> None:
    tensors = dict(net().state_dict())
    tensors["3.bias"] = torch.tensor([0.0, value, 0.0, 0.0])
    save_file(tensors, tmp_path / "sick.safetensors")
    with pytest.raises(InputError, match=r"not finite: '3.bias' holds NaN or infinity"):
        read_weights(tmp_path / "sick.safetensors")


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("weights")
    with pytest.raises(InputError, match=r"cannot be read as .safetensors"):
        read_weights(tmp_path / "text.safetensors")
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(InputError, match="holds no weights"):
        read_weights(tmp_path / "empty.safetensors")
    with pytest.raises(InputError, match="there is no file"):
        read_weights(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt", "PKL"])
def test_a_pickle_is_refused_unread_and_the_sentence_says_how_to_convert_it(tmp_path: Path, suffix: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "exploded",)  # type: ignore[return-value]

    (tmp_path / f"peer.{suffix}").write_bytes(pickle.dumps(Bomb()))
    save_file(dict(net().state_dict()), tmp_path / "good.safetensors")
    how = rf"save_file\(torch.load\('peer.{suffix}', weights_only=True\), 'peer.safetensors'\)"
    with pytest.raises(InputError, match=how):
        peer_files(tmp_path)
    with pytest.raises(InputError, match=how):
        read_weights(tmp_path / f"peer.{suffix}")
    assert not (tmp_path / "exploded").exists()


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder of checkpoints"):
        peer_files(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no checkpoint"):
        peer_files(tmp_path)
    for name in ("b", "a", "own"):
        save_file(dict(net().state_dict()), tmp_path / f"{name}.safetensors")
    (tmp_path / "notes.txt").write_text("by post")
    assert [path.stem for path in peer_files(tmp_path, tmp_path / "own.safetensors")] == ["a", "b"]
    assert [path.stem for path in peer_files(tmp_path)] == ["a", "b", "own"]


def test_what_the_description_says(tmp_path: Path) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    assert peer_facts(tmp_path, files) == {}
    place = tmp_path / "peers.yaml"
    place.write_text("a: mlp\nb.safetensors: {recall: {7: 0.5, oak: 1}}\n")
    facts = peer_facts(tmp_path, files)
    assert facts["a"].model == "mlp"
    assert facts["b"].recall == {"7": 0.5, "oak": 1.0}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("c: mlp", "describes 'c', and there is no c.safetensors"),
        ("- a", "one line for each file"),
        ("a: [", "cannot be read"),
        ("a: {modle: mlp}", "modle"),
        ("a: {recall: {7: 1.5}}", "recall"),
        ("a: 3", "peers.yaml, a: "),
    ],
)
def test_a_description_that_is_wrong(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "peers.yaml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        peer_facts(tmp_path, [tmp_path / "a.safetensors"])
