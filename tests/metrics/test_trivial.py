"""The scores that need no method."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import metrics

EPS = 1e-7


def ranked(x: Tensor, items: Tensor, without: int | None = None) -> list[tuple[float, int]]:
    """1 - cosine to every item but one, and its row, the nearest first."""
    directions = F.normalize(items.double())
    distances = (directions - F.normalize(x.double(), dim=0)).square().sum(1) / 2
    return sorted((float(d), i) for i, d in enumerate(distances) if i != without)


def test_norms_by_hand() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert metrics.feature_norm(vectors).tolist() == [5, 2]
    assert metrics.embedding_norm(vectors).tolist() == pytest.approx([0.2, 0.5])


def test_nearest_distance_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    assert metrics.nearest_distance(z).tolist() == pytest.approx([0.8**0.5, 0.4**0.5, 0.4**0.5], rel=1e-7)
    assert metrics.nearest_distance(z, database=z).tolist() == [0, 0, 0]


def test_items_of_the_gallery_are_searched_for_among_the_others() -> None:
    hs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(80) % 3
    own = metrics.trivial_scores((hs, labels))
    for item in (0, 33, 79):
        others = torch.arange(80) != item
        expected = metrics.trivial_scores((hs[others], labels[others]), hs[item : item + 1])
        for name in ("gallery distance", "margin", "LOF", "vote", "kernel vote", "embedding norm"):
            torch.testing.assert_close(own[name][item], expected[name][0])


def test_trivial_scores_are_those_of_loops() -> None:
    """With fewer items than neighbours that are asked for, every item is among the neighbours."""
    generator = torch.Generator().manual_seed(0)
    hs, h = torch.randn(40, 6, generator=generator), torch.randn(7, 6, generator=generator)
    labels = [str(i % 3) for i in range(40)]
    head = torch.nn.Linear(6, 4).requires_grad_(False)
    scores = metrics.trivial_scores((hs, labels), h, encoder=head)
    zs, z = head(hs), head(h)
    for i in range(7):
        in_h, in_z = ranked(h[i], hs), ranked(z[i], zs)
        answer = labels[in_z[0][1]]
        first, tenth = in_z[0][0], in_z[9][0]
        other = next(d for d, j in in_z if labels[j] != answer)
        weights = [(math.exp(-(d - first) / (tenth - first)), labels[j] == answer) for d, j in in_z]
        local = [math.log(ranked(hs[j], hs, j)[9][0] + EPS) for _, j in in_h[:10]]
        expected = {
            "gallery distance": first,
            "feature distance": in_h[0][0],
            "kNN feature distance": in_h[9][0],
            "LOF": math.log(in_h[9][0] + EPS) - sum(local) / 10,
            "margin": math.log(first + EPS) - math.log(other + EPS),
            "vote": sum(labels[j] != answer for _, j in in_h[:10]) / 10,
            "kernel vote": 1 - sum(w for w, same in weights if same) / sum(w for w, _ in weights),
        }
        for name, value in expected.items():
            assert float(scores[name][i]) == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert torch.allclose(scores["feature norm"], h.double().norm(dim=1))
    assert torch.allclose(scores["embedding norm"], 1 / z.double().norm(dim=1))
    assert all(values.dtype == torch.float64 for values in scores.values())


def test_without_labels_there_are_neither_margins_nor_votes() -> None:
    generator = torch.Generator().manual_seed(0)
    hs, h = torch.randn(20, 4, generator=generator), torch.randn(3, 4, generator=generator)
    labelled, bare = (metrics.trivial_scores((hs, labels), h) for labels in ([0] * 20, None))
    assert set(labelled) - set(bare) == {
        "margin",
        "vote",
        "kernel vote",
        "class mean",
    }
    order = metrics.nearest_distance(F.normalize(h, dim=1), database=F.normalize(hs, dim=1)).argsort()
    assert torch.equal(bare["gallery distance"].argsort(), order)
