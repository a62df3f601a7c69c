from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.errors import InputError
from fedstill.runtime import recipes
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.recipes import given_by, recipe_by, recipe_names

RECIPE = """
about: A table of nothing.
experiment:
  method: fedavg
  rounds: 100
  partition: {name: dirichlet, alpha: 0.1}
  training: {epochs: 5, rate: 0.01}
presets:
  lite: {rounds: 10, training: {epochs: 1}}
  tiny: {rounds: 1, partition: iid}
variants:
  seed: {method: {weights: uniform}, training: {epochs: 7}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    return written(tmp_path, RECIPE)


def written(folder: Path, text: str | bytes, name: str = "table.yaml") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def complaint(*arguments: str | None) -> str:
    with pytest.raises(InputError) as caught:
        given_by(*arguments)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_method_is_a_recipe_of_one_line() -> None:
    assert given_by("fedavg") == {"method": "fedavg"}


def test_only_recipes_have_presets() -> None:
    assert complaint("fedavg", "lite") == "'fedavg' is a method, and only recipes have presets and variants"
    assert complaint("fedavg", None, "seed") == "'fedavg' is a method, and only recipes have presets and variants"


def test_a_recipe_as_written(recipe: str) -> None:
    made = make_experiment(given_by(recipe))
    assert (made.rounds, made.training.epochs, made.training.rate) == (100, 5, 0.01)
    assert made.partition.settings.alpha == 0.1


def test_a_preset_lies_over_it_and_a_variant_over_both(recipe: str) -> None:
    lite = make_experiment(given_by(recipe, "lite"))
    assert (lite.rounds, lite.training.epochs, lite.training.rate) == (10, 1, 0.01)
    both = make_experiment(given_by(recipe, "lite", "seed"))
    assert (both.rounds, both.training.epochs, both.method.settings.weights) == (10, 7, "uniform")
    assert make_experiment(given_by(recipe, "tiny")).partition.name == "iid"


@pytest.mark.parametrize(
    ("preset", "variant", "says"),
    [
        ("lit", None, "no preset 'lit': did you mean 'lite'? Known: lite, tiny"),
        (None, "sede", "no variant 'sede': did you mean 'seed'? Known: seed"),
        ("zzz", None, "no preset 'zzz': known: lite, tiny"),
    ],
)
def test_an_unknown_layer_is_named(recipe: str, preset: str | None, variant: str | None, says: str) -> None:
    assert complaint(recipe, preset, variant) == f"the recipe {recipe} has {says}"


def test_a_recipe_without_presets(tmp_path: Path) -> None:
    assert "has no preset 'lite'" in complaint(written(tmp_path, "experiment: {method: fedavg}"), "lite")
    assert "has no preset 'lite'" in complaint(written(tmp_path, "experiment: {method: fedavg}\npresets:"), "lite")


@pytest.mark.parametrize("name", ["fedvag", "", "a\nb"])
def test_a_name_that_nothing_has(name: str) -> None:
    text = complaint(name)
    assert text.startswith(f"no method or recipe is called {name!r}: ")
    assert text.endswith(" more; see `fedstill list`")


@pytest.mark.parametrize("name", ["nowhere.yaml", "nowhere.yml", "../fedavg"])
def test_a_file_that_is_not_there(name: str) -> None:
    assert complaint(name) == f"there is no file {name}"


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    assert complaint(str(tmp_path)) == f"{tmp_path} is not the file of a recipe (.yaml)"


def test_the_nearest_name_is_suggested() -> None:
    assert "did you mean 'fedavg'?" in complaint("fedvag")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("experiment: [a", "cannot be read"),
        ("experiment:\n  - a\n b: c", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        ("!!python/object/apply:os.getcwd []", "cannot be read"),
        ("experiment: !!python/name:os.system", "cannot be read"),
        ("", "needs a section `experiment`"),
        ("just words", "needs a section `experiment`"),
        ("method: fedavg", "needs a section `experiment`"),
        ("experiment: fedavg", "needs a section `experiment`"),
        ("experiment: {method: fedavg}\npresest: {}", "unknown section 'presest': did you mean 'presets'?"),
        ("experiment: {method: fedavg}\n1: {}", "unknown section '1'"),
    ],
)
def test_a_broken_recipe_is_one_sentence_with_its_path(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = written(tmp_path, text)
    sentence = complaint(path)
    assert says in sentence
    assert path in sentence


def test_shipped_recipes_are_known_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, RECIPE, "table-1.yaml")
    written(tmp_path, "experiment: {method: local-only}", "alone.yaml")
    monkeypatch.setattr(recipes, "recipe_folder", lambda: tmp_path)
    assert recipe_names() == {"alone": "", "table-1": "A table of nothing."}
    assert given_by("alone") == {"method": "local-only"}
    assert given_by("table-1", "tiny")["rounds"] == 1
    assert "did you mean 'table-1'?" in complaint("table1")


def test_a_yml_file_will_do(tmp_path: Path) -> None:
    assert given_by(written(tmp_path, RECIPE, "table.yml"))["rounds"] == 100


def test_every_recipe_that_ships_is_a_sound_experiment_in_all_its_layers() -> None:
    for name in recipe_names(study=False):  # of studies, tests/studies looks after that
        content = recipes._read(recipes.recipe_folder() / f"{name}.yaml")
        for preset in (None, *content.get("presets", {})):
            for variant in (None, *content.get("variants", {})):
                experiment = make_experiment(given_by(name, preset, variant))
                assert make_experiment(experiment.model_dump(mode="json")) == experiment


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("presets: 5", "presets must be a mapping from names to settings"),
        ("presets: [lite]", "presets must be a mapping from names to settings"),
        ("presets: {1: {}}", "has no preset 'lite': known: 1"),
        ("presets: {lite: 3}", "the preset 'lite' must hold settings"),
    ],
)
def test_malformed_presets_get_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(f"experiment: {{method: fedavg}}\n{text}\n")
    assert says in complaint(str(path), "lite")


def test_an_empty_preset_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("experiment: {method: fedavg}\npresets: {lite: }\n")
    assert given_by(str(path), "lite") == {"method": "fedavg"}


def test_a_file_named_like_a_method_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fedavg").write_text("")
    assert given_by("fedavg") == {"method": "fedavg"}


STUDY = (
    RECIPE
    + """
