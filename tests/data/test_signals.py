"""Signals (channels, time): archives and folders, a 1-D network, every path of a run, and bad files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.errors import InputError
from fedstill.data.check import check
from fedstill.data.lookup import load
from fedstill.data.readers.signal_files import read_signal
from fedstill.models import build_model

DRAW = np.random.default_rng(0)


def waves(count: int, length: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Slow and fast waves of two channels."""
    labels = np.arange(count) % 2
    time = np.linspace(0, 2 * np.pi, length)
    phase = DRAW.uniform(0, 6, (count, 2, 1))
    return np.sin(time * (1 + 4 * labels[:, None, None]) + phase).astype(np.float32), labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites' signals in files, with patients; one is longer, one a table, one damaged."""
    home = tmp_path_factory.mktemp("signals")
    signals, labels = waves(60)
    rows = ["file,label,site,patient"]
    for number, (signal, label) in enumerate(zip(signals, labels, strict=True)):
        name = f"{number:02}.csv" if number == 1 else f"{number:02}.npy"
        if number == 1:
            text = "\n".join(["a,b", *(f"{one},{other}" for one, other in signal.T)])
            (home / name).write_text(text)
        else:
            np.save(home / name, np.pad(signal, ((0, 0), (3, 3))) if number == 2 else signal)
        rows.append(f"{name},{('slow', 'fast')[label]},{'abc'[number % 3]},P{number // 6}")
    (home / "05.npy").write_bytes(b"damaged")
    (home / "labels.csv").write_text("\n".join(rows))
    return home


def test_folders_have_tables_sites_patients_and_lengths(folder: Path) -> None:
    bundle = load(f"signals:{folder},group=patient,on_error=skip")
    assert (bundle.kind, bundle.shape, bundle.classes, bundle.sites) == ("signal", (2, 32), ("fast", "slow"), 3)
    assert len(bundle.train) + len(bundle.test) == 59
    assert any("2 lengths" in note for note in bundle.notes)
    assert any("05.npy" in note and "skip" in note for note in bundle.notes)
    groups = [set(data.columns["group"].tolist()) for data in (bundle.train, bundle.test)]
    assert not groups[0] & groups[1]


def test_archives_folders_of_classes_and_arrays_hold_the_same(tmp_path: Path) -> None:
    x, y = waves(20)
    np.savez(tmp_path / "x.npz", x=x, y=y)
    for number, (signal, label) in enumerate(zip(x, y, strict=True)):
        (tmp_path / "x" / str(label)).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "x" / str(label) / f"{number:02}.npy", signal)
    archive, folders = load(f"signals:{tmp_path / 'x.npz'}"), load(f"signals:{tmp_path / 'x'}")
    given = fedstill.dataset((x, y), kind="signal")
    assert archive.shape == folders.shape == given.shape == (2, 32)
    sums = [float(one.train.columns["inputs"].sum() + one.test.columns["inputs"].sum()) for one in (archive, folders)]
    assert sums[0] == pytest.approx(sums[1], abs=1e-3)
    assert archive.fingerprint() != folders.fingerprint()  # rows are in another order


def test_the_network_has_the_parameters_of_its_formula() -> None:
    w, h, c, k = 16, 64, 3, 5
    wanted = 7 * c * w + 2 * w + 5 * w * 2 * w + 4 * w + 3 * 2 * w * 4 * w + 8 * w + 4 * w * h + h + h * k + k
    models = [build_model("cnn1d", (c, length), k) for length in (16, 500)]
    assert [sum(one.numel() for one in model.parameters()) for model in models] == [wanted, wanted]
    assert models[0](torch.zeros(2, c, 16))[0].shape == (2, k)
    with pytest.raises(InputError, match="at least 16 samples"):
        build_model("cnn1d", (1, 15), 2)


