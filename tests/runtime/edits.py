"""Edits parts in every way that people do, in one interpreter, and runs after each: `python edits.py ENGINE`.

Prints for each edit whether the run was found finished, whether the same in an empty folder gives the same bits, and
those bits.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedstill
from fedstill.core.plugins import use_plugins
from fedstill.engines import Processes
from fedstill.methods.fedavg import FedAvg
from fedstill.models import models

ROOT = Path.cwd()
sys.path.insert(0, str(ROOT))
DIGITS = "digits[:10%]"  # what is noticed does not depend on how many there are
SMALL = {"clients": 2, "rounds": 1, "training": {"epochs": 1, "batch": 128}}

NET = """
@models.register("mine")
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer, self.head, self.feature_size = nn.Linear(64, WIDTH), nn.Linear(WIDTH, classes), WIDTH

    def forward(self, x):
        features = torch.relu(self.layer(x.flatten(1) * SCALE))
        return torch.log_softmax(self.head(features), 1), features
"""
OWN = """
from fedstill.methods import methods


@methods.register("own-average")
class OwnAverage(FedAvg):
    def aggregate(self, state, replies, context):
        new = super().aggregate(state, replies, context)
        return {name: tensor * FACTOR if tensor.is_floating_point() else tensor for name, tensor in new.items()}
"""
PLUGIN = """
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from fedstill.models import models
from helper import scaled

@models.register("plugged")
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.head, self.feature_size = nn.Linear(64, classes), 64

    def forward(self, x):
        features = scaled(x.flatten(1)) * 2.0
        return torch.log_softmax(self.head(features), 1), features
"""
HELPER = "S = 1.0\n\n\ndef scaled(x):\n    return x * S\n"

SCALE, WIDTH, FACTOR = 1.0, 8, 1.0  # what cells use, and other cells change


class Linear(nn.Module):
    def __init__(self, classes: int, factor: float, bias: bool = True) -> None:
        super().__init__()
        self.factor, self.head, self.feature_size = factor, nn.Linear(64, classes, bias=bias), 64

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = x.flatten(1) * self.factor
        return torch.log_softmax(self.head(features), 1), features


def linear(factor: float) -> Any:
    def build(shape: Any, classes: int) -> nn.Module:
        return Linear(classes, factor)

    return build


def reading(shape: Any, classes: int) -> nn.Module:
    return Linear(classes, float((ROOT / "factor.txt").read_text()))


def cell(text: str) -> None:
    exec(compile(text, "<cell>", "exec"), globals())


def main(engine: Any, told: list[Any]) -> None:
    global SCALE, WIDTH, FACTOR

    def check(edit: str, reused: bool = False, model: str = "mlp", method: Any = "fedavg", **more: Any) -> None:
        asked = {"data": DIGITS, "model": model, **SMALL, **more}
        ours = fedstill.run(method, out=ROOT / "runs", engine=engine, **asked)
        truth = fedstill.run(method, out=ROOT / f"truth-{len(told)}", **asked)
        told.append([edit, ours.reused == reused, ours.sha256 == truth.sha256, ours.sha256])

    def wrote(name: str, text: str) -> None:
        (ROOT / name).write_text(text)

    cell(NET)
    check("a cell", model="mine")
    cell(NET)
    check("the same cell again", reused=True, model="mine")
    cell(NET.replace("relu", "tanh"))
    check("a cell edited", model="mine")
    cell(NET)
    check("and back", reused=True, model="mine")
    SCALE = 0.1
    check("a global in another cell", model="mine")
    WIDTH = 16
    check("a global of the constructor", model="mine")
    models.register("closed")(linear(1.0))
    check("a function", model="closed")
    models.register("closed")(linear(0.2))
    check("a closure", model="closed")
    Linear.__init__.__defaults__ = (False,)
    check("a default argument", model="closed")
    cell(OWN)
    check("a method", method="own-average")
    FACTOR = 0.7
    check("a method's global", method="own-average")
    cell(OWN.replace("* FACTOR", "* 0.3"))
    check("a method edited", method="own-average")
    plugged = {"model": "plugged", "plugins": [ROOT / "plugin.py"]}
    wrote("helper.py", HELPER)
    wrote("plugin.py", PLUGIN)
    check("a plugin", **plugged)
    wrote("plugin.py", PLUGIN.replace("2.0", "0.5"))
    check("a plugin edited", **plugged)
    wrote("helper.py", HELPER.replace("1.0", "0.1"))
    check("a module that it imports", **plugged)
    wrote("other.py", "x = 1\n")
    use_plugins([ROOT / "other.py"])
    check("an unrelated plugin", reused=True, **plugged)
    models.register("reading")(reading)
    wrote("factor.txt", "1.0")
    check("a builder that reads a file", model="reading")
    wrote("factor.txt", "0.1")
    check("that file edited", model="reading")
    check("not edited", reused=True, model="reading")
    draw = np.random.default_rng(0)
    arrays = {"x_train": draw.random((60, 1, 8, 8), dtype=np.float32), "y_train": draw.integers(0, 3, 60)}
    arrays |= {"x_test": arrays["x_train"][:20].copy(), "y_test": arrays["y_train"][:20]}
    np.savez("own.npz", **arrays)
    check("a data file", data="npz:own.npz")
    arrays["x_train"][0] += 1
    np.savez("own.npz", **arrays)
    check("a data file edited", data="npz:own.npz")
    cell(NET)
    run = fedstill.run("fedavg", data=DIGITS, model="mine", out=ROOT / "runs", **SMALL)
    weights = load_file(run.path / "model-last.safetensors")
    save_file({name.removeprefix("mine/"): tensor for name, tensor in weights.items()}, "w.safetensors")
    taught = {"method": {"name": "distill", "share": 0.2}, "objective": "vanilla", "clients": 1}
    taught |= {"teachers": [{"file": "w.safetensors", "model": "mine"}]}
    check("a student", method=taught, training={"batch": 128})
    cell(NET.replace("relu", "tanh"))
    check("a student whose teacher's model was edited", method=taught, training={"batch": 128})
    try:
        run.model()
    except fedstill.InputError as error:
        told.append(["weights of a model that was edited", True, "was edited since" in str(error), "refused"])
    if not isinstance(engine, Processes):  # workers have the package as it is
        before = FedAvg.aggregate
        FedAvg.aggregate = lambda *given: {name: tensor * 0.5 for name, tensor in before(*given).items()}  # type: ignore
        check("a method of the package, patched")
        FedAvg.aggregate = before  # type: ignore[method-assign]
        check("and not patched")


if __name__ == "__main__":
    found: list[Any] = []
    with Processes(2) if sys.argv[1:] == ["processes"] else nullcontext("in-process") as chosen:
        main(chosen, found)
    print(json.dumps(found))
