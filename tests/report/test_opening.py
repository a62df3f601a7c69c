from __future__ import annotations

from collections.abc import Callable

import pytest

from fedstill.report.facts import Facts
from fedstill.report.opening import caution, heading, run_cautions, summary
from fedstill.runtime.result import Run

MakeRun = Callable[..., Run]
SKEWED = {"name": "dirichlet", "alpha": 0.1}


def told(**runs: Run) -> str:
    return summary([Facts.of(title.replace("_", " "), run) for title, run in runs.items()]).replace("\u00a0", " ")


def test_who_got_furthest_follows_the_results(make_run: MakeRun) -> None:
    text = told(one=make_run(accuracies=(0.5, 0.9)), two=make_run(accuracies=(0.5, 0.8)))
    assert "“one” got furthest, with 90.0 % of the test samples right" in text
    assert "“two” ended lowest, with 80.0 %" in text
    text = told(one=make_run(accuracies=(0.5, 0.7)), two=make_run(accuracies=(0.5, 0.8)))
    assert "“two” got furthest, with 80.0 %" in text
    assert "All ended level, with 80.0 %" in told(one=make_run(accuracies=(0.8,)), two=make_run(accuracies=(0.8,)))


@pytest.mark.parametrize(
    ("skewed", "sentence"),
    [
        (0.75, "Unequal shards (dirichlet, alpha 0.1) cost fedavg 15.0 points."),
        (0.91, "Unequal shards (dirichlet, alpha 0.1) gained fedavg 1.0 point."),
        (0.9, "Unequal shards (dirichlet, alpha 0.1) made no difference to fedavg."),
    ],
)
def test_what_skew_cost(make_run: MakeRun, skewed: float, sentence: str) -> None:
    runs = {
        "equal": make_run(accuracies=(0.5, 0.9)),
        "skewed": make_run({"method": "fedavg", "partition": SKEWED}, accuracies=(0.5, skewed)),
    }
    assert sentence in told(**runs)


def test_runs_that_differ_in_two_things_are_not_compared(make_run: MakeRun) -> None:
    text = told(
        equal=make_run(accuracies=(0.5, 0.9)),
        skewed=make_run({"method": "fedavg", "partition": SKEWED, "seed": 1}, accuracies=(0.5, 0.7)),
    )
    assert "Unequal" not in text


def test_what_solitude_cost_and_what_it_was_good_for(make_run: MakeRun) -> None:
    personal = {"clients": 4, "mean": 0.3, "std": 0.1, "own_mean": 0.95, "own_std": 0.02}
    text = told(
        together=make_run({"method": "fedavg", "partition": SKEWED}, accuracies=(0.5, 0.9)),
        alone=make_run({"method": "local-only", "partition": SKEWED}, accuracies=(0.2, 0.3), personal=personal),
    )
    assert "Training alone instead of with fedavg cost the clients 60.0 points on average" in text
    assert "on a mix of classes like their own they get 95.0 % right" in text


def test_pooled_data_is_the_measure_and_sends_nothing(make_run: MakeRun) -> None:
    text = told(
        pooled=make_run("centralised", accuracies=(0.5, 0.95)),
        good=make_run(accuracies=(0.5, 0.9)),
        poor=make_run({"method": "fedavg", "partition": SKEWED}, accuracies=(0.5, 0.6)),
    )
    assert "Against all data in one place, “good” is 5.0 points worse." in text
    assert "the clients together sent 8.0 KiB in “good” and “poor”." in text


def test_unequal_effort_is_told(make_run: MakeRun) -> None:
    text = told(
        pooled=make_run("centralised", accuracies=(0.5, 0.8)),
        longer=make_run(accuracies=(0.5, 0.6, 0.7, 0.8, 0.9)),
    )
    assert "“longer” is 10.0 points better, with 2.5 times as much training." in text


def test_trouble_is_told(make_run: MakeRun) -> None:
    lost = [{"client": 0, "reason": "dropped", "detail": ""}, {"client": 1, "reason": "refused", "detail": "NaN"}]
    lines = {
        1: {"accepted": [2, 3], "failures": lost},
        2: {"accepted": [], "skipped": "0 of 4 replies, and 1 are needed"},
        3: {"finite": False},
    }
    text = told(rough=make_run(lines=lines))
    assert "In “rough”, 2 of 12 replies were missing or refused and one round skipped for want of replies." in text
    assert "The model of “rough” was not finite after round 3" in text


