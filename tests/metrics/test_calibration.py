"""Calibration: by hand, the consensus in whole numbers, and the bins by rank."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.metrics.statistics import rank_calibration_gap
from tests.metrics.reference import clustered, unit


def voting(votes: list[list[int]], labels: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sampled queries (S, Q, 3) whose nearest neighbour among three fixed axes, classes 0 to 2, is as told.

    ``votes`` has for each query the class of its nearest in each of the S samples.
    """
    axes = torch.eye(3)
    samples = axes[torch.tensor(votes).T]
    return samples, torch.tensor(labels), axes, torch.arange(3)


def ece(votes: list[list[int]], labels: list[int]) -> float:
    samples, labels_, axes, axes_labels = voting(votes, labels)
    return metrics.retrieval_ece(samples, labels_, database=axes, database_labels=axes_labels)


def test_by_hand() -> None:
    # Two queries of confidence 3/4 (one right), one of 1/2 (right: equal votes go to the smallest label).
    votes = [[0, 0, 0, 1], [2, 2, 2, 0], [1, 2, 2, 1]]
    assert ece(votes, [0, 1, 1]) == pytest.approx((abs(1 - 1.5) + abs(1 - 0.5)) / 3)


def test_confidence_one_counts() -> None:
    # Fifty queries that all twenty samples agree on, 43 of them wrong, and fifty of confidence 0.55, half of
    # them right.
    certain, open_minded = [[0] * 20] * 50, [[1] * 11 + [0] * 9] * 50
    labels = [0] * 7 + [1] * 43, [1] * 25 + [2] * 25
    assert ece(open_minded, labels[1]) == pytest.approx(0.05)
    # Leaving out confidence 1 would report that 0.05 for all of them.
    assert ece(certain + open_minded, labels[0] + labels[1]) == pytest.approx(0.455)


