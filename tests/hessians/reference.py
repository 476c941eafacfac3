"""What the package computes, once more: by plain loops over pairs and by autograd, from the definitions alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from hessians import ContrastiveLoss, Pairs

PairCounts = dict[tuple[int, int], int]

LEAST_DISTANCE = 0.02  # of points that do not coincide, with the un-squared distance


@dataclass
class Problem:
    """A last layer with pairs, and the same pairs as plain dictionaries {(i, j): how often}."""

    features: Tensor
    weight: Tensor
    bias: Tensor
    labels: Tensor
    loss: ContrastiveLoss

    @property
    def u(self) -> Tensor:
        return self.features @ self.weight.T + self.bias

    @property
    def inputs(self) -> Tensor:
        """x = [h, 1]."""
        return torch.cat([self.features, torch.ones(len(self.features), 1, dtype=self.features.dtype)], dim=1)

    @property
    def pairs(self) -> Pairs:
        return Pairs.from_labels(self.labels)

    def counts(self) -> tuple[PairCounts, PairCounts]:
        positive, negative = {}, {}
        for i, j in itertools.combinations(range(len(self.labels)), 2):
            (positive if self.labels[i] == self.labels[j] else negative)[i, j] = 1
        return positive, negative

    def scale(self) -> Tensor:
        """The sum of absolute contributions to each column of the diagonal, (H + 1,)."""
        return absolute_contributions(self.u, self.inputs, *self.counts(), self.loss)

    def listed(self) -> Pairs:
        """The same pairs as an explicit list."""
        return listed_pairs(*self.counts(), len(self.labels))


def listed_pairs(
    positive: PairCounts, negative: PairCounts, num_images: int, population: tuple[float, float] | None = None
) -> Pairs:
    """Pairs from dictionaries, every repeat listed, alternating between the two orders."""
    columns: list[Tensor] = []
    for counts in (positive, negative):
        rows = [pair if k % 2 else pair[::-1] for pair, n in counts.items() for k in range(n)]
        columns += list(torch.tensor(rows, dtype=torch.long).reshape(-1, 2).T)
    return Pairs.from_indices(columns, num_images, population=population)


@st.composite
def problems(draw: st.DrawFn, max_images: int = 8, max_dim: int = 4) -> Problem:
    """Random shapes, classes, margins, weights and distances; some images are duplicates of others.

    With the un-squared distance no two points nearly coincide: its derivatives grow as the inverse of the distance, and
    their rounding errors with them.
    """
    num = draw(st.integers(1, max_images))
    dim = draw(st.integers(1, max_dim))
    width = draw(st.integers(1, 5))
    labels = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=num, max_size=num)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    features = torch.randn(num, width, generator=generator, dtype=torch.float64)
    if num > 1 and draw(st.booleans()):
        features[-1] = features[0]
    weight = torch.randn(dim, width, generator=generator, dtype=torch.float64)
    bias = torch.randn(dim, generator=generator, dtype=torch.float64)
    problem = Problem(features, weight, bias, labels, draw(losses()))
    if problem.loss.power == 1:
        points = normalized(problem.u) if problem.loss.normalize else problem.u
        distances = torch.pdist(points.detach())
        assume(not bool(((distances > 1e-12) & (distances < LEAST_DISTANCE)).any()))
    return problem


@st.composite
def losses(draw: st.DrawFn) -> ContrastiveLoss:
    distance, normalize = draw(st.sampled_from([("arccos", True), ("euclidean", True), ("euclidean", False)]))
    return ContrastiveLoss(
        margin=draw(st.floats(0.2, 2.5)),
        distance=distance,
        normalize=normalize,
        negative_weight=draw(st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0])),
        power=draw(st.sampled_from([1, 2])),
    )


def normalized(u: Tensor) -> Tensor:
    return u / u.norm(dim=1, keepdim=True)


def value_of_points(
    points: Tensor,
    positive: PairCounts,
    negative: PairCounts,
    loss: ContrastiveLoss,
    *,
    only_positives: bool = False,
) -> Tensor:
    """Eq. 24 of the paper, pair by pair; ``only_positives`` weighs each positive 1/|P| and drops the negatives."""
    num_positives, num_negatives = sum(positive.values()), sum(negative.values())
    total = points.sum() * 0
    for (i, j), times in positive.items():
        weight = 1 / num_positives if only_positives else 2 * (1 - loss.negative_weight) / num_positives
        total = total + times * weight * pair_value(points[i], points[j], loss, positive=True)
    for (i, j), times in {} if only_positives else negative.items():
        value = pair_value(points[i], points[j], loss, positive=False)
        total = total + times * 2 * loss.negative_weight / num_negatives * value
    return total


def pair_value(first: Tensor, second: Tensor, loss: ContrastiveLoss, *, positive: bool) -> Tensor:
    """d^2/2 or (m^2 - d^2)/2 inside the margin, un-squared d or m - d, with d at least m/1000."""
    squared = (first - second).square().sum()
    if not positive and not squared.detach() < loss.margin**2:
        return squared * 0
    if loss.power == 2:
        return squared / 2 if positive else (loss.margin**2 - squared) / 2
    closest = loss.margin / 1000
    distance = squared.sqrt() if squared.detach() > closest**2 else squared * 0 + closest
    return distance if positive else loss.margin - distance


def output_hessian(
    u: Tensor, positive: PairCounts, negative: PairCounts, loss: ContrastiveLoss, approximation: str
) -> Tensor:
    """M as (N, Z, N, Z) from autograd: the Hessian in u for Arccos; in z, pulled back by the norm, for Euclidean."""
    only_positives = approximation == "positive"

    def value(points: Tensor) -> Tensor:
        return value_of_points(points, positive, negative, loss, only_positives=only_positives)

    if not loss.normalize:
        return treat(torch.autograd.functional.hessian(value, u), approximation)
    if loss.distance == "arccos":
        return treat(torch.autograd.functional.hessian(lambda v: value(normalized(v)), u), approximation)
    in_points = treat(torch.autograd.functional.hessian(value, normalized(u)), approximation)
    jacobian = torch.autograd.functional.jacobian(normalized, u)
    return torch.einsum("abnk,abcd,cdml->nkml", jacobian, in_points, jacobian)


def treat(hessian: Tensor, approximation: str) -> Tensor:
    """ "fixed" and "clipped" of a Hessian (N, Z, N, Z)."""
    num, dim = hessian.shape[:2]
    if approximation == "fixed":
        return hessian * torch.eye(num, dtype=hessian.dtype)[:, None, :, None]
    if approximation == "clipped":
        values, vectors = torch.linalg.eigh(hessian.reshape(num * dim, num * dim))
        return ((vectors * values.clamp(min=0)) @ vectors.T).view_as(hessian)
    return hessian


def last_layer_diagonal(matrix: Tensor, inputs: Tensor) -> Tensor:
    """diag(J^T M J) of a last layer for M (N, Z, N, Z), (Z, H + 1)."""
    return torch.einsum("nkmk,nh,mh->kh", matrix, inputs, inputs)


def absolute_contributions(
    u: Tensor, inputs: Tensor, positive: PairCounts, negative: PairCounts, loss: ContrastiveLoss
) -> Tensor:
    """sum over pairs of |y| (|x_i|/n_i + |x_j|/n_j)^2, (H + 1,): what the terms add up to if none cancels another.

    Un-squared, each is divided by d, twice since two terms of this size cancel.
    """
    points = normalized(u) if loss.normalize else u
    scaled = inputs.abs() / (u.norm(dim=1, keepdim=True) if loss.normalize else 1)
    total = torch.zeros(inputs.shape[1], dtype=inputs.dtype)
    for counts in (positive, negative):
        for (i, j), times in counts.items():
            weight = 2 * times / sum(counts.values())
            if loss.power == 1:
                weight *= 2 / max(float((points[i] - points[j]).norm()), loss.margin / 1000)
            total += weight * (scaled[i] + scaled[j]).square()
    return total


def assert_close(actual: Tensor, expected: Tensor, scale: Tensor, tolerance: float = 1e-10) -> None:
    """Agreement to ``tolerance`` of the sum of absolute contributions, entry by entry."""
    excess = (actual - expected).abs() - tolerance * scale
    assert actual.shape == expected.shape
    assert bool((excess <= 1e-300).all()), f"off by up to {float((actual - expected).abs().max())}"


def dense_ggn(problem: Problem, approximation: str, *, project: bool = False) -> Tensor:
    """G over [W | b], (Z, H', Z, H'), from the definition; of the positive part where it is projected."""
    if project:
        hessian = problem.loss.output_hessian(problem.u, problem.pairs, approximation)
        matrix = hessian.positive_part().dense()
    else:
        matrix = output_hessian(problem.u, *problem.counts(), problem.loss, approximation)
    return torch.einsum("nkml,nh,mg->khlg", matrix, problem.inputs, problem.inputs)
