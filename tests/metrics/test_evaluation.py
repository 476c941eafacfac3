"""Everything at once is the same as one after the other, from one search."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.data import load
from tests.metrics.reference import clustered, unit


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    """A set with errors and two queries that cannot be answered, and all that can be given with it."""
    z, labels = clustered(200, 3, 8, 0.4)
    labels[:2] = torch.tensor([50, 60])
    generator = torch.Generator().manual_seed(0)
    samples = torch.nn.functional.normalize(z + 0.1 * torch.randn(7, 200, 3, generator=generator), dim=2)
    uncertainty, crop, entropy = torch.rand(3, 200, generator=generator)
    return {
        "embeddings": z,
        "labels": labels,
        "uncertainty": uncertainty,
        "samples": samples,
        "ood_uncertainty": torch.rand(90, generator=generator) + 0.4,
        "crop_uncertainty": crop,
        "label_entropy": entropy,
        "ks": (1, 5, 20),
    }


@pytest.fixture(scope="module")
def evaluation(arguments: dict[str, Any]) -> metrics.Evaluation:
    return metrics.evaluate(**arguments, resamples=200)


def open_set(right: Tensor, inside: Tensor, outside: Tensor) -> tuple[float, float]:
    """AUROC of right answers, and the error among the surest 40 %; both sides have half of the weight."""
    wrong = torch.cat([~right, torch.ones(len(outside), dtype=torch.bool)]).numpy()
    scores = torch.cat([inside, outside]).double()
    weights = torch.cat(
        [torch.full_like(inside, len(outside)), torch.full_like(outside, len(inside))]
    ).double()
    area = float(roc_auc_score(wrong, scores.numpy(), sample_weight=weights.numpy()))
    # Each image as often as its weight says.
    repeated = torch.repeat_interleave(torch.arange(len(scores)), weights.long())
    kept = repeated[scores[repeated].argsort()][: len(repeated) - 60 * len(repeated) // 100]
    return area, float(torch.from_numpy(wrong)[kept].double().mean())


def test_it_is_what_the_single_functions_say(
    arguments: dict[str, Any], evaluation: metrics.Evaluation
) -> None:
    z, labels, uncertainty = arguments["embeddings"], arguments["labels"], arguments["uncertainty"]
    expected = {
        "map@r": metrics.map_at_r(z, labels),
        "r_precision": metrics.r_precision(z, labels),
        "r_auroc": metrics.r_auroc(z, labels, uncertainty),
        "ausc": metrics.ausc(z, labels, uncertainty),
        "retrieval_ece": metrics.retrieval_ece(arguments["samples"], labels),
        "ood_auroc": metrics.ood_auroc(uncertainty, arguments["ood_uncertainty"]),
        "ood_average_precision": metrics.ood_average_precision(uncertainty, arguments["ood_uncertainty"]),
        "crop_test": metrics.crop_test(uncertainty, arguments["crop_uncertainty"]),
        "rank_correlation": metrics.rank_correlation(uncertainty, arguments["label_entropy"]),
    }
    for k in arguments["ks"]:
        expected[f"recall@{k}"] = metrics.recall_at_k(z, labels, k)
        expected[f"map@{k}"] = metrics.map_at_k(z, labels, k)
        expected[f"ece@{k}"] = metrics.ece_at_k(z, labels, uncertainty, k)
    curve = metrics.sparsify(metrics.rank(z, labels), uncertainty)
    expected |= {"ausc_oracle": curve.oracle, "ausc_random": curve.random, "ausc_gap": curve.gap}
    expected["nausc"] = (curve.area - curve.random) / (curve.oracle - curve.random)
    right = metrics.rank(z, labels).hits[:, 0]
    expected["surest_error"] = 1 - float(curve.curve[60])
    expected["ood_open_set_auroc"], expected["ood_open_set_surest_error"] = open_set(
        right, uncertainty, arguments["ood_uncertainty"]
    )
    assert evaluation.values == pytest.approx(expected, abs=1e-12)
    assert evaluation["recall@5"] == evaluation.values["recall@5"]


def test_every_interval_holds_its_value(evaluation: metrics.Evaluation) -> None:
    assert set(evaluation.intervals) == set(evaluation.values)
    for name, interval in evaluation.intervals.items():
        # Calibration errors are biased upwards in a bootstrap: only their order can be asked for.
        assert interval.low <= interval.high
        if "ece" not in name and name != "brier":
            assert interval.low <= evaluation[name] <= interval.high


def test_it_can_be_written_to_a_file(evaluation: metrics.Evaluation) -> None:
    record = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert record["values"]["map@5"] == evaluation["map@5"]
    assert record["intervals"]["map@5"]["low"] == evaluation.intervals["map@5"].low
    assert record["counts"] == {
        "queries": 200,
        "answerable": 198,
        "unanswerable": 2,
        "gallery": 200,
        "tied_queries": 0,
        "samples": 7,
        "ood": 90,
        "images": {"ood": 90},
    }
    assert (
        metrics.Evaluation.model_validate_json(evaluation.model_dump_json(by_alias=True)).to_dict()
        == evaluation.to_dict()
    )


def test_what_is_not_defined_is_none_in_a_file() -> None:
    z = torch.eye(2).repeat_interleave(2, dim=0)
    perfect = metrics.evaluate(z, [0, 0, 1, 1], torch.arange(4.0), ks=(1,), resamples=20)
    assert math.isnan(perfect["r_auroc"])
    record = perfect.to_dict()
    assert record["values"]["r_auroc"] is None
    assert record["intervals"]["r_auroc"]["low"] is None
    assert record["intervals"]["r_auroc"]["undefined"] == 20


def test_precision_blocks_and_order_change_nothing(
    arguments: dict[str, Any], evaluation: metrics.Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    shuffled = {
        name: value[:, order] if name == "samples" else value[order]
        for name, value in arguments.items()
        if isinstance(value, Tensor) and len(value) != 90
    }
    doubled = {
        **arguments,
        "embeddings": arguments["embeddings"].double(),
        "samples": arguments["samples"].double(),
    }
    assert metrics.evaluate(**doubled, resamples=0).values == evaluation.values
    assert metrics.evaluate(**{**arguments, **shuffled}, resamples=0).values == pytest.approx(
        evaluation.values, abs=1e-12
    )
    monkeypatch.setattr("laplacian_metric.core.search.MAX_ROWS", 3)
    assert metrics.evaluate(**arguments, resamples=0).values == pytest.approx(evaluation.values, abs=1e-12)


def test_a_gallery_of_its_own(arguments: dict[str, Any]) -> None:
    z, labels, samples, uncertainty = (
        arguments[name] for name in ("embeddings", "labels", "samples", "uncertainty")
    )
    data = {"database": z[80:], "database_labels": labels[80:]}
    evaluation = metrics.evaluate(
        z[:80],
        labels[:80],
        uncertainty[:80],
        **data,
        samples=samples[:, :80],
        database_samples=samples[:, 80:],
    )
    assert evaluation.counts.gallery == 120
    # Sums over as many ranks at a time differ in their last digit.
    assert evaluation["map@r"] == pytest.approx(metrics.map_at_r(z[:80], labels[:80], **data), rel=1e-12)
    assert evaluation["r_auroc"] == metrics.r_auroc(z[:80], labels[:80], uncertainty[:80], **data)
    assert evaluation["retrieval_ece"] == metrics.retrieval_ece(
        samples[:, :80], labels[:80], database=samples[:, 80:], database_labels=labels[80:]
    )


def test_places(arguments: dict[str, Any]) -> None:
    z, labels = arguments["embeddings"], arguments["labels"]
    positives = metrics.Positives.within(0.5, labels[:, None].double())
    evaluation = metrics.evaluate(z, positives, arguments["uncertainty"], ks=(1,), resamples=0)
    assert evaluation["map@r"] == metrics.map_at_r(z, labels)
    assert not evaluation.intervals


def test_several_uncertainties_share_a_search(arguments: dict[str, Any]) -> None:
    z, labels = arguments["embeddings"], arguments["labels"]
    ranking = metrics.rank(z, labels, 5)
    for uncertainty in (arguments["uncertainty"], metrics.nearest_distance(z)):
        evaluation = metrics.evaluate_ranking(ranking, uncertainty, ks=(5,), resamples=50)
        assert evaluation["r_auroc"] == metrics.r_auroc(z, labels, uncertainty)
        assert (
            evaluation.intervals["r_auroc"].low
            <= evaluation["r_auroc"]
            <= evaluation.intervals["r_auroc"].high
        )
        assert "map@r" not in evaluation.values


def test_ties_are_counted_in_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.eye(4)[torch.arange(40) % 4]
    labels = torch.arange(40) % 3
    counts = []
    for rows in (512, 3):
        monkeypatch.setattr("laplacian_metric.core.search.MAX_ROWS", rows)
        counts.append(metrics.rank(z, labels, 2, at_r=True).ties.tolist())
    assert counts[0] == counts[1]
    # A query has 13 positives, or 12: of its first 14 (13) members 9 are its copies, and 5 (4) are at sqrt(2).
    assert counts[0] == [12 if label == 0 else 11 for label in labels.tolist()]
    assert metrics.evaluate(z, labels, ks=(1,), resamples=0).counts.tied_queries == 40


def test_scores_sets_and_probabilities_side_by_side(arguments: dict[str, Any]) -> None:
    z, labels, uncertainty = arguments["embeddings"], arguments["labels"], arguments["uncertainty"]
    sets = {"digits": arguments["ood_uncertainty"], "letters": arguments["ood_uncertainty"][:50] + 1}
    other = metrics.Uncertainties(1 - uncertainty, {"digits": -sets["digits"]}, arguments["crop_uncertainty"])
    both = metrics.evaluate(
        z,
        labels,
        uncertainty,
        ood_uncertainty=sets,
        scores={"other": other},
        probability=1 - uncertainty,
        resamples=20,
    )
    assert both["auroc letters"] == metrics.ood_auroc(uncertainty, sets["letters"])
    assert both.scores["own"].ood["digits"]["auroc"] == metrics.ood_auroc(uncertainty, sets["digits"])
    assert both.scores["other"].ood["digits"]["auroc"] == pytest.approx(
        metrics.ood_auroc(1 - uncertainty, -sets["digits"])
    )
    assert both.scores["other"].values["r_auroc"] == pytest.approx(1 - both["r_auroc"])
    right = metrics.rank(z, labels).hits[:, 0].double()
    assert both.reliability == metrics.reliability(right, 1 - uncertainty)
    assert (both["brier"], both.counts.ood) == (both.reliability.brier, 140)
    assert both.intervals["auroc digits"].low < both["auroc digits"] < both.intervals["auroc digits"].high
    assert both.intervals["brier"].low < both["brier"] < both.intervals["brier"].high
    assert both.curves is not None
    assert set(both.curves.roc) == set(sets)
    assert both.refusals[20].answered == 159  # of 198 answerable queries
    assert both.refusals[20].ood["letters"] > both.refusals[20].ood["digits"]
    alone = metrics.evaluate(z, labels, probability=1 - uncertainty, resamples=0)
    assert alone["r_auroc"] == both["r_auroc"]


def test_without_a_search_ood_images_are_still_detected(arguments: dict[str, Any]) -> None:
    inside, outside = arguments["uncertainty"], arguments["ood_uncertainty"]
    alone = metrics.evaluate_ranking(None, inside, ood_uncertainty=outside, resamples=20)
    assert alone.values == {
        "ood_auroc": metrics.ood_auroc(inside, outside),
        "ood_average_precision": metrics.ood_average_precision(inside, outside),
    }
    assert (alone.retrieval, alone.refusals, alone.counts.queries) == ({}, (), 0)
    assert set(alone.intervals) == set(alone.values)


def test_a_damaged_evaluation_is_refused(evaluation: metrics.Evaluation) -> None:
    record = evaluation.to_dict()
    for place, value in (("scores", {"own": {"ausc": "high"}}), ("counts", {"queries": "many"})):
        with pytest.raises(ValueError, match=f"{place}\\.{next(iter(value))}"):
            metrics.Evaluation.model_validate_json(json.dumps({**record, place: value}))


def test_without_anything_else_only_the_ranking_is_judged() -> None:
    evaluation = metrics.evaluate(unit(6, 2), [0, 0, 0, 1, 1, 1], ks=(1,), resamples=0)
    assert sorted(evaluation.values) == ["map@1", "map@r", "r_precision", "recall@1"]
    with pytest.raises(KeyError, match="r_auroc was not evaluated, there are: recall@1"):
        evaluation["r_auroc"]


def test_the_trivial_baseline_of_real_images() -> None:
    """Neighbours in pixel space: the nearer, the more often right; and digits are farther than clothes."""
    clothes, unknown = load("sample-fashion-mnist", "test"), load("sample-mnist", "test")
    mean = clothes.images.flatten(1).double().mean(0)
    inside, outside = (
        torch.nn.functional.normalize(s.images.flatten(1).double() - mean, dim=1) for s in (clothes, unknown)
    )
    evaluation = metrics.evaluate(
        inside,
        clothes.labels,
        metrics.nearest_distance(inside),
        ood_uncertainty=metrics.nearest_distance(outside, database=inside),
        resamples=0,
    )
    assert 0.6 < evaluation["recall@1"] < 0.9
    assert evaluation["r_auroc"] > 0.6
    assert evaluation["ood_auroc"] > 0.9
    assert evaluation["ausc_random"] < evaluation["ausc"] < evaluation["ausc_oracle"]