@pytest.mark.parametrize("samples", [3, 7, 10, 100])
def test_bins_are_whole_numbers(samples: int) -> None:
    agreed = metrics.Consensus(
        prediction=torch.zeros(samples).long(),
        votes=torch.arange(1, samples + 1),
        right=torch.ones(samples),
        answerable=torch.ones(samples).bool(),
        num_samples=samples,
    )
    expected = [min(10 * votes // samples, 9) for votes in range(1, samples + 1)]
    assert agreed.bins.tolist() == expected
    if samples == 10:
        # Among the edges 0.1, 0.2, ... in floating point, 0.3 and 0.7 would be in the bins below.
        assert agreed.bins.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]


def loop(votes: list[list[int]], labels: list[int]) -> float:
    """The definition, query by query."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for cast, label in zip(votes, labels, strict=True):
        winner = min(set(cast), key=lambda c: (-cast.count(c), c))
        count = cast.count(winner)
        bins.setdefault(min(10 * count // len(cast), 9), []).append(
            (float(winner == label), count / len(cast))
        )
    gaps = [abs(sum(r for r, _ in inside) - sum(c for _, c in inside)) for inside in bins.values()]
    return sum(gaps) / len(votes)


@given(st.integers(1, 12), st.integers(1, 8), st.data())
def test_the_definition(num_samples: int, num_queries: int, data: st.DataObject) -> None:
    cast = st.lists(st.integers(0, 2), min_size=num_samples, max_size=num_samples)
    votes = data.draw(st.lists(cast, min_size=num_queries, max_size=num_queries))
    labels = data.draw(st.lists(st.integers(0, 2), min_size=num_queries, max_size=num_queries))
    assert ece(votes, labels) == pytest.approx(loop(votes, labels))


def test_an_iterator_is_read_once_and_gives_the_same() -> None:
    z, labels = clustered(60, 3, 4, 0.5)
    samples = torch.stack([unit(60, 3, seed=s, dtype=torch.float32) + 3 * z for s in range(8)])
    samples = torch.nn.functional.normalize(samples, dim=2)
    read = []

    def one_by_one() -> Iterator[Tensor]:
        for number, sample in enumerate(samples):
            read.append(number)
            yield sample

    assert metrics.retrieval_ece(one_by_one(), labels) == metrics.retrieval_ece(samples, labels)
    assert read == list(range(8))


def test_a_sampled_gallery_is_drawn_with_the_queries() -> None:
    z, labels = clustered(80, 3, 4, 0.7)
    samples = torch.nn.functional.normalize(
        z + 0.2 * torch.randn(6, 80, 3, generator=torch.Generator()), dim=2
    )
    together = metrics.retrieval_ece(
        samples[:, :30], labels[:30], database=iter(samples[:, 30:]), database_labels=labels[30:]
    )
    votes = [
        [int(labels[30:][(q @ s[30:].T).argmax()]) for s, q in zip(samples, samples[:, i], strict=True)]
        for i in range(30)
    ]
    assert together == pytest.approx(loop(votes, labels[:30].tolist()))


def test_the_table_sums_up_to_the_error() -> None:
    votes = [[0, 0, 0, 1], [2, 2, 2, 0], [1, 2, 2, 1], [0, 0, 0, 0]]
    samples, labels, axes, axes_labels = voting(votes, [0, 1, 1, 0])
    agreed = metrics.consensus(samples, labels, database=axes, database_labels=axes_labels)
    bins = agreed.calibration.bins
    assert [one.count for one in bins] == [0, 0, 0, 0, 0, 1, 0, 2, 0, 1]
    assert math.isnan(bins[0].confidence)
    assert math.isnan(bins[0].accuracy)
    assert (bins[7].confidence, bins[7].accuracy, bins[7].low) == (0.75, 0.5, 0.7)
    gaps = [one.count * abs(one.accuracy - one.confidence) for one in bins if one.count]
    assert sum(gaps) / 4 == pytest.approx(agreed.error)


@given(st.integers(1, 60), st.integers(0, 1000))
def test_the_reliability_of_a_probability_is_its_definition(number: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predicted = (torch.rand(number, generator=generator, dtype=torch.float64) * 20).round() / 20
    right = (torch.rand(number, generator=generator) < 0.5).double()
    calibration = metrics.reliability(right, predicted)
    bins: dict[int, list[tuple[float, float]]] = {}
    for p, y in zip(predicted.tolist(), right.tolist(), strict=True):
        bins.setdefault(min(int(10 * p), 9), []).append((p, y))
    gaps = [abs(sum(y - p for p, y in inside)) / number for inside in bins.values()]
    assert calibration.ece == pytest.approx(sum(gaps))
    assert calibration.brier == pytest.approx(float((predicted - right).square().mean()))
    assert [one.count for one in calibration.bins] == [len(bins.get(at, ())) for at in range(10)]


def test_unanswerable_queries_are_counted_but_not_used() -> None:
    samples, labels, axes, axes_labels = voting([[0, 0], [1, 1], [2, 2]], [0, 1, 7])
    agreed = metrics.consensus(samples, labels, database=axes, database_labels=axes_labels)
    assert agreed.answerable.tolist() == [True, True, False]
    assert (len(agreed.votes), agreed.error) == (2, 0.0)


def test_ece_by_rank_by_hand() -> None:
    # Ten bins of two queries each; average precision 1 for the surer half of the queries, 0 for the others.
    uncertainty = torch.arange(20.0).double()
    values = (uncertainty < 10).double()
    confidence = [(b - 0.5) / 10 for b in range(1, 11)]
    expected = sum(confidence[:5]) / 10 + sum(1 - c for c in confidence[5:]) / 10
    ones = torch.ones(20).double()
    assert expected == pytest.approx(0.25)
    assert float(rank_calibration_gap(uncertainty, values, ones)) == pytest.approx(expected)
    assert float(rank_calibration_gap(-uncertainty, values, ones)) == pytest.approx(0.75)


@given(st.integers(1, 45), st.data())
def test_ece_by_rank_is_its_definition(number: int, data: st.DataObject) -> None:
    order = torch.tensor(data.draw(st.permutations(range(number))))
    values = torch.rand(number, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
    bins: dict[int, list[float]] = {}
    for rank, item in enumerate(order.argsort(descending=True).tolist()):
        bins.setdefault(rank * 10 // number, []).append(float(values[item]))
    expected = sum(abs(sum(inside) - len(inside) * (b + 0.5) / 10) for b, inside in bins.items()) / number
    gap = float(rank_calibration_gap(order.double(), values, torch.ones(number).double()))
    assert gap == pytest.approx(expected)


def test_equal_uncertainties_share_their_average_precision() -> None:
    values = torch.tensor([1.0, 0.0] * 10).double()
    same = torch.zeros(20).double()
    # All bins have the mean 1/2 whatever the order of the queries: the gaps are |0.5 - (b - 0.5)/10|.
    gap = float(rank_calibration_gap(same, values, torch.ones(20).double()))
    assert gap == pytest.approx(sum(abs(0.5 - (b - 0.5) / 10) for b in range(1, 11)) / 10)


def test_ece_at_k_of_embeddings() -> None:
    z, labels = clustered(70, 4, 5, 0.6)
    uncertainty = torch.rand(70, generator=torch.Generator().manual_seed(0))
    values = metrics.rank(z, labels, 5).average_precision(5)
    expected = float(rank_calibration_gap(uncertainty.double(), values, torch.ones(70).double()))
    assert metrics.ece_at_k(z, labels, uncertainty) == expected
