"""Weights from elsewhere: by name, checked, refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.imported_weights import read_weights

OWN = {
    "parameters/encoder.0.weight": torch.zeros(2, 3),
    "buffers/tokens.mean": torch.zeros(2),
    "counters/tokens.batches": torch.zeros((), dtype=torch.int64),
}
WEIGHT, MEAN = torch.arange(6.0).view(2, 3), torch.tensor([1.0, 2.0])


def read(folder: Path, **tensors: Tensor) -> object:
    save_file(tensors, folder / "w.safetensors")
    return read_weights(folder / "w.safetensors", OWN, "detr3d-lite")


@pytest.mark.parametrize("prefix", ["", "module.", "parameters/", "detr3d-lite/parameters/", "model.detector."])
def test_names_of_other_programs_are_found(tmp_path: Path, prefix: str) -> None:
    save_file({f"{prefix}encoder.0.weight": WEIGHT, "head.bias": MEAN}, tmp_path / "w.safetensors")
    found = read_weights(tmp_path / "w.safetensors", OWN, "detr3d-lite")
    assert set(found.tensors) == {"parameters/encoder.0.weight"}
    assert torch.equal(found.tensors["parameters/encoder.0.weight"], WEIGHT)
    assert found.missing == ("buffers/tokens.mean",)  # counters may be missing
    assert found.unused == ("head.bias",)
    assert found.description() == ("fitting layers: encoder.0; not in the file: tokens; unused tensors of the file: 1")


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        pytest.param("encoder.0.weight", WEIGHT.T.contiguous(), "is 3x2 .* not 2x3", id="shape"),
        pytest.param("encoder.0.weight", WEIGHT.double(), "float64.* not 2x3 .torch.float32", id="type"),
        pytest.param("encoder.0.weight", WEIGHT / 0, "not finite", id="not finite"),
        pytest.param("backbone.weight", WEIGHT, "has the name of one in the encoder of detr3d-lite", id="names"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str, tensor: Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, **{name: tensor})


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_weights(tmp_path / "none.safetensors", OWN, "detr3d-lite")
    (tmp_path / "text.safetensors").write_text("weights")
    with pytest.raises(InputError, match="cannot be read"):
        read_weights(tmp_path / "text.safetensors", OWN, "detr3d-lite")
