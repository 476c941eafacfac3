"""The benchmark of neighbours by match probability, on a small result."""

from __future__ import annotations

import pytest
import torch

from benchmarks import closest_matches
from laplacian_metric.methods.gaussian.match_probability import MatchProbability


def test_both_ways_are_measured_on_the_images_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closest_matches, "IMAGES", 400)
    monkeypatch.setattr(closest_matches, "QUERIES", 20)
    space = {
        "means": [[[float(i), float(j)]] for i in range(5) for j in range(5)],
        "variances": [[[0.01, 0.02]]] * 25,
    }
    samples = closest_matches.images(space, torch.Generator().manual_seed(0))
    assert samples.shape == (8, 400, 2)
    assert float((samples - samples.round()).std()) == pytest.approx(0.015**0.5, rel=0.1)
    row = closest_matches.measure("test", "test", {"test": {"space": space}}, MatchProbability(4.0, 4.0), 1)
    assert 0 < row["left"] < 50
    assert row["all / closest"] > 0
