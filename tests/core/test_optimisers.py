"""The fused kernels against `torch.optim`, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.optimisers import Adam, Optimiser, Sgd

from ..warm import Warm

KINDS: list[tuple[Any, Any]] = [
    (lambda p: Sgd(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, fused=True)),
    (lambda p: Sgd(p, 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True)),
    (
        lambda p: Sgd(p, 0.1, 0.9, 0.01),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, fused=True),
    ),
    (lambda p: Adam(p, 0.01), lambda p: torch.optim.Adam(p, 0.01, fused=True)),
    (lambda p: Adam(p, 0.01, 0.1), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1, fused=True)),
    (lambda p: Adam(p, 0.01, 0.1, True), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1, fused=True)),
]


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (5,), ())]


def walk(mine: list[nn.Parameter], optimiser: Any, missing: dict[int, int]) -> None:
    """Seven steps on fixed gradients; `missing` says which parameter has none in which step."""
    generator = torch.Generator().manual_seed(2)
    for step in range(7):
        for index, weight in enumerate(mine):
            gradient: Tensor | None = torch.randn(weight.shape, generator=generator)
            weight.grad = None if missing.get(step) == index else gradient
        optimiser.step()


@pytest.mark.parametrize("missing", [{}, {3: 1}])
@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_equal_to_torch_optim_bit_for_bit(ours: Any, theirs: Any, missing: dict[int, int]) -> None:
    mine, reference = weights(), weights()
    walk(mine, ours(mine), missing)
    walk(reference, theirs(reference), missing)
    for one, other in zip(mine, reference, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("ours", [ours for ours, _ in KINDS])
def test_a_parameter_whose_first_gradient_comes_late_starts_like_any_other(ours: Any) -> None:
    """Parameter 0 has no gradient in step 0; from then on it moves as one that joined with a fresh optimiser."""
    (late,) = weights()[:1]
    start = late.detach().clone()
    optimiser: Optimiser = ours([late, other := nn.Parameter(torch.ones(2))])
    other.grad = torch.ones(2)
    optimiser.step()
    assert torch.equal(late, start)
    late.grad = torch.ones_like(late)
    optimiser.step()
    alone = nn.Parameter(start.clone())
    fresh: Optimiser = ours([alone])
    alone.grad = torch.ones_like(alone)
    fresh.step()
    assert torch.equal(late, alone)


def test_gradients_are_forgotten() -> None:
    (weight,) = weights()[:1]
    weight.grad = torch.ones_like(weight)
    Sgd([weight], 0.1).zero_grad()
    assert weight.grad is None


def test_training_does_not_import_the_compiler(foreign: Warm, tmp_path: Path) -> None:
    """The reason for this module: torch's compiler takes longer to import than a small run takes."""
    code = (
        "import sys, torch\nfrom fedstill.core.optimisers import Sgd\n"
        "w = torch.nn.Parameter(torch.ones(2)); w.grad = torch.ones(2); Sgd([w], 0.1, 0.9).step()\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = foreign.python(code, tmp_path)
    assert done.stdout.strip() == "False", done.stderr
