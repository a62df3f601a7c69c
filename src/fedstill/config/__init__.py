"""Experiments, and how they are put together from recipes, flags and settings."""

from fedstill.config.assemble import (
    assignments,
    make_experiment,
    named_part,
    overlay,
    override,
    override_value,
    with_defaults,
)
from fedstill.config.experiment import BEHAVIOUR, Experiment, TeacherSource
from fedstill.config.recipes import Recipe, given_by, recipe_by, recipe_layers, recipe_names

__all__ = [
    "BEHAVIOUR",
    "Experiment",
    "Recipe",
    "TeacherSource",
    "assignments",
    "given_by",
    "make_experiment",
    "named_part",
    "overlay",
    "override",
    "override_value",
    "recipe_by",
    "recipe_layers",
    "recipe_names",
    "with_defaults",
]
