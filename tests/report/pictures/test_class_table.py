from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.report.pictures.class_table import draw_partition, partition_text

NAMES = ["control", "coronal", "metopic", "sagittal"]


@pytest.mark.parametrize("clients", [1, 5, 100])
def test_a_picture_is_drawn(tmp_path: Path, clients: int) -> None:
    table = torch.arange(clients * 4).reshape(clients, 4)
    draw_partition(table, NAMES, tmp_path / "cut.png", "a title")
    with Image.open(tmp_path / "cut.png") as image:
        assert image.width > 600
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50


def test_svg_has_the_same_bytes_every_time_and_an_empty_table_draws(tmp_path: Path) -> None:
    table = torch.zeros(30, 60, dtype=torch.int64)
    draw_partition(table, [str(n) for n in range(60)], tmp_path / "one.svg")
    draw_partition(table, [str(n) for n in range(60)], tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_names_that_look_like_formulas_are_names(tmp_path: Path) -> None:
    """`$_$` is no formula that could be set; `$x$` would be one, without its signs."""
    table = torch.ones(2, 2, dtype=torch.int64)
    draw_partition(table, ["US$_$", "$x$"], tmp_path / "cut.png", "in $^$")
    draw_partition(table, ["US$_$", "$x$"], tmp_path / "cut.svg", "in $^$")
    text = (tmp_path / "cut.svg").read_text()
    assert all(f"<!-- {words} -->" in text for words in ("US$_$", "$x$", "in $^$"))


def test_where_it_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cut.txt must end in .png or .svg"):
        draw_partition(torch.ones(2, 4), NAMES, tmp_path / "cut.txt")
    with pytest.raises(InputError, match=r"nowhere/cut.png cannot be written"):
        draw_partition(torch.ones(2, 4, dtype=torch.int64), NAMES, tmp_path / "nowhere" / "cut.png")


def test_text_shows_numbers_where_they_fit() -> None:
    lines = partition_text(torch.tensor([[64, 0, 0, 0], [16, 48, 0, 0]]), NAMES).splitlines()
    assert lines[0].split() == ["client", "samples", *NAMES]
    assert lines[2].split() == ["1", "64", "16", "48", "·", "·"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [30, 60, 100])
def test_text_shades_many_classes_and_skips_many_clients(width: int) -> None:
    table = torch.zeros(1000, 100, dtype=torch.int64)
    table[0, 0], table[0, 99] = 1, 400
    text = partition_text(table, [str(n) for n in range(100)], width)
    assert len(text.splitlines()) == 42
    assert text.splitlines()[1][17] == "░"  # one sample of 400 still shows
    assert text.splitlines()[1].endswith("█")
    assert "   999  " in text
    assert max(len(line) for line in text.splitlines()[1:]) <= width
