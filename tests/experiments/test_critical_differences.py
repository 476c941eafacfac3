"""Critical differences against the published table, and ranks against a loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata

from experiments.critical_differences import holm, ranking

# Demsar (2006), table 5a: critical values of Nemenyi's test at 5 % by the number of methods.
CRITICAL = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}


@pytest.mark.parametrize(("num", "quantile"), CRITICAL.items())
def test_the_critical_difference_is_that_of_the_published_table(num: int, quantile: float) -> None:
    generator = np.random.default_rng(num)
    values = {str(name): generator.standard_normal(14) for name in range(max(num, 3))}
    if num == 2:
        with pytest.raises(ValueError, match="three"):
            ranking(dict(list(values.items())[:2]))
        return
    expected = quantile * np.sqrt(num * (num + 1) / (6 * 14))
    assert ranking(values).critical_difference == pytest.approx(expected, rel=1e-3)


def test_holm_goes_on_from_the_smallest_and_stops_at_the_first_that_is_too_large() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == pytest.approx({"a": 1.0, "b": 1.0})


def test_ranks_share_ties_and_best_comes_first() -> None:
    generator = np.random.default_rng(0)
    values = {name: generator.integers(0, 4, 9).astype(float) for name in "abcde"}
    result = ranking(values)
    loop = np.zeros(5)
    for setting in range(9):
        loop += rankdata([-values[name][setting] for name in "abcde"])
    assert dict(zip(result.names, result.ranks, strict=True)) == pytest.approx(
        dict(zip("abcde", loop / 9, strict=True))
    )
    assert list(result.ranks) == sorted(result.ranks)
