"""An experiment is spelt with the same options in every command that takes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer.main

from fedstill.cli.app import app

Call = Callable[..., tuple[int, str, str]]
OPTIONS = {"data", "model", "partition", "participation", "dropout", "clients", "rounds", "seed", "query", "set"}
OPTIONS |= {"preset", "variant", "plugin", "data-root"}
# What has another name there, or is the sites' own affair.
WITHOUT = {
    ("run",): set[str](),
    ("egress",): set[str](),
    ("fleet", "show"): set[str](),
    ("deploy", "try"): {"clients"},
    ("deploy", "split"): {"clients"},
    ("deploy", "server"): {"clients", "data", "partition"},
}
COMPUTING = ["run", "study", "distill", "pretrain", "query", "audit", "predict", "detect"]


def options(*names: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]
    return {text.removeprefix("--") for one in command.params for text in one.opts if text.startswith("--")}


@pytest.mark.parametrize("names", WITHOUT, ids=" ".join)
def test_the_options_are_the_same(names: tuple[str, ...]) -> None:
    assert options(*names) & OPTIONS == OPTIONS - WITHOUT[names]


@pytest.mark.parametrize("names", [*((name,) for name in COMPUTING), ("patches", "embed"), ("deploy", "site")])
def test_what_computes_can_be_told_where(names: tuple[str, ...]) -> None:
    assert "device" in options(*names)


def test_a_run_becomes_an_egress_by_its_first_word(call: Call) -> None:
    words = ["--data", "digits", "--model", "mlp", "--clients", "4", "--rounds", "2", "--seed", "7", "--query", "1:2"]
    more = ["--partition", "iid", "--participation", "random:number=2", "--dropout", "0.1", "--set", "epochs=1"]
    assert call("run", "fedavg", *words, *more, "--dry-run")[0] == 0
    code, out, err = call("egress", "fedavg", *words, *more)
    assert code == 0, err
    assert "What leaves a client" in out


def test_options_that_agree_with_settings_are_no_contradiction(call: Call) -> None:
    same = ["--rounds", "3", "--set", "rounds=3", "--dropout", "0.2", "--set", "dropout=independent:rate=0.2"]
    more = ["--partition", "dirichlet:alpha=1", "--set", "partition.min_samples=2"]
    code, out, err = call("run", "fedavg", *same, *more, "--set", "attack=nan:share=0.3", "--dry-run")
    assert code == 0, err
    assert "name: nan\n    share: 0.3\n" in out


def test_a_setting_of_a_part_may_hold_a_colon(call: Call) -> None:
    code, out, err = call("run", "feddf", "--set", "method.proxy=npz:elsewhere.npz", "--dry-run")
    assert code == 2, err
    assert "proxy: npz:elsewhere.npz" in out
