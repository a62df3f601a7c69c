"""One level of PointNet++ on distinct rows: the same function as the plain level, several times faster on a CPU.

Every step is algebraically equivalent to the plain level, and is tested against it:

* Rows that padding, dropout or sampling repeat are computed once and weigh more in BatchNorm's statistics.
* The first linear map is applied before gathering, W [offset, f] = Wx offset + Wf f, so that its cost and its
  statistics are those of the points below and not of their many copies. The idea is that of "Mesorasi: Architecture
  Support for Point Cloud Analytics via Delayed-Aggregation", https://arxiv.org/abs/2008.06967.
* relu(BatchNorm(z)) is monotone in each channel, so the maximum over a group is taken of z itself (of -z where
  gamma is negative: the sign goes into the weights), and BatchNorm and ReLU are applied to the maxima only.
* Behind the maximum the gradient is one number per group and channel plus BatchNorm's correction, which is linear in
  z = W a: its products with W and with a collapse to a (W' D W) and (a' a) W', and z itself is not needed again.
* Biases before BatchNorm have no effect in training, and a gradient of exactly zero.

Only the second layer's output is stored for the gradient; activations are recomputed in cache-sized pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstill.models.batchnorm import fold
from fedstill.models.kernels.buffers import Buffer, pool
from fedstill.models.kernels.compact import Rows

Array = npt.NDArray[Any]
Report = Callable[[Array, Array], None]  # receives mean and biased variance of a layer's inputs to BatchNorm


def single(values: Array) -> Array:
    """Channel-wise numbers are computed in double precision and used in single precision."""
    return np.ascontiguousarray(values, dtype=np.float32)


def double(tensor: Tensor) -> Array:
    array: Array = tensor.detach().double().numpy()
    return array


@dataclass(frozen=True)
class Norm:
    """BatchNorm on one batch: its statistics (biased variance), and itself as scale * z + shift."""

    mean: Array
    variance: Array
    inverse: Array
    scale: Array
    shift: Array

    @classmethod
    def of(cls, mean: Array, variance: Array, gamma: Array, beta: Array, eps: float) -> Norm:
        inverse = 1 / np.sqrt(np.maximum(variance, 0) + eps)
        return cls(mean, variance, inverse, gamma * inverse, beta - gamma * inverse * mean)

    @classmethod
    def from_sums(cls, sums: Array, squares: Array, total: float, gamma: Array, beta: Array, eps: float) -> Norm:
        mean = sums / total
        return cls.of(mean, squares / total - mean * mean, gamma, beta, eps)

    def backward_terms(self, sums: Array, products: Array, total: float) -> tuple[Array, Array, Array]:
        """Gamma's gradient, and `flat`, `slope` of dz = scale * d - weight * (flat + slope * z).

        `sums` and `products` are those of d and of d z over all rows; the gradient of beta is `sums`.
        """
        gamma = self.inverse * (products - self.mean * sums)
        slope = self.scale * self.inverse * gamma / total
        return gamma, self.scale * sums / total - slope * self.mean, slope


class First:
    """The first layer: never materialised, recomputed from the points below wherever it is needed."""

    def __init__(self, rows: Rows, mapped: Tensor, weights: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> None:
        """Statistics from sums over points and over offsets.

        With u = mapped - mean and o = offset - mean, the sum of w z^2 about the mean splits into sums of
        u (n u + 2 Wx (sum of w o)) over the points below, and Wx (sum of w o o') Wx'.
        """
        from fedstill.models.kernels import compiled_rows as kernels

        self.rows, self.mapped, self.across = rows, mapped, double(weights[:, :3])
        offsets, products, times, sums = rows.moments
        centre = offsets / rows.total
        covariance = products / rows.total - np.multiply.outer(centre, centre)
        mean = (self.across * centre).sum(1)
        variance = np.einsum("ca,ab,cb->c", self.across, covariance, self.across)
        if rows.sources:
            total, unused = np.zeros(len(mean)), np.zeros(len(mean))
            kernels.add_moments(mapped.numpy(), single(times), total, unused)
            middle = total / rows.total
            around = single(sums - times[:, None] * centre)
            across = single(self.across.T)
            spread = kernels.spread_of_mapped(mapped.numpy(), single(middle), single(times), around, across)
            mean, variance = mean + middle, variance + spread / rows.total
        self.norm = Norm.of(mean, variance, double(gamma), double(beta), eps)
        self.fold()

    def fold(self) -> None:
        """Folds BatchNorm into the weights and the mapped features."""
        self.folded = self.mapped * torch.from_numpy(single(self.norm.scale))
        self.weights = single(self.norm.scale * self.across.T)
        self.shift = single(self.norm.shift)

    def into(self, piece: slice, out: Tensor) -> None:
        """Activations of some rows."""
        from fedstill.models.kernels import compiled_rows as kernels

        source, offset = self.rows.source[piece], self.rows.offset[piece]
        kernels.first_layer(source, offset, self.folded.numpy(), self.weights, self.shift, out.numpy())

    def gradients(self, sums: Array, by_source: Tensor) -> tuple[Array, Array, Array]:
        """Gradients of the coordinates' weights, gamma and beta; `by_source` becomes that of `mapped`.

        `sums` contains the gradient behind ReLU, times each offset and plain, summed over all rows.
        """
        from fedstill.models.kernels import compiled_rows as kernels

        offsets, products, times, by_offset = self.rows.moments
        along, beta = sums[:3].T, sums[3]
        seen = (self.across * along).sum(1)
        inner = np.einsum("ca,ab->cb", self.across, products)
        if self.rows.sources:
            kernels.add_products(by_source.numpy(), self.mapped.numpy(), seen)
            inner = inner + double(self.mapped.t() @ torch.from_numpy(single(by_offset)))
        gamma, flat, slope = self.norm.backward_terms(beta, seen, self.rows.total)
        across = self.norm.scale[:, None] * along - flat[:, None] * offsets - slope[:, None] * inner
        if self.rows.sources:
            kernels.back_through_mapped(
                by_source.numpy(),
                self.mapped.numpy(),
                single(times),
                single(by_offset),
                single(self.across.T),
                *map(single, (self.norm.scale, flat, slope)),
            )
        return across, gamma, beta


class TrainLevel(torch.autograd.Function):
    """A level in training mode. Its `state` is weight, bias, gamma and beta of each of the three layers."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Rows,
        eps: Sequence[float],
        report: Callable[[list[tuple[Array, Array]]], None],
        features: Tensor | None,
        *state: Tensor,
    ) -> Tensor:
        from fedstill.models.kernels import compiled_rows as kernels

        w1, _, g1, b1, w2, _, g2, b2, w3, _, g3, b3 = state
        width1, width2, width3 = len(w1), len(w2), len(w3)
        pieces = rows.pieces(max(width1, width2, width3))
        mapped = w1.new_empty(0, width1) if features is None else features @ w1[:, 3:].t()
        first = First(rows, mapped, w1, g1, b1, eps[0])

        longest = max(len(piece.weight) for piece in pieces)
        active, wide = pool.lend(longest * max(width1, width2)), pool.lend(longest * width3)
        kept = pool.lend(len(rows) * width2)
        second = kept.view(len(rows), width2)
        sums, squares = np.zeros(width2), np.zeros(width2)
        for piece in pieces:
            seen, out = active.view(len(piece.weight), width1), second[piece.rows]
            first.into(piece.rows, seen)
            torch.mm(seen, w2.t(), out=out)
            kernels.add_moments(out.numpy(), piece.weight, sums, squares)
        two = Norm.from_sums(sums, squares, rows.total, double(g2), double(b2), eps[1])

        sign = torch.where(g3 < 0, -1.0, 1.0)
        turned, signed = double(sign), w3 * sign.unsqueeze(1)
        best, place = torch.empty(rows.groups, width3), np.empty((rows.groups, width3), np.int32)
        scale, shift = single(two.scale), single(two.shift)
        sums, squares = np.zeros(width3), np.zeros(width3)
        for piece in pieces:
            seen, out = active.view(len(piece.weight), width2), wide.view(len(piece.weight), width3)
            kernels.activate(second[piece.rows].numpy(), scale, shift, seen.numpy())
            torch.mm(seen, signed.t(), out=out)
            kernels.add_moments(out.numpy(), piece.weight, sums, squares)
            kernels.pool_with_places(out.numpy(), piece.starts, best[piece.groups].numpy(), place[piece.groups])
        three = Norm.from_sums(sums, squares, rows.total, double(g3) * turned, double(b3), eps[2])
        pooled = torch.empty_like(best)
        kernels.activate(best.numpy(), single(three.scale), single(three.shift), pooled.numpy())

        report([(one.mean, one.variance) for one in (first.norm, two)] + [(three.mean * turned, three.variance)])
        ctx.save_for_backward(features, best, pooled, w1, w2, signed)
        ctx.first, ctx.two, ctx.three, ctx.turned = first, two, three, turned
        ctx.pieces, ctx.kept, ctx.place = pieces, kept, place
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from fedstill.models.kernels import compiled_rows as kernels

        features, best, pooled, w1, w2, signed = ctx.saved_tensors
        first: First = ctx.first
        two: Norm = ctx.two
        three: Norm = ctx.three
        rows, kept = first.rows, ctx.kept
        width1, width2, width3 = len(w1), len(w2), len(signed)
        longest = max(len(piece.weight) for piece in ctx.pieces)
        active, into = pool.lend(longest * max(width1, width2)), pool.lend(longest * width1)
        back: Buffer = pool.lend(len(rows) * width2)
        second, into_second = kept.view(len(rows), width2), back.view(len(rows), width2)

        # The third BatchNorm in terms of sign * z: `direct` goes to the rows of the maxima, the rest to all rows.
        arriving = gradient.clone(memory_format=torch.contiguous_format)
        beta3, seen3 = np.zeros(width3), np.zeros(width3)
        kernels.mask_and_add(arriving.numpy(), pooled.numpy(), best.numpy(), beta3, seen3)
        gamma3, flat, slope = three.backward_terms(beta3, seen3, rows.total)
        direct = arriving.mul_(torch.from_numpy(single(three.scale))).numpy()
        precise = signed.double()
        mixing = (torch.mm(precise.t() * torch.from_numpy(slope), precise)).float()
        constant = single(torch.mv(precise.t(), torch.from_numpy(flat)).numpy())
        square, into_w3 = torch.zeros(width2, width2), torch.zeros(width3, width2)
        mass, beta2, seen2 = np.zeros(width2), np.zeros(width2), np.zeros(width2)
        scale, shift, heavy = single(two.scale), single(two.shift), signed.numpy()
        for piece in ctx.pieces:
            seen, out, before = active.view(len(piece.weight), width2), into_second[piece.rows], second[piece.rows]
            kernels.activate_weighted(before.numpy(), scale, shift, piece.root, seen.numpy(), mass)
            square.addmm_(seen.t(), seen)
            torch.mm(seen, mixing, out=out)
            kernels.back_through_pool(
                direct[piece.groups],
                ctx.place[piece.groups],
                piece.starts,
                seen.numpy(),
                piece.root,
                heavy,
                constant,
                out.numpy(),
                into_w3.numpy(),
            )
            kernels.mask_and_add(out.numpy(), seen.numpy(), before.numpy(), beta2, seen2)
        into_w3 -= torch.from_numpy(single(np.multiply.outer(flat, mass)))
        into_w3 -= torch.from_numpy(single(slope)).unsqueeze(1) * (signed @ square)
        turned = torch.from_numpy(ctx.turned)
        into_w3 *= turned.float().unsqueeze(1)

        gamma2, flat, slope = two.backward_terms(beta2, seen2, rows.total)
        into_w2 = torch.zeros(width2, width1)
        sums, by_source = np.zeros((4, width1)), torch.zeros(rows.sources, width1)
        terms = single(two.scale), single(flat), single(slope)
        for piece in ctx.pieces:
            seen, out = active.view(len(piece.weight), width1), into_second[piece.rows]
            first.into(piece.rows, seen)
            kernels.back_through_norm(out.numpy(), second[piece.rows].numpy(), piece.weight, *terms)
            into_w2.addmm_(out.t(), seen)
            below = into.view(len(piece.weight), width1)
            torch.mm(out, w2, out=below)
            kernels.back_to_sources(
                below.numpy(), seen.numpy(), rows.source[piece.rows], rows.offset[piece.rows], sums, by_source.numpy()
            )
        across, gamma1, beta1 = first.gradients(sums, by_source)
        into_w1 = torch.from_numpy(single(across))
        into_features = None
        if features is not None:
            into_w1 = torch.cat([into_w1, by_source.t() @ features], dim=1)
            into_features = by_source @ w1[:, 3:]

        vectors = [torch.from_numpy(single(v)) for v in (gamma1, beta1, gamma2, beta2, gamma3 * ctx.turned, beta3)]
        zeros = [torch.zeros(width) for width in (width1, width2, width3)]
        layer1, layer2 = (into_w1, zeros[0], *vectors[:2]), (into_w2, zeros[1], *vectors[2:4])
        return None, None, None, into_features, *layer1, *layer2, into_w3, zeros[2], *vectors[4:]


