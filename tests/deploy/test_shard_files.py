"""Shards as files: a site that has its file and nothing else sees what the simulated client sees, to the bit."""

from __future__ import annotations

import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedstill.core import files
from fedstill.core.client import answer
from fedstill.core.dataset import ArrayDataset, Dataset, Subset
from fedstill.core.errors import InputError, RunError
from fedstill.core.protocols import Client, Reply, RoundContext
from fedstill.data.bundle import Bundle
from fedstill.data.catalogue import check, load
from fedstill.data.point_labels import kind_names
from fedstill.deploy.shard_files import write_shards
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import Simulation, make_plan

from ..elsewhere import Elsewhere

TRAIN, TEST = 60, 24


def drawn(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(1.0, 2.0, shape).astype(np.float32))


def clouds(count: int) -> dict[str, Tensor]:
    return {"inputs": drawn(count, 32, 3), "labels": torch.arange(count) % 4}


def parts(count: int) -> dict[str, Tensor]:
    """A label for every point, and kinds of things to cut by; ids that nobody could make up from the row."""
    marks = torch.arange(count * 32).reshape(count, 32) % 5
    ids = torch.arange(count) * 7 + 1000
    return {"inputs": drawn(count, 32, 3), "labels": marks, "category": torch.arange(count) % 3, "sample_id": ids}


def pixels(count: int) -> dict[str, Tensor]:
    """Three columns wide: the usual reader would take those for colours."""
    grey = torch.arange(count * 24).reshape(count, 1, 8, 3) % 251
    return {"inputs": grey.to(torch.uint8), "labels": torch.arange(count) % 4}


def doubles(count: int) -> dict[str, Tensor]:
    """Two channels, in double precision, with a column of the data set's own."""
    inputs = drawn(count, 2, 8, 8).double() / 3
    return {"inputs": inputs, "labels": torch.arange(count) % 4, "hospital": drawn(count)}


def made(name: str) -> Bundle:
    """A data set of a kind; none of its clouds is of the usual size, so that touching them would show."""
    make = {"clouds": clouds, "parts": parts, "pixels": pixels, "doubles": doubles, "elsewhere": pixels}[name]
    train, test = ArrayDataset(**make(TRAIN)), ArrayDataset(**make(TEST))
    kind: Any = "cloud" if name in ("clouds", "parts") else "image"
    classes = ("nasal", "left ear", "naïve", "d", "e")[: 5 if name == "parts" else 4]
    far = name == "elsewhere"
    return Bundle(
        name,
        Elsewhere(train) if far else train,
        Elsewhere(test) if far else test,
        classes,
        kind,
        tuple(train.columns["inputs"].shape[1:]),
        categories=("cup", "pan", "jug") if name == "parts" else (),
    )


KINDS = ["clouds", "doubles", "elsewhere", "parts", "pixels"]


def planned(bundle: Bundle | None = None, **settings: Any) -> Simulation:
    chosen = {"method": "fedavg", "clients": 3, "rounds": 1, "evaluation": "on-site", **settings}
    if bundle is not None:
        chosen |= {"data": bundle.name}
        if bundle.kind == "image":
            chosen |= {"model": "mlp"}  # reads pictures of any shape
    return make_plan(make_experiment(chosen), bundle=bundle)


def digest(data: Dataset) -> str:
    """Over all columns of all rows in order, with their types and shapes, as batches give them."""
    total = sha256()
    for name, column in sorted(data.batch(torch.arange(len(data))).items()):
        total.update(f"{name} {column.dtype} {tuple(column.shape)}".encode())
        total.update(column.contiguous().numpy().tobytes())
    return total.hexdigest()


def sites(plan: Simulation, folder: Path) -> list[Bundle]:
    return [load(f"npz:{path}") for path in write_shards(plan, folder)]


def own(plan: Simulation, client: int) -> tuple[Subset, Subset]:
    assert plan.clients.test is not None
    held, cut = plan.clients.test
    return Subset(plan.clients.data, plan.clients.shards.rows(client)), Subset(held, cut.rows(client))


