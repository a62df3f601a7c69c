"""Starting runs from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.runtime.launch import assembled


@pytest.mark.parametrize("layer", [{"preset": "lite"}, {"variant": "as-published"}])
def test_what_only_recipes_have_is_refused_for_a_mapping(layer: dict[str, Any]) -> None:
    for function in (fedstill.run, fedstill.egress):
        with pytest.raises(InputError, match="given as a mapping has no presets and variants"):
            function({"method": "fedavg"}, **layer)


def test_a_part_with_settings_is_written_as_on_the_command_line() -> None:
    short = assembled("fedavg", None, None, {"partition": "dirichlet:alpha=0.1", "dropout": "independent:rate=0.2"})
    long = assembled(
        {"method": "fedavg", "partition": {"name": "dirichlet", "alpha": 0.1}, "dropout": 0.2}, None, None, {}
    )
    assert short == long
    assert assembled({"method": "fedprox:mu=0.5"}, None, None, {}).method.settings.mu == 0.5
    with pytest.raises(InputError, match="write name:key=value"):
        assembled("fedavg", None, None, {"partition": "dirichlet:0.1"})


def test_runs_teach_as_objects_or_by_their_folders(tmp_path: Path) -> None:
    small: dict[str, Any] = {"data": "digits", "rounds": 1, "training": {"batch": 256, "epochs": 1}}
    teacher = fedstill.run("centralised", model="cnn", out=tmp_path, **small)
    taught = fedstill.distill(teacher, "mlp", share=0.2, rounds=1, out=tmp_path)
    again = fedstill.distill([fedstill.load_run(teacher.path)], "mlp", share=0.2, rounds=1, out=tmp_path)
    assert again.reused
    assert again.path == taught.path
    assert not taught.reused
