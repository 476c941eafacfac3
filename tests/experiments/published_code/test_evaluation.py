"""How the published code evaluates, each beside ours and beside the definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.data import load, require_selectable
from laplacian_metric.metrics import Consensus
from tests.experiments.published_code.reference import float64, generator, normal, unit

# --- calibration ---


def error_without_the_last_edge(confidence: Tensor, right: Tensor) -> float:
    """Ten bins [a, b), weighed by what they hold: a confidence of 1 is in none of them."""
    gaps, covered = 0.0, 0
    for low in range(10):
        inside = (confidence >= low / 10 - 1e-12) & (confidence < (low + 1) / 10 - 1e-12)
        if inside.any():
            gaps += int(inside.sum()) * float((right[inside].mean() - confidence[inside].mean()).abs())
            covered += int(inside.sum())
    return gaps / covered if covered else math.nan


def consensus(votes: Tensor, right: Tensor, samples: int) -> Consensus:
    answerable = torch.ones(len(votes), dtype=torch.bool)
    return Consensus(torch.zeros(len(votes), dtype=torch.long), votes, right, answerable, samples)


def test_calibration_without_confidence_one_reports_005_for_0455() -> None:
    """90 queries on which 20 samples agree, half of them wrongly, and 10 with 17 of 20 votes, 9 of which are right."""
    votes = torch.cat([torch.full((90,), 20), torch.full((10,), 17)])
    right = torch.cat([torch.arange(90) % 2, (torch.arange(10) < 9).long()]).double()
    agreement = consensus(votes, right, 20)
    assert error_without_the_last_edge(agreement.confidence, right) == pytest.approx(0.05)
    assert agreement.error == pytest.approx(0.455)
    assert 0.9 * abs(1 - 0.5) + 0.1 * abs(0.85 - 0.9) == pytest.approx(0.455)


def test_calibration_of_a_method_that_is_always_sure_is_undefined_as_published() -> None:
    agreement = consensus(torch.full((4,), 20), torch.tensor([1.0, 0, 0, 0]), 20)
    assert math.isnan(error_without_the_last_edge(agreement.confidence, agreement.right))
    assert agreement.error == 0.75


# --- queries without a positive ---


def published_map(embeddings: Tensor, labels: Tensor, k: int) -> float:
    """1 for a query without a positive, else the sum of the precisions at the hits over min(positives, k)."""
    total = 0.0
    for query in range(len(labels)):
        others = torch.tensor([i for i in range(len(labels)) if i != query])
        order = others[(embeddings[others] @ embeddings[query]).argsort(descending=True)][:k]
        hits = (labels[order] == labels[query]).double()
        positives = int((labels == labels[query]).sum()) - 1
        precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
        total += float((precision * hits).sum()) / min(positives, k) if positives else 1.0
    return total / len(labels)


def published_recall(embeddings: Tensor, labels: Tensor) -> float:
    """0 for a query without a positive."""
    similarity = (embeddings @ embeddings.T).fill_diagonal_(-2)
    return float((labels[similarity.argmax(1)] == labels).double().mean())


def test_no_positive_counts_as_a_success_in_map_and_as_a_failure_in_recall() -> None:
    """Embeddings are noise, half of the images alone in their class: mAP@5 above 0.5 for 0.04 and less."""
    labels = torch.cat([torch.arange(200) // 8, torch.arange(1000, 1200)])
    z = unit(normal(400, 8))
    alone, ours_map = 0.5, metrics.map_at_k(z, labels, 5)
    ours_recall = metrics.recall_at_k(z, labels)
    assert published_map(z, labels, 5) == pytest.approx(alone + (1 - alone) * ours_map)
    assert published_recall(z, labels) == pytest.approx((1 - alone) * ours_recall)
    assert published_map(z, labels, 5) > 0.5
    assert ours_map < 0.05
    assert published_recall(z, labels) < ours_recall < 0.05
    assert metrics.rank(z, labels, 5).num_unanswerable == 200


def test_no_positive_everything_alike_where_every_query_has_one() -> None:
    labels, z = torch.arange(60) % 6, unit(normal(60, 4))
    assert published_map(z, labels, 5) == pytest.approx(metrics.map_at_k(z, labels, 5))
    assert published_recall(z, labels) == pytest.approx(metrics.recall_at_k(z, labels))


# --- sparsification ---


def test_sparsification_by_query_plus_neighbour_removes_right_answers_first() -> None:
    """Two wrong queries are the most unsure, and their neighbours sure; two right ones are neighbours of each other."""
    angle = torch.tensor([0.0, 0.05, 0.08, 1.5, 1.53, 3.0, 3.05, 3.08], dtype=float64)
    labels = torch.tensor([0, 1, 1, 2, 2, 0, 1, 1])
    z = torch.stack([angle.cos(), angle.sin()], dim=1)
    own = torch.tensor([3.0, 0.1, 0.1, 2.5, 2.5, 3.0, 0.1, 0.1], dtype=float64)
    nearest = (z @ z.T).fill_diagonal_(-2).argmax(1)
    assert (labels[nearest] != labels).nonzero().flatten().tolist() == [0, 5]
    summed = own + own[nearest]
    assert summed.argsort(descending=True)[:2].sort().values.tolist() == [3, 4]
    ranking = metrics.rank(z, labels, 1)
    ours, published = metrics.sparsify(ranking, own), metrics.sparsify(ranking, summed)
    assert ours.area == ours.oracle > published.area


# --- selection ---


@pytest.mark.statistical
def test_checkpoint_chosen_on_the_test_set_is_better_than_it_is() -> None:
    """20 checkpoints, all right for 80 % of 10,000 images: the best of them reports 0.0075 too much."""
    right = torch.rand(2000, 20, generator=generator(), dtype=float64)
    # The share of 10,000 successes is normal to four digits.
    measured = 0.8 + 0.004 * torch.erfinv(2 * right - 1) * 2**0.5
    best = measured.amax(1)
    assert float(best.mean()) - 0.8 == pytest.approx(0.0075, abs=0.0003)
    elsewhere = 0.8 + 0.004 * torch.randn(2000, 20, generator=generator(1), dtype=float64)
    chosen = elsewhere.gather(1, measured.argmax(1, keepdim=True))
    assert float(chosen.mean()) == pytest.approx(0.8, abs=0.0003)


def test_checkpoint_test_data_are_refused_where_something_is_chosen() -> None:
    require_selectable(load("sample-fashion-mnist", split="validation"))
    with pytest.raises(ValueError, match="test"):
        require_selectable(load("sample-fashion-mnist", split="test"))
