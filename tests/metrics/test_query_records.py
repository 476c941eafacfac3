"""Two evaluations of the same images are compared query by query, with the statistics of the evaluator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplacian_metric import metrics
from laplacian_metric.metrics import QueryRecord, Ranking, paired_intervals
from laplacian_metric.metrics.evaluation import evaluate_ranking
from laplacian_metric.metrics.query_records import images_digest

OOD = torch.linspace(0.3, 1.2, 40).double()


def ranked(seed: int, noise: float = 0.6) -> tuple[Ranking, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(120) % 5
    labels[-1] = 9  # nothing is of its class
    z = torch.nn.functional.normalize(
        torch.eye(9)[labels.clamp_max(8)] + noise * torch.randn(120, 9, generator=generator), dim=1
    )
    return metrics.rank(z, labels, 10), torch.rand(120, generator=generator).double()


def record(ranking: Ranking, uncertainty: torch.Tensor, images: str = "x") -> QueryRecord:
    return QueryRecord.of(images, ranking, uncertainty, 1 - uncertainty, {"digits": ("d", OOD)})


def test_a_record_gives_the_numbers_of_the_evaluation() -> None:
    ranking, uncertainty = ranked(0)
    evaluation = evaluate_ranking(
        ranking,
        uncertainty,
        probability=1 - uncertainty,
        ood_uncertainty={"digits": OOD},
        ks=(1, 2, 5, 10),
        resamples=0,
    )
    values = QueryRecord.model_validate_json(record(ranking, uncertainty).model_dump_json()).values()
    assert values.keys() == evaluation.values.keys()
    assert values == pytest.approx(evaluation.values)
    assert evaluation.counts.unanswerable == 1


def test_the_interval_is_that_of_one_bootstrap_over_the_differences() -> None:
    (one, u), (other, v) = ranked(0), ranked(1)
    intervals = paired_intervals(record(one, u), record(other, v), resamples=400)
    difference = one.recall(1) - other.recall(1)
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(len(difference), (4000, len(difference)), generator=generator)
    low, high = np.quantile(difference[draws].mean(1).numpy(), [0.025, 0.975])
    assert intervals["recall@1"].low == pytest.approx(low, abs=0.02)
    assert intervals["recall@1"].high == pytest.approx(high, abs=0.02)
    assert {"map@5", "r_auroc", "ausc", "brier", "auroc digits", "open set auroc digits"} <= intervals.keys()


def test_an_evaluation_does_not_differ_from_itself() -> None:
    one = record(*ranked(0))
    for interval in paired_intervals(one, one, resamples=20).values():
        assert (interval.low, interval.high) == (0, 0)


def test_paired_intervals_are_narrower_than_those_of_separate_queries() -> None:
    ranking, uncertainty = ranked(0)
    close = uncertainty + 0.01 * torch.rand(120, generator=torch.Generator().manual_seed(3)).double()
    one, other = record(ranking, uncertainty), record(ranking, close.clamp_max(1))
    paired = paired_intervals(one, other)["r_auroc"]
    alone = evaluate_ranking(ranking, uncertainty).intervals["r_auroc"]
    assert paired.high - paired.low < (alone.high - alone.low) / 3


def test_other_images_are_not_compared() -> None:
    ranking, uncertainty = ranked(0)
    assert paired_intervals(record(ranking, uncertainty), record(ranking, uncertainty, "y")) == {}
    other_digits = QueryRecord.of("x", ranking, uncertainty, None, {"digits": ("e", OOD)})
    names = paired_intervals(record(ranking, uncertainty), other_digits, resamples=5)
    assert "r_auroc" in names
    assert "auroc digits" not in names
    assert images_digest(["a"], ["x"]) != images_digest(["a"], ["y"])
