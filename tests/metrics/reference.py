"""The metrics once more, by plain loops that read like their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize


def unit(num: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(num, dim, generator=generator, dtype=dtype), dim=1)


def clustered(num: int, dim: int, classes: int, spread: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors around class centres, in float32, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = normalize(torch.randn(classes, dim, generator=generator), dim=1)
    labels = torch.randint(classes, (num,), generator=generator)
    noise = spread * torch.randn(num, dim, generator=generator)
    return normalize(centres[labels] + noise, dim=1), labels


@st.composite
def labelled(draw: st.DrawFn, max_images: int = 14) -> tuple[Tensor, list[int]]:
    """Unit vectors with labels, where some class has two images and others may have one."""
    num = draw(st.integers(3, max_images))
    labels = draw(st.lists(st.integers(0, 4), min_size=num - 2, max_size=num - 2))
    return unit(num, draw(st.integers(2, 4)), seed=draw(st.integers(0, 2**31))), [0, 0, *labels]


def relevance(z: Tensor, labels: Sequence[int]) -> list[list[bool]]:
    """For each query, in the order of the distance, whether the others are of its class."""
    lists = []
    for i, query in enumerate(z):
        order = sorted((float((query - other).square().sum()), j) for j, other in enumerate(z) if j != i)
        lists.append([labels[j] == labels[i] for _, j in order])
    return lists


def recall(lists: Sequence[Sequence[bool]], k: int) -> float:
    return _mean([float(any(hits[:k])) for hits in lists if any(hits)])


def average_precision(hits: Sequence[bool], k: int, divisor: float) -> float:
    return sum(sum(hits[: i + 1]) / (i + 1) for i in range(min(k, len(hits))) if hits[i]) / divisor


def mean_average_precision(lists: Sequence[Sequence[bool]], k: int | None) -> float:
    """With min(R, k) as the divisor; R for k where it is None."""
    return _mean(
        [
            average_precision(hits, k or sum(hits), min(sum(hits), k or sum(hits)))
            for hits in lists
            if any(hits)
        ]
    )


def auroc(inside: Sequence[float], outside: Sequence[float]) -> float:
    return _mean([float(b > a) + 0.5 * float(b == a) for a in inside for b in outside])


def sparsification_area(uncertainty: Sequence[float], right: Sequence[float]) -> float:
    """The mean over all orders that the uncertainty allows; few items only."""
    number = len(right)
    areas = []
    for order in permutations(range(number)):
        ranked = [uncertainty[i] for i in order]
        if ranked != sorted(ranked, reverse=True):
            continue
        curve = [_mean([right[i] for i in order[q * number // 100 :]]) for q in range(100)]
        areas.append(sum((a + b) / 2 for a, b in pairwise(curve)) / 99)
    return _mean(areas)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
