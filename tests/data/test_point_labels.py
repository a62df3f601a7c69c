"""What data with a label for every point is split by."""

from __future__ import annotations

import pytest
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.data.bundle import Bundle
from fedstill.data.point_labels import kind_names


@pytest.mark.parametrize(
    ("categories", "kinds", "names"),
    [
        (None, (), ("shapes",)),
        ([0, 2], (), ("kind 0", "kind 1", "kind 2")),
        ([0, 2], ("cup", "pan"), ("cup", "pan", "kind 2")),
        ([0, 1], ("cup", "pan", "never seen"), ("cup", "pan")),
    ],
)
def test_kinds_that_nobody_named(categories: list[int] | None, kinds: tuple[str, ...], names: tuple[str, ...]) -> None:
    columns = {"inputs": torch.rand(2, 5, 3), "labels": torch.zeros(2, 5, dtype=torch.int64)}
    if categories is not None:
        columns["category"] = torch.tensor(categories)
    data = ArrayDataset(**columns)
    assert kind_names(Bundle("mine", data, data, ("a", "b"), "cloud", (5, 3), categories=kinds)) == names
