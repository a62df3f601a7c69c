"""Studies in which clients ask for classes, and those whose clients and server share samples, as they run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.records import RUN_FORMAT
from fedstill.queries.outcomes import answered
from fedstill.queries.query import Queries, averaged
from fedstill.queries.study_figures import Companions, beside, fates_of, figures_of_queries
from fedstill.queries.study_table import query_table
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.result import Run, run_called
from fedstill.studies import Study, load_results

from ..records_by_hand import round_record, run_result

ASKING: dict[str, Any] = {
    "experiment": {
        "data": "digits",
        "model": "mlp",
        "clients": 3,
        "rounds": 1,
        "partition": {"name": "pathological", "classes_per_client": 4},
        "training": {"epochs": 2, "batch": 64},
        "method": "local-only",
    },
    "grid": {
        "queries": [
            {"label": "single", "queries": {"classes": "single", "under": 10}},
            {"label": "multi", "queries": {"classes": "multi", "under": 10}},
        ],
        "method": ["local-only", "fedavg", {"name": "qkt", "transfer_epochs": 1}],
        "seed": [7],
    },
}


def test_every_run_is_set_against_learning_alone(tmp_path: Path) -> None:
    """FedAvg and learning alone are run once for both kinds of queries, and answer both."""
    study = Study(ASKING)
    assert len(study.expand()) == 6
    assert len(study.study_plan.jobs) == 4
    results = study.run(tmp_path)
    rows = {(cell[0], cell[1]): row for cell, row in results.runs.items()}
    assert len(rows) == 6
    for queries in ("single", "multi"):
        shared, alone = rows[queries, "fedavg"], rows[queries, "local-only"]
        asked = run_called(rows[queries, "qkt:transfer_epochs=1"].identity, tmp_path)
        run, before = run_called(shared.identity, tmp_path), run_called(alone.identity, tmp_path)
        assert asked is not None
        assert run is not None
        assert before is not None
        # The same clients ask for the same in all runs: what qkt was told says what FedAvg must be held against.
        wanted = {who: one["query"] for who, one in asked.answers().items()}
        found = {who: {**one, "query": wanted[who]} for who, one in run.answers().items()}
        expected = averaged(answered(found, before.answers()))
        for name in ("accuracy", "before", "gain", "forgetting", "uniform"):
            assert shared.figures[f"query.{name}"] == pytest.approx(expected[name], abs=1e-6), (queries, name)
        assert alone.figures["query.accuracy"] == pytest.approx(expected["before"], abs=1e-6)
        kept = averaged(answered(asked.answers()))
        assert rows[queries, "qkt:transfer_epochs=1"].figures["query.gain"] == pytest.approx(kept["gain"], abs=1e-6)
    assert rows["single", "fedavg"].identity == rows["multi", "fedavg"].identity
    assert rows["single", "fedavg"].figures["query.uniform"] != rows["multi", "fedavg"].figures["query.uniform"]
    results.save(tmp_path / "r.json")
    assert query_table(load_results(tmp_path / "r.json")) == query_table(results)


def test_runs_that_share_samples_are_found_again(tmp_path: Path) -> None:
    """What clients and server share is part of a run's identity: a study has to know it beforehand."""
    method = {"name": "feddf", "samples": 40, "steps": 2, "batch": 16}
    recipe = {
        "experiment": {"data": "digits[:50%]", "model": "mlp", "clients": 2, "rounds": 1, "training": {"epochs": 1}},
        "grid": {"method": [{**method, "label": part, "proxy": part} for part in ("digits[50%:]", "digits[60%:]")]},
    }
    results = Study(recipe).run(tmp_path)
    assert len({row.identity for row in results.runs.values()}) == 2
    assert results.failures == {}


def test_samples_that_are_not_here_are_listed(tmp_path: Path) -> None:
    recipe = {
        "experiment": {"data": "digits", "model": "mlp", "method": {"name": "feddf", "proxy": "mnist"}},
        "grid": {"seed": [7]},
    }
    study_plan = Study(recipe, data_root=tmp_path).study_plan
    assert list(study_plan.missing) == ["mnist"]
    assert len(study_plan.jobs) == 1


Make = Callable[..., Run]
COUNTS = [30, 10, 0]
ALONE = [0.8, 0.6, 0.0]  # recall of three classes
AFTER = [0.9, 0.4, 0.5]


def answer(recalls: list[float], before: list[float] | None = None, query: tuple[int, ...] = (2,)) -> dict[str, Any]:
    return {"counts": COUNTS, "query": list(query), "recalls": recalls, "before": before}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def run(method: str, answers: dict[str, Any], fingerprint: str = "f", **given: Any) -> Run:
        start = {"model": "cnn", "clients": 2, "rounds": 1, "queries": {"by_hand": {0: [2]}}, **given}
        experiment = make_experiment({"method": method, **start})
        folder = tmp_path / f"{method}-digits-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        content = {
            "config.json": {
                "format": RUN_FORMAT,
                "experiment": experiment.model_dump(mode="json"),
                "fingerprint": fingerprint,
                "classes": ["a", "b", "c"],
            },
            "result.json": run_result(rounds=4, bytes={"up": 300, "down": 100}).to_dict(),
            "answers.json": answers,
        }
        for name, value in content.items():
            (folder / name).write_text(json.dumps(value))
        (folder / "journal.jsonl").write_text("".join(round_record(round, round).to_json() + "\n" for round in (1, 2)))
        return Run(folder)

    return run


