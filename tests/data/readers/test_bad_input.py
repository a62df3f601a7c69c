"""What each reader refuses: one sentence that names the file and the remedy, exit code 2, before any work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.cli.app import main


def pictures(folder: Path, rows: list[str], names: list[str]) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, dtype=np.uint8)).save(folder / name)
    (folder / "labels.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


GOOD = [f"{number}.png" for number in range(8)]
ROWS = ["file,label", *(f"{name},{'ab'[number % 2]}" for number, name in enumerate(GOOD))]


def broken(folder: Path, name: str, content: bytes) -> None:
    pictures(folder, [*ROWS, f"{name},a"], GOOD)
    (folder / name).write_bytes(content)


def truncated(folder: Path) -> None:
    pictures(folder, [*ROWS, "cut.jpg,a"], GOOD)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / "cut.jpg")
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:-60])


def table(folder: Path, text: str) -> None:
    (folder / "t.csv").write_text(text)


CASES = {
    "missing file": (lambda f: pictures(f, [*ROWS, "x.png,a"], GOOD), "folder:.", "labels.csv do not exist: x.png"),
    "outside": (lambda f: pictures(f, [*ROWS, "../x.png,a"], GOOD), "folder:.", "do not exist: ../x.png"),
    "absolute": (lambda f: pictures(f, [*ROWS, "/etc/x.png,a"], GOOD), "folder:.", "do not exist: /etc/x.png"),
    "empty image": (lambda f: broken(f, "e.png", b""), "folder:.", "e.png is empty (0 bytes)"),
    "no image": (lambda f: broken(f, "e.png", b"text"), "folder:.", "e.png is no image"),
    "truncated": (truncated, "folder:.", "cut.jpg"),
    "no DICOM": (lambda f: broken(f, "e.dcm", b"text"), "folder:.", "e.dcm"),
    "row twice": (lambda f: pictures(f, [*ROWS, "0.png,b"], GOOD), "folder:.", "0.png twice"),
    "short row": (lambda f: pictures(f, [*ROWS, "0.png"], GOOD), "folder:.", "mend that row"),
    "no label column": (lambda f: pictures(f, ROWS, GOOD), "folder:.,label=x", "labels.csv has no column 'x'"),
    "no group column": (lambda f: pictures(f, ROWS, GOOD), "folder:.,group=x", "no column 'x'"),
    "strange class": (lambda f: pictures(f, ROWS, GOOD), "folder:.,classes=a", "'b', which is not among the classes"),
    "size": (lambda f: pictures(f, ROWS, GOOD), "folder:.,size=big", "data.size"),
    "unknown setting": (lambda f: pictures(f, ROWS, GOOD), "folder:.,sizes=8", "unknown setting 'data.sizes'"),
    "empty table": (lambda f: table(f, ""), "table:t.csv", "t.csv is empty"),
    "only a header": (lambda f: table(f, "a,label\n"), "table:t.csv", "no row with a label"),
    "no feature": (lambda f: table(f, "label\na\nb\n"), "table:t.csv", "no column beside 'label'"),
    "no parquet": (lambda f: (f / "t.parquet").write_bytes(b"PAR"), "table:t.parquet", "no Parquet file"),
    "no archive": (lambda f: (f / "t.npz").write_bytes(b"text"), "npz:t.npz", "t.npz is no npz archive"),
    "signals": (
        lambda f: np.savez(f / "t.npz", x=np.zeros((4, 2, 3, 3)), y=[0, 1, 0, 1]),
        "signals:t.npz",
        "signals are",
    ),
    "no file": (lambda f: None, "table:none.csv", "none.csv does not exist"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_one_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, name, sentence = CASES[case]
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedstill", "run", "fedavg", "--data", name, "--clients", "2", "--rounds", "1"])
    with pytest.raises(SystemExit) as left:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert left.value.code == 2, said
    assert sentence in said
    assert said.count("fedstill: ") == 1
    assert not (tmp_path / "runs").exists()
