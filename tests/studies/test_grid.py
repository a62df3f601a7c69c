"""What a grid expands to: checked by changing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedstill.core.errors import InputError
from fedstill.runtime.recipes import recipe_by
from fedstill.studies import Study

Make = Callable[..., dict[str, Any]]
METHODS = ["fedavg", "fedprox", "fedavgm", "fedadam"]
BUFFERS = ["average", "as-parameters"]


def complaint(recipe: dict[str, Any], settings: dict[str, Any] | None = None, **layers: Any) -> str:
    with pytest.raises(InputError) as caught:
        Study(recipe, settings, **layers)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_product_in_the_order_written(recipe: Make) -> None:
    grid = {"partition": ["iid", {"name": "dirichlet", "alpha": 0.1}], "method": METHODS, "seed": [7, 42, 123]}
    cells = Study(recipe(grid)).expand()
    assert len(cells) == 2 * 4 * 3
    assert [str(cell) for cell in cells[:4]] == [
        "iid, fedavg, seed 7",
        "iid, fedavg, seed 42",
        "iid, fedavg, seed 123",
        "iid, fedprox, seed 7",
    ]
    last = cells[-1].experiment
    assert (last.method.name, last.partition.settings.alpha, last.seed) == ("fedadam", 0.1, 123)
    assert cells[-1].labels == {"partition": "dirichlet:alpha=0.1", "method": "fedadam", "seed": "123"}


@pytest.mark.parametrize(("seeds", "methods"), [(3, 4), (2, 4), (3, 3), (1, 1)])
def test_dropping_a_value_drops_its_share(recipe: Make, seeds: int, methods: int) -> None:
    grid = {"method": METHODS[:methods], "buffers": BUFFERS, "seed": [7, 42, 123][:seeds]}
    assert len(Study(recipe(grid)).expand()) == methods * 2 * seeds


def test_a_setting_goes_into_the_part_of_its_cell_wherever_the_grid_lists_it(recipe: Make) -> None:
    for grid in ({"method": METHODS, "buffers": BUFFERS}, {"buffers": BUFFERS, "method": METHODS}):
        found = {
            (e.method.name, e.method.settings.buffers)
            for cell in Study(recipe(grid)).expand()
            for e in [cell.experiment]
        }
        assert found == {(method, buffers) for method in METHODS for buffers in BUFFERS}


def test_a_labelled_value_sets_several_things(recipe: Make) -> None:
    slow = {"label": "FedAvg, slow", "method": "fedavg", "training": {"rate": 0.001}, "weights": "uniform"}
    plain, changed = Study(recipe({"method": ["fedavg", slow]})).expand()
    assert (plain.experiment.training.rate, plain.experiment.method.settings.weights) == (0.05, "samples")
    assert changed.labels == {"method": "FedAvg, slow"}
    assert (changed.experiment.training.rate, changed.experiment.method.settings.weights) == (0.001, "uniform")
    assert changed.experiment.training.batch == 64, "what it does not name stays"


def test_an_axis_of_labelled_values_may_have_any_name(recipe: Make) -> None:
    arms = [{"label": "a", "rounds": 2, "method": "fedavg"}, {"label": "b", "method": {"name": "fedprox", "mu": 1.0}}]
    first, second = (cell.experiment for cell in Study(recipe({"arm": arms})).expand())
    assert (first.rounds, second.rounds, second.method.settings.mu) == (2, 1, 1.0)


def test_a_part_may_have_a_label(recipe: Make) -> None:
    skewed = {"label": "skewed", "name": "dirichlet", "alpha": 0.1}
    (cell,) = Study(recipe({"partition": [skewed]}, method="fedavg")).expand()
    assert (cell.labels, cell.experiment.partition.settings.alpha) == ({"partition": "skewed"}, 0.1)


def test_layers_change_experiment_and_grid(recipe: Make) -> None:
    whole = recipe({"method": METHODS, "seed": [7, 42, 123]}) | {
        "columns": "method",
        "presets": {
            "lite": {"rounds": 9, "model": "cnn", "grid": {"seed": [7, 42]}},
            "one": {"seed": 5, "grid": {"seed": None}},
        },
        "variants": {"all": {"grid": {"buffers": BUFFERS}}},
    }
    assert len(Study(whole).expand()) == 12
    lite = Study(whole, preset="lite")
    assert len(lite.expand()) == 8
    assert {(cell.experiment.rounds, cell.experiment.model) for cell in lite.expand()} == {(9, "cnn")}
    assert len(Study(whole, preset="lite", variant="all").expand()) == 16
    assert {cell.experiment.seed for cell in Study(whole, preset="one").expand()} == {5}
    assert recipe_by(whole, preset="one").columns == "method"


def test_a_users_setting_replaces_an_axis_or_comes_last(recipe: Make) -> None:
    grid = {"method": ["fedavg", {"label": "long", "method": "fedavg", "rounds": 9}], "seed": [7, 42]}
    assert {cell.experiment.seed for cell in Study(recipe(grid), {"seed": 1}).expand()} == {1}
    assert len(Study(recipe(grid), {"seed": [1, 2, 3]}).expand()) == 6
    assert {cell.experiment.rounds for cell in Study(recipe(grid), {"rounds": 3}).expand()} == {3}
    assert {cell.experiment.training.rate for cell in Study(recipe(grid), {"rate": 0.1}).expand()} == {0.1}
    (labelled,) = Study(recipe(grid), {"method": "long", "seed": 7}).expand()
    assert (labelled.labels["method"], labelled.experiment.rounds) == ("long", 9)


def test_a_setting_that_only_some_methods_have(recipe: Make) -> None:
    """FedBN keeps its buffers at home: of its two cells one run is left, whatever else is listed after it."""
    grid = {"buffers?": BUFFERS, "method": ["fedavg", "fedbn", "fedadam"], "preset?": ["seed"]}
    study = Study(recipe(grid, model="cnn-bn") | {"columns": "buffers"})
    made = {tuple(cell.labels.values())[:2]: cell.experiment.method.settings for cell in study.expand()}
    assert [made[buffers, "fedavg"].buffers for buffers in BUFFERS] == BUFFERS
    assert made["average", "fedadam"].preset == "seed"
    assert made["average", "fedbn"] == made["as-parameters", "fedbn"]
    assert len(study.study_plan.jobs) == 5
    assert list(study.axes) == ["buffers", "method", "preset"]
    assert len(Study(recipe(grid), {"buffers": "average"}).expand()) == 3
    assert complaint(recipe(grid | {"bufers?": [1]})) == "no part has the setting 'bufers'"
    assert "'buffers' twice" in complaint(recipe(grid | {"buffers": BUFFERS}))


def test_identical_experiments_are_one_run(recipe: Make) -> None:
    """Pooled data has no partition: of the four runs of `centralised`, two are left, one for each seed."""
    grid = {"partition": ["iid", "pathological"], "method": ["fedavg", "centralised"], "seed": [7, 42]}
    study = Study(recipe(grid))
    assert len(study.expand()) == 8
    assert len(study.study_plan.jobs) == 6
    assert len(Study(recipe(grid | {"data": ["mnist"]})).study_plan.jobs) == 6, "also where the data is not here"


def test_a_recipe_without_a_grid_is_a_study_of_one() -> None:
    (cell,) = Study("digits", preset="tiny").expand()
    assert (cell.labels, cell.experiment.rounds) == ({}, 1)


GRIDS: list[tuple[Any, str]] = [
    ({"methud": ["fedavg"]}, "unknown setting 'methud': did you mean 'method'?"),
    ({"method": ["fedavg"], "training.rat": [1]}, "unknown setting 'training.rat': did you mean 'rate'?"),
    ({"method": ["fedavg"], "mu": [1]}, "the experiment fedavg, mu 1: unknown setting 'mu'"),
    ({"method": []}, "the grid's 'method' is an empty list"),
    ({"method": "fedavg"}, "the grid's 'method' must be a list of values (got 'fedavg')"),
    ({"method": None}, "the grid's 'method' must be a list"),
    ({1: ["fedavg"]}, "the grid's 1 is not the name of a setting"),
    ({"method": ["fedavg", "fedavg"]}, "two values of the grid's 'method' are called 'fedavg'"),
    ({"method": ["fedavg", {"label": "fedavg", "method": "fedprox"}]}, "are called 'fedavg': give one another `label`"),
    ({"method": ["fedvag"]}, "unknown method 'fedvag': did you mean 'fedavg'?"),
    ({"method": ["fedavg"], "rounds": [1, 0]}, "the experiment fedavg, rounds 0: rounds: "),
    ({"arm": [{"method": "fedavg", "rounds": 1}]}, "a value that sets several things needs a `label`"),
    ({"arm": [{"label": "a"}]}, "the value called 'a' sets nothing"),
    ({"arm": [{"label": "", "method": "fedavg"}]}, "a `label` must be a few words"),
    ({"arm": [{"label": "a", "method": "fedavg"}], "method": ["fedprox"]}, "'arm' and 'method' both set 'method.name'"),
    ({"seed": [1, 2]}, "an experiment needs a method"),
]


@pytest.mark.parametrize(("grid", "says"), GRIDS, ids=[str(number) for number in range(len(GRIDS))])
def test_a_mistake_in_the_grid_is_one_sentence(recipe: Make, grid: Any, says: str) -> None:
    assert says in complaint(recipe(grid))


def test_other_mistakes(recipe: Make) -> None:
    assert "grid must be a mapping" in complaint(recipe() | {"grid": ["method"]})
    assert "has no preset 'lite'" in complaint(recipe(), preset="lite")
    assert "no axis 'metod': did you mean 'method'?" in complaint(recipe() | {"columns": "metod"})
    assert "rows a list of axes" in complaint(recipe() | {"rows": 3})
    assert "no axis 'x'" in complaint(recipe() | {"rows": ["x"]})
    assert "the preset 'one' sets 'seed', which the grid varies" in complaint(
        recipe() | {"presets": {"one": {"seed": 7}}}, preset="one"
    )
    assert "the setting 'seed' is an empty list" in complaint(recipe(), {"seed": []})
    assert "unknown setting 'rat'" in complaint(recipe(), {"rat": 1})


def test_what_model_or_data_refuse_is_refused_before_anything_runs(recipe: Make) -> None:
    with pytest.raises(InputError, match="the experiment fedavg, points 9: digits holds images"):
        _ = Study(recipe({"method": ["fedavg"], "points": [9]})).study_plan


def test_former_names_of_sections_and_parts_make_the_same_cells(recipe: Make) -> None:
    former = [{"label": "friends", "dropout": 0.4, "cure": "friends"}, {"label": "plain", "dropout": 0.4}]
    now = [{**former[0], "mitigation": "friend-substitution"}, former[1]]
    del now[0]["cure"]
    cells = [Study(recipe({"method": ["fedavg"], "loss": axis, "seed": [7]})).expand() for axis in (former, now)]
    assert [cell.experiment for cell in cells[0]] == [cell.experiment for cell in cells[1]]
    axis = Study(recipe({"method": ["fedavg"], "cure": ["none", "mimic"], "seed": [7]})).expand()
    assert [cell.experiment.mitigation.name for cell in axis] == ["none", "mimic"]
