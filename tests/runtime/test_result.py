"""A run as an object to read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.records import RUN_FORMAT
from fedstill.runtime import checkpoint
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.client_store import SiteStore


def test_a_run_in_which_nobody_was_heard_has_no_accuracy_and_can_still_be_looked_at(tmp_path: Path) -> None:
    run = fedstill.run("local-only", data="digits", model="mlp", clients=2, rounds=1, dropout=1.0, out=tmp_path)
    assert run.result.accuracy == {"last": None}
    assert math.isnan(run.accuracy)
    assert math.isnan(run.best_accuracy)
    assert "accuracy nan" in repr(run)


def test_of_models_that_stay_at_sites_it_is_said_where_they_are(tmp_path: Path) -> None:
    run = fedstill.run("local-only", model="mlp", clients=2, rounds=1, epochs=1, out=tmp_path)
    run.model(client=1)
    (progress,), _ = checkpoint.candidates(run.path)
    at_sites = {**progress.clients, **SiteStore(2).versions()}  # as a deployment's server has it
    checkpoint.save(run.path, replace(progress, clients=at_sites))
    with pytest.raises(InputError, match=r"keep their own models at their sites: look in a site's folder"):
        run.model(client=1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"colour": "red"}, r"\(unknown setting 'colour': .*\): run the experiment again$"),
        ({"rounds": "many"}, r"\(rounds: input should be a valid integer"),
        ({"method": {"name": "fedavg", "colour": "red"}}, r"\(unknown setting 'method\.colour'"),
        ({"method": "of-my-own"}, r"or with another --plugin \(unknown method 'of-my-own'"),
        (None, r"\(its config\.json has no 'experiment'\): run the experiment again$"),
    ],
)
def test_a_run_with_other_settings_than_there_are_gets_one_sentence(
    changed: dict[str, Any] | None, says: str, tmp_path: Path
) -> None:
    experiment = make_experiment({"method": "fedavg"}).model_dump(mode="json")
    config = {"format": RUN_FORMAT} if changed is None else {"format": RUN_FORMAT, "experiment": experiment | changed}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = fedstill.Run(tmp_path)
    with pytest.raises(InputError, match=f"was written by another version of fedstill.*{says}"):
        _ = run.experiment
    with pytest.raises(InputError, match="has no 'shape'"):
        _ = run.config["shape"]
