"""Small peers with a model of their own, as their owners would hand them over: files of weights, and a data file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

CLASSES = 4
NETS = """
from torch import nn

def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, classes))

def wide(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, classes))
"""
QUICK = {"transfer_epochs": 3, "training.batch": 16, "training.rate": 0.01}


def net(width: int = 8, classes: int = CLASSES) -> nn.Sequential:
    middle: nn.Module = nn.ReLU() if width == 8 else nn.Tanh()
    return nn.Sequential(nn.Flatten(), nn.Linear(36, width), middle, nn.Linear(width, classes))


def samples(count: int = 160) -> tuple[Tensor, Tensor]:
    """Images of 6 x 6 whose class is the bright row, with noise."""
    drawn = np.random.default_rng(5)
    labels = np.arange(count) % CLASSES
    images = drawn.normal(0, 0.8, (count, 1, 6, 6)).astype("float32")
    images[np.arange(count), 0, labels] += 1
    return torch.from_numpy(images), torch.from_numpy(labels)


def taught(classes: tuple[int, ...], width: int = 8, seed: int = 0) -> nn.Sequential:
    """A model that has seen samples of these classes only."""
    torch.manual_seed(seed)
    model, (images, labels) = net(width), samples()
    rows = torch.isin(labels, torch.tensor(classes))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()
    return model


def data_file(path: Path, own: tuple[int, ...] = (0, 1), held_out: tuple[int, ...] = (0, 1, 2, 3)) -> Path:
    """The asker's archive: training samples of its own classes, and held-out ones of these."""
    images, labels = samples()
    last = torch.arange(len(labels)) >= 120
    train = ~last & torch.isin(labels, torch.tensor(own))
    test = last & torch.isin(labels, torch.tensor(held_out))
    arrays = {"x_train": images[train], "y_train": labels[train], "x_test": images[test], "y_test": labels[test]}
    words = np.array(["ash", "birch", "cedar", "date"][:CLASSES])
    np.savez(path, classes=words, **{name: one.numpy() for name, one in arrays.items()})
    return path


def hand_over(folder: Path) -> Path:
    """Two peers' checkpoints of different models, their description, the asker's own, and its data."""
    peers = folder / "peers"
    peers.mkdir(parents=True)
    save_file(taught((1, 2)).state_dict(), peers / "north.safetensors")
    save_file(taught((0, 3), width=12).state_dict(), peers / "south.safetensors")
    (peers / "peers.yaml").write_text("south: {model: 'small_nets:wide', recall: {date: 0.75}}\n")
    save_file(taught((0, 1), seed=3).state_dict(), folder / "mine.safetensors")
    (folder / "small_nets.py").write_text(NETS)
    data_file(folder / "mine.npz")
    return peers
