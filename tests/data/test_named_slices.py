"""Parts of a data set by name: what one holds and the other does not, and that a part's name works like any other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedstill
from fedstill.cli import main
from fedstill.core.dataset import ArrayDataset, Dataset, Subset
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.catalogue import check, load
from fedstill.data.named_slices import Slice, part_of
from fedstill.data.unlabelled import load_proxy
from fedstill.deploy.shard_files import write_shards
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan

from ..elsewhere import Elsewhere

LABELS = torch.tensor([0, 1, 0, 0, 1, 0, 2, 0, 1, 1])  # five, four and one


def ids(data: Dataset) -> list[int]:
    found: list[int] = data.batch(torch.arange(len(data)))["sample_id"].tolist()
    return found


def small(labels: Tensor = LABELS, **columns: Tensor) -> Bundle:
    train = ArrayDataset(inputs=torch.arange(len(labels)).float().reshape(-1, 1, 1, 1), labels=labels, **columns)
    return Bundle("small", train, train, classes=("a", "b", "c"), kind="image", shape=(1, 1, 1))


def part(start: str, stop: str, bundle: Bundle | None = None) -> list[int]:
    return ids(Slice(Fraction(start), Fraction(stop)).of(bundle or small(), "part").train)


def test_each_class_gives_its_share_in_the_order_of_the_files() -> None:
    """Half of five, four and one, rounded down: rows 0 and 2 of class 0, rows 1 and 4 of class 1, none of class 2."""
    assert part("0", "1/2") == [0, 1, 2, 4]
    assert part("1/2", "1") == [3, 5, 6, 7, 8, 9]
    assert part("1/5", "3/5") == [
        1,
        2,
        3,
        4,
    ]  # the 2nd and 3rd of class 0; of class 1 from 0.8 to 2.4, so the first two


@pytest.mark.parametrize("cuts", [["0", "1/2", "1"], ["0", "1/3", "2/3", "1"], ["0", "1/10", "1/7", "99/100", "1"]])
def test_parts_that_meet_have_nothing_in_common_and_leave_nothing_out(cuts: list[str]) -> None:
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 7, 500))
    pieces = [part(start, stop, small(labels)) for start, stop in pairwise(cuts)]
    assert sorted(row for piece in pieces for row in piece) == list(range(500))
    for piece, (start, stop) in zip(pieces, pairwise(cuts), strict=True):
        assert piece == sorted(piece)
        for kind in range(7):
            exact = (Fraction(stop) - Fraction(start)) * int((labels == kind).sum())
            assert abs(sum(int(labels[row]) == kind for row in piece) - exact) < 1


def test_halves_of_the_digits() -> None:
    whole, first, second = load("digits"), load("digits[:50%]"), load("digits[50%:]")
    assert (first.name, second.name) == ("digits[:50%]", "digits[50%:]")
    assert sorted(ids(first.train) + ids(second.train)) == ids(whole.train)
    for bundle in (first, second):
        assert isinstance(bundle.train, ArrayDataset)  # so that it is fingerprinted and cut like the whole
        assert ids(bundle.test) == ids(whole.test)
        assert (bundle.classes, bundle.shape, bundle.kind) == (whole.classes, whole.shape, whole.kind)
    rows = torch.tensor(ids(second.train))
    assert torch.equal(second.train.batch(torch.arange(len(rows)))["inputs"], whole.train.batch(rows)["inputs"])
    assert len({bundle.fingerprint() for bundle in (whole, first, second)}) == 3
    assert load("digits[:]").fingerprint() == load("digits[0%:100%]").fingerprint() == whole.fingerprint()


def test_a_part_of_a_part() -> None:
    """The second half of the first half is the second quarter, but for rounding: at most one of each of ten classes."""
    inner = set(ids(load("digits[:50%][50%:]").train))
    quarter = set(ids(load("digits[25%:50%]").train))
    assert inner < set(ids(load("digits[:50%]").train))
    assert len(inner ^ quarter) <= 10


def test_data_that_is_not_in_memory_stays_where_it_is() -> None:
    data = Elsewhere(small().train)
    bundle = Bundle("small", data, data, classes=("a", "b", "c"), kind="image", shape=(1, 1, 1))
    taken = Slice(Fraction(0), Fraction(1, 2)).of(bundle, "part").train
    assert isinstance(taken, Subset)
    assert ids(taken) == part("0", "1/2")


def test_files_that_nobody_labelled_are_one_class(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (11, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "pixels.npz", x=pixels)
    name = f"npz:{tmp_path / 'pixels.npz'}"
    halves = [load_proxy(f"{name}[:50%]"), load_proxy(f"{name}[50%:]")]
    assert [ids(half.train) for half in halves] == [list(range(5)), list(range(5, 11))]
    assert all(half.train.labels() is None for half in halves)
    assert halves[0].fingerprint() != halves[1].fingerprint()


def test_other_columns_come_along() -> None:
    bundle = small(category=torch.arange(10) * 3)
    taken = Slice(Fraction(1, 2), Fraction(1)).of(bundle, "part").train
    assert isinstance(taken, ArrayDataset)
    assert taken.columns["category"].tolist() == [9, 15, 18, 21, 24, 27]


def points(**columns: Tensor) -> Bundle:
    """Six clouds with a label for every point."""
    data = ArrayDataset(inputs=torch.zeros(6, 4, 3), labels=torch.arange(24).reshape(6, 4) % 3, **columns)
    return Bundle("points", data, data, classes=("a", "b", "c"), kind="cloud", shape=(4, 3))


def test_clouds_with_a_label_for_every_point_are_taken_whole() -> None:
    assert part("0", "1/2", points()) == [0, 1, 2]
    taken = Slice(Fraction(1, 2), Fraction(1)).of(points(), "part").train.labels()
    assert taken is not None
    assert taken.tolist() == [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]


def test_of_clouds_with_point_labels_every_kind_gives_its_share() -> None:
    """Two kinds, four and two clouds: rows 0 and 1 of one, row 4 of the other."""
    assert part("0", "1/2", points(category=torch.tensor([0, 0, 0, 0, 1, 1]))) == [0, 1, 4]


@pytest.mark.parametrize(
    ("name", "whole", "start", "stop"),
    [
        ("cifar10[:50%]", "cifar10", "0", "1/2"),
        ("cifar10[20%:]", "cifar10", "1/5", "1"),
        ("cifar10[12.5%:80%]", "cifar10", "1/8", "4/5"),
        ("npz:some/file.npz[:1%]", "npz:some/file.npz", "0", "1/100"),
    ],
)
def test_names_of_parts(name: str, whole: str, start: str, stop: str) -> None:
    assert part_of(name) == (whole, Slice(Fraction(start), Fraction(stop)))


@pytest.mark.parametrize("name", ["cifar10", "folder:pictures[old]", "npz:scans[2].npz", "folder:a[:50]"])
def test_names_without_a_part(name: str) -> None:
    assert part_of(name) == (name, None)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("digits[:50]", r"written digits\[:50%\], digits\[50%:\] or \[20%:80%\]"),
        ("digits[50%]", r"written digits\[:50%\]"),
        ("digits[]", r"written digits\[:50%\]"),
        ("digits[-10%:]", r"written digits\[:50%\]"),
        ("digits[60%:40%]", "from a smaller share to a larger one"),
        ("digits[40%:40%]", "from a smaller share to a larger one"),
        ("digits[:101%]", "to 100% at most"),
        ("digits[:0.01%]", r"digits\[:0.01%\] holds no training sample: digits has 1,438 in all"),
        ("digit[:50%]", "did you mean 'digits'"),
        ("mnist[:50%]", "mnist"),
    ],
)
def test_what_is_no_part(name: str, sentence: str) -> None:
    for read in (load, load_proxy):
        with pytest.raises(InputError, match=sentence):
            read(name)


def test_a_part_can_be_checked() -> None:
    report = check("digits[:50%]")
    assert (report.name, report.usable, report.problems) == ("digits[:50%]", True, ())
    whole = check("digits")
    assert report.counts["train"] == tuple(count // 2 for count in whole.counts["train"])
    assert report.counts["test"] == whole.counts["test"]
    assert report.fingerprint == load("digits[:50%]").fingerprint()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """`fedstill data` with these words, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedstill", "data", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        return capsys.readouterr().out

    return run


