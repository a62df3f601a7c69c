"""Models of peers in a site's folder: the latest experiment's are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedstill.core.errors import InputError
from fedstill.deploy.earlier_offers import latest_offers


def test_the_latest_experiment_counts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no models of peers: take part in an experiment with queries"):
        latest_offers(tmp_path)
    for at, run in enumerate(("b", "a")):
        place = tmp_path / "offers" / run
        place.mkdir(parents=True)
        (place / "own.yaml").write_text(f"model: mlp-{run}\n")
        os.utime(place / "own.yaml", (at, at))
    found = latest_offers(tmp_path)
    assert (found.path.name, found.model) == ("a", "mlp-a")
    assert (found.peers.name, found.own.name) == ("peers", "own.safetensors")


@pytest.mark.parametrize("text", ["", "model:", "modle: mlp", "[mlp]"])
def test_a_description_that_is_wrong(tmp_path: Path, text: str) -> None:
    (tmp_path / "offers" / "a").mkdir(parents=True)
    (tmp_path / "offers" / "a" / "own.yaml").write_text(text)
    with pytest.raises(InputError, match=r"own.yaml"):
        latest_offers(tmp_path)
