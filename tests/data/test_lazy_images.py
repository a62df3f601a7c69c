"""Images that are decoded when needed: the same bits and identity as in memory, within the memory that is allowed."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedstill
from fedstill.core import dataset
from fedstill.core.dataset import Subset, every_row, read_ahead
from fedstill.core.errors import DataChangedError, InputError
from fedstill.data.catalogue import check, load
from fedstill.data.lazy_images import LazyImages
from fedstill.data.readers import lazy_pixels

SIDE, EACH = 100, 18  # 36 images of 30,000 bytes: one megabyte and a little more


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for kind, tint in (("bright", 120), ("dark", 0)):
        (folder / kind).mkdir()
        for number in range(EACH):
            coarse = draw.integers(0, 130, (10, 10, 3), dtype=np.uint8) + np.uint8(tint)
            image = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            image.save(folder / kind / f"{number:02}.png")
    return folder


def test_the_same_values_fingerprint_and_findings_as_in_memory(pictures: Path) -> None:
    whole, lazy = load(f"folder:{pictures}"), load(f"folder:{pictures},memory=1")
    assert isinstance(lazy.train, LazyImages)
    assert lazy.shape == whole.shape == (3, SIDE, SIDE)
    assert lazy.fingerprint() == whole.fingerprint()
    rows = torch.tensor([5, 0, 11, 5])
    for part, data in lazy.splits().items():
        some = rows % len(data)
        expected = whole.splits()[part].batch(some)
        assert all(torch.equal(value, expected[name]) for name, value in data.batch(some).items())
    one, other = (check(f"folder:{pictures}{more}") for more in ("", ",memory=1"))
    assert (one.fingerprint, one.counts, one.range, one.problems) == (
        other.fingerprint,
        other.counts,
        other.range,
        other.problems,
    )


@pytest.mark.parametrize("memory", [0, 1])
def test_what_is_held_stays_within_the_limit(pictures: Path, memory: int) -> None:
    data = load(f"folder:{pictures},memory={memory}").train
    assert isinstance(data, LazyImages)
    for rows in read_ahead(data, torch.arange(len(data)).split(7)):
        data.batch(rows)
    files = data.pixels.files
    assert sum(pixels.nbytes for pixels in files.held.values()) <= files.limit <= memory * 10**6
    assert (len(files.held) > 0) == (memory > 0)
    assert not files.coming, "nothing that was read ahead is left"


def test_whole_data_sets_are_read_in_pieces_of_bytes(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a fingerprint: 256 images of 512 pixels would be 200 megabytes beside those that are held."""
    monkeypatch.setattr(lazy_pixels, "_PIECE", 4 * 3 * SIDE * SIDE + 1)
    bundle = load(f"folder:{pictures},memory=0")
    assert isinstance(bundle.train, LazyImages)
    assert {len(piece) for piece in bundle.train.pixels.split(256)} <= {1, 2, 3, 4}
    assert bundle.fingerprint() == load(f"folder:{pictures}").fingerprint()
    large = LazyImages(bundle.train.pixels, {})
    monkeypatch.setattr(dataset, "_PIXELS_AT_ONCE", 5 * 3 * SIDE * SIDE)
    for data in (large, Subset(large, torch.arange(12)), load(f"folder:{pictures}").train):
        assert len(every_row(data)[0]) == 5


def test_reading_ahead_gives_the_same_batches(pictures: Path) -> None:
    data = load(f"folder:{pictures},memory=0").train
    shard = Subset(data, torch.arange(0, len(data), 2))
    batches = list(torch.randperm(len(shard)).split(4))
    ahead = [(rows, shard.batch(rows)["inputs"]) for rows in read_ahead(shard, batches)]
    assert [rows.tolist() for rows, _ in ahead] == [rows.tolist() for rows in batches]
    assert all(torch.equal(found, shard.batch(rows)["inputs"]) for rows, found in ahead)


def test_runs_are_the_same_and_have_one_identity(pictures: Path, tmp_path: Path) -> None:
    settings = {"model": "cnn:width=2,hidden=8", "clients": 2, "rounds": 2, "epochs": 1, "batch": 8}
    made = [
        fedstill.run("fedavg", data=f"folder:{pictures}{more}", out=tmp_path / engine, engine=engine, **settings)
        for more, engine in (("", "in-process"), (",memory=0", "wire"), (",memory=1", "processes"))
    ]
    assert len({one.result.sha256 for one in made}) == 1
    assert len({one.path.name for one in made}) == 1
    again = fedstill.run("fedavg", data=f"folder:{pictures},memory=0", out=tmp_path / "in-process", **settings)
    assert again.reused


def test_a_copy_in_another_process_begins_without_images(pictures: Path) -> None:
    data = load(f"folder:{pictures},memory=1").train
    assert isinstance(data, LazyImages)
    text = pickle.dumps(data)
    assert len(text) < 20_000
    copy = pickle.loads(text)
    rows = torch.arange(3)
    assert torch.equal(copy.batch(rows)["inputs"], data.batch(rows)["inputs"])


def test_files_that_change_or_vanish_are_noticed(tmp_path: Path) -> None:
    for kind in "ab":
        (tmp_path / kind).mkdir()
        for number in range(4):
            Image.new("L", (16, 16), 20 * number + ord(kind)).save(tmp_path / kind / f"{number}.png")
    data = load(f"folder:{tmp_path},memory=0").train
    assert isinstance(data, LazyImages)
    path = data.pixels.files.paths[int(data.pixels.rows[0])]
    before = path.read_bytes()
    Image.new("L", (16, 16), 3).save(path)
    with pytest.raises(DataChangedError, match="is not what it was when the data set was examined"):
        data.batch(torch.tensor([0]))
    path.unlink()
    with pytest.raises(DataChangedError, match="could be read when the data set was examined"):
        data.batch(torch.tensor([0]))
    path.write_bytes(before)
    assert data.batch(torch.tensor([0]))["inputs"].shape == (1, 1, 16, 16)


def test_damaged_files_are_found_before_any_work(tmp_path: Path) -> None:
    for kind in "ab":
        (tmp_path / kind).mkdir()
        for number in range(4):
            noise = np.random.default_rng(number).integers(0, 256, (30, 30), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / kind / f"{number}.png")
    whole = (tmp_path / "a" / "2.png").read_bytes()
    (tmp_path / "a" / "2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"2\.png is a damaged image"):
        load(f"folder:{tmp_path},memory=0")


def test_folders_of_sites_are_joined_and_stay_lazy(pictures: Path, tmp_path: Path) -> None:
    for site in ("north", "south"):
        for kind in ("bright", "dark"):
            (tmp_path / site / kind).mkdir(parents=True)
            for file in (
                sorted((pictures / kind).iterdir())[:5] if site == "north" else sorted((pictures / kind).iterdir())[5:]
            ):
                (tmp_path / site / kind / file.name).write_bytes(file.read_bytes())
    whole, lazy = (load(f"folder:{tmp_path},site=folder{more}") for more in ("", ",memory=0"))
    assert isinstance(lazy.train, LazyImages)
    assert (lazy.fingerprint(), lazy.sites) == (whole.fingerprint(), 2)
    # Of 26 images of 43,200 bytes in the south and 10 in the north, only these fit into a megabyte.
    whole, some = (load(f"folder:{tmp_path},size=120,site=folder{more}") for more in ("", ",memory=1"))
    assert isinstance(some.train, LazyImages)
    assert some.fingerprint() == whole.fingerprint()
