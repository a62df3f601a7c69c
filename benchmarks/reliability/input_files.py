"""Valid and invalid input files for the invalid commands."""

from __future__ import annotations

import json
import shutil
import struct
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import yaml

from fedstill.core.message import Message
from fedstill.runtime.launch import run

TINY = {"data": "npz:images.npz", "model": "cnn", "clients": 3, "rounds": 1, "training": {"epochs": 1, "batch": 16}}
NOISE = np.random.default_rng(0).bytes(400)  # the content of files whose format does not match their name


def write_input_files() -> None:
    """Write all files to the current folder."""
    Path("folder").mkdir()
    _write_data()
    _write_recipes()
    _write_tables()
    _write_weights()
    _write_runs()
    for name in ("garbage.bin", "garbage.csv", "garbage.json", "garbage.npy", "picture.png", "scan.ply"):
        Path(name).write_bytes(NOISE)
    Path("old.json").write_text(json.dumps({"format": 0, "study": "of long ago"}))
    Path("wrong.py").write_text("def broken(:\n")
    Path("raising.py").write_text("raise RuntimeError('a plugin in a bad mood')\n")
    if find_spec("flwr") and find_spec("cryptography"):
        from fedstill.deploy.deployment_folder import make_deployment

        make_deployment(Path("deployment"), 2, "127.0.0.1", 9092)


def _write_data() -> None:
    generator = np.random.default_rng(1)
    images, labels = generator.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 4
    np.savez("images.npz", x=images, y=labels)
    np.savez("short.npz", x=images, y=labels[:-1])
    np.savez("nolabels.npz", x=images)
    np.savez("words.npz", x=np.array(["so", "what"]), y=np.array([0, 1]))
    np.savez("infinite.npz", x=np.full((60, 8, 8), np.inf, dtype=np.float32), y=labels)
    np.savez("one.npz", x=images[:1], y=labels[:1])
    Path("garbage.npz").write_bytes(b"PK\3\4" + NOISE)
    np.save("image.npy", images[0])
    np.save("shape.npy", np.zeros((3, 5, 7, 2)))


def _write_recipes() -> None:
    Path("garbage.yaml").write_bytes(NOISE)
    Path("list.yaml").write_text("- fedavg\n- fedprox\n")
    Path("empty.yaml").write_text("")
    recipes = {
        "section": {"experiment": TINY, "gird": {"seed": [1]}},
        "method": {"experiment": {**TINY, "method": {"mu": 1}}},
        "grid": {"experiment": TINY, "grid": {"method": []}},
        "small": {"experiment": TINY, "grid": {"method": ["fedavg", "fedprox"], "seed": [1, 2]}},
    }
    for name, recipe in recipes.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump({"about": "A recipe.", **recipe}))


def _write_tables() -> None:
    head = "teacher,objective,seed,accuracy\n"
    Path("empty.csv").write_text("")
    Path("columns.csv").write_text("name,points\na,3\n")
    Path("words.csv").write_text(f"{head}a,vanilla,1,rather good\n")
    rows = [f"{who},{how},1,{50 + number}\n" for number, (who, how) in enumerate(_pairs())]
    Path("good.csv").write_text(head + "".join(rows))


def _pairs() -> list[tuple[str, str]]:
    return [(who, how) for who in ("a", "b", "c") for how in ("vanilla", "feature")]


def _write_weights() -> None:
    Path("garbage.safetensors").write_bytes(NOISE)
    Path("enormous.safetensors").write_bytes(struct.pack("<Q", 2**62) + NOISE)
    Path("other.safetensors").write_bytes(Message({"parameters/unknown": torch.zeros(3)}).encode())


def _write_runs() -> None:
    """`done` and `personal` are finished; the others are damaged as by a crash, a bad disk or another program."""
    for name, method in (("done", "fedavg"), ("personal", "local-only")):
        made = run({**TINY, "method": method}, out="made")
        shutil.move(made.path, name)
    Path("made").rmdir()
    for name in ("unfinished", "halved", "alien", "garbage"):
        shutil.copytree("done", name)
    for file in Path("unfinished").iterdir():
        if file.name not in ("config.json", ".lock"):
            file.unlink()
    model = Path("halved", "model-last.safetensors")
    model.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    for name, content in (("alien", b'{"format": 99}'), ("garbage", NOISE)):
        Path(name, "config.json").write_bytes(content)
