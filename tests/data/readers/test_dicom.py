"""DICOM files as images: windows, ranges and inverted grey, derived by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.data.catalogue import load
from fedstill.data.readers.pictures import decode, header


def write(path: Path, pixels: np.ndarray, **tags: Any) -> Path:
    pydicom = pytest.importorskip("pydicom")
    uid = pytest.importorskip("pydicom.uid")
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    file.SOPClassUID, file.SOPInstanceUID = uid.SecondaryCaptureImageStorage, uid.generate_uid()
    file.Rows, file.Columns = pixels.shape[:2]
    file.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    file.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    if pixels.ndim == 3:
        file.PlanarConfiguration = 0
    file.BitsAllocated = 8 * pixels.itemsize
    file.BitsStored, file.HighBit = file.BitsAllocated, file.BitsAllocated - 1
    file.PixelRepresentation = int(pixels.dtype.kind == "i")
    file.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(file, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)
    return path


def test_a_window_is_black_to_white(tmp_path: Path) -> None:
    """Hounsfield units: slope 2, intercept -1000; the window 40 / 401 goes from -160.5 to 239.5."""
    stored = np.array([[0, 419, 420, 520, 620]] * 8, dtype=np.uint16)
    tags = {"RescaleSlope": 2, "RescaleIntercept": -1000, "WindowCenter": [40, 600], "WindowWidth": [401, 9]}
    path = write(tmp_path / "ct.dcm", stored, BitsStored=12, HighBit=11, **tags)
    assert header(path) == ((5, 8), "I;16")
    expected = [round(255 * max(0.0, min(1.0, (2 * one - 1000 + 160.5) / 400))) for one in (0, 419, 420, 520, 620)]
    assert decode(path, "L")[0].tolist() == expected == [0, 0, 0, 128, 255]


def test_without_a_window_the_range_of_the_bits_counts(tmp_path: Path) -> None:
    stored = np.array([[-2048, 0, 2047]] * 8, dtype=np.int16)
    path = write(tmp_path / "x.dcm", stored, BitsStored=12, HighBit=11)
    assert decode(path, "L")[0].tolist() == [0, 128, 255]
    inverted = write(tmp_path / "y.dcm", stored, BitsStored=12, HighBit=11, PhotometricInterpretation="MONOCHROME1")
    assert decode(inverted, "L")[0].tolist() == [255, 127, 0]


def test_colour_and_folders(tmp_path: Path) -> None:
    for number in range(5):
        for kind in "ab":
            pixels = np.full((20, 30, 3), 10 * number + (kind == "b"), dtype=np.uint8)
            write(tmp_path / kind / f"{number}.dcm", pixels)
    bundle = load(f"folder:{tmp_path},size=16,fit=crop")
    assert bundle.shape == (3, 16, 16)
    assert bundle.train.columns["inputs"][:, 0, 0, 0].tolist() == [10, 20, 30, 40, 1, 11, 21, 41]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    several = write(tmp_path / "cine.dcm", np.zeros((8, 8), np.uint8), NumberOfFrames=3)
    with pytest.raises(InputError, match=r"cine.dcm holds 3 frames: write each as a file of its own"):
        decode(several, "L")
    bad = tmp_path / "bad.dcm"
    bad.write_bytes(b"no dicom at all")
    with pytest.raises(InputError, match=r"bad.dcm is no DICOM file"):
        header(bad)
    bad.write_bytes(b"")
    with pytest.raises(InputError, match=r"bad.dcm is empty"):
        header(bad)


def test_the_extra_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.dcm").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(InputError, match=r"is a DICOM file: pip install 'fedstill\[dicom\]'"):
        header(tmp_path / "x.dcm")


def test_files_without_a_suffix_are_found_by_their_content(tmp_path: Path) -> None:
    for number in range(6):
        pixels = np.full((8, 8), 40 * number, dtype=np.uint8)
        name = (f"IM{number}", f"1.2.840.{number}", f"{number}.IMA")[number % 3]
        write(tmp_path / "ab"[number % 2] / name, pixels)
    (tmp_path / "a" / "README").write_text("no image")
    bundle = load(f"folder:{tmp_path}")
    assert len(bundle.train) + len(bundle.test) == 6
    assert any("are not images (readme)" in note.lower() for note in bundle.notes)
