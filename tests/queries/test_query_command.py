"""`fedstill query`: a client of a run asks the others for a class."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]

ALONE = ["run", "local-only", "--data", "digits", "--model", "mlp", "--clients", "4", "--rounds", "1", "--seed", "3"]
SETTINGS = ["--partition", "pathological:classes_per_client=3", "--set", "training.epochs=4", "--quiet", "--json"]


@pytest.fixture
def alone(call: Call) -> str:
    code, out, err = call(*ALONE, *SETTINGS)
    assert code == 0, err
    return str(json.loads(out)["run"])


def test_a_query_shows_who_knows_and_what_changes_and_leaves_a_run_with_a_page(call: Call, alone: str) -> None:
    settings = ["--set", "transfer_epochs=2", "--set", "threshold=0"]
    code, out, err = call("query", alone, "--client", "0", "--class", "7", *settings, "--out", "asked")
    assert code == 0, err
    assert out.count("teaches") == 3
    assert "average accuracy" in out
    (run,) = Path("asked").iterdir()
    assert "Client 0 asks for 7" in (run / "query.html").read_text()
    code, out, _ = call("show", str(run))
    assert code == 0
    assert "forgetting" in out
    code, out, _ = call("query", alone, "--client", "0", "--class", "7", *settings, "--out", "asked", "--json")
    assert json.loads(out)["run"] == str(run)
    assert json.loads(out)["page"] == str(run / "query.html")
    words = ["--client", "0", "--class", "7", *settings, "--out", "asked", "--html", "pages/q.html", "--json"]
    code, out, _ = call("query", alone, *words)
    assert json.loads(out)["page"] == "pages/q.html"
    assert "Client 0 asks for 7" in Path("pages", "q.html").read_text()


def test_the_probe_alone_says_what_all_models_know(call: Call, alone: str) -> None:
    """The figures of precision and recall, counted again from the two tables, by both rules."""
    code, out, err = call("query", alone, "--probe")
    assert code == 0, err
    assert "knows by the probe" in out
    assert "rule gap (least_gap" in " ".join(out.split())
    for given in ("threshold=0.05", "least_gap=3"):
        code, out, _ = call("query", alone, "--probe", "--set", given, "--json")
        told = json.loads(out)
        name, value = given.split("=")
        assert told[name] == float(value)
        by_name = {"threshold": by_threshold, "least_gap": by_gap}[name]
        known = [by_name(*rows, float(value)) for rows in zip(told["probed"], told["log_probabilities"], strict=True)]
        assert told["known"] == known
        pairs = [pair for rows in zip(known, told["held"], strict=True) for pair in zip(*rows, strict=True)]
        hits = sum(found and has > 0 for found, has in pairs)
        assert told["precision"] == hits / sum(found for found, _ in pairs)
        assert told["recall"] == hits / sum(has > 0 for _, has in pairs)
        assert 0 <= told["recall_recognised"] <= 1
        assert len(told["held"]) == 4
    assert not Path("runs", "query").exists()
    code, _, err = call("query", alone, "--client", "0")
    assert (code, err.count("\n")) == (2, 1)
    assert "say who asks and for what" in err


def by_threshold(said: list[float], logs: list[float], threshold: float) -> list[bool]:
    return [one >= threshold for one in said]


def by_gap(said: list[float], logs: list[float], least: float) -> list[bool]:
    order = sorted(logs, reverse=True)
    gap, above = max((high - low, high) for high, low in itertools.pairwise(order))
    return [one >= above or gap < least for one in logs]


@pytest.mark.parametrize("given", ["threshold=1", "least_gap=0"])
def test_no_peer_passes_the_probe(call: Call, alone: str, given: str) -> None:
    """The rule, the nearest peer with its score, and a setting that does admit it."""
    probed = json.loads(call("query", alone, "--probe", "--set", given, "--json")[1])
    known = [[row[number] for row in probed["known"]] for number in range(10)]
    unknown = next(number for number in range(10) if not any(known[number][1:]))
    words = ["query", alone, "--client", "0", "--class", str(unknown), "--out", "asked"]
    code, out, _ = call(*words, "--set", given)
    assert code == 0
    said = " ".join(out.split())
    name, value = given.split("=")
    assert f'no peer passed the probe (rule {probed["rule"]}, {name} {value}) for "{unknown}"; the nearest are' in said
    assert "client 0 keeps the model it has" in said
    found = re.search(rf"({name}=[\d.e-]+) would admit peer ([123])", said)
    assert found is not None, out
    assert not Path("asked").exists()
    told = json.loads(call(*words, "--set", given, "--json")[1])
    (missing,) = told["no_teacher"]
    assert missing["class"] == str(unknown)
    assert len(missing["nearest"]) == 3
    nearest = missing["nearest"][0]
    scores = probed["probed" if name == "threshold" else "log_probabilities"]
    assert nearest["score"] == scores[nearest["peer"]][unknown]
    assert found.groups() == (f"{name}={nearest[name]:g}", str(nearest["peer"]))
    short = ["--set", "transfer_epochs=1", "--set", found[1], "--json"]
    assert nearest["peer"] in json.loads(call(*words, *short)[1])["teachers"]


def test_bad_input(call: Call, alone: str) -> None:
    code, _, err = call("query", alone, "--client", "0", "--class", "seven")
    assert code == 2
    assert err.startswith("fedstill: there is no class 'seven'")
    code, _, err = call("query", alone, "--client", "0", "--class", "7", "--set", "=2")
    assert (code, err) == (2, "fedstill: cannot read the setting '=2': write key=value, e.g. query_weight=2\n")
    code, _, err = call("query", alone, "--client", "0", "--class", "7", "--set", "client=1")
    assert code == 2
    assert "client" in err
