"""Tables that give any number of classes for each row, as columns of 0 and 1 or as lists of names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedstill
from fedstill.core.errors import InputError
from fedstill.data.lookup import load

ROWS = [(1, 0, "a"), (0, 1, "b"), (1, 1, "a|b"), (0, 0, "No Finding")]


def write(folder: Path, rows: list[str], header: str = "file,a,b,names") -> str:
    folder.mkdir(exist_ok=True)
    for number in range(len(rows)):
        Image.fromarray(np.full((8, 8), number, dtype=np.uint8)).save(folder / f"{number}.png")
    text = "\n".join([header, *(f"{number}.png,{row}" for number, row in enumerate(rows))])
    (folder / "labels.csv").write_text(text + "\n")
    return f"folder:{folder}"


def plain(times: int = 5) -> list[str]:
    return [f"{a},{b},{names}" for a, b, names in ROWS * times]


@pytest.mark.parametrize("labels", ["a,b", "names"])
def test_columns_and_lists_give_the_same_targets(tmp_path: Path, labels: str) -> None:
    bundle = load(f"{write(tmp_path / 'x', plain())},labels={labels}")
    assert bundle.classes == ("a", "b")
    held = torch.cat([bundle.train.labels(), bundle.test.labels()])
    assert held.dtype == torch.bool
    assert held.sum(dim=0).tolist() == [10, 10]
    assert len(bundle.test.labels()) == 4


@pytest.mark.parametrize("separator", [";", ", "])
def test_lists_may_have_other_separators(tmp_path: Path, separator: str) -> None:
    rows = [row.replace("a|b", f'"a{separator}b"') for row in plain()]
    assert load(f"{write(tmp_path / 'x', rows)},labels=names").classes == ("a", "b")


def test_rows_that_leave_a_class_open_are_left_out(tmp_path: Path) -> None:
    name = write(tmp_path / "x", [*plain(), "1,,a"])
    bundle = load(f"{name},labels=a,b")
    assert len(bundle.train) + len(bundle.test) == 20
    assert any("have no class" in note for note in bundle.notes)


@pytest.mark.parametrize(
    ("rows", "settings", "sentence"),
    [
        (plain(), "labels=a,c", "no column 'c'"),
        (plain(), "labels=a,a", "twice"),
        ([*plain(), "2,0,a"], "labels=a,b", r"row 22 has '2' in a: write 0 or 1"),
        (plain(), "labels=names,classes=a", "not among the classes given"),
        (plain(), "labels=a", "which is one class"),
        (plain(), "labels=a,b,label=names", "give one of them"),
        (plain(), "labels=q,b", "holds no table|none is called|no column 'q'"),
    ],
)
def test_bad_targets_are_refused_in_a_sentence(tmp_path: Path, rows: list[str], settings: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load(f"{write(tmp_path / 'x', rows)},{settings}")


def test_archives_and_arrays_have_columns_as_well(tmp_path: Path) -> None:
    x, y = np.zeros((40, 8, 8), dtype=np.uint8), np.array([row[:2] for row in ROWS] * 10)
    np.savez(tmp_path / "x.npz", x=x, y=y)
    bundle = load(f"npz:{tmp_path / 'x.npz'}")
    assert bundle.classes == ("0", "1")
    assert bundle.train.labels().dtype == torch.bool
    assert fedstill.dataset((x, y), classes=("a", "b")).train.labels().shape == (32, 2)


def test_sites_may_know_different_findings(tmp_path: Path) -> None:
    write(tmp_path / "north", plain())
    write(tmp_path / "south", [f"{a},{b},{'c' if a else 'a'}" for a, b, _ in ROWS * 5])
    bundle = load(f"folder:{tmp_path},labels=names,site=folder")
    assert bundle.classes == ("a", "b", "c")
    assert bundle.sites == 2
