"""Figures about devices say what journals say, and can be drawn to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from fedstill.core.records import Reason, RoundRecord
from fedstill.core.streams import Streams
from fedstill.devices.clusters import Clusters
from fedstill.devices.dropout_curves import dropout_curves
from fedstill.devices.fleet import Fleet
from fedstill.devices.fleet_facts import CELLULAR, WIFI, RoundWorkload, costs, fleet_of, tiers
from fedstill.devices.fleet_figures import (
    battery_round,
    charge_by_tier,
    devices,
    energy_by_round,
    participants,
    shown_round,
)
from fedstill.devices.participation_figures import cluster_plane, failures_by_round, fairness
from fedstill.devices.report_section import fleet_sections
from fedstill.report import write_report
from fedstill.report.facts import Facts
from fedstill.report.figure import ALARM, CAUSES, Figure, cause_colour, colour
from fedstill.report.static import draw_files
from fedstill.runtime.result import Run

from ..records_by_hand import round_record

MakeRun = Callable[..., Run]
FLEET = Fleet()


def drawn(figure: Figure, folder: Path) -> None:
    assert [path.name for path in draw_files([figure], folder)] == [f"{figure.id}.svg", f"{figure.id}.png"]


def state(tier: Sequence[int], charge: Sequence[float], wifi: Sequence[bool]) -> dict[str, torch.Tensor]:
    """Batteries of 10 Wh, 4 W, and 1, 2 or 4 GFLOP/s by tier."""
    place = torch.tensor(tier)
    return {
        "tier": place,
        "charge": torch.tensor(charge, dtype=torch.float64),
        "capacity": torch.full((len(tier),), 10.0, dtype=torch.float64),
        "watts": torch.full((len(tier),), 4.0, dtype=torch.float64),
        "speed": 2.0 ** place.double(),
        "wifi": torch.tensor(wifi),
    }


FOUR = state([0, 2, 0, 1], [4.0, 9.0, 1.0, 5.0], [True, True, False, False])


def work(before: float, compute: float, communication: float, background: float) -> dict[str, float]:
    after = before - compute - communication - background
    return {
        "before": before,
        "after": after,
        "compute": compute,
        "communication": communication,
        "background": background,
        "seconds": 1.0,
    }


def record(
    round: int, failed: Mapping[int, str], worked: Mapping[int, dict[str, float]], sampled: Sequence[int], **more: Any
) -> RoundRecord:
    fleet = {
        "devices": worked,
        "level": {"low": 0.2, "mid": 0.4, "high": 1.0 - 0.1 * round},
        "drained": 0.5,
        "gained": 1.25,
        "charge": 20.0,
    }
    failures = [{"client": client, "reason": reason, "detail": ""} for client, reason in failed.items()]
    accepted = [client for client in sampled if client not in failed]
    given = {"sampled": sampled, "accepted": accepted, "failures": failures, "fleet": fleet}
    return round_record(round, **given, **more)


# In the first round client 3 answers a survey only; in the second 2 runs out and 0 comes with an empty one.
OWN = {"sampled", "accepted", "failures", "fleet", "replacements"}
JOURNAL = [
    record(
        1,
        {0: "dropped"},
        {0: work(4.0, 0.5, 0.25, 0.125), 1: work(9.0, 1.0, 0.5, 0.0), 3: work(5.0, 0.0, 0.5, 0.0)},
        [0, 1],
        replacements={0: 1},
    ),
    record(2, {0: "battery", 2: "battery"}, {1: work(7.5, 1.0, 0.5, 0.0), 2: work(1.0, 0.5, 0.5, 0.0)}, [1, 2]),
]


def test_every_battery_is_a_bar(tmp_path: Path) -> None:
    figure = devices("fleet", "The fleet", FLEET, FOUR)
    full, empty, wifi, cellular = figure.data
    assert full["x"] == ["0", "2", "3", "1"], "by tier"
    assert full["y"] == [4.0, 1.0, 5.0, 9.0]
    assert full["marker"]["color"] == [colour(0), colour(0), colour(1), colour(2)]
    assert [a + b for a, b in zip(full["y"], empty["y"], strict=True)] == [10.0] * 4
    assert (wifi["x"], cellular["x"]) == (["0", "1"], ["2", "3"])
    assert wifi["marker"]["symbol"] != cellular["marker"]["symbol"]
    assert "low: two devices, 5 of 20 Wh; mid: one device, 5 of 10 Wh" in figure.sentence
    drawn(figure, tmp_path)


def test_a_crowd_has_no_marks(tmp_path: Path) -> None:
    figure = devices("fleet", "The fleet", FLEET, FLEET.start(150, Streams(0)))
    assert len(figure.data) == 2
    assert figure.layout["xaxis"]["showticklabels"] is False
    drawn(figure, tmp_path)


def test_the_round_with_most_deaths_is_shown() -> None:
    shown = shown_round(JOURNAL)
    assert shown is not None
    assert shown.round == 2
    first = shown_round([JOURNAL[0].model_copy(update={"round": 5}), JOURNAL[0]])
    assert first is not None
    assert first.round == 5, "of equals the first"
    assert shown_round([round_record()]) is None
    assert set(participants(JOURNAL[0])) == {0, 1}, "not who only answered a survey"


def test_what_is_left_and_what_was_spent_is_what_there_was(tmp_path: Path) -> None:
    figure = battery_round("batteries", "Round 2", JOURNAL[1], FLEET, FOUR)
    after, spent, *kinds, crosses = figure.data
    assert after["x"] == ["0", "2", "1"]
    assert after["y"] == [0.0, 0.0, 6.0]
    assert spent["y"] == [0.0, 1.0, 1.5]
    assert [trace["y"] for trace in kinds] == [[0.0, 0.5, 1.0], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]
    assert (crosses["x"], crosses["marker"]["color"]) == (["0", "2"], ALARM)
    assert [key.label for key in figure.keys if key.label.startswith("left")] == ["left, low", "left, high"]
    assert "low (2) from 1.00 to 0.00 Wh and high (1) from 7.50 to 6.00 Wh" in figure.caption
    assert "2, of clients 0 and 2" in figure.caption
    drawn(figure, tmp_path)
    calm = battery_round("batteries", "Round 1", JOURNAL[0], FLEET, FOUR)
    assert len(calm.data) == 5
    assert "No battery ran out" in calm.caption


def test_charge_starts_before_the_first_round(tmp_path: Path) -> None:
    """Of the lower tier, 4 and 1 of 10 Wh: a quarter."""
    figure = charge_by_tier("charge", "Charge", JOURNAL, FLEET, FOUR)
    low, _, high = figure.data
    assert (low["x"], low["y"]) == ([0, 1, 2], [0.25, 0.2, 0.2])
    assert high["y"] == [0.9, 0.9, pytest.approx(0.8)]
    drawn(figure, tmp_path)


def test_energy_is_all_devices_together(tmp_path: Path) -> None:
    """Survey included: 0.25 + 0.5 + 0.5 Wh were for communication in the first round."""
    figure = energy_by_round("energy", "Energy", JOURNAL)
    assert [trace["y"] for trace in figure.data] == [[1.5, 1.5], [1.25, 1.0], [0.125, 0.0]]
    assert "5.38\u00a0Wh in all" in figure.caption
    assert "lost 1\u00a0Wh to the background, and 2.5\u00a0Wh were charged" in figure.caption
    drawn(figure, tmp_path)


def test_losses_by_cause(tmp_path: Path) -> None:
    figure = failures_by_round("failures", "Failures", JOURNAL)
    dropped, battery, replaced = figure.data
    assert (dropped["y"], battery["y"], replaced["y"]) == ([1, 0], [0, 2], [1, 0])
    assert dropped["marker"]["color"] != battery["marker"]["color"]
    assert "1 dropped and 2 battery; 1 replaced" in figure.caption
    drawn(figure, tmp_path)


def test_fairness_by_hand(tmp_path: Path) -> None:
    """Only client 1 counted, twice: Jain's index of 0, 2, 0, 0 is 4 / (4 * 4), of tiers' means 0, 0, 2 a third."""
    groups = {"low": [0, 2], "mid": [3], "spare": [], "high": [1]}
    figure = fairness("fairness", "Who", JOURNAL, 4, groups, "tier")
    (bars,) = figure.data
    assert (bars["x"], bars["y"]) == (["1", "0", "2", "3"], [2.0, 0.0, 0.0, 0.0])
    assert bars["marker"]["color"][:2] == [colour(3), colour(0)]
    assert "is 0.25" in figure.caption
    assert "0.33 between tiers" in figure.caption
    assert [key.colour for key in figure.keys] == [colour(0), colour(1), colour(3)]
    drawn(figure, tmp_path)
    assert fairness("fairness", "Who", JOURNAL, 100, {}, "").keys == []


@pytest.mark.parametrize(
    ("statistics", "names"),
    [
        (("mean", "std"), ("mean of inputs", "standard deviation of inputs")),
        (("skewness",), ("skewness of inputs", "client")),
        ("labels", ("share of class &lt;a&gt;", "share of class b")),
    ],
    ids=["two", "one", "labels"],
)
def test_clusters_in_their_plane(statistics: Any, names: tuple[str, str], tmp_path: Path) -> None:
    width = 3 if statistics == "labels" else len(statistics)
    table = torch.arange(4 * width, dtype=torch.float64).reshape(4, width)
    table[2] = float("nan")
    fleet = {"statistics": table, "cluster": torch.tensor([0, 1, -1, 0])}
    figure = cluster_plane("clusters", "Clusters", Clusters(statistics=statistics), fleet, ["<a>", "b", "c"])
    assert [trace["customdata"] for trace in figure.data] == [[0, 3], [1]]
    assert figure.data[1]["x"] == [width]
    assert (figure.layout["xaxis"]["title"]["text"], figure.layout["yaxis"]["title"]["text"]) == names
    assert "Two clusters of 2 and 1 clients, and 1 of unknown cluster" in figure.caption
    assert ("Of 3 statistics" in figure.caption) == (width == 3)
    drawn(figure, tmp_path)


def test_costs_by_hand() -> None:
    """3600 GFLOP at 4 W: of client 0 (1 GFLOP/s) an hour and 4 Wh, of client 3 (2 GFLOP/s) half of both.

    Background: 0.1 W. Nothing is sent, so that links cost nothing.
    """
    job = RoundWorkload("cnn", 10, 1, 3.6e12, ((0, 0),))
    found = {(one.tier, one.link): one for one in costs(FLEET, FOUR, job)}
    assert set(found) == {("low", WIFI), ("low", CELLULAR), ("mid", CELLULAR), ("high", WIFI)}
    low, mid = found["low", WIFI], found["mid", CELLULAR]
    assert (low.training, low.background, low.seconds) == pytest.approx((4.0, 0.1, 3600.0))
    assert (mid.training, mid.background, mid.seconds) == pytest.approx((2.0, 0.05, 1800.0))
    assert (mid.share, mid.download, mid.upload) == pytest.approx((0.205, 0.0, 0.0))
    first = tiers(FLEET, FOUR)[0]
    assert (first.devices, first.charge, first.wifi) == (2, (0.1, 0.4), 0.5)


def test_every_reason_to_be_lost_has_a_colour() -> None:
    assert list(CAUSES) == list(get_args(Reason))
    assert cause_colour("struck by lightning") == CAUSES["failed"]


def dropping(seed: int, rate: float | None, replace: bool = False, **more: Any) -> dict[str, Any]:
    dropout = {"name": "none"} if rate is None else {"name": "independent", "rate": rate, "replace": replace, **more}
    return {"method": "fedavg", "seed": seed, "dropout": dropout}


def read(runs: Sequence[Run]) -> list[Facts]:
    return [Facts.of(str(number), run) for number, run in enumerate(runs)]


def test_a_pair_of_panels_for_every_rate(make_run: MakeRun, tmp_path: Path) -> None:
    """Means over two seeds; 80 % comes after 40 %, whatever order the runs are in."""
    runs = [
        make_run(dropping(1, 0.8), (0.1, 0.2)),
        make_run(dropping(1, 0.4), (0.3, 0.4)),
        make_run(dropping(2, 0.4), (0.5, 0.8)),
        make_run(dropping(1, 0.4, replace=True), (0.6, 0.7)),
        make_run(dropping(1, None), (0.8, 0.9)),
        make_run({"method": "fedprox", "dropout": 0.5}, (0.8, 0.9)),  # compares with nothing
    ]
    figures = dropout_curves(read(runs))
    assert [figure.title for figure in figures] == [
        "Test accuracy, 40\u00a0% dropout",
        "Test loss, 40\u00a0% dropout",
        "Test accuracy, 80\u00a0% dropout",
        "Test loss, 80\u00a0% dropout",
    ]
    forty, _, eighty, _ = figures
    assert [key.label for key in forty.keys] == ["no dropout", "dropped", "replaced"]
    calm, seeds, mean, replaced = forty.data
    assert seeds["hovertemplate"] == "dropped, round %{x}, a seed: %{y:.1%}<extra></extra>"
    assert mean["hovertemplate"] == "dropped, round %{x}: %{y:.1%}<extra></extra>"
    assert (calm["y"], replaced["y"]) == ([0.8, 0.9], [0.6, 0.7])
    assert seeds["y"] == [0.3, 0.4, 0.5, 0.8]
    assert (mean["x"], mean["y"]) == ([1, 2], pytest.approx([0.4, 0.6]))
    assert [key.label for key in eighty.keys] == ["no dropout", "dropped"]
    assert eighty.layout["yaxis"]["range"] == forty.layout["yaxis"]["range"]
    assert "dropped 50.0\u00a0±\u00a0" in forty.caption, "of both seeds and all rounds: 0.35 and 0.65"
    assert "of the last 5 evaluations" in forty.caption, "not every round is one"
    for figure in figures:
        drawn(figure, tmp_path)


def test_ways_that_differ_further_are_told_apart(make_run: MakeRun) -> None:
    runs = [make_run(dropping(1, 0.4)), make_run(dropping(1, 0.4, when="before"))]
    assert [key.label for key in dropout_curves(read(runs))[0].keys] == ["dropped", "dropped (when before)"]
    assert dropout_curves(read(runs[:1])) == []


def test_sections_only_where_there_is_something(make_run: MakeRun, tmp_path: Path) -> None:
    plain = {"plain": make_run()}
    assert all(section.empty for section in fleet_sections(plain, read(list(plain.values()))))
    given = {"method": "fedavg", "fleet": {}, "dropout": 0.4}
    run = make_run(
        given,
        (0.5, 0.6),
        {
            one.round: one.model_dump(include={"sampled", "accepted", "failures", "fleet", "replacements"})
            for one in JOURNAL
        },
    )
    _, section = fleet_sections({"a": run}, [])
    assert [figure.id for figure in section.figures] == [
        *("batteries-0", "charge-0", "energy-0", "failures-0", "fairness-0")
    ]
    page = write_report({"a": run}, tmp_path / "page.html", tables={}, figures=tmp_path / "figures").read_text()
    assert "Batteries before and after round 2" in page
    assert "Charge over time by tier" in page
    assert (tmp_path / "figures" / "batteries-0.png").is_file()


def test_of_many_runs_some_are_drawn(make_run: MakeRun) -> None:
    runs = {f"{rate} {seed}": make_run(dropping(seed, rate)) for rate in (0.1, 0.2, 0.3, 0.4, 0.5) for seed in (1, 2)}
    _, section = fleet_sections(runs, [])
    titles = [figure.title for figure in section.figures if figure.id.startswith("fairness")]
    assert [title.rsplit(", ")[-1] for title in titles] == ["0.1 1", "0.2 1", "0.3 1", "0.4 1"]
    assert "Of 10 runs 4 are drawn" in section.about


def test_the_fleet_is_the_one_that_a_run_draws(make_run: MakeRun) -> None:
    run = make_run({"method": "fedavg", "fleet": {"wifi_share": 0.5}, "seed": 3})
    fleet, start = fleet_of(run.experiment)
    again = fleet.start(4, Streams(3).at("fleet"))
    assert fleet.wifi_share == 0.5
    assert all(np.array_equal(start[name], again[name]) for name in again)
