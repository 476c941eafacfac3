"""Classes of embeddings that were learned without labels: votes, a linear probe, clusters, and the evaluator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import metrics
from laplacian_metric.metrics.classification import knn_correct, weighted_votes


def _clusters(number: int, seed: int, noise: float = 0.6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(4, 6, generator=torch.Generator().manual_seed(99)), dim=1)
    labels = torch.arange(number) % 4
    return F.normalize(centres[labels] + noise * torch.randn(number, 6, generator=generator), dim=1), labels


def test_votes_are_those_of_a_loop() -> None:
    (queries, labels), (gallery, gallery_labels) = _clusters(9, 1), _clusters(40, 2)
    gallery_labels = 3 * gallery_labels + 5  # labels need not begin at 0
    votes, classes = weighted_votes(queries, gallery, gallery_labels, k=7, temperature=0.2)
    assert classes.tolist() == [5, 8, 11, 14]
    for i, query in enumerate(queries):
        cosines = [
            (float(query.double() @ other.double()), int(label))
            for other, label in zip(gallery, gallery_labels, strict=True)
        ]
        nearest = sorted(cosines, reverse=True)[:7]
        total = sum(math.exp(cosine / 0.2) for cosine, _ in nearest)
        for place, label in enumerate(classes.tolist()):
            share = sum(math.exp(cosine / 0.2) for cosine, other in nearest if other == label) / total
            assert float(votes[i, place]) == pytest.approx(share, abs=1e-6)
    correct = knn_correct(
        queries, 3 * labels + 5, database=gallery, database_labels=gallery_labels, k=7, temperature=0.2
    )
    assert torch.equal(correct, classes[votes.argmax(1)] == 3 * labels + 5)


def test_a_small_gallery_votes_whole_and_one_neighbour_is_recall() -> None:
    (queries, labels), (gallery, gallery_labels) = _clusters(50, 1), _clusters(30, 2)
    whole = metrics.knn_accuracy(queries, labels, database=gallery, database_labels=gallery_labels, k=200)
    assert whole == metrics.knn_accuracy(
        queries, labels, database=gallery, database_labels=gallery_labels, k=30
    )
    one = metrics.knn_accuracy(queries, labels, database=gallery, database_labels=gallery_labels, k=1)
    assert one == metrics.recall_at_k(queries, labels, database=gallery, database_labels=gallery_labels)


def test_linear_probe_does_not_depend_on_the_scale_of_features() -> None:
    (queries, labels), (gallery, gallery_labels) = _clusters(60, 1, 0.2), _clusters(80, 2, 0.2)
    accuracy = metrics.linear_probe(queries, labels, database=gallery, database_labels=gallery_labels)
    scale = torch.tensor([1e3, 1.0, 1e-3, 5.0, 1.0, 1.0])
    again = metrics.linear_probe(
        queries * scale + 7, labels, database=gallery * scale + 7, database_labels=gallery_labels
    )
    assert accuracy == pytest.approx(again, abs=0.02)
    assert accuracy > 0.85


def test_nmi_is_the_mutual_information_of_the_table() -> None:
    from sklearn.cluster import KMeans

    z, labels = _clusters(80, 3)
    clusters = torch.from_numpy(KMeans(4, n_init=10, random_state=0).fit(z.double().numpy()).labels_).long()
    table = torch.zeros(4, 4, dtype=torch.float64).index_put_(
        (labels, clusters), torch.tensor(1.0).double(), accumulate=True
    )
    p = table / table.sum()
    rows, columns = p.sum(1), p.sum(0)
    information = torch.where(p > 0, p * (p / (rows[:, None] * columns)).log(), 0).nan_to_num().sum()
    entropies = sum(float(-(q[q > 0] * q[q > 0].log()).sum()) for q in (rows, columns))
    assert metrics.clustering_nmi(z, labels) == pytest.approx(2 * float(information) / entropies, abs=1e-9)
    assert metrics.clustering_nmi(z, torch.zeros(80).long(), clusters=1) == 1


def test_the_evaluator_has_them_with_intervals() -> None:
    (queries, labels), (gallery, gallery_labels) = _clusters(60, 1), _clusters(80, 2)
    evaluation = metrics.evaluate(
        queries,
        labels,
        database=gallery,
        database_labels=gallery_labels,
        neighbours=20,
        features=queries,
        database_features=gallery,
        clusters=0,
        resamples=50,
        generator=torch.Generator().manual_seed(0),
    )
    options = {"database": gallery, "database_labels": gallery_labels}
    assert evaluation["knn@20"] == metrics.knn_accuracy(queries, labels, **options, k=20)  # type: ignore[arg-type]
    assert evaluation["linear probe"] == metrics.linear_probe(queries, labels, **options)  # type: ignore[arg-type]
    assert evaluation["nmi"] == metrics.clustering_nmi(queries, labels)
    interval = evaluation.intervals["knn@20"]
    assert interval.low <= evaluation["knn@20"] <= interval.high
    again = metrics.Evaluation.model_validate_json(evaluation.model_dump_json())
    assert again["linear probe"] == evaluation["linear probe"]
