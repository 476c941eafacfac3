"""The demo: its numbers are those of the library, its page says them, and nothing is left where it fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import data, metrics
from laplacian_metric.demo.compute import (
    ANSWERED,
    DIM,
    EPOCHS,
    OOD,
    DemoResult,
    compute,
    network,
    run_demo,
    trained_network,
)
from laplacian_metric.demo.page import EXAMPLES, VERDICTS, demo_page
from laplacian_metric.report import Gallery
from laplacian_metric.report.page import number, share

LOSS = ContrastiveLoss(margin=1.3, negatives="active")


@pytest.fixture(scope="module")
def result(long_form: bool) -> DemoResult:
    return compute(seed=5, epochs=EPOCHS if long_form else 1)


def test_a_seed_decides_the_network_and_leaves_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    first, second, third = (network(seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, third.head.weight)
    assert first.raw(torch.zeros(2, 1, 28, 28)).shape == (2, DIM)


def test_training_lowers_the_loss_and_is_reproducible() -> None:
    images = data.load("sample-fashion-mnist", "train")
    few = images.select(torch.arange(0, 2500, 10))
    encoder, again = (trained_network(few, LOSS, epochs=2, seed=3) for _ in range(2))
    assert torch.equal(encoder.head.weight, again.head.weight)
    pairs = Pairs.from_labels(few.labels)
    with torch.no_grad():
        before, after = (LOSS(each.eval().raw(few.floats()), pairs) for each in (network(3), encoder))
    assert after < before
    assert not encoder.training


@pytest.mark.slow
def test_the_numbers_are_those_of_the_library(result: DemoResult, long_form: bool) -> None:
    known, evaluation = result.shown.known, result.shown.evaluation
    with torch.no_grad():
        points = [
            nn.functional.normalize(result.encoder.raw(images.floats()), dim=1)
            for images in (result.gallery, result.test)
        ]
    searched = {"database": points[0], "database_labels": result.gallery.labels}
    recall = metrics.recall_at_k(points[1], result.test.labels, **searched)
    assert evaluation["recall@1"] == pytest.approx(recall)
    assert known.right.mean() == pytest.approx(recall)
    assert not result.shown.ood.right.any()
    uncertainty = torch.from_numpy(1 - known.probability)
    expected = metrics.r_auroc(points[1], result.test.labels, uncertainty, **searched)
    assert evaluation["r_auroc"] == pytest.approx(expected)
    with torch.no_grad():
        answers = [
            result.trust(result.encoder.features(images.floats())) for images in (result.test, result.ood)
        ]
    np.testing.assert_allclose(answers[0].probability, known.probability, atol=1e-6)
    novelty = [torch.from_numpy(answer.novelty) for answer in answers]
    figures = result.figures
    assert figures["ood_auroc"] == pytest.approx(metrics.ood_auroc(*novelty), abs=1e-6)
    for errors in figures["errors"].values():  # with every query answered, all scores have the same error
        assert list(errors) == list(map(str, ANSWERED))
        assert errors["1.0"] == pytest.approx(1 - recall)
    best = known.right[np.argsort(-known.probability, kind="stable")]
    assert figures["errors"]["Trust: probability"]["0.5"] == pytest.approx(1 - best[: len(best) // 2].mean())
    # What is accepted has at least the threshold's probability.
    np.testing.assert_array_equal(known.verdict == VERDICTS[0], known.probability >= result.trust.threshold)
    if long_form:
        assert recall > 0.8
        assert figures["probability_ece"] < 0.08
        assert figures["ood_auroc"] > 0.9
        assert figures["accepted_error"] < 1 - recall


@pytest.mark.slow
def test_the_page_says_the_numbers_and_leads_with_the_error(result: DemoResult) -> None:
    shown = result.shown
    page = demo_page(shown)
    html = page.html()
    assert page.sections[0].title == "Error against share answered"
    assert share(shown.evaluation.refusals[20].error) in html
    for verdict in VERDICTS:
        assert f"<td>{verdict}</td>" in html
        assert share(float((shown.known.verdict == verdict).mean())) in html
    for errors in shown.errors.values():
        assert share(errors[2]) in html
    for score in shown.evaluation.scores.values():
        assert number(score.ood[OOD]["auroc"]) in html
    galleries = [block for section in page.sections for block in section.blocks if isinstance(block, Gallery)]
    assert galleries
    assert max(len(gallery.cards) for gallery in galleries) == EXAMPLES


def test_a_failing_demo_leaves_nothing(tmp_path: Path) -> None:
    def stop(stage: str) -> None:
        raise RuntimeError(f"stopped at {stage}")

    with pytest.raises(RuntimeError, match="stopped at training"):
        run_demo(tmp_path / "out", epochs=1, on_stage=stop)
    assert list(tmp_path.iterdir()) == []
