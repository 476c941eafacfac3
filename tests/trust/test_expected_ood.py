"""An expected share of OOD queries: Bayes' rule against a loop, what it does to probabilities, storage, refusals."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.trust.expected_ood import FORMS, SHARES, errors, measured, table
from experiments.trust.measure import inputs, scored
from laplacian_metric import Trust
from laplacian_metric.trust.calibration import calibration_error, discounted, novelty_inputs, sigmoid
from laplacian_metric.trust.novelty import OOD_TAIL, Novelty, density_ratio
from tests.experiments.synthetic_settings import synthetic


def clouds(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 5, num)
    return 2 * np.eye(5, 12)[labels] + 0.7 * generator.standard_normal((num, 12)), labels


@pytest.fixture(scope="module")
def trust() -> Trust:
    return Trust.fit(clouds(400, 0), clouds(400, 1))


@given(st.integers(0, 2**31), st.integers(60, 300), st.floats(0.01, 0.99))
def test_it_is_bayes_rule_with_a_ratio_of_densities(seed: int, num: int, share: float) -> None:
    rows = np.random.default_rng(seed).standard_normal((num, 3))
    novelty = Novelty.fit(rows, 0.05)
    novelties = novelty.parts(rows).sum(axis=1)
    assert novelty.ratio is not None
    scale, log_mean = novelty.ratio
    ratio = [np.exp(value / scale + log_mean) for value in novelties]
    assert np.mean(ratio) == pytest.approx(1)  # that of known queries: a density ratio integrates to 1
    expected = [(1 - share) / (1 - share + share * r) for r in ratio]
    np.testing.assert_allclose(np.exp(novelty.log_known(novelties, share)), expected, rtol=1e-9)


def test_an_exponential_tail_becomes_three_times_as_long() -> None:
    novelty = np.random.default_rng(0).exponential(2.0, 200_000)
    scale, _ = density_ratio(novelty)
    assert 1 / (1 / 2.0 - 1 / scale) == pytest.approx(2.0 * OOD_TAIL, rel=0.1)


def test_the_probability_is_that_of_the_match_times_that_of_being_known(trust: Trust) -> None:
    h = clouds(50, 2)[0]
    answer, plain = trust.expecting(0.3)(h), trust(h)
    assert trust.known_slope is not None
    a, b = trust.known_slope
    for probability, match, novelty in zip(answer.probability, plain.match, plain.novelty, strict=True):
        alone = sigmoid(a + b * np.log(match / (1 - match)))
        in_distribution = np.exp(trust.novelty.log_known(np.array([novelty]), 0.3)[0])
        assert probability == pytest.approx(alone * in_distribution, rel=1e-6)
    assert answer.reason.tolist() == plain.reason.tolist()
    assert np.array_equal(answer.novelty, plain.novelty)


def test_the_more_ood_queries_are_expected_the_less_probable_is_every_match(trust: Trust) -> None:
    h = clouds(50, 2)[0]
    probabilities = [trust.expecting(share)(h).probability for share in (0.01, 0.1, 0.5, 0.9)]
    assert all(bool((a > b).all()) for a, b in pairwise(probabilities))
    assert np.array_equal(trust.expecting(0.5).expecting(None)(h).probability, trust(h).probability)


def test_it_is_better_calibrated_for_a_mixture_of_that_share(trust: Trust) -> None:
    h, labels = clouds(600, 3)
    out = np.random.default_rng(4).standard_normal((600, 12))
    right = np.append(np.array(trust(h).labels) == labels, np.zeros(600, dtype=bool))
    both = np.concatenate([h, out])
    expecting, plain = (calibration_error(t(both).probability, right) for t in (trust.expecting(0.5), trust))
    assert expecting < plain - 0.02


@pytest.mark.parametrize("of", ["fit", "expecting"])
def test_it_is_kept_in_the_folder_and_over_another_gallery(trust: Trust, tmp_path: Path, of: str) -> None:
    sharing = (
        trust.expecting(0.2)
        if of == "expecting"
        else Trust.fit(clouds(400, 0), clouds(400, 1), expected_ood=0.2)
    )
    sharing.save(tmp_path / "trust")
    again, h = Trust.load(tmp_path / "trust"), clouds(40, 5)[0]
    assert again.expected_ood == 0.2
    assert np.array_equal(again(h).probability, sharing(h).probability)
    assert np.array_equal(again.expecting(None)(h).probability, trust(h).probability)
    other = again.with_gallery(*clouds(300, 6))
    assert other.expected_ood == 0.2
    around = other.gallery.around_items(other.gallery.reference())
    rows = novelty_inputs(around.h, around.queries)
    assert other.novelty.ratio == Novelty.fit(rows, other.alpha).ratio


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan"), 2])
def test_what_is_no_share_is_refused(trust: Trust, share: float) -> None:
    with pytest.raises(ValueError, match=r"share of OOD queries is .*above 0 and below 1"):
        trust.expecting(share)


def test_without_labels_and_from_earlier_versions_it_is_refused(trust: Trust) -> None:
    with pytest.raises(ValueError, match="fit it with labels"):
        Trust.fit((clouds(400, 0)[0], None), clouds(400, 1), expected_ood=0.5)
    trust = trust.expecting(None)
    trust.known_slope = None  # as a folder of version 2 has it
    with pytest.raises(ValueError, match=r"earlier version.*fit it again"):
        trust.expecting(0.5)


def test_the_experiment_weighs_queries_as_a_mixture_does() -> None:
    generator = np.random.default_rng(0)
    probability, right = generator.random(400), generator.random(400) < 0.5
    ece, brier = errors(probability, right, np.full(400, 1 / 400))
    assert ece == pytest.approx(calibration_error(probability, right))
    assert brier == pytest.approx(np.mean((probability - right) ** 2))
    repeated = np.repeat([0, 1], [100, 300])
    weights = np.append(np.full(100, 3 / 600), np.full(300, 1 / 600))
    thrice = np.concatenate([np.repeat(np.flatnonzero(repeated == 0), 3), np.flatnonzero(repeated == 1)])
    assert errors(probability, right, weights)[0] == pytest.approx(
        calibration_error(probability[thrice], right[thrice])
    )


def test_the_experiment_compares_three_forms_by_settings() -> None:
    queries = scored(inputs(synthetic(False)), slice(0, 120), free=False, shares=SHARES)
    result = measured(queries)
    assert set(result["mixtures"]) == {"0.1", "0.3", "0.5"}
    test = queries.scores["test"]
    assert (test["trust, 50% OOD"] > test["trust, 10% OOD"]).all()
    page = table({name: [result] for name in ("fashion-lite0", "wordnet-minilm", "cifar-500", "cifar-lite0")})
    assert page.count("| development (2) |") == page.count("| others (2) |") == 3
    assert all(form in page for form in FORMS)
    logits = -test["match"]
    assert discounted(logits, np.zeros(len(logits))) == pytest.approx(logits)
