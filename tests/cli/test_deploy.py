"""`fedstill deploy init`, `renew` and `split` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedstill.cli import deploy as command
from fedstill.cli.flags import Flags

Call = Callable[..., tuple[int, str, str]]

SMALL = ("fedavg", "parts", "--data", "digits", "--model", "cnn", "--partition", "dirichlet:alpha=0.3", "--seed", "4")


@pytest.fixture
def deploy(call: Call) -> Call:
    return partial(call, "deploy")


def test_init_says_what_to_do_next(deploy: Call) -> None:
    code, out, err = deploy("init", "clinics", "--sites", "3", "--address", "Clinics.example.org", "--port", "9443")
    assert (code, err) == (0, "")
    assert "clinics: a server at clinics.example.org, port 9443, and three sites; its certificate is valid until" in out
    assert "clinics/README.md" in out
    assert sorted(path.name for path in Path("clinics").iterdir()) == [
        "README.md",
        "authority",
        "server",
        "site-0",
        "site-1",
        "site-2",
    ]
    before = Path("clinics/server/server.key").read_bytes()
    code, out, err = deploy("init", "clinics", "--sites", "3")
    assert (code, out) == (2, "")
    assert "holds a deployment already" in err
    assert Path("clinics/server/server.key").read_bytes() == before


def test_init_and_renew_for_programs(deploy: Call) -> None:
    code, out, _ = deploy("init", "here", "--sites", "1", "--days", "30", "--json")
    told = json.loads(out)
    expires = told.pop("expires")
    assert code == 0
    assert told == {"folder": "here", "name": "here", "address": "127.0.0.1", "port": 9092, "sites": 1}
    code, out, _ = deploy("renew", "here", "--address", "10.0.0.5", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["address"] == "10.0.0.5"
    assert told["expires"] > expires  # as text: both are dates in the same form, 365 days against 30
    code, out, _ = deploy("renew", "here", "--address", "10.0.0.6")
    assert "copy the files in here/server to the server's folder" in out
    assert "write `address: 10.0.0.6` into its site.yaml" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["init", "x", "--sites", "0"], "1 to 1,000 sites"),
        (["init", "x", "--sites", "2", "--address", "host:80"], "without port or slashes"),
        (["init", "x", "--sites", "2", "--port", "70000"], "ports are 1 to 65535"),
        (["init", "x"], "--sites"),
        (["renew", "x"], "x holds no authority/ca.key"),
    ],
)
def test_mistakes_get_a_sentence(deploy: Call, words: list[str], sentence: str) -> None:
    code, out, err = deploy(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_what_a_site_asks_for_is_checked_before_it_connects(deploy: Call) -> None:
    assert deploy("init", "clinics", "--sites", "1")[0] == 0
    site = ["site", "clinics", "--site", "0", "--data", "digits"]
    for words, sentence in {
        ("--query", "seven"): "there is no class 'seven'",
        ("--earlier",): "say what this site asks for, as in --query 7",
        ("--earlier", "--query", "7"): "holds no models of peers: take part in an experiment with queries",
    }.items():
        code, _, err = deploy(*site, *words)
        assert (code, err.count("\n")) == (2, 1), err
        assert sentence in err


def test_without_the_extra_it_is_named(deploy: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    code, _, err = deploy("init", "x", "--sites", "2")
    assert code == 2
    assert "deployments need cryptography, flwr: install them with pip install 'fedstill[flower]'" in err
    assert deploy("split", *SMALL, "--sites", "2")[0] == 0  # data are cut without it


def test_split_writes_a_file_for_each_site(deploy: Call) -> None:
    code, out, err = deploy("split", *SMALL, "--sites", "3")
    assert (code, err) == (0, "")
    for number in range(3):
        with np.load(f"parts/site-{number}.npz") as archive:
            row = next(line for line in out.splitlines() if line.startswith(f"parts/site-{number}.npz"))
            assert row.split()[1:3] == [str(len(archive["x_train"])), str(len(archive["x_test"]))]
    code, out, err = deploy("split", *SMALL, "--sites", "3")
    assert (code, out) == (2, "")
    assert "parts holds site-0.npz already" in err


def test_split_for_programs(deploy: Call) -> None:
    """1,797 digits, a fifth of each class held out: 1,438 and 359."""
    code, out, _ = deploy("split", *SMALL, "--sites", "4", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["data"], told["partition"]) == ("digits", "dirichlet")
    assert [one["file"] for one in told["files"]] == [f"parts/site-{number}.npz" for number in range(4)]
    assert (sum(one["training"] for one in told["files"]), sum(one["test"] for one in told["files"])) == (1438, 359)
    assert all(one["bytes"] == Path(one["file"]).stat().st_size for one in told["files"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["centralised", "parts", "--sites", "3"], "centralised pools the data in one place"),
        (["fedavg", "parts", "--sites", "3", "--partition", "sorted"], "unknown partition 'sorted'"),
        (["fedavg", "parts", "--sites", "3", "--data", "npz:none.npz"], "none.npz does not exist"),
    ],
)
def test_experiments_that_cannot_be_split(deploy: Call, words: list[str], sentence: str) -> None:
    code, out, err = deploy("split", *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert not Path("parts").exists()


def test_the_command_line_does_not_wait_for_cryptography() -> None:
    code = (
        "import sys, fedstill.cli\nprint([name for name in ('cryptography', 'flwr', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("method", "proxies", "given", "added"),
    [
        ("feddf", ["digits"], [], ["method.proxy=digits"]),
        ("feddf", ["digits"], ["steps=5"], ["steps=5", "method.proxy=digits"]),
        ("feddf", ["digits"], ["proxy=mnist"], ["proxy=mnist"]),
        ("feddf", ["digits", "mnist"], [], []),
        ("feddf", [], [], []),
        ("fedbn", ["digits"], [], []),
        ("recipe.yaml", ["digits"], [], []),
    ],
)
def test_the_only_shared_samples_are_those_of_the_method(
    method: str, proxies: list[str], given: list[str], added: list[str]
) -> None:
    assert (command._with_proxy(replace(Flags(), set_=given), method, proxies).set_ or []) == added
