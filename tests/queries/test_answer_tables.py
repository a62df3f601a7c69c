"""Clients that ask for classes, as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedstill.studies import load_results

Call = Callable[..., tuple[int, str, str]]
SMALL = (
    *("--data", "digits", "--model", "mlp", "--clients", "3", "--seed", "7", "--quiet"),
    *("--partition", "pathological:classes_per_client=4", "--set", "training.epochs=2", "--set", "training.batch=64"),
)
RECIPE = """
about: Asking.
experiment:
  data: digits
  model: mlp
  clients: 3
  rounds: 1
  partition: {name: pathological, classes_per_client: 4}
  queries: {under: 10}
  training: {epochs: 2, batch: 64}
  method: local-only
grid:
  method: [local-only, fedavg, {name: qkt, transfer_epochs: 1}]
  seed: [7, 42]
"""


def words(text: str) -> str:
    return " ".join(text.split())


def test_figures_stand_under_the_result(call: Call) -> None:
    asked = ("--query", "1:0", "--query", "2:3,4", "--set", "transfer_epochs=1")
    code, out, err = call("run", "qkt", *SMALL, *asked)
    assert code == 0, err
    assert "queries of two clients: accuracy" in words(out)
    assert "(before" in out
    for name in ("gain", "forgetting", "uniform"):
        assert f"{name} " in words(out)
    code, out, err = call("run", "qkt", *SMALL, *asked, "--json")
    told = json.loads(out)["queries"]
    assert {client: one["query"] for client, one in told["each"].items()} == {"1": [0], "2": [3, 4]}
    assert told["clients"] == 2
    assert told["gain"] == pytest.approx((told["each"]["1"]["gain"] + told["each"]["2"]["gain"]) / 2)


def test_what_was_before_is_looked_for_in_the_same_folder(call: Call) -> None:
    asked = (*SMALL, "--rounds", "1", "--set", "queries.under=10")
    _, out, _ = call("run", "fedavg", *asked)
    assert "gain and forgetting are not known: run local-only" in words(out)
    assert "gain" not in json.loads(call("run", "fedavg", *asked, "--json")[1])["queries"]
    _, out, _ = call("run", "local-only", *asked)
    assert "queries of three clients, not answered yet: accuracy" in words(out)
    _, out, _ = call("run", "fedavg", *asked)
    assert "compared with runs/local-only-digits-" in out.replace("\n", "")
    assert "forgetting" in json.loads(call("run", "fedavg", *asked, "--json")[1])["queries"]
    _, out, _ = call("run", "local-only", *SMALL, "--set", "queries.under=1", "--query", "1:0", "--dry-run")
    assert "'1':" in out


def test_nothing_is_said_where_nobody_asks(call: Call) -> None:
    _, out, _ = call("run", "fedavg", *SMALL, "--rounds", "1")
    assert "queries" not in out
    assert "queries" not in json.loads(call("run", "fedavg", *SMALL, "--rounds", "1", "--json")[1])


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("3", "write client:class,class, e.g. 3:7,8"),
        ("3:", "write client:class,class"),
        ("three:7", "both by number"),
        ("1:7,", "write client:class,class"),
        ("3:7", "a query is for client 3, and clients are 0 to 2"),
        ("1:10", "client 1 asks for class 10, and classes are 0 to 9"),
    ],
)
def test_a_query_that_cannot_be_gets_one_sentence(call: Call, query: str, says: str) -> None:
    code, _, err = call("run", "qkt", *SMALL, "--query", query)
    assert (code, says in err) == (2, True), err
    assert not Path("runs").exists()


def test_a_study_ends_in_a_table_of_queries_and_has_a_page(call: Call) -> None:
    Path("asking.yaml").write_text(RECIPE)
    code, out, err = call("study", "asking.yaml", "--results", "r.json", "--table", "t.md", "--quiet")
    assert code == 0, err
    assert "answers to queries of three clients" in words(out)
    assert "test accuracy" not in out
    lines = Path("t.md").read_text().splitlines()
    assert lines[2] == "| method | accuracy | gain | forgetting | uniform | rounds | MiB |"
    assert [line.split(" | ")[0] for line in lines[4:]] == ["| local-only", "| fedavg", "| qkt:transfer_epochs=1"]
    tables = json.loads(call("study", "r.json", "--json", "--metric", "query.gain")[1])["tables"]
    assert list(tables) == ["query.gain", "queries"]
    assert tables["queries"].strip() == "\n".join(lines).strip()
    assert load_results(Path("runs/asking.json")).runs == load_results(Path("r.json")).runs
    code, out, err = call("report", "runs")
    assert (code, err) == (0, "")
    page = Path("runs/asking.html").read_text()
    assert "fedstill study asking.yaml" in page
    assert "Learning and forgetting" in page
    drawn = sorted(path.stem for path in Path("runs/asking-figures").glob("*.svg"))
    assert drawn == ["balance-0", "probe-0", "probe-1"]
    assert call("report", "r.json", "--out", "elsewhere.html")[0] == 0, "figures need no runs, but those of models do"
    assert [path.stem for path in Path("elsewhere-figures").glob("*.svg")] == ["balance-0"]
