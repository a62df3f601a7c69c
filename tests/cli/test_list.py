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