@pytest.mark.parametrize("name", KINDS)
def test_a_site_sees_what_the_simulated_client_sees(name: str, tmp_path: Path) -> None:
    plan = planned(made(name), partition={"name": "dirichlet", "alpha": 0.3})
    for client, site in enumerate(sites(plan, tmp_path)):
        train, test = own(plan, client)
        assert digest(site.train) == digest(train)
        assert digest(site.test) == digest(test)
        whole = plan.bundle
        assert (site.classes, site.kind, site.shape, site.categories) == (
            whole.classes,
            whole.kind,
            whole.shape,
            whole.categories,
        )
        if isinstance(whole.train, ArrayDataset):
            assert isinstance(site.train, ArrayDataset)
            assert {n: c.dtype for n, c in site.train.columns.items()} == {
                n: c.dtype for n, c in whole.train.columns.items()
            }
        if name == "parts":
            assert kind_names(whole)[: len(kind_names(site))] == kind_names(site)


@pytest.mark.parametrize("data", ["digits", "head-parts"])
def test_built_in_data(data: str, tmp_path: Path) -> None:
    """Bytes of pictures stay bytes; clouds that were cut to 512 of 2,048 points and sized anew are not sized again."""
    settings = {"points": 512} if data == "head-parts" else {}
    plan = planned(data=data, partition={"name": "dirichlet", "alpha": 0.2}, **settings)
    for client, site in enumerate(sites(plan, tmp_path)):
        assert [digest(site.train), digest(site.test)] == [digest(one) for one in own(plan, client)]
        assert isinstance(site.train, ArrayDataset)
        assert site.train.columns["inputs"].dtype == (torch.uint8 if data == "digits" else torch.float32)
        assert site.classes == plan.bundle.classes


@pytest.mark.parametrize(
    "partition", ["iid", "label-skew", "pathological", {"name": "dirichlet", "alpha": 0.1}], ids=str
)
@pytest.mark.parametrize("clients", [1, 2, 7])
def test_all_shards_together_are_the_data_set(partition: Any, clients: int, tmp_path: Path) -> None:
    """Every row once, in its own words: sorted by id, the union is the whole, column by column."""
    if partition == "pathological" and clients == 1:
        partition = {"name": "pathological", "classes_per_client": 4}
    bundle = made("pixels")
    plan = planned(bundle, partition=partition, clients=clients)
    found = sites(plan, tmp_path)
    assert len(found) == clients
    for part in ("train", "test"):
        pieces = [site.splits()[part].batch(torch.arange(len(site.splits()[part]))) for site in found]
        union = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
        order = union["sample_id"].argsort()
        whole = bundle.splits()[part]
        for name, column in whole.batch(torch.arange(len(whole))).items():
            assert torch.equal(union[name][order], column), name


def test_classes_without_samples_keep_their_place(tmp_path: Path) -> None:
    """Four classes sorted and cut in three: no site has them all, and `fedstill data check` does not mind."""
    plan = planned(made("pixels"), partition="label-skew")
    found = sites(plan, tmp_path)
    labels = [set(site.train.labels().tolist()) for site in found]  # type: ignore[union-attr]
    assert labels == [{0, 1}, {1, 2}, {2, 3}]
    assert {site.classes for site in found} == {("nasal", "left ear", "naïve", "d")}
    report = check(f"npz:{tmp_path / 'site-0.npz'}")
    assert report.usable
    assert report.counts["train"] == (15, 5, 0, 0)


def test_a_site_without_test_rows(tmp_path: Path) -> None:
    """It trains, and abstains from evaluation as the simulated client does."""
    plan = planned(made("pixels"), clients=5, partition={"name": "dirichlet", "alpha": 0.03, "min_samples": 0})
    found = sites(plan, tmp_path)
    assert [len(site.test) for site in found] == [len(own(plan, client)[1]) for client in range(5)]
    assert 0 in [len(site.test) for site in found]
    for client, site in enumerate(found):
        assert [digest(site.train), digest(site.test)] == [digest(one) for one in own(plan, client)]
        assert check(f"npz:{tmp_path / f'site-{client}.npz'}").usable


def test_with_central_evaluation_sites_test_nothing(tmp_path: Path) -> None:
    plan = planned(made("clouds"), evaluation="central")
    for client, site in enumerate(sites(plan, tmp_path)):
        assert len(site.test) == 0
        assert digest(site.train) == digest(Subset(plan.clients.data, plan.clients.shards.rows(client)))


