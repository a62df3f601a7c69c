"""Parts of the detector: tokens above the floor, attention with prompts, the choice of queries, headings."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from fedstill.detection.model.attention import PromptedAttention
from fedstill.detection.model.detector import _headings, chosen_tokens
from fedstill.detection.model.tokens import Tokens, above_the_floor, floor_height
from fedstill.models.pointnet2_levels import Ball


def tokens(floor: float = 0.1) -> Tokens:
    return Tokens(Ball(20, 0.6, 8), 16, floor, places=19)


def test_the_floor_is_where_hardly_any_point_is_lower() -> None:
    """Of 200 points the second lowest: one point in a hundred may be noise."""
    heights = torch.arange(200.0)
    cloud = torch.stack([heights, heights, heights.flip(0)], dim=1)
    assert floor_height(cloud.unsqueeze(0)).tolist() == [1.0]


def test_a_cloud_that_is_all_floor_is_kept() -> None:
    flat = torch.rand(2, 50, 3) * torch.tensor([1.0, 1.0, 0.05])
    assert torch.equal(above_the_floor(flat, 0.1), flat)


def test_no_token_lies_on_the_floor(rooms: Tensor) -> None:
    low = floor_height(rooms)[:, None]
    assert (rooms[..., 2] < low + 0.1).float().mean() > 0.1
    for fast in (True, False):
        module = tokens()
        module.fast = fast
        positions, _ = module(rooms)
        assert (positions[..., 2] > low + 0.1).all()
        assert all(len(one.unique(dim=0)) == 20 for one in positions)
    assert (tokens(floor=0.0)(rooms)[0][..., 2] < low + 0.1).any()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_fast_way_gives_what_plain_torch_gives(training: bool, rooms: Tensor) -> None:
    quick = tokens()
    quick(rooms)
    plain = deepcopy(quick)
    plain.fast = False
    found = []
    for module in (quick.train(training), plain.train(training)):
        with torch.set_grad_enabled(training):
            positions, features = module(rooms)
        if training:
            features.square().sum().backward()
        found.append((positions, features, module))
    (here, one, _), (there, two, _) = found
    assert torch.equal(here, there)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-4)
    if training:
        for ours, theirs in zip(quick.level.layers(), plain.level.layers(), strict=True):
            torch.testing.assert_close(ours[0].weight.grad, theirs[0].weight.grad, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(ours[1].running_var, theirs[1].running_var)


def test_a_cloud_with_fewer_places_than_tokens_repeats_them() -> None:
    few = torch.rand(2, 6, 3).repeat(1, 5, 1)
    positions, features = tokens(floor=0.0)(few)
    assert positions.shape == (2, 20, 3)
    assert torch.equal(positions[0, 6:], positions[0, :1].expand(14, -1))
    assert torch.equal(features[0, 6:], features[0, :1].expand(14, -1))


def by_hand(layer: PromptedAttention, queries: Tensor, others: Tensor, prompts: Tensor) -> Tensor:
    """One query, head and key after the other."""
    out = torch.zeros(len(queries), layer.query.out_features)
    wide = layer.query.out_features // layer.heads
    for row, query in enumerate(queries):
        for head in range(layer.heads):
            part = slice(head * wide, (head + 1) * wide)
            asked = layer.query(query)[part]
            known = [*prompts[0, head], *(layer.key(other)[part] for other in others)]
            told = [*prompts[1, head], *(layer.value(other)[part] for other in others)]
            weights = torch.stack([asked @ one / math.sqrt(wide) for one in known]).softmax(0)
            out[row, part] = sum(weight * one for weight, one in zip(weights, told, strict=True))
    return layer.out(out)


def test_attention_with_prompts_against_loops() -> None:
    layer = PromptedAttention(6, 2)
    queries, others, prompts = torch.randn(2, 3, 6), torch.randn(2, 4, 6), torch.randn(2, 2, 5, 3)
    found = layer(queries, others, others, prompts)
    for row in range(2):
        torch.testing.assert_close(found[row], by_hand(layer, queries[row], others[row], prompts))
    none = torch.zeros(2, 2, 0, 3)
    torch.testing.assert_close(layer(queries, others, others)[0], by_hand(layer, queries[0], others[0], none))


def test_queries_are_far_apart_among_the_most_object_like() -> None:
    """The three likeliest tokens are 3, 1 and 4. From the likeliest, at 0, the farthest is 4, at 9; 1 lies next to 3.

    Token 0 votes for a place farther away, but is not object-like.
    """
    objectness = torch.tensor([[-5.0, 2.0, -4.0, 3.0, 1.0]])
    votes = torch.zeros(1, 5, 3)
    votes[0, :, 0] = torch.tensor([50.0, 0.5, 40.0, 0.0, 9.0])
    assert chosen_tokens(objectness, votes, candidates=3, queries=2).tolist() == [[3, 4]]
    assert chosen_tokens(objectness, votes, candidates=5, queries=2).tolist() == [[3, 0]]


def test_votes_that_are_no_numbers_are_somewhere() -> None:
    votes = torch.tensor([[[math.nan, 0, 0], [math.inf, 0, 0], [1.0, 0, 0]]])
    chosen = chosen_tokens(torch.tensor([[0.0, math.nan, 1.0]]), votes, candidates=3, queries=3)
    assert sorted(chosen[0].tolist()) == [0, 1, 2]
    assert chosen[0, 0] == 2


def test_headings_from_bins() -> None:
    """Of four bins the third is around pi, half a bin being pi/4: pi + 0.5 * pi/4 is -7/8 pi; the first -0.2 * pi/4."""
    logits = torch.tensor([[0.0, 0.0, 3.0, 0.0], [3.0, 0.0, 0.0, 0.0]])
    residuals = torch.tensor([[9.0, 9.0, 0.5, 9.0], [-0.2, 9.0, 9.0, 9.0]])
    expected = torch.tensor([[-7 / 8 * math.pi], [-0.05 * math.pi]])
    torch.testing.assert_close(_headings(logits, residuals), expected)
