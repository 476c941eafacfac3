"""The demo: its numbers are those of the library, its page says them, and nothing is left where it fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import jacrev

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import data, metrics
from laplacian_metric.demo import compute as computing
from laplacian_metric.demo.compute import (
    DIM,
    EPOCHS,
    OOD,
    DemoResult,
    by_autograd,
    compute,
    curvatures,
    network,
    run_demo,
    trained_network,
)
from laplacian_metric.demo.page import EXAMPLES, VERDICTS, demo_page
from laplacian_metric.report import Gallery
from laplacian_metric.report.texts import number, share

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
    images, validation = (data.load("sample-fashion-mnist", split) for split in ("train", "validation"))
    few, some = images.select(torch.arange(0, 2500, 10)), validation.select(torch.arange(0, 500, 10))
    encoder, trained = trained_network(few, some, LOSS, epochs=2, seed=3)
    again, _ = trained_network(few, some, LOSS, epochs=2, seed=3)
    assert torch.equal(encoder.head.weight, again.head.weight)
    pairs = Pairs.from_labels(few.labels)
    with torch.no_grad():
        before, after = (LOSS(each.eval().raw(few.floats()), pairs) for each in (network(3), encoder))
    assert after < before
    assert len(trained.history) == 2
    assert not encoder.training


def small_layer() -> tuple[torch.Tensor, torch.Tensor, nn.Linear]:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(7, 3)
    with torch.no_grad():
        head.weight.copy_(torch.randn(3, 7, generator=generator))
        head.bias.copy_(torch.randn(3, generator=generator))
    return torch.rand(12, 7, generator=generator), torch.arange(12) % 3, head


def test_the_diagonal_by_autograd_is_that_of_the_plain_hessian() -> None:
    """The raw embeddings are linear in the weights, so that J^T M J is the Hessian of the loss in the weights."""
    features, labels, head = small_layer()
    features, head = features.double(), head.double()
    pairs = Pairs.from_labels(labels)

    def value(flat: torch.Tensor) -> torch.Tensor:
        matrix = flat.reshape(3, 8)
        return LOSS(features @ matrix[:, :7].T + matrix[:, 7], pairs)

    flat = torch.cat([head.weight, head.bias[:, None]], dim=1).detach().flatten()
    plain = jacrev(jacrev(value))(flat).diagonal()
    torch.testing.assert_close(by_autograd(features, labels, head, LOSS, "full"), plain)


def test_the_curvature_agrees_with_autograd_and_a_wrong_one_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = curvatures(*small_layer(), LOSS, num=12)
    assert [each.approximation for each in results] == ["fixed", "positive"]
    assert max(each.deviation for each in results) < 1e-12
    assert all(each.diagonal.shape == (24,) for each in results)
    closed = computing.last_layer_ggn_diagonal

    def wrong(*arguments: object, **options: object) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight, bias = closed(*arguments, **options)  # type: ignore[arg-type]
        return weight * 1.001, bias

    monkeypatch.setattr(computing, "last_layer_ggn_diagonal", wrong)
    assert max(each.deviation for each in curvatures(*small_layer(), LOSS, num=12)) > 1e-5


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
    assert figures["curvature_deviation"] < 1e-10
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
