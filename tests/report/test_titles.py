"""What runs are called beside each other."""

from __future__ import annotations

from pathlib import Path

from fedstill.report.titles import all_settings, differing_settings, titles
from fedstill.runtime.assemble import make_experiment


def named(*given: dict[str, object]) -> list[str]:
    return titles([make_experiment(one) for one in given], [f"run-{number}abc" for number in range(len(given))])


def test_runs_are_named_by_what_they_differ_in() -> None:
    lost = {"method": "fedavg", "dropout": {"name": "independent", "rate": 0.4}}
    assert named({"method": "fedavg", "seed": 7}, {**lost, "seed": 7}) == [
        "fedavg",
        "fedavg, independent, rate 0.4",
    ]
    assert named({"method": "fedavg"}, {"method": "fedbn"}) == ["fedavg", "fedbn"]
    assert named({"method": "fedavg", "seed": 1}, {"method": "fedavg", "seed": 2}) == [
        "fedavg, seed 1",
        "fedavg, seed 2",
    ]


def test_what_only_goes_with_another_method_is_not_said() -> None:
    pooled = {"method": "centralised", "clients": 1, "rounds": 100}
    assert named(pooled, {"method": "fedavg"}, {"method": "fedbn"}) == ["centralised", "fedavg", "fedbn"]
    assert named(pooled, {"method": "fedavg", "seed": 1}, {"method": "fedavg", "seed": 2}) == [
        "centralised, seed 0",
        "fedavg, seed 1",
        "fedavg, seed 2",
    ]


def test_what_goes_with_other_data_or_another_model_is_not_said() -> None:
    digits = {"method": "fedavg", "data": "digits", "model": "cnn", "training": {"rate": 0.05}}
    heads = {"method": "fedavg", "data": "heads", "model": "pointnet", "training": {"rate": 0.001}, "clients": 5}
    assert named(digits, heads) == ["fedavg, digits, cnn", "fedavg, heads, pointnet"]
    faster = {**heads, "training": {"rate": 0.01}}
    assert named(digits, heads, faster) == [
        "fedavg, digits, cnn, rate 0.05",
        "fedavg, heads, pointnet, rate 0.001",
        "fedavg, heads, pointnet, rate 0.01",
    ]


def test_weights_to_begin_with_and_what_is_left_out_are_said(tmp_path: Path) -> None:
    (tmp_path / "encoder.safetensors").write_bytes(b"")
    begun = {"initial": {"file": str(tmp_path / "encoder.safetensors"), "sha256": "0" * 64}}
    assert named({"method": "fed3d"}, {"method": "fed3d", **begun}) == ["fed3d", "fed3d, from encoder.safetensors"]
    assert named({"method": "fed3d"}, {"method": {"name": "fed3d", "local_weights": False}}) == [
        "fed3d",
        "fed3d, no local weights",
    ]


def test_equal_ones_are_told_apart_by_their_folders() -> None:
    assert named({"method": "fedavg"}, {"method": "fedavg"}) == ["fedavg (0abc)", "fedavg (1abc)"]


def test_students_are_told_apart_by_their_teachers() -> None:
    """Two distillations that differ in nothing else were called equal."""
    taught = {"method": "distill", "data": "digits", "objective": "vanilla"}
    made = [
        make_experiment({**taught, "teachers": [{"run": f"runs/fedavg-digits-{digit * 16}", "sha256": digit * 64}]})
        for digit in "ab"
    ]
    assert titles(made, ["distill-1", "distill-2"]) == [
        "distill, from fedavg-digits-aaaaaaaa",
        "distill, from fedavg-digits-bbbbbbbb",
    ]
    assert [*differing_settings(made)[0].items()] == [("teachers", "from fedavg-digits-aaaaaaaa")]
    assert all_settings(made[1])["teachers"] == "from fedavg-digits-bbbbbbbb"
