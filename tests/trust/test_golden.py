"""Inputs and probabilities as an independent implementation of the recipe computed them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from laplacian_metric.trust import Trust

GOLDEN = np.load(Path(__file__).parent / "golden.npz")
CASES = ("plain", "head", "plain_with_gallery", "head_with_gallery")


def trust_of(case: str) -> Trust:
    encoder = (GOLDEN["head_weight"], GOLDEN["head_bias"]) if case.startswith("head") else None
    gallery = GOLDEN["gallery_h"], GOLDEN["gallery_labels"]
    trust = Trust.fit(gallery, (GOLDEN["validation_h"], GOLDEN["validation_labels"]), encoder=encoder)
    if case.endswith("with_gallery"):
        return trust.with_gallery(GOLDEN["other_gallery_h"], GOLDEN["other_gallery_labels"])
    return trust


@pytest.mark.parametrize("case", CASES)
def test_answers_are_the_golden_ones(case: str) -> None:
    trust = trust_of(case)
    observed = trust.spaces.observe(GOLDEN["test_h"])
    for name, values in (("match_inputs", observed.match), ("novelty_inputs", observed.novelty)):
        np.testing.assert_allclose(
            np.column_stack(list(values.values())), GOLDEN[f"{case}:{name}"], atol=1e-4, rtol=0
        )
    answer = trust(GOLDEN["test_h"])
    np.testing.assert_array_equal(answer.nearest, GOLDEN[f"{case}:nearest"])
    for name in ("match", "probability", "known"):
        np.testing.assert_allclose(getattr(answer, name), GOLDEN[f"{case}:{name}"], atol=1e-3, rtol=0)
    np.testing.assert_allclose(answer.novelty, GOLDEN[f"{case}:novelty"], atol=1e-4, rtol=0)
    log_known = trust.calibration.novelty.log_known(answer.novelty, 0.1)
    np.testing.assert_allclose(np.exp(log_known), GOLDEN[f"{case}:p_known"], atol=1e-3)
    np.testing.assert_allclose(trust.calibration.slope, GOLDEN[f"{case}:a_b"], atol=1e-3, rtol=0)


@pytest.mark.parametrize("case", ["plain", "head"])
def test_the_match_is_the_golden_one(case: str) -> None:
    match = trust_of(case).calibration.match
    np.testing.assert_allclose(match.weights, GOLDEN[f"{case}:weights"], atol=1e-5)
    np.testing.assert_allclose(match.intercept, GOLDEN[f"{case}:intercept"], atol=1e-5)
    np.testing.assert_allclose([match.low, match.high], GOLDEN[f"{case}:clip"], atol=1e-5)
    np.testing.assert_allclose(match.center, GOLDEN[f"{case}:center"], atol=1e-5)
    np.testing.assert_allclose(match.scale, GOLDEN[f"{case}:scale"], atol=1e-5)