def test_a_method_between_peers_knows_what_was_before(make: Make) -> None:
    """Weights 0.75, 0.25 and 1: (0.675 + 0.1 + 0.5) / 2 against (0.6 + 0.15 + 0) / 2; the second class lost 0.2 of two;
    400 bytes for two clients."""
    figures = figures_of_queries(make("qkt", {"0": answer(AFTER, ALONE)}))
    assert figures == {
        "query.accuracy": 0.6375,
        "query.before": 0.375,
        "query.gain": 0.5,
        "query.forgetting": -0.1,
        "query.uniform": 0.6,
        "query.recall": 0.5,
        "query.clients": 1,
        "query.rounds": 4,
        "query.bytes": 200.0,
    }


def test_of_other_methods_learning_alone_is_what_was_before(make: Make) -> None:
    shared, alone = make("fedavg", {"0": answer(AFTER)}), make("local-only", {"0": answer(ALONE)})
    known = figures_of_queries(shared, alone)
    assert (known["query.gain"], known["query.forgetting"], known["query.before"]) == (0.5, -0.1, 0.375)
    unknown = figures_of_queries(shared)
    assert (unknown["query.gain"], unknown["query.forgetting"], unknown["query.before"]) == (None, None, None)
    assert (unknown["query.accuracy"], unknown["query.uniform"]) == (0.6375, 0.6)
    # One client of which nothing is known is too many.
    both = make("fedavg", {"0": answer(AFTER), "1": answer(AFTER)})
    assert figures_of_queries(both, alone)["query.gain"] is None
    itself = figures_of_queries(alone)
    assert (itself["query.accuracy"], itself["query.before"]) == (0.375, 0.375)
    assert (itself["query.gain"], itself["query.forgetting"]) == (None, None)


def test_who_does_not_ask_does_not_count(make: Make) -> None:
    fates = fates_of(make("qkt", {"0": answer(AFTER, ALONE), "1": answer([0.0] * 3, ALONE, query=())}))
    assert fates is not None
    assert list(fates.by_client) == [0]
    assert figures_of_queries(make("qkt", {"0": answer(AFTER, ALONE, query=())})) == {}
    assert figures_of_queries(make("fedavg", {})) == {}


def test_a_run_that_learns_the_same_whatever_is_asked_for_answers_other_queries(make: Make) -> None:
    """Class 1 is both the client's own and asked for: weights 0.75 and 1, (0.675 + 0.4) / 1.75."""
    other = Queries(by_hand={0: (1,)})
    figures = figures_of_queries(make("fedavg", {"0": answer(AFTER)}), None, other)
    assert figures["query.accuracy"] == pytest.approx(1.075 / 1.75, abs=1e-6)
    asked = figures_of_queries(make("qkt", {"0": answer(AFTER, ALONE)}), None, other)
    assert asked["query.accuracy"] == 0.6375, "peers were asked for class 2"


def test_the_run_to_compare_with_has_the_same_clients(make: Make) -> None:
    alone = Companions[str]()
    for held, given in {
        "first": {},
        "again": {"training": {"epochs": 9}},
        "other seed": {"seed": 5},
        "other shards": {"partition": {"name": "dirichlet", "alpha": 0.1}},
    }.items():
        alone.add(make("local-only", {}, **given).experiment, held, (held,))
    alone.add(make("fedavg", {}, seed=9).experiment, "no such method")
    wanted = make("fedavg", {}, rounds=7, training={"epochs": 2}, queries={"classes": "multi"}).experiment
    assert alone.of(wanted) == "first"
    assert alone.of(wanted, ("again",)) == "again"
    assert alone.of(make("fedavg", {}, seed=5).experiment) == "other seed"
    assert alone.of(make("fedavg", {}, seed=9).experiment) is None


def test_one_in_the_same_folder_is_found(make: Make) -> None:
    shared = make("fedavg", {"0": answer(AFTER)})
    assert beside(shared) is None
    make("local-only", {"0": answer(ALONE)}, seed=3)
    make("local-only", {"0": answer(ALONE)}, fingerprint="other data")
    assert beside(shared) is None
    alone = make("local-only", {"0": answer(ALONE)})
    found = beside(shared)
    assert found is not None
    assert found.path == alone.path
    assert beside(alone) is None
    assert beside(make("qkt", {"0": answer(AFTER, ALONE)})) is None, "it knows by itself"
