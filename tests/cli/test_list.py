"""`fedstill list` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest


@pytest.mark.parametrize("what", ["methods", "datasets", "models", "partitions", "recipes", "participation", "engines"])
def test_list_gives_a_sentence_each(succeed: Callable[..., str], what: str) -> None:
    parts = json.loads(succeed("list", what, "--json"))[what]
    assert parts
    assert all(sentence for sentence in parts.values())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fedprox", ["(methods)", "mu", "0.01", "float ≥ 0"]),
        ("dirichlet", ["(partitions)", "alpha", "concentration"]),
        ("digits", ["(datasets)", "built in", "(recipes)"]),
        ("mlp", ["(models)", "sizes:", "width"]),
        ("clinical-grid", ["presets: paper, lite, tiny", "variants:"]),
        ("processes", ["(engines)"]),
        ("training", ["(section of an experiment)", "weight_decay", "constant, step or cosine"]),
    ],
)
def test_one_name_with_its_settings(succeed: Callable[..., str], name: str, told: list[str]) -> None:
    printed = succeed("list", name)
    assert not [piece for piece in told if piece not in printed]


def test_an_unknown_name(call: Callable[..., tuple[int, str, str]]) -> None:
    code, _, error = call("list", "fedproxx")
    assert code == 2
    assert "did you mean 'fedprox'?" in error
