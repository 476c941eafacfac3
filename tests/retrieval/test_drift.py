"""The monitor against a plain loop, its guarantee on streams without a change, and its delay on streams with one."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from laplacian_metric.retrieval import drift
from laplacian_metric.retrieval.drift import Comparison, DriftMonitor, DriftReport, compare

Floats = NDArray[np.float64]


def gaussian(generator: np.random.Generator, count: int, shift: float = 0, scale: float = 1) -> Floats:
    return np.exp(3 + shift + scale * generator.normal(size=count))


def with_ties(generator: np.random.Generator, count: int) -> Floats:
    """A third of them 0 or infinite, the others few values."""
    return generator.choice([0.0, math.inf, 1.0, 2.0, 3.0, 3.0], count)


@pytest.mark.parametrize("bet", range(len(drift.BETS)))
def test_a_bet_is_fair_and_is_a_beta_density(bet: int) -> None:
    def pays(rank: float) -> float:
        return float(drift._payoffs(np.array([rank]))[0, bet + 1])

    for rank in (1e-6, 0.2, 0.5, 0.9, 1 - 1e-6):
        assert pays(rank) == pytest.approx(scipy.stats.beta.pdf(rank, *drift.BETS[bet]), rel=1e-9)
    # u = sin^2(t) takes the poles at 0 and 1 away.
    mean, _ = scipy.integrate.quad(
        lambda t: pays(math.sin(t) ** 2) * math.sin(2 * t), 1e-9, math.pi / 2 - 1e-7, limit=200
    )
    assert mean == pytest.approx(1, abs=1e-5)


def test_the_capital_is_dealt_whole() -> None:
    assert drift.START.sum() == pytest.approx(1, abs=1e-15)
    assert len(drift.START) == 1 + len(drift.BETS)


def by_loop(calibration: Floats, stream: Floats, seed: int) -> list[float]:
    """log10 of the martingale after each query, by the definition."""
    monitor_seed = int(np.random.default_rng(seed).integers(2**63))
    random = np.random.Generator(np.random.PCG64(monitor_seed))
    values = list(calibration)
    capital = [0.5, *[0.5 / len(drift.BETS)] * len(drift.BETS)]
    path = []
    for seen, value in enumerate(stream, start=1):
        values.append(value)
        below = sum(other < value for other in values)
        equal = sum(other == value for other in values)
        rank = (below + random.random() * equal) / len(values)
        pays = [1.0, *(float(scipy.stats.beta.pdf(rank, a, b)) for a, b in drift.BETS)]
        capital = [c * p for c, p in zip(capital, pays, strict=True)]
        path.append(math.log10(sum(capital)))
        total, share = sum(capital), 1 / (seen + drift.PATIENCE)
        start = [0.5, *[0.5 / len(drift.BETS)] * len(drift.BETS)]
        capital = [(1 - share) * c + share * total * s for c, s in zip(capital, start, strict=True)]
    return path


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    before=st.integers(1, 30),
    batches=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    chunk=st.sampled_from([1, 3, 256]),
    shift=st.sampled_from([0, 5]),
)
def test_it_is_the_loop_however_the_stream_is_cut(
    seed: int, before: int, batches: list[int], chunk: int, shift: int
) -> None:
    generator = np.random.default_rng(seed)
    calibration = with_ties(generator, before)
    stream = with_ties(generator, sum(batches)) + shift
    expected = by_loop(calibration, stream, seed)
    monitor = DriftMonitor(calibration, false_alarm=0.5, generator=np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift, "CHUNK", chunk)
        for batch in np.split(stream, np.cumsum(batches)[:-1]):
            report = monitor.update(batch)
    assert report.seen == len(stream)
    assert report.log10_martingale == pytest.approx(expected[-1] if expected else 0, abs=1e-10)
    assert report.log10_peak == pytest.approx(max([0, *expected]), abs=1e-10)
    reached = [seen for seen, log in enumerate(expected, start=1) if log >= math.log10(2)]
    assert report.alarm_at == (reached[0] if reached else None)
    assert report.alarm == bool(reached)


@pytest.mark.statistical
@pytest.mark.parametrize("draw", [gaussian, with_ties])
def test_ranks_are_uniform_and_independent_without_a_change(draw: Callable[..., Floats]) -> None:
    """Over streams: the first, the last and neighbouring ranks."""
    generator = np.random.default_rng(0)
    ranks = []
    for _ in range(2000):
        monitor = DriftMonitor(draw(generator, 5), generator=generator)
        ranks.append(monitor._ranks(drift._rounded(draw(generator, 4))))
    columns = np.array(ranks).T
    for column in columns:
        assert scipy.stats.kstest(column, "uniform").pvalue > 1e-3
    for first, second in itertools.pairwise(columns):
        assert abs(scipy.stats.spearmanr(first, second).statistic) < 4 / math.sqrt(2000)


@pytest.mark.statistical
@pytest.mark.parametrize("draw", [gaussian, with_ties])
@pytest.mark.parametrize("before", [20, 500])
def test_false_alarms_are_as_rare_as_promised(draw: Callable[..., Floats], before: int) -> None:
    generator = np.random.default_rng(before)
    alarms = 0
    for _ in range(300):
        monitor = DriftMonitor(draw(generator, before), false_alarm=0.2, generator=generator)
        alarms += monitor.update(draw(generator, 400)).alarm
    # The true share is at least that, but for one time in a thousand (Clopper and Pearson).
    assert scipy.stats.beta.ppf(0.001, alarms, 301 - alarms) <= 0.2
    assert alarms > 3, "it never bets"


def delays(before: int, good: int, shift: float, scale: float) -> list[float]:
    generator = np.random.default_rng(7)
    collected_delays = []
    for _ in range(20):
        monitor = DriftMonitor(gaussian(generator, before), false_alarm=0.01, generator=generator)
        monitor.update(gaussian(generator, good))
        report = monitor.update(gaussian(generator, 400, shift, scale))
        collected_delays.append(report.alarm_at - good if report.alarm_at is not None else math.inf)
    return collected_delays


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("good", "shift", "scale", "half", "all_of_them"),
    [
        (0, -1.0, 1.0, 20, 60),
        (0, 1.0, 1.0, 20, 60),
        (0, -0.5, 1.0, 110, 400),
        (0, 0.0, 2.0, 20, 60),
        (0, 0.0, 0.5, 45, 90),
        (2000, -1.0, 1.0, 45, 90),
        (2000, 1.0, 1.0, 45, 90),
    ],
)
def test_changes_are_seen_soon(good: int, shift: float, scale: float, half: int, all_of_them: int) -> None:
    steps = delays(1000, good, shift, scale)
    assert min(steps) > 0
    assert np.median(steps) <= half
    assert max(steps) <= all_of_them


def test_little_is_lost_while_nothing_changes() -> None:
    """What does not bet keeps 1/2 sqrt(100/(100 + t)) of the capital, whatever happens."""
    generator = np.random.default_rng(2)
    monitor = DriftMonitor(gaussian(generator, 200), generator=generator)
    for seen in (100, 1000, 20_000):
        report = monitor.update(gaussian(generator, seen - monitor.update([]).seen))
        assert report.log10_martingale > math.log10(0.5 * math.sqrt(100 / (100 + seen))) - 0.01
        assert not report.alarm


def test_the_alarm_stays_raised() -> None:
    generator = np.random.default_rng(3)
    monitor = DriftMonitor(gaussian(generator, 100), generator=generator)
    first = monitor.update(gaussian(generator, 100, shift=-3))
    assert first.alarm
    later = monitor.update(gaussian(generator, 3000))
    assert later.alarm
    assert later.alarm_at == first.alarm_at
    assert later.log10_peak >= first.log10_peak >= 2


def test_it_goes_on_where_it_was_stored() -> None:
    generator = np.random.default_rng(4)
    calibration, first, second = (with_ties(generator, n) for n in (50, 333, 333))
    one = DriftMonitor(calibration, generator=np.random.default_rng(5))
    one.update(first)
    stored = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    other = DriftMonitor.from_dict(stored)
    assert other.to_dict() == one.to_dict()
    assert one.update(second) == other.update(second)
    assert other.to_dict() == one.to_dict()
    alarmed = DriftMonitor(np.ones(100))
    assert alarmed.update(np.full(50, 0.5)).alarm
    again = DriftMonitor.from_dict(json.loads(json.dumps(alarmed.to_dict())))
    assert again.update([]) == alarmed.update([])
    with pytest.raises(ValueError, match=r"counts and 2 bets, .* 9 bets are needed: it is damaged"):
        DriftMonitor.from_dict(stored | {"capital": [0.5, 0.5]})


def test_its_state_does_not_grow_with_the_stream() -> None:
    generator = np.random.default_rng(6)
    monitor = DriftMonitor(gaussian(generator, 1000), generator=generator)
    monitor.update(gaussian(generator, 20_000))
    stored = monitor.to_dict()
    assert sum(stored["counts"]) == 21_000
    assert len(stored["values"]) < 2500
    assert len(json.dumps(stored)) < 60_000


def test_values_are_rounded_by_little_and_in_order() -> None:
    kappa = np.sort(
        np.concatenate([np.geomspace(1e-300, 1e300, 5000), np.linspace(1, 4, 5000), [0.0, 5e-324, math.inf]])
    )
    rounded = drift._rounded(kappa)
    assert (np.diff(rounded[:-1]) >= 0).all()
    assert rounded[0] == 0
    assert rounded[-1] == math.inf
    finite = kappa[2:-1]  # without 0 and the smallest number
    assert (np.abs(rounded[2:-1] / finite - 1) <= 1 / 512).all()


def test_constant_concentrations_are_no_change_and_another_constant_is() -> None:
    monitor = DriftMonitor(np.full(200, 10.0))
    assert not monitor.update(np.full(1000, 10.0)).alarm
    report = monitor.update(np.full(100, math.inf))
    assert report.alarm
    assert report.alarm_at is not None
    assert 1000 < report.alarm_at < 1020


def test_the_same_generator_gives_the_same_alarm() -> None:
    generator = np.random.default_rng(8)
    calibration, stream = with_ties(generator, 50), with_ties(generator, 100)
    seeds = (None, None, 1, 1, 2)
    alarms = [
        DriftMonitor(calibration, generator=None if s is None else np.random.default_rng(s)).update(stream)
        for s in seeds
    ]
    assert alarms[0] == alarms[1]
    assert alarms[2] == alarms[3] != alarms[4]


def test_an_empty_batch_changes_nothing() -> None:
    monitor = DriftMonitor([1.0, 2.0, 3.0])
    before = monitor.to_dict()
    report = monitor.update([])
    assert monitor.to_dict() == before
    assert report == DriftReport(0.0, 0.0, False, None, 0, 2.0, None)
    assert report.median_shift is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1.0, math.nan], "kappas has the value nan at index 1"),
        ([-1.0], "kappas has the value -1 at index 0: concentrations"),
        ([[1.0]], r"kappas has shape \(1, 1\), one number"),
    ],
)
def test_what_is_no_concentration_is_refused_and_not_counted(bad: list[float], message: str) -> None:
    monitor = DriftMonitor([1.0, 2.0])
    before = monitor.to_dict()
    with pytest.raises(ValueError, match=message):
        monitor.update(bad)
    assert monitor.to_dict() == before
    with pytest.raises(ValueError, match=message):
        DriftMonitor(bad)


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_a_monitor_needs_queries_and_a_probability(share: float) -> None:
    with pytest.raises(ValueError, match="kappas is empty"):
        DriftMonitor([])
    with pytest.raises(ValueError, match="false_alarm is"):
        DriftMonitor([1.0], false_alarm=share)


@pytest.mark.parametrize(
    ("calibration", "recent", "shift"),
    [(8.0, 2.0, 0.25), (0.0, 0.0, 1.0), (math.inf, math.inf, 1.0), (math.inf, 2.0, 0.0), (0.0, 1.0, None)],
)
def test_the_report_says_how_far_the_median_moved(
    calibration: float, recent: float, shift: float | None
) -> None:
    monitor = DriftMonitor(np.full(9, calibration))
    monitor.update(np.full(300, 77.0))
    report = monitor.update(np.full(drift.RECENT, recent))
    assert (report.median_calibration, report.median_recent) == (calibration, recent)
    assert report.median_shift == shift
    assert DriftReport.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False))) == report


def test_compare_is_the_largest_difference_of_the_distribution_functions() -> None:
    generator = np.random.default_rng(9)
    for draw in (gaussian, with_ties):
        old, new = draw(generator, 40), draw(generator, 25)
        comparison = compare(old, new)
        expected = max(abs((old <= x).mean() - (new <= x).mean()) for x in [*old, *new])
        assert comparison.statistic == pytest.approx(expected, abs=1e-12)
        pairs = [1.0 if n < o else 0.5 if n == o else 0.0 for n in new for o in old]
        assert comparison.lower == pytest.approx(np.mean(pairs), abs=1e-12)
        assert (comparison.calibration, comparison.new) == (40, 25)
        assert comparison.median_calibration == np.sort(old)[19]
        assert comparison.median_new == np.sort(new)[12]
        assert (
            Comparison.from_dict(json.loads(json.dumps(comparison.to_dict(), allow_nan=False))) == comparison
        )


@pytest.mark.statistical
def test_the_p_value_is_the_share_of_permutations_with_such_a_difference() -> None:
    generator = np.random.default_rng(10)
    old, new = gaussian(generator, 30), gaussian(generator, 20, shift=-0.6)
    comparison = compare(old, new)
    shuffled = generator.permuted(np.tile(np.concatenate([old, new]), (4000, 1)), axis=1)
    # In order of value, each step adds 1/30 or takes 1/20 away.
    order = np.argsort(shuffled, axis=1)
    walks = np.cumsum(np.where(order < 30, 1 / 30, -1 / 20), axis=1)
    share = (np.abs(walks).max(axis=1) >= comparison.statistic - 1e-9).mean()
    assert 0.001 < comparison.p_value < 0.5
    assert share == pytest.approx(comparison.p_value, abs=4 * math.sqrt(comparison.p_value / 4000))


def test_compare_tells_a_shift_from_none() -> None:
    generator = np.random.default_rng(11)
    old = gaussian(generator, 3000)
    same, lower = compare(old, gaussian(generator, 2000)), compare(old, gaussian(generator, 2000, shift=-0.5))
    assert same.p_value > 0.01
    assert same.statistic < 0.06
    assert lower.p_value < 1e-20
    # Two normal distributions half a standard deviation apart.
    assert lower.lower == pytest.approx(scipy.stats.norm.cdf(0.5 / math.sqrt(2)), abs=0.03)
    assert lower.statistic == pytest.approx(2 * scipy.stats.norm.cdf(0.25) - 1, abs=0.04)
    assert compare([1.0], [1.0]).p_value == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ([], [1.0], "kappa_calibration is empty"),
        ([1.0], [], "kappa_new is empty"),
        ([math.nan], [1.0], "kappa_calibration has the value nan at index 0"),
        ([1.0], [[1.0]], r"kappa_new has shape \(1, 1\)"),
    ],
)
def test_compare_needs_queries_on_both_sides(old: list[float], new: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(old, new)
