from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedstill.core.streams import Streams
from fedstill.report.thumbnails import draw_thumbnails, in_cells


def test_every_sample_is_in_the_cell_of_the_one_that_is_drawn_for_it() -> None:
    """Cells counted by hand with integer division; of each the sample that is nearest to the middle."""
    places = Streams(0).draw("places").uniform(-5, 5, (200, 2))
    cells = in_cells(places, 2.0)
    assert set(cells) == {(int(x // 2), int(y // 2)) for x, y in places}
    for (column, row), sample in cells.items():
        middle = np.array([2 * column + 1.0, 2 * row + 1.0])
        own = [number for number, (x, y) in enumerate(places) if (x // 2, y // 2) == (column, row)]
        assert sample == min(own, key=lambda number: np.abs(places[number] - middle).max())


def test_pictures_do_not_touch_and_stay_near_their_places() -> None:
    places = Streams(1).draw("places").standard_normal((300, 2))
    axes = Figure().subplots()
    drawn = draw_thumbnails(axes, places, np.zeros((300, 5, 5, 1), np.float32), ["#ff0000"] * 300)
    extents = np.array([image.get_extent() for image in axes.images])
    assert drawn == len(extents) == len(axes.collections[0].get_paths())
    assert 40 < drawn < 300
    sides = extents[:, 1] - extents[:, 0]
    assert np.allclose(sides, sides[0])
    assert np.allclose(extents[:, 3] - extents[:, 2], sides[0])
    middles = (extents[:, [0, 2]] + extents[:, [1, 3]]) / 2
    apart = np.abs(middles[:, None] - middles[None]).max(axis=2) + np.eye(drawn) * 9
    assert apart.min() > 1.1 * sides[0]  # a frame on both sides
    away = np.abs(middles[:, None] - places[None]).max(axis=2).min(axis=1)
    assert (away < 0.7 * sides[0]).all()  # half of picture, frame and gap: 0.5 / 0.76 of the picture
    left, right = axes.get_xlim()
    assert left < extents[:, 0].min() < extents[:, 1].max() < right


def test_one_sample_alone() -> None:
    axes = Figure().subplots()
    assert draw_thumbnails(axes, np.zeros((1, 2)), np.ones((1, 3, 3, 3), np.float32), ["#00ff00"]) == 1