def test_one_missing_reply_is_in_the_singular(make_run: MakeRun) -> None:
    gone = [{"client": 0, "reason": "dropped", "detail": ""}]
    text = told(rough=make_run(lines={1: {"accepted": [1, 2, 3], "failures": gone}}))
    assert "1 of 12 replies was missing or refused." in text


def test_a_run_that_fell_back_and_one_without_accuracy(make_run: MakeRun) -> None:
    assert "“fell” had been 30.0 points better in round 2." in told(fell=make_run(accuracies=(0.5, 0.9, 0.6)))
    silent = make_run(accuracies=(0.5,))
    facts = Facts.of("silent", silent)
    object.__setattr__(facts, "result", facts.result.model_copy(update={"accuracy": {"last": None}}))
    assert "Of “silent” no accuracy is known." in summary([facts])


def test_best_is_called_what_it_is(make_run: MakeRun) -> None:
    plain = caution([Facts.of("a", make_run())])
    assert "did best on the test set" in plain
    assert "with seed 0" in plain
    assert "validation" not in plain
    assert "chosen on a validation share" in caution([Facts.of("a", make_run(selected=2))])
    several = [Facts.of("a", make_run()), Facts.of("b", make_run({"method": "fedavg", "seed": 1}))]
    assert "run once" not in caution(several)


def test_warnings_of_a_method_are_repeated(make_run: MakeRun) -> None:
    """Split distillation warns of features that the averaged extractor moves further than they vary."""
    name = "feature residual of the median client"
    lines = {2: {"method_metrics": {name: 4.0}}, 3: {"method_metrics": {name: 8.0}}}
    assert (
        f"a: the averaged extractor's features are far from those that the server's part was trained on: the {name}"
        in (said := caution([Facts.of("a", make_run("fedgkt", lines=lines))]))
    )
    assert "was 6 on average" in said
    small = {2: {"method_metrics": {name: 1.0}}, 3: {"method_metrics": {name: 8.0}}}
    assert "extractor" not in caution([Facts.of("a", make_run("fedgkt", lines=small))])
    assert "extractor" not in caution([Facts.of("a", make_run("fedavg"))])


def test_many_cautions_are_a_list_and_no_paragraph(make_run: MakeRun) -> None:
    name = "feature residual of the median client"
    facts = [
        Facts.of(f"run {number}", make_run("fedgkt", lines={2: {"method_metrics": {name: 8.0}}})) for number in range(4)
    ]
    assert run_cautions(facts[:1]) == []
    assert "run 0: the averaged" in caution(facts[:1])
    assert {f"run {number}" for number in range(4)} <= {text.partition(":")[0] for text in run_cautions(facts)}
    assert "run 2" not in caution(facts)


def test_what_skew_cost_names_the_run_where_methods_are_the_same(make_run: MakeRun) -> None:
    text = told(
        equal=make_run(accuracies=(0.5, 0.9)),
        faster=make_run({"method": "fedavg", "training": {"rate": 0.2}}, accuracies=(0.5, 0.8)),
        skewed=make_run({"method": "fedavg", "partition": SKEWED}, accuracies=(0.5, 0.75)),
        both=make_run({"method": "fedavg", "partition": SKEWED, "training": {"rate": 0.2}}, accuracies=(0.5, 0.7)),
    )
    assert "(dirichlet, alpha 0.1) cost “skewed” 15.0 points." in text
    assert "(dirichlet, alpha 0.1) cost “both” 10.0 points." in text


def test_headings(make_run: MakeRun) -> None:
    one, two = Facts.of("a", make_run()), Facts.of("b", make_run({"method": "fedavg", "data": "mnist"}))
    assert heading([one]) == "One way to learn digits"
    assert heading([one, two]) == "Two ways to learn digits and mnist"


def test_many_runs_are_counted_and_not_named(make_run: MakeRun) -> None:
    text = told(**{f"run{number}": make_run(accuracies=(0.5, 0.9)) for number in range(6)})
    assert "All ended level" in text
    assert "the clients together sent 8.0 KiB in each." in text.replace("\u00a0", " ")
    assert "run3" not in text
    methods = ["fedavg"] * 4 + ["fedprox"] * 2
    runs = {f"run{number}": make_run(method, (0.5, 0.9 if number else 0.8)) for number, method in enumerate(methods)}
    assert "Five ways got furthest" in told(**runs)