def infer_level(
    rows: Rows,
    features: Tensor | None,
    layers: list[tuple[nn.Linear, nn.BatchNorm1d]],
    moments: Mapping[int, Report] | None = None,
) -> Tensor:
    """(groups, channels) in evaluation: three layers on every row with folded BatchNorm, and each group's maximum.

    `moments` receive the mean and variance of a layer's inputs to BatchNorm, without the linear map's bias, by the
    number of the layer. Those of the second and third layer cost one more product.
    """
    from fedstill.models.kernels import compiled_rows as kernels

    moments = moments or {}
    if 0 in moments:
        linear, norm = layers[0]
        weight = linear.weight.detach()
        below = weight.new_empty(0, len(weight)) if features is None else features @ weight[:, 3:].t()
        first_norm = First(rows, below, weight, norm.weight, norm.bias, norm.eps).norm
        moments[0](first_norm.mean, first_norm.variance)
    plain = {which: linear.weight.detach() for which, (linear, _) in enumerate(layers) if which in moments}
    sums = {which: (np.zeros(len(weight)), np.zeros(len(weight))) for which, weight in plain.items()}
    (w1, b1), (w2, b2), (w3, b3) = ([part.float() for part in fold(*layer)] for layer in layers)
    width1, width2, width3 = len(w1), len(w2), len(w3)
    mapped = w1.new_empty(0, width1) if features is None else features @ w1[:, 3:].t()
    across: Array = np.ascontiguousarray(w1[:, :3].t().numpy())
    pieces = rows.pieces(max(width1, width2, width3))
    longest = max(len(piece.weight) for piece in pieces)
    one, two, three = (pool.lend(longest * width) for width in (width1, width2, width3))
    best = torch.empty(rows.groups, width3)
    for piece in pieces:
        size = len(piece.weight)
        first, second, third = one.view(size, width1), two.view(size, width2), three.view(size, width3)
        source, offset = rows.source[piece.rows], rows.offset[piece.rows]
        kernels.first_layer(source, offset, mapped.numpy(), across, b1.numpy(), first.numpy())
        if 1 in plain:
            torch.mm(first, plain[1].t(), out=second)
            kernels.add_moments(second.numpy(), piece.weight, *sums[1])
        torch.addmm(b2, first, w2.t(), out=second).relu_()
        if 2 in plain:
            torch.mm(second, plain[2].t(), out=third)
            kernels.add_moments(third.numpy(), piece.weight, *sums[2])
        torch.mm(second, w3.t(), out=third)
        kernels.pool_rows(third.numpy(), piece.starts, best[piece.groups].numpy())
    for which in plain.keys() - {0}:
        total, squares = sums[which]
        moments[which](total / rows.total, squares / rows.total - (total / rows.total) ** 2)
    return best.add_(b3).relu_()