def test_a_part_can_be_looked_at(call: Callable[..., str]) -> None:
    told = json.loads(call("show", "digits[:50%]", "--count", "2", "--json"))
    assert told["data"] == "digits[:50%]"
    assert Path(told["picture"]).name == "digits-50.png"
    assert Path(told["picture"]).is_file()
    table = json.loads(call("partition", "digits[50%:]", "--clients", "2", "--json"))["table"]
    assert sum(map(sum, table)) == len(load("digits[50%:]").train)


def test_a_site_can_have_a_part_and_be_given_a_shard_of_one(tmp_path: Path) -> None:
    """A site loads its data as one part of a whole; shards of a part hold its rows, with their ids, and no others."""
    assert load("digits[:50%]", part=True).fingerprint() == load("digits[:50%]").fingerprint()
    plan = make_plan(make_experiment({"method": "fedavg", "data": "digits[50%:]", "model": "mlp", "clients": 2}))
    paths = write_shards(plan, tmp_path / "shards")
    archives = [load(f"npz:{path}", part=True) for path in paths]
    assert sorted(row for one in archives for row in ids(one.train)) == ids(load("digits[50%:]").train)
    halved = ids(load(f"npz:{paths[0]}[:50%]", part=True).train)
    assert set(halved) < set(ids(archives[0].train))


def test_clients_hold_one_part_and_everybody_sees_the_other(tmp_path: Path) -> None:
    given = {
        "data": "digits[:50%]",
        "model": "mlp",
        "clients": 2,
        "rounds": 1,
        "training": {"epochs": 1, "batch": 64},
        "method": {"name": "feddf", "proxy": "digits[50%:]", "samples": 40, "steps": 2, "batch": 16},
    }
    plan = make_plan(make_experiment(given))
    assert plan.clients.proxy is not None
    assert not set(ids(plan.clients.data)) & set(ids(plan.clients.proxy.data))
    assert plan.clients.proxy.data.labels() is None
    run = fedstill.run(given, out=tmp_path)
    assert run.path.name == plan.folder_name
    other = {**given, "method": {**given["method"], "proxy": "digits[:50%]"}}
    assert make_plan(make_experiment(other)).identity != plan.identity