@pytest.mark.parametrize("data", ["digits", "clouds"])
def test_a_site_trains_to_the_same_bits(data: str, tmp_path: Path) -> None:
    """The same request, answered by the simulated client and by one made of the file alone."""
    bundle = made(data) if data == "clouds" else None
    plan = planned(
        bundle,
        **({"data": data} if bundle is None else {"model": "small-pointnet-tiny"}),
        training={"epochs": 1, "batch": 16},
        partition={"name": "dirichlet", "alpha": 0.5},
    )
    server = plan.method.start(plan.streams)
    exchange = plan.method.exchanges(server, 0)[0]
    context = RoundContext(0, 1, 3, exchange.name, plan.streams.at("round", 0, exchange.name))
    for who, site in zip(plan.profiles, sites(plan, tmp_path), strict=True):
        request = exchange.request(server, who, context)
        assert request is not None

        def at_the_site(profile: Any, state: Any, now: Any, site: Bundle = site) -> Client:
            return Client(profile, plan.task, site.train, now.streams.at("client", profile.id), state, test=site.test)

        simulated = answer(plan.clients, exchange, who, request, {}, context)
        real = answer(at_the_site, exchange, who, request, {}, context)
        assert isinstance(simulated, Reply)
        assert isinstance(real, Reply)
        assert real.message.encode() == simulated.message.encode()


def test_files_are_private_and_the_same_each_time(tmp_path: Path) -> None:
    plan = planned(made("parts"))
    first, second = write_shards(plan, tmp_path / "a"), write_shards(plan, tmp_path / "b")
    assert [path.name for path in first] == ["site-0.npz", "site-1.npz", "site-2.npz"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert {stat.S_IMODE(path.stat().st_mode) for path in first} == {0o600}
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [path.name for path in first]


def test_nothing_is_overwritten_or_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(made("pixels"))
    (tmp_path / "site-7.npz").write_text("of an older cut")
    with pytest.raises(InputError, match=r"holds site-7.npz already: name another folder"):
        write_shards(plan, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to the folder"):
        write_shards(plan, tmp_path / "file")

    write = files.write_private

    def full(path: Path, data: bytes) -> None:
        write(path, data)
        if "site-1" in path.name:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_private", full)
    with pytest.raises(RunError, match="No space left on device; nothing was left there"):
        write_shards(plan, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_columns_that_archives_cannot_hold(tmp_path: Path) -> None:
    columns = pixels(TRAIN)
    data = ArrayDataset(**columns, x=torch.arange(TRAIN))
    bundle = Bundle("odd", data, data, ("a", "b", "c", "d"), "image", (1, 8, 3))
    with pytest.raises(InputError, match="a column cannot be called 'x'"):
        write_shards(planned(bundle), tmp_path)


Arrays = dict[str, Any]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fedstill_shard": np.array("video")}, "holds 'video' samples: another release of fedstill"),
        ({"id_train": None}, "lacks 'id_train': have it written again"),
        ({"y_test": None}, "lacks 'y_test'"),
        ({"classes": None}, "lacks 'classes'"),
        ({"id_train": np.arange(3)}, "the train arrays of .* differ in length"),
        ({"category_test": np.array(3)}, "the test arrays of .* differ in length"),
        ({"x_train": np.zeros((60, 8, 3), np.uint8)}, "the train arrays of .* are no images"),
        ({"x_train": np.zeros((60, 1, 8, 3), np.int32)}, "are no images"),
        ({"x_train": np.array(["a"] * 60)}, "are no numbers of ours"),
        ({"x_train": np.array([{}] * 60)}, "an array of Python objects, which are never loaded"),
        ({"y_train": np.zeros(60)}, "no proper labels or ids"),
        ({"y_train": np.zeros((60, 8), np.int64)}, "no proper labels or ids"),
        ({"id_test": np.zeros(24)}, "no proper labels or ids"),
        ({"y_train": np.full(60, 4)}, r"60 train labels lie outside 0..3, the first is 4"),
        ({"x_test": np.zeros((24, 1, 9, 3), np.uint8)}, "differ in shape between splits"),
        ({"x_train": np.full((60, 1, 8, 3), np.nan, np.float32)}, "60 train samples hold NaN or infinity"),
    ],
)
def test_shards_that_somebody_else_wrote(changes: Arrays, sentence: str, tmp_path: Path) -> None:
    (path,) = write_shards(planned(made("pixels"), clients=1), tmp_path)
    with np.load(path) as archive:
        arrays: Arrays = {**archive, **changes}
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=sentence) as caught:
        load(f"npz:{path}")
    assert "\n" not in str(caught.value)


def test_a_damaged_shard_is_said_to_be_one(tmp_path: Path) -> None:
    (path,) = write_shards(planned(made("pixels"), clients=1), tmp_path)
    whole = path.read_bytes()
    for end in range(2, len(whole), len(whole) // 15):
        path.write_bytes(whole[:end])
        with pytest.raises(InputError, match=r"site-0.npz"):
            load(f"npz:{path}")