grid:
  method: [fedavg, fedprox]
  seed: [7, 42]
columns: method
"""
)


def test_a_study_is_refused_where_one_experiment_is_wanted(tmp_path: Path) -> None:
    path = written(tmp_path, STUDY)
    assert complaint(path) == (
        f"the recipe {path} is a study, a grid of experiments over method, seed: run it with `fedstill study {path}`"
    )
    assert "run it with `fedstill study" in complaint(path, "lite")


def test_a_preset_without_a_grid_is_one_experiment(tmp_path: Path) -> None:
    path = written(tmp_path, STUDY.replace("lite: {", "lite: {seed: 1, grid: {seed: null, method: null}, "))
    assert given_by(path, "lite")["seed"] == 1


def test_a_recipe_for_a_study(tmp_path: Path) -> None:
    recipe = recipe_by(written(tmp_path, STUDY), "lite")
    assert (recipe.name, recipe.about, recipe.columns) == ("table", "A table of nothing.", "method")
    assert recipe.grid == {"method": ["fedavg", "fedprox"], "seed": [7, 42]}
    assert recipe.experiment["rounds"] == 10


def test_a_method_or_an_experiment_has_no_grid(recipe: str) -> None:
    assert recipe_by("fedavg").grid == {}
    assert recipe_by(recipe).grid == {}


def test_studies_are_told_from_other_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, STUDY, "study.yaml")
    written(tmp_path, RECIPE, "single.yaml")
    monkeypatch.setattr(recipes, "recipe_folder", lambda: tmp_path)
    assert list(recipe_names()) == ["single", "study"]
    assert list(recipe_names(study=True)) == ["study"]
    assert list(recipe_names(study=False)) == ["single"]
