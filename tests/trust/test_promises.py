"""Guarantees, credible sets, drift and pairs: against other libraries, and kept as often as promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom
from sklearn.isotonic import IsotonicRegression

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust import (
    CredibleSets,
    Drift,
    Guarantee,
    NoGuaranteeError,
    PairTrust,
    RiskDrift,
    Trust,
    rejecting,
)
from laplacian_metric.trust.drift import BETS, payoffs
from laplacian_metric.trust.guarantee import binomial_tail, needed, upper_bound
from tests.trust.conftest import Clusters


@given(st.integers(0, 300), st.integers(1, 300), st.floats(1e-3, 0.999))
@settings(max_examples=60, deadline=None)
def test_binomial_tails_and_bounds(successes: int, trials: int, p: float) -> None:
    successes = min(successes, trials)
    assert binomial_tail(successes, trials, p) == pytest.approx(binom.cdf(successes, trials, p), abs=1e-10)
    bound = 1.0 if successes == trials else beta.ppf(0.9, successes + 1, trials - successes)
    assert upper_bound(successes, trials, 0.9) == pytest.approx(bound, abs=1e-9)


@pytest.mark.parametrize(("error", "confidence"), [(0.05, 0.9), (0.1, 0.95), (0.01, 0.9)])
def test_so_many_queries_are_needed(error: float, confidence: float) -> None:
    count = needed(error, confidence)
    assert binom.cdf(0, count, error) <= 1 - confidence < binom.cdf(0, count - 1, error)
    right = np.ones(int(count / 0.8) - 2, bool)
    with pytest.raises(NoGuaranteeError):
        Guarantee.fit(np.linspace(0, 1, len(right)), right, error=error, confidence=confidence)


@pytest.mark.statistical
def test_the_guarantee_is_kept_as_often_as_promised() -> None:
    broken, shares = 0, []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        p = generator.random(600)
        right = generator.random(600) < p
        try:
            guarantee = Guarantee.fit(p, right, error=0.2, confidence=0.9)
        except NoGuaranteeError:
            shares.append(0.0)
            continue
        # Above a threshold t probabilities are uniform, so the error there is (1 - t)/2.
        broken += (1 - guarantee.threshold) / 2 > 0.2
        shares.append(1 - guarantee.threshold)
    assert broken <= 200 * 0.1 + 2 * np.sqrt(200 * 0.09)
    assert np.mean(shares) > 0.25  # .4 would just keep the promise


@pytest.mark.statistical
def test_impostors_reach_the_threshold_as_rarely_as_promised() -> None:
    broken = 0
    for seed in range(300):
        scores = np.random.default_rng(seed).random(400)
        broken += 1 - rejecting(scores, rate=0.05, confidence=0.9) > 0.05
    assert broken <= 300 * 0.1 + 2 * np.sqrt(300 * 0.09)
    ties = rejecting(np.r_[np.zeros(100), np.ones(100)], rate=0.1)
    assert ties > 1


@pytest.mark.statistical
def test_credible_sets_hold_a_right_item_as_often_as_promised() -> None:
    covered = []
    for seed in range(100):
        generator = np.random.default_rng(seed)
        distances = np.sort(generator.random((400, 20)), axis=1)
        right = np.zeros((400, 20), bool)
        right[np.arange(400), generator.geometric(0.4, 400).clip(1, 20) - 1] = True
        neighbours = Neighbours(np.tile(np.arange(20), (400, 1)), distances)
        sets = CredibleSets.fit(neighbours[:200], right[:200], level=0.8)
        covered.append((sets.of(neighbours[200:]) & right[200:]).any(axis=1).mean())
    assert np.mean(covered) == pytest.approx(0.8, abs=0.02)
    with pytest.raises(NoGuaranteeError, match="level"):
        CredibleSets.fit(neighbours, np.zeros_like(right), level=0.8)


def test_a_threshold_of_trust_is_a_guarantee(some: Clusters) -> None:
    trust = Trust.fit(some.gallery, some.queries)
    guarantee = trust.guarantee(some.test, error=0.2)
    accepted = trust.accepting(guarantee)(some.test[0]).verdict == "accept"
    np.testing.assert_array_equal(accepted, guarantee.answers(trust(some.test[0]).probability))
    assert not guarantee.answers([np.nan]).any()


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: Guarantee.fit([0.5], [1], error=0.1), ValueError, "right"),
    (lambda: Guarantee.fit([0.5], [True], error=0), ValueError, "error"),
    (lambda: Guarantee.fit([0.5], [True], confidence=1), ValueError, "confidence"),
    (lambda: rejecting([0.5], rate=0.1), NoGuaranteeError, "scores"),
    (lambda: Drift([1.0, 2.0], false_alarm=0), ValueError, "false_alarm"),
    (lambda: Drift([np.nan]), ValueError, "novelty"),
    (lambda: RiskDrift(1.5), ValueError, "error"),
    (lambda: PairTrust.fit([0.1, 0.2], [1, 0]), TypeError, "same"),
    (lambda: PairTrust.fit([0.1, 0.2], [True, True]), ValueError, "same"),
]


@pytest.mark.parametrize(("call", "error", "named"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused(call: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()


def test_no_bet_is_expected_to_win() -> None:
    ranks = (np.arange(200_000) + 0.5) / 200_000
    paid = np.mean([payoffs(rank) for rank in ranks[::20]], axis=0)
    assert paid == pytest.approx(np.ones(1 + len(BETS)), abs=0.05)


@pytest.mark.statistical
def test_drift_is_noticed_and_false_alarms_are_rare() -> None:
    false, noticed = 0, 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        calibration = generator.exponential(size=300)
        false += Drift(calibration).update(generator.exponential(size=300)).alarm
        if seed < 50:
            ood = generator.random(300) < 0.25
            stream = np.where(ood, 4 + generator.exponential(3, 300), generator.exponential(size=300))
            noticed += Drift(calibration).update(stream).alarm
    assert false <= 200 * 0.05 + 2 * np.sqrt(200 * 0.05 * 0.95)
    assert noticed >= 45


@pytest.mark.statistical
def test_a_broken_promise_is_noticed() -> None:
    false = sum(
        RiskDrift(0.1).update(np.random.default_rng(seed).random(500) > 0.1).alarm for seed in range(200)
    )
    assert false <= 200 * 0.05 + 2 * np.sqrt(200 * 0.05 * 0.95)
    broken = [
        RiskDrift(0.1).update(np.random.default_rng(seed).random(500) > 0.2).alarm for seed in range(50)
    ]
    assert np.mean(broken) > 0.9


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_venn_abers_intervals_are_isotonic_regressions(seed: int) -> None:
    generator = np.random.default_rng(seed)
    number = int(generator.integers(4, 60))
    similarity = np.round(generator.standard_normal(number), 1)
    same = generator.random(number) < 1 / (1 + np.exp(-2 * similarity))
    same[:2] = True, False
    pairs, values = PairTrust.fit(similarity, same), np.round(generator.standard_normal(8), 2)
    answer = pairs(values)
    for place, value in enumerate(values):
        for label, interval in ((0, answer.low), (1, answer.high)):
            fitted = IsotonicRegression().fit(
                np.append(similarity, value), np.append(same, label).astype(float)
            )
            assert interval[place] == pytest.approx(fitted.predict([value])[0], abs=1e-9)


@pytest.mark.statistical
def test_pairs_are_calibrated_and_false_matches_are_rare() -> None:
    generator = np.random.default_rng(0)
    same = generator.random(40_000) < 0.3
    similarity = generator.normal(np.where(same, 0.6, 0.1), 0.15)
    pairs = PairTrust.fit(similarity[:2000], same[:2000])
    answer = pairs(similarity[2000:])
    for low in (0.2, 0.5, 0.8):
        inside = (answer.probability >= low) & (answer.probability < low + 0.2)
        assert same[2000:][inside].mean() == pytest.approx(answer.probability[inside].mean(), abs=0.06)
    threshold = pairs.threshold(false_match_rate=0.01)
    assert (similarity[2000:][~same[2000:]] >= threshold).mean() < 0.012
    share = same[:2000].mean()
    odds = np.exp(answer.log_likelihood_ratio) * share / (1 - share)
    np.testing.assert_allclose(odds / (1 + odds), answer.probability, rtol=1e-9)
