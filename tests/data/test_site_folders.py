from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.core.dataset import column
from fedstill.core.errors import InputError
from fedstill.data.lookup import as_named, load


def write_site(folder: Path, classes: str, level: int, side: int = 8) -> None:
    for label in classes:
        (folder / label).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((side, side), level + number, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")


def test_folders_of_sites_are_sites_if_asked(tmp_path: Path) -> None:
    write_site(tmp_path / "north", "ab", 0)
    write_site(tmp_path / "south", "bc", 100)
    bundle = load(f"folder:{tmp_path},site=folder")
    assert bundle.classes == ("a", "b", "c")
    assert bundle.site_names == ("north", "south")
    for part, each in ((bundle.train, 8), (bundle.test, 2)):
        sites = column(part, "site")
        assert sites is not None
        assert sites.bincount().tolist() == [each, each]
        inputs = column(part, "inputs")
        assert inputs is not None
        assert (inputs[:, 0, 0, 0].ge(100).long() == sites).all()
        labels = part.labels()
        assert labels is not None
        assert set(labels[sites == 1].tolist()) == {1, 2}


def test_folders_with_a_table_each_are_sites(tmp_path: Path) -> None:
    for site, level in (("north", 0), ("south", 100)):
        write_site(tmp_path / site, "ab", level)
        rows = [f"{label}/{number}.png,{label},P{number}" for label in "ab" for number in range(5)]
        (tmp_path / site / "labels.csv").write_text("\n".join(["file,label,patient", *rows]))
    bundle = load(f"folder:{tmp_path},group=patient")
    assert bundle.site_names == ("north", "south")
    groups = [set(column(part, "group").tolist()) for part in (bundle.train, bundle.test)]  # type: ignore[union-attr]
    assert not groups[0] & groups[1]
    assert len(groups[0] | groups[1]) == 10  # P0 of one site is not P0 of the other


def test_one_table_and_folders_of_sites(tmp_path: Path) -> None:
    rows = []
    for site, level in (("north", 0), ("south", 100)):
        write_site(tmp_path / site, "ab", level)
        rows += [f"{site}/{label}/{number}.png,{label}" for label in "ab" for number in range(5)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows]))
    assert load(f"folder:{tmp_path},site=folder").site_names == ("north", "south")


def test_sites_of_different_form_and_a_folder_without_sites_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no folders, which site=folder asks for"):
        load(f"folder:{tmp_path},site=folder")
    write_site(tmp_path / "north", "ab", 0)
    write_site(tmp_path / "south", "ab", 0, side=9)
    with pytest.raises(InputError, match=r"site north has images of shape .*, and site south images of shape"):
        load(f"folder:{tmp_path},site=folder")


def test_files_that_sites_skip_are_noted_once_and_settings_are_read_once(tmp_path: Path) -> None:
    for site in ("north", "south"):
        (tmp_path / site).mkdir()
        rows = ["file,diagnosis"]
        for number in range(12):
            Image.fromarray(np.full((8, 8), 20 * number, dtype=np.uint8)).save(tmp_path / site / f"{number}.png")
            rows.append(f"{number}.png,{number % 2}")
        (tmp_path / site / "1.png").write_bytes(b"damaged")
        (tmp_path / site / "labels.csv").write_text("\n".join(rows))
    name = f"folder:{tmp_path},label=diagnosis,on_error=skip"
    bundle = load(name)
    skipped = [note for note in bundle.notes if note.startswith("left out")]
    assert len(skipped) == 1
    assert "(2)" in skipped[0]
    assert as_named(bundle, name) is bundle  # as in studies, which load data once for several runs


def test_files_that_are_left_out_are_noted_once(tmp_path: Path) -> None:
    write_site(tmp_path / "north", "ab", 0)
    write_site(tmp_path / "south", "ab", 100)
    (tmp_path / "north" / "a" / "0.png").write_bytes(b"no image")
    notes = load(f"folder:{tmp_path},site=folder,on_error=skip").notes
    assert sum("left out, as on_error=skip says (1)" in note for note in notes) == 1


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("site=hospital", "holds no table with the column 'hospital'"),
        ("impute=median", "impute is a setting of tables of features"),
        ("scale=none", "scale is a setting of tables of features"),
    ],
)
def test_settings_of_tables_do_not_pass_unnoticed(tmp_path: Path, setting: str, told: str) -> None:
    write_site(tmp_path, "ab", 0)
    with pytest.raises(InputError, match=told):
        load(f"folder:{tmp_path},{setting}")
    np.savez(tmp_path / "x.npz", x_train=np.zeros((4, 8, 8), np.uint8))
    with pytest.raises(InputError, match=setting.partition("=")[0]):
        load(f"npz:{tmp_path / 'x.npz'},{setting}")
