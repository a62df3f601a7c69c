"""`fedstill query`: a client of a run asks the others for a class."""

from __future__ import annotations

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
    """The figures of precision and recall, counted again from the two tables."""
    code, out, err = call("query", alone, "--probe")
    assert code == 0, err
    assert "seems to know" in out
    code, out, _ = call("query", alone, "--probe", "--set", "threshold=0.05", "--json")
    told = json.loads(out)
    pairs = [pair for rows in zip(told["probed"], told["held"], strict=True) for pair in zip(*rows, strict=True)]
    hits = sum(said >= 0.05 and has > 0 for said, has in pairs)
    assert told["precision"] == hits / sum(said >= 0.05 for said, _ in pairs)
    assert told["recall"] == hits / sum(has > 0 for _, has in pairs)
    assert len(told["held"]) == 4
    assert not Path("runs", "query").exists()
    code, _, err = call("query", alone, "--client", "0")
    assert (code, err.count("\n")) == (2, 1)
    assert "say who asks and for what" in err


def test_no_peer_passes_the_probe(call: Call, alone: str) -> None:
    code, out, _ = call("query", alone, "--client", "0", "--class", "7", "--set", "threshold=1", "--out", "asked")
    assert code == 0
    said = " ".join(out.replace("\u00a0", " ").split())
    nearest_peer = r"the nearest is peer ([123]) at ([\d.]+) % \(threshold 100.0 %\): client 0 keeps the model it has"
    found = re.search(f'no peer passed the probe threshold for "7"; {nearest_peer}', said)
    assert found is not None, out
    probed = json.loads(call("query", alone, "--probe", "--json")[1])["probed"]
    nearest = max((1, 2, 3), key=lambda peer: probed[peer][7])
    assert found.groups() == (str(nearest), f"{100 * probed[nearest][7]:.1f}")
    assert not Path("asked").exists()


def test_bad_input(call: Call, alone: str) -> None:
    code, _, err = call("query", alone, "--client", "0", "--class", "seven")
    assert code == 2
    assert err.startswith("fedstill: there is no class 'seven'")
    code, _, err = call("query", alone, "--client", "0", "--class", "7", "--set", "=2")
    assert (code, err) == (2, "fedstill: cannot read the setting '=2': write key=value, e.g. query_weight=2\n")
    code, _, err = call("query", alone, "--client", "0", "--class", "7", "--set", "client=1")
    assert code == 2
    assert "client" in err
