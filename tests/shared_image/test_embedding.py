from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.shared_image.embedding import Map, embedding_figure, tsne
from fedstill.shared_image.proxy_choice import Chosen
from fedstill.shared_image.proxy_maps import draw_maps

NAMES = [f"class {number}" for number in range(30)]


def groups(count: int, each: int) -> tuple[Tensor, Tensor]:
    """Groups at the corners of a cube of side 20, each spread by 1."""
    classes = torch.arange(count).repeat_interleave(each)
    corners = torch.stack([(classes >> bit & 1) * 20.0 for bit in range(3)], dim=1)
    return corners + torch.from_numpy(Streams(0).draw("spread").standard_normal((count * each, 3))).float(), classes


def test_neighbours_stay_neighbours() -> None:
    embeddings, classes = groups(5, 12)
    places = torch.from_numpy(tsne(embeddings))
    far = torch.cdist(places, places)
    far.fill_diagonal_(torch.inf)
    assert places.shape == (60, 2)
    assert torch.equal(classes[far.argmin(dim=1)], classes)


def test_the_same_map_every_time() -> None:
    embeddings, _ = groups(4, 8)
    first = tsne(embeddings, 3)
    torch.set_num_threads(2)  # put back after every test
    assert np.array_equal(first, tsne(embeddings, 3))


@pytest.mark.parametrize("shape", [(1, 5), (3, 5), (4, 5), (5, 1), (9, 2)])
def test_few_samples_and_few_channels(shape: tuple[int, int]) -> None:
    places = tsne(torch.from_numpy(Streams(1).draw("few").standard_normal(shape)))
    assert places.shape == (shape[0], 2)
    assert np.isfinite(places).all()
    assert len(np.unique(places, axis=0)) == shape[0]


def test_samples_that_are_all_alike() -> None:
    assert np.isfinite(tsne(torch.ones(12, 4))).all()


def test_a_class_looks_the_same_in_every_panel() -> None:
    """Classes 2 and 7 early, 7 and 9 late: three colours, and a key of three names in order."""
    places = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0]])
    maps = [
        Map(places, torch.tensor([2, 7, 7]), "round 1"),
        Map(places[:2] + 1, torch.tensor([9, 7]), "round 30", "2 of 80 patches"),
    ]
    figure = embedding_figure(maps, NAMES)
    early, late = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["round 1", "round 30"]
    assert early.get_xlabel() == "three samples, two predicted classes"
    assert late.get_xlabel() == "2 of 80 patches, two predicted classes"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["class 2", "class 7", "class 9"]
    drawn = [[to_hex(marks.get_facecolor()[0]) for marks in axes.collections] for axes in (early, late)]
    assert drawn[0][1] == drawn[1][0]
    assert len({*drawn[0], *drawn[1]}) == 3
    assert early.collections[1].get_offsets().tolist() == [[1.0, 2.0], [3.0, 1.0]]
    outlines = [len(marks.get_paths()[0].vertices) for marks in early.collections]
    assert outlines[0] != outlines[1]  # told apart without colours, too


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (3, 1, 3), (4, 2, 2), (5, 2, 3)])
def test_panels_are_laid_in_rows(count: int, rows: int, columns: int) -> None:
    places = np.array([[0.0, 0.0], [1.0, 1.0]])
    figure = embedding_figure([Map(places, torch.tensor([0, 1]), str(number)) for number in range(count)], NAMES)
    grid = figure.axes[0].get_subplotspec().get_gridspec()
    assert (grid.nrows, grid.ncols) == (rows, columns)
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.axison] == [str(n) for n in range(count)]


def test_a_flat_map_has_a_flat_panel() -> None:
    """0.5 high and 1 wide leaves nothing to show above and below; 3 high and 1 wide is given no more than a square."""
    sizes = {}
    for tall in (0.5, 3.0):
        places = np.array([[0.0, 0.0], [1.0, tall]])
        sizes[tall] = embedding_figure([Map(places, torch.tensor([0, 1]), "")], NAMES).get_size_inches()
    assert sizes[0.5][0] == sizes[3.0][0]
    assert sizes[3.0][1] - sizes[0.5][1] == pytest.approx((1 - 0.55) * sizes[3.0][0])


def test_many_classes_have_no_key() -> None:
    places = np.stack([np.arange(30.0), np.zeros(30)], axis=1)
    figure = embedding_figure([Map(places, torch.arange(30), "")] * 2, NAMES)
    assert figure.legends == []
    assert figure.axes[0].get_xlabel() == "30 samples, 30 predicted classes"


def test_samples_themselves_in_frames_of_their_class() -> None:
    """Four corners of a square have room for all; a fifth sample on top of the first has none."""
    places = np.array([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0], [9.0, 9.0], [0.01, 0.0]])
    classes = torch.tensor([0, 1, 1, 0, 1])
    pictures = np.stack([np.full((4, 4, 3), number / 5, np.float32) for number in range(5)])
    figure = embedding_figure([Map(places, classes, "", pictures=pictures)], NAMES)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "five samples, two predicted classes, 4 drawn"
    shown = {round(float(image.get_array()[0, 0, 0]) * 5) for image in axes.images}
    assert len(shown) == 4
    assert {1, 2, 3} < shown
    key = [to_hex(handle.get_color()) for handle in figure.legends[0].get_lines()]
    frames = [to_hex(colour) for colour in axes.collections[0].get_facecolor()]
    by_class = [key[int(classes[round(float(image.get_array()[0, 0, 0]) * 5)])] for image in axes.images]
    assert frames == by_class


@pytest.mark.parametrize(
    ("places", "classes", "pictures", "sentence"),
    [
        (np.zeros((2, 2)), torch.tensor([0, 30]), None, "not all among the 30 names"),
        (np.zeros((3, 2)), torch.tensor([0, 1]), None, "a map of 2 samples needs as many places"),
        (np.zeros((0, 2)), torch.zeros(0, dtype=torch.int64), None, "a map of 0 samples"),
        (np.zeros((2, 2)), torch.tensor([0, 1]), np.zeros((3, 4, 4, 1), np.float32), "as many pictures, not 3"),
    ],
    ids=["class", "length", "empty", "pictures"],
)
def test_what_cannot_be_drawn(places: np.ndarray, classes: Tensor, pictures: np.ndarray | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        embedding_figure([Map(places, classes, "", pictures=pictures)], NAMES)


def test_embeddings_that_have_no_map() -> None:
    with pytest.raises(InputError, match="not all finite"):
        tsne(torch.tensor([[0.0, float("nan")]]))
    with pytest.raises(InputError, match="shape"):
        tsne(torch.zeros(5))


def test_a_class_with_dollars_in_its_name_is_no_formula(tmp_path: Path) -> None:
    rows = torch.arange(3)
    seen = Chosen("digits", "image", 3, "", 1, None, rows, torch.zeros(3, 1, 8, 8), torch.eye(3), rows)
    draw_maps([seen], ["$x_ and y^$", "y", "z"], tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 0
