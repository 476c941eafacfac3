"""The threshold against the loop that its docstring describes, and its promise against populations that are known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from laplacian_metric.retrieval.abstention import NoThresholdError, Threshold, choose_threshold, needed

Floats = NDArray[np.float64]
GRID = (np.arange(20_000) + 0.5) / 20_000  # of an uncertainty that is uniform on [0, 1)


def rising(u: Floats) -> Floats:
    return 0.02 + 0.4 * u**3


def confidently_wrong(u: Floats) -> Floats:
    return np.where(u < 0.05, 0.15, 0.01 + 0.5 * u**4)


def barely_too_many(u: Floats) -> Floats:
    """Every threshold breaks the promise, by a hair: the worst case."""
    return np.full_like(u, 0.1001)


def in_steps(u: Floats) -> Floats:
    return 0.02 + 0.49 * (np.floor(6 * u) / 6) ** 3


def least_share(count: int, of: int) -> float:
    """What the true share is at least, but for one time in a thousand (Clopper and Pearson)."""
    return float(scipy.stats.beta.ppf(0.001, count, of - count + 1)) if count else 0.0


def broken_promises(
    curve: Callable[[Floats], Floats], choose: Callable[[Floats, NDArray[np.bool_], int], float], sets: int
) -> int:
    """For how many calibration sets of 400 the true error rate below the chosen threshold is above 0.1."""
    rates = np.cumsum(curve(GRID)) / np.arange(1, len(GRID) + 1)
    generator = np.random.default_rng(1)
    broken = 0
    for index in range(sets):
        u = generator.random(400)
        wrong = generator.random(400) < curve(u)
        if curve is in_steps:
            u = np.floor(6 * u) / 6
        value = choose(u, wrong, index)
        if curve is in_steps:
            value += 1 / 6 - 1e-9  # it answers all of its step
        answered = np.searchsorted(GRID, value, side="right")
        broken += bool(answered > 0 and rates[answered - 1] > 0.1)
    return broken


def learn_then_test(u: Floats, wrong: NDArray[np.bool_], index: int) -> float:
    try:
        generator = np.random.default_rng(10_000 + index)
        return choose_threshold(u, wrong, alpha=0.1, delta=0.1, generator=generator).value
    except NoThresholdError:
        return -1.0


def naive(u: Floats, wrong: NDArray[np.bool_], index: int) -> float:
    """The largest with an error rate of at most alpha on the calibration set itself."""
    order = np.argsort(u)
    fine = np.flatnonzero(np.cumsum(wrong[order]) <= 0.1 * np.arange(1, len(u) + 1))
    return float(u[order][fine[-1]]) if len(fine) else -1.0


def bound_for_each(u: Floats, wrong: NDArray[np.bool_], index: int) -> float:
    """The largest whose own confidence bound is at most alpha."""
    order = np.argsort(u)
    answered = np.arange(1, len(u) + 1)
    fine = np.flatnonzero(scipy.stats.binom.cdf(np.cumsum(wrong[order]), answered, 0.1) <= 0.1)
    return float(u[order][fine[-1]]) if len(fine) else -1.0


@pytest.mark.statistical
@pytest.mark.parametrize("curve", [rising, confidently_wrong, barely_too_many, in_steps])
def test_the_promise_is_kept_for_all_but_delta_of_the_calibration_sets(
    curve: Callable[[Floats], Floats],
) -> None:
    broken = broken_promises(curve, learn_then_test, 500)
    assert least_share(broken, 500) <= 0.1
    if curve is barely_too_many:
        assert broken > 15, "the promise is kept by promising far too little"


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("curve", "choose"),
    [
        (rising, naive),
        (confidently_wrong, naive),
        (in_steps, naive),
        (barely_too_many, naive),
        (barely_too_many, bound_for_each),
    ],
)
def test_choosing_and_promising_on_the_same_queries_would_not_keep_it(
    curve: Callable[[Floats], Floats], choose: Callable[[Floats, NDArray[np.bool_], int], float]
) -> None:
    """So that the test above could fail."""
    assert least_share(broken_promises(curve, choose, 300), 300) > 0.1


@pytest.mark.statistical
def test_most_of_what_could_be_answered_is_answered() -> None:
    generator = np.random.default_rng(3)
    possible = GRID[np.flatnonzero(np.cumsum(rising(GRID)) <= 0.1 * np.arange(1, len(GRID) + 1))[-1]]
    reached = []
    for _ in range(50):
        u = generator.random(2000)
        wrong = generator.random(2000) < rising(u)
        reached.append(choose_threshold(u, wrong, alpha=0.1, generator=generator).value)
    assert 0.9 * possible < np.mean(reached) < possible


def by_loop(u: Floats, wrong: NDArray[np.bool_], alpha: float, delta: float, seed: int) -> float | None:
    order = np.random.default_rng(seed).permutation(len(u))
    size = math.ceil(0.2 * len(u))
    exploring, testing = order[:size], order[size:]

    def p_value(threshold: float, queries: NDArray[np.int64]) -> float:
        answered = [i for i in queries if u[i] <= threshold]
        return float(scipy.stats.binom.cdf(sum(bool(wrong[i]) for i in answered), len(answered), alpha))

    candidates = sorted({float(u[i]) for i in exploring if u[i] < math.inf})
    if not candidates:
        return None
    start = min(range(len(candidates)), key=lambda j: round(p_value(candidates[j], exploring), 12))
    chosen = None
    for candidate in candidates[start:]:
        if not any(u[i] <= candidate for i in testing) or p_value(candidate, testing) > delta:
            break
        chosen = candidate
    return chosen


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(20, 120),
    rate=st.floats(0, 0.4),
    levels=st.sampled_from([3, 10, 1000]),
    share_infinite=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_it_does_what_its_docstring_says(
    seed: int, count: int, rate: float, levels: int, share_infinite: float
) -> None:
    generator = np.random.default_rng(seed)
    u = generator.integers(levels, size=count) / levels
    wrong = generator.random(count) < 2 * rate * u
    u = np.where(generator.random(count) < share_infinite, math.inf, u)
    expected = by_loop(u, wrong, 0.3, 0.2, seed)
    if expected is None:
        with pytest.raises(NoThresholdError):
            choose_threshold(u, wrong, alpha=0.3, delta=0.2, generator=np.random.default_rng(seed))
        return
    threshold = choose_threshold(u, wrong, alpha=0.3, delta=0.2, generator=np.random.default_rng(seed))
    assert threshold.value == expected
    testing = np.random.default_rng(seed).permutation(count)[math.ceil(0.2 * count) :]
    passed = u[testing] <= threshold.value
    assert (threshold.tested, threshold.answered, threshold.wrong) == (
        len(testing),
        passed.sum(),
        wrong[testing][passed].sum(),
    )
    exact = scipy.stats.binomtest(threshold.wrong, threshold.answered, alternative="less").proportion_ci(
        0.8, "exact"
    )
    assert threshold.bound == pytest.approx(exact.high, rel=1e-9)
    assert threshold.bound <= 0.3


@pytest.mark.parametrize("alpha", [0.5, 0.1, 0.05, 0.001])
@pytest.mark.parametrize("delta", [0.5, 0.125, 0.01])
@pytest.mark.parametrize("explore", [0.01, 0.2, 0.9])
def test_so_many_queries_are_needed(alpha: float, delta: float, explore: float) -> None:
    least = needed(alpha, delta, explore)
    right = next(n for n in range(1, 10_000) if (1 - alpha) ** n <= delta * (1 + 1e-12))
    assert least - math.ceil(explore * least) >= right > least - 1 - math.ceil(explore * (least - 1))
    fine = choose_threshold(np.ones(least), np.zeros(least, bool), alpha=alpha, delta=delta, explore=explore)
    assert (fine.value, fine.answered, fine.wrong) == (1.0, fine.tested, 0)
    with pytest.raises(
        NoThresholdError, match=rf"^{least - 1} calibration .* at least {least}, of which {right} "
    ):
        choose_threshold(
            np.ones(least - 1), np.zeros(least - 1, bool), alpha=alpha, delta=delta, explore=explore
        )


def test_where_all_is_right_all_but_the_largest_are_answered() -> None:
    u = np.random.default_rng(4).random(1000)
    threshold = choose_threshold(u, np.zeros(1000, bool), alpha=0.05)
    assert threshold.value == pytest.approx(1, abs=0.03)
    assert threshold.bound < 0.01


def test_where_all_is_wrong_the_error_says_so() -> None:
    u = np.random.default_rng(5).random(300)
    with pytest.raises(
        NoThresholdError, match=r"keeps the error rate at 0.1 .* reached is 1, where"
    ) as caught:
        choose_threshold(u, np.ones(300, bool), alpha=0.1)
    assert caught.value.error_rate == 1


def test_the_error_names_the_least_error_rate_and_where() -> None:
    """30 of 100 of the certain ones are wrong, all of the others."""
    u = np.repeat([0.0, 1.0], [100, 300])
    wrong = np.arange(400) >= 70
    with pytest.raises(NoThresholdError, match=r"reached is 0.3, where 25.0% of the queries") as caught:
        choose_threshold(u, wrong, alpha=0.1)
    assert (caught.value.error_rate, caught.value.share) == (0.3, 0.25)


def test_infinite_uncertainty_is_never_answered() -> None:
    u = np.repeat([0.5, math.inf], 200)
    wrong = np.arange(400) >= 200
    threshold = choose_threshold(u, wrong, alpha=0.05)
    assert (threshold.value, threshold.wrong) == (0.5, 0)
    assert threshold.answers([math.inf, 0.5, -math.inf]).tolist() == [False, True, True]
    with pytest.raises(NoThresholdError, match=r"only 0 of 100 calibration queries have a finite"):
        choose_threshold(np.full(100, math.inf), np.zeros(100, bool), alpha=0.1)


def test_constant_uncertainty_answers_all_or_nothing() -> None:
    wrong = np.zeros(500, bool)
    wrong[::50] = True
    assert choose_threshold(np.zeros(500), wrong, alpha=0.05).value == 0
    with pytest.raises(NoThresholdError, match=r"reached is 0.02, where 100.0% of"):
        choose_threshold(np.zeros(500), wrong, alpha=0.02)


def test_the_share_is_drawn_and_the_draw_can_be_repeated() -> None:
    generator = np.random.default_rng(6)
    u = generator.random(300)
    wrong = generator.random(300) < rising(u)
    first, again = (choose_threshold(u, wrong, alpha=0.15) for _ in range(2))
    assert first == again
    others = {
        choose_threshold(u, wrong, alpha=0.15, generator=np.random.default_rng(s)).value for s in range(5)
    }
    assert len(others) > 1


@pytest.mark.parametrize("value", [0.25, -math.inf])
def test_it_survives_json(value: float) -> None:
    threshold = Threshold(value, 0.1, 0.05, 0.09, 50, 30, 1)
    stored = json.loads(json.dumps(threshold.to_dict(), allow_nan=False))
    assert Threshold.from_dict(stored) == threshold


def test_answers_keep_the_shape() -> None:
    threshold = Threshold(0.5, 0.1, 0.1, 0.09, 50, 30, 1)
    assert threshold.answers(np.zeros((2, 3), np.float32)).shape == (2, 3)
    assert threshold.answers([]).shape == (0,)
    with pytest.raises(ValueError, match="uncertainty is NaN at index 1"):
        threshold.answers([0.0, math.nan])


@pytest.mark.parametrize(
    ("uncertainty", "wrong", "options", "error", "message"),
    [
        ([0.0, math.nan], [True, True], {}, ValueError, "uncertainty is NaN at index 1: pass infinity"),
        ([[0.0]], [True], {}, ValueError, r"uncertainty has shape \(1, 1\)"),
        ([0.0], [1], {}, TypeError, "wrong has dtype int64, booleans"),
        ([0.0], [True, False], {}, ValueError, r"wrong has shape \(2,\) for 1 uncertainties"),
        ([0.0], [True], {"alpha": 0}, ValueError, "alpha is 0: it is a share"),
        ([0.0], [True], {"delta": 1.0}, ValueError, "delta is 1.0"),
        ([0.0], [True], {"explore": math.nan}, ValueError, "explore is nan"),
        ([], [], {}, NoThresholdError, "0 calibration queries are too few"),
    ],
)
def test_errors_name_what_is_wrong(
    uncertainty: list[float], wrong: list[bool], options: dict[str, float], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        choose_threshold(uncertainty, wrong, **{"alpha": 0.1, **options})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": math.inf}, "value is inf"),
        ({"value": math.nan}, "value is nan"),
        ({"wrong": 31}, "wrong is 31, answered 30"),
        ({"alpha": 2.0}, "alpha is 2.0"),
    ],
)
def test_a_threshold_that_cannot_be_is_refused(change: dict[str, float], message: str) -> None:
    stored = Threshold(0.5, 0.1, 0.1, 0.09, 50, 30, 1).to_dict()
    with pytest.raises(ValueError, match=message):
        Threshold.from_dict(stored | change)