def test_runs_learn_signals_and_predict(folder: Path, tmp_path: Path) -> None:
    run = fedstill.run(
        "fedavg",
        data=f"signals:{folder},on_error=skip",
        partition="sites",
        rounds=4,
        training={"rate": 0.1, "batch": 8},
        out=tmp_path,
    )
    assert run.experiment.model == "cnn1d"
    assert run.history[-1]["accuracy"] > 0.9
    assert fedstill.predict(run, folder / "00.npy")[0].label == "slow"
    assert fedstill.predict(run, folder / "01.csv")[0].label == "fast"
    student = fedstill.distill(run, "cnn1d:width=4", rounds=1, data=f"signals:{folder},on_error=skip", out=tmp_path)
    assert student.history[-1]["accuracy"] > 0.4


@pytest.mark.parametrize("method", ["feddf", "fedmd", "fedbn", "local-only", "scaffold", "qkt"])
def test_methods_of_parameters_and_of_logits_work_on_signals_and_tables(tmp_path: Path, method: str) -> None:
    x, y = waves(40)
    np.savez(tmp_path / "x.npz", x=x, y=y)
    rows = [f"{one},{other},{label}" for (one, other), label in zip(x.mean(axis=2), y, strict=True)]
    (tmp_path / "x.csv").write_text("\n".join(["a,b,label", *rows]))
    for data in (f"signals:{tmp_path / 'x.npz'}", f"table:{tmp_path / 'x.csv'}"):
        if data.startswith("table") and method == "fedbn":
            continue  # the perceptron has no BatchNorm
        proxy = {"proxy": data, "samples": 10, "steps": 2} if method in ("feddf", "fedmd") else {}
        chosen = {"method": {"name": method, **proxy}, "clients": 2, "rounds": 1, "training": {"epochs": 1}}
        run = fedstill.run(chosen, data=data, out=tmp_path)
        assert run.finished


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (np.zeros((2, 3, 4)), r"signals have the shape \(channels, time\)"),
        (np.full((2, 32), np.nan), "holds NaN or infinity"),
        (np.zeros((3, 32)), "has 3 channels, and others have 2"),
        (np.array(["a", "b"]), "signals are numbers"),
        (np.zeros((0, 4)), "signals have the shape"),
        (b"", r"is empty \(0 bytes\)"),
        (b"PK damaged", "cannot be read as an array"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: np.ndarray | bytes, sentence: str) -> None:
    for number, signal in enumerate(waves(8)[0]):
        np.save(tmp_path / f"{number}.npy", signal)
    if isinstance(content, bytes):
        (tmp_path / "8.npy").write_bytes(content)
    else:
        np.save(tmp_path / "8.npy", content)
    rows = "\n".join(f"{number}.npy,{number % 2}" for number in range(9))
    (tmp_path / "t.csv").write_text(f"file,label\n{rows}\n")
    with pytest.raises(InputError, match=f"8.npy.*{sentence}.*on_error=skip"):
        load(f"signals:{tmp_path}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,2\n3,4\n", r"0.csv begins with numbers: name the channels in its first line"),
        ("a,b\n1,2\n3,\n", r"0.csv: row 3 has nothing in b: .* fill the gaps"),
        ("a,b\n1,2\n3,x\n", r"0.csv: row 3 has 'x' in b"),
    ],
)
def test_bad_tables_of_moments_are_named_by_row(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "0.csv").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_signal(tmp_path / "0.csv")


def test_a_damaged_row_of_an_archive_is_named_by_its_place_there(tmp_path: Path) -> None:
    x, y = waves(40)
    x[33] = np.nan
    np.savez(tmp_path / "s.npz", x=x, y=y)
    assert "the first is row 33 of x, y in" in str(check(f"signals:{tmp_path / 's.npz'}").problems)


def test_axes_that_were_exchanged_are_doubted(tmp_path: Path) -> None:
    x, y = waves(40)
    np.savez(tmp_path / "s.npz", x=x.swapaxes(1, 2), y=y)
    assert "signals have 32 channels of 2 moments" in str(check(f"signals:{tmp_path / 's.npz'}").problems)
