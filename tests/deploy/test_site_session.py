"""A site's part in an experiment that reads features of points: the site adds them to its own scenes, or refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.lookup import load
from fedstill.deploy.deployment_plan import DataFacts, settled_for
from fedstill.deploy.site_registry import SiteFacts, for_sites
from fedstill.deploy.site_session import Agreement, SiteSession
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.experiment import Experiment


def scenes(folder: Path, columns: int) -> Bundle:
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        for number in range(2):
            cloud = np.random.default_rng(number).uniform(0, 1, (100, columns))
            box = {"boxes": [[0.5, 0.5, 0.5, 1, 1, 1, 0]], "labels": [0], "classes": ["crate", "shelf"]}
            np.savez(folder / split / f"{number}", points=cloud, **box)
    return load(f"folder:{folder}", part=True)


def offered(enrolled: list[Bundle], features: str) -> tuple[Experiment, DataFacts]:
    """The server's experiment and facts, from what the sites describe."""
    given: dict[str, Any] = {"method": "fedavg", "model": "small-detr3d-lite", "rounds": 1, "points": 80}
    experiment = for_sites(make_experiment({**given, "detection": {"features": features}}), len(enrolled), "rooms")
    return settled_for(experiment, [SiteFacts.of(bundle) for bundle in enrolled])


def session(experiment: Experiment, question: DataFacts, bundle: Bundle, folder: Path) -> SiteSession:
    agreement = Agreement(experiment=experiment.model_dump(mode="json"), question=question, client=1)
    return SiteSession(Agreement.read(agreement.model_dump_json()), bundle, folder / "states")


def test_a_site_adds_the_features_and_one_without_colours_refuses(tmp_path: Path) -> None:
    coloured, bare = scenes(tmp_path / "a", 6), scenes(tmp_path / "b", 3)
    experiment, question = offered([coloured, bare], "colour,height")
    assert question.shape == (80, 7)
    made = session(experiment, question, coloured, tmp_path)
    assert made.bundle.shape == made.plan.task.shape == (80, 7)
    with pytest.raises(
        InputError, match=r"0.npz has no colours of points: export it with colours, or leave colour out"
    ):
        session(experiment, question, bare, tmp_path)
    experiment, question = offered([coloured, bare], "height")
    assert session(experiment, question, bare, tmp_path).bundle.shape == question.shape == (80, 4)


def test_other_columns_than_the_experiment_has_are_refused(tmp_path: Path) -> None:
    bundle = scenes(tmp_path / "a", 3)
    experiment, _ = offered([bundle, bundle], "height")
    _, bare = offered([bundle, bundle], "")
    with pytest.raises(InputError, match="other classes or sample shapes than this site's data"):
        session(experiment, bare, bundle, tmp_path)


@pytest.mark.parametrize("left_out", ["model", "augmentation"])
def test_an_experiment_that_leaves_something_to_decide_is_refused(tmp_path: Path, left_out: str) -> None:
    bundle = scenes(tmp_path / "a", 3)
    experiment, question = offered([bundle, bundle], "")
    with pytest.raises(InputError, match="leaves its model or augmentation unset"):
        session(experiment.model_copy(update={left_out: None}), question, bundle, tmp_path)
