"""Trust with a risk head, and a calibration that holds for galleries without labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from laplacian_metric import Trust
from laplacian_metric.methods.risk import RiskHead
from laplacian_metric.trust.calibration import RISK_INPUT
from laplacian_metric.trust.risk import FeatureRisk


def clouds(count: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Features whose last entry says how noisy they are."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 6, count)
    level = generator.random((count, 1))
    rows = 2 * np.eye(6)[labels] + noise * 2 * level * generator.standard_normal((count, 6))
    return np.concatenate([rows, level], axis=1).astype(np.float32), labels


def a_head(sign: float = 1.0) -> RiskHead:
    """A head that says the last feature, up to the length of the features."""
    head = RiskHead(7, hidden=4)
    with torch.no_grad():
        for layer in list(head.layers)[::2]:
            layer.weight.zero_()  # type: ignore[operator, union-attr]
            layer.bias.zero_()  # type: ignore[operator, union-attr]
        head.layers[0].weight[0, 6] = sign  # type: ignore[index]
        head.layers[2].weight[0, 0] = head.layers[4].weight[0, 0] = 1.0  # type: ignore[index]
    return head


def test_it_is_the_head_without_torch() -> None:
    head = RiskHead(7, hidden=16, generator=torch.Generator().manual_seed(0))
    risk = FeatureRisk.of(head)
    assert risk is not None
    rows = clouds(20, 0)[0]
    np.testing.assert_allclose(
        risk(rows), head.logits(torch.from_numpy(rows)).detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_a_risk_head_is_a_further_input_with_the_sign_of_a_risk() -> None:
    gallery, queries = clouds(600, 0), clouds(500, 1)
    trust = Trust.fit(gallery, queries, risk=a_head())
    assert trust.match is not None
    assert trust.match.weights.shape == (9,)
    assert trust.match.weights[-1] < 0
    answer = trust(clouds(200, 2)[0])
    assert answer.match_parts is not None
    assert answer.match_parts.shape == (200, 9)
    reversed_head = Trust.fit(gallery, queries, risk=a_head(-1.0))
    assert reversed_head.match is not None
    assert reversed_head.match.weights[-1] == 0  # what would count the wrong way does not count


def test_a_calibration_without_labels_holds_for_an_unlabelled_gallery(tmp_path: Path) -> None:
    head = a_head()
    trust = Trust.fit(clouds(600, 0), clouds(600, 1), risk=head, use_labels=False)
    h, labels = clouds(600, 5)
    bare = trust.with_gallery(h)
    queries, classes = clouds(1500, 6)
    answer = bare(queries)
    right = labels[answer.nearest] == classes
    assert answer.labels is None
    assert abs(answer.probability.mean() - right.mean()) < 0.06
    assert np.corrcoef(answer.probability, right)[0, 1] > 0.3
    assert RISK_INPUT in set(answer.because)
    labelled = trust.with_gallery(h, labels)(queries)
    np.testing.assert_array_equal(labelled.probability, answer.probability)
    assert labelled.labels is not None
    bare.save(tmp_path / "trust")
    again = Trust.load(tmp_path / "trust")
    np.testing.assert_array_equal(again(queries[:50]).probability, bare(queries[:50]).probability)
    assert not again.use_labels
    plain = Trust.fit(clouds(600, 0), clouds(600, 1), use_labels=False).with_gallery(h)(queries)
    assert ((answer.probability - right) ** 2).mean() < ((plain.probability - right) ** 2).mean()


def test_what_does_not_go_together_is_refused() -> None:
    gallery, queries = clouds(300, 0), clouds(200, 1)
    with pytest.raises(ValueError, match="with_gallery takes a gallery without"):
        Trust.fit((gallery[0], None), queries, risk=a_head())
    with pytest.raises(ValueError, match="7 columns, the risk head takes 5"):
        Trust.fit(gallery, queries, risk=RiskHead(5, hidden=2))
    with pytest.raises(TypeError, match="risk is a float"):
        Trust.fit(gallery, queries, risk=0.5)
    with pytest.raises(ValueError, match="a gallery with labels is needed"):
        Trust.fit(gallery, queries, risk=a_head()).with_gallery(gallery[0])
