"""The rules of servers on the quadratics of `test_quadratics.py`: two rounds by hand, derived in the docstrings.

Client A holds six points at 2, B two at 10, C two at 4, D two at 100; everybody takes one step of rate 1/2 a round.
"""

from __future__ import annotations

import pytest

from fedstill.core.dataset import ArrayDataset
from fedstill.core.protocols import Reply

from .sites import Quadratic, Site, build, points, returned, weight

A, B, C, D = points(2, 2, 2, 2, 2, 2), points(10, 10), points(4, 4), points(100, 100)


@pytest.mark.parametrize(("data", "median", "buffer"), [([A, B, C], 2.0, 4.0), ([A, B, C, D], 3.5, 7.0)])
def test_fedmedian(data: list[ArrayDataset], median: float, buffer: float) -> None:
    """One step: A 1, B 5, C 2, and D 50. Of three the median is 2, of four (2 + 5)/2, whatever their samples.

    Buffers, here the means of the data, would by the rule of three kinds be averaged; robust rules take their median on
    purpose: of 2, 10 and 4 it is 4, with 100 among them (4 + 10)/2.
    """
    site = Site(build("fedmedian"), Quadratic(), data)
    assert weight(site.play_round()) == median
    assert weight(site.server, "model/buffers/mean") == buffer


@pytest.mark.parametrize(("settings", "expected"), [({}, (2.0, 4.8)), ({"eta": 0.5, "beta": 0.5}, (1.0, 2.25))])
def test_fedavgm(settings: dict[str, float], expected: tuple[float, float]) -> None:
    """By samples one step from w gives the mean 2 + w/2, so that D = 2 - w/2.

    eta 1, beta 0.9: v = 2, w = 2; D = 1, v = 1.8 + 1, w = 4.8. Both 1/2: v = 2, w = 1; D = 1.5, v = 2.5, w = 2.25.
    """
    site = Site(build("fedavgm", **settings), Quadratic(), [A, B], rounds=2)
    assert [weight(site.play_round(round)) for round in (0, 1)] == pytest.approx(expected, rel=1e-6)
    assert weight(site.server, "model/buffers/mean") == 4  # (6 * 2 + 2 * 10) / 8, plainly averaged


ADAPTIVE = [
    ("fedadam", "original", (0.04000099, 0.0786121553), (0.0497506312, 0.1168332875)),
    ("fedadam", "seed", (0.004, 0.0076907514), (0.1556527962, 0.3654781895)),
    ("fedyogi", "original", (0.040001, 0.0790121753), (0.0497506250, 0.1166638567)),
    ("fedyogi", "seed", (0.004, 0.0076947514), (0.1556527962, 0.3654242599)),
    ("fedadagrad", "original", (4.000001, 7.9900122425), (0.0049975006, 0.0117124168)),
    ("fedadagrad", "seed", (4.0, 7.9900112413), (0.0049975012, 0.0117124178)),
]


@pytest.mark.parametrize(("name", "preset", "second", "expected"), ADAPTIVE, ids=[f"{a}-{b}" for a, b, *_ in ADAPTIVE])
def test_adaptive(name: str, preset: str, second: tuple[float, float], expected: tuple[float, float]) -> None:
    """D = 2 - w/2 as above; eta 0.05, tau 0.001, beta1 0.9; no bias correction.

    Round 1: D = 2, m = 0.2. v starts at 1e-6 (original) or 0 (seed), beta2 is 0.99 or 0.999:
    Adam 0.99 * 1e-6 + 0.01 * 4 = 0.04000099 or 0.001 * 4; Yogi 1e-6 + 0.01 * 4 (v is below D^2) or 0.001 * 4;
    Adagrad 1e-6 + 4 or 4. w = 0.01 / (sqrt v + 0.001), for Adam 0.01/0.2010025 = 0.0497506 or 0.01/0.0642456.
    Round 2, Adam as published: D = 2 - 0.0248753 = 1.9751247, m = 0.18 + 0.1975125 = 0.3775125, v = 0.99 * 0.04000099 +
    0.01 * 3.9011175 = 0.0786122; w = 0.0497506 + 0.0188756/0.2813787 = 0.1168333. The others likewise; Yogi adds
    all of (1 - beta2) D^2 to v, Adagrad all of D^2.
    """
    site = Site(build(name, preset=preset), Quadratic(), [A, B], rounds=2)
    for round in (0, 1):
        assert weight(site.play_round(round)) == pytest.approx(expected[round], rel=1e-6)
        assert weight(site.server, "second/model/parameters/w") == pytest.approx(second[round], rel=1e-6)
    assert weight(site.server, "model/buffers/mean") == 4


def test_yogi_shrinks_its_second_moment_by_bounded_amounts() -> None:
    """beta2 = 1/2, v from 0, D = 2 and then 0.1: v = 0 + 4/2 = 2, then 2 - 0.01/2 = 1.995 (Adam would say 1.005)."""
    method = build("fedyogi", preset="seed", beta2=0.5)
    site = Site(method, Quadratic(), [A])
    for change, expected in ((2.0, 2.0), (0.1, 1.995)):
        replies: list[Reply] = returned(site.server, {"parameters/w": site.server["model/parameters/w"] + change})
        site.server = method.aggregate(site.server, replies, site.context(0))
        assert weight(site.server, "second/model/parameters/w") == pytest.approx(expected, rel=1e-6)
