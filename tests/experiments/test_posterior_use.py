"""Where a posterior pays: votes, sets of answers and choices of images against loops, tables against their results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp
from torch import nn

from experiments.posterior_use import active
from experiments.posterior_use.__main__ import difference, labelling_section, rounded, sets_section, table
from experiments.posterior_use.active import STRATEGIES, curve, priorities
from experiments.posterior_use.measure import (
    COVERAGE,
    SHARPNESS,
    VOTES,
    Gallery,
    measured,
    numbers,
    set_size,
    votes,
)
from experiments.posterior_use.situations import trained_head
from tests.experiments.synthetic_settings import synthetic


@given(seed=st.integers(0, 2**31), q=st.integers(1, 4), n=st.integers(1, 6), c=st.integers(1, 3))
def test_votes_are_softmax_weights_summed_by_class(seed: int, q: int, n: int, c: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries, items = (torch.randn(rows, 5, dtype=torch.float64, generator=generator) for rows in (q, n))
    codes = torch.randint(c, (n,), generator=generator)
    shares = votes(queries, items, nn.functional.one_hot(codes, c).double(), 0.3)
    for i in range(q):
        weights = [float(torch.exp(queries[i] @ items[j] / 0.3)) for j in range(n)]
        for k in range(c):
            expected = sum(w for w, code in zip(weights, codes, strict=True) if code == k) / sum(weights)
            assert float(shares[i, k]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(
    names=st.sets(st.integers(-5, 5), min_size=1).map(sorted),
    labels=st.lists(st.integers(-9, 9), min_size=1),
)
def test_numbers_are_places_among_names(names: list[int], labels: list[int]) -> None:
    expected = [names.index(label) if label in names else -1 for label in labels]
    assert numbers(np.array(names), np.array(labels)).tolist() == expected


@given(seed=st.integers(0, 2**31), count=st.integers(1, 40))
def test_sets_hold_what_is_as_likely_as_the_validation_quantile(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shares = {
        name: torch.rand(rows, 3, generator=generator).softmax(1)
        for name, rows in (("validation", count), ("test", 9))
    }
    truth = {name: torch.randint(0, 3, (len(rows),), generator=generator) for name, rows in shares.items()}
    truth["test"][0] = -1  # a class that the gallery does not have: left out
    result = set_size(shares, truth)
    gaps = sorted(1 - float(shares["validation"][i, truth["validation"][i]]) for i in range(count))
    limit = gaps[min(int(np.ceil(COVERAGE * (count + 1))), count) - 1]
    sets = [{k for k in range(3) if 1 - float(shares["test"][i, k]) <= limit} for i in range(1, 9)]
    assert result["size"] == pytest.approx(np.mean([len(each) for each in sets]))
    assert result["coverage"] == pytest.approx(
        np.mean([int(truth["test"][i]) in each for i, each in enumerate(sets, start=1)])
    )


@pytest.mark.parametrize("zero_shot", [False, True])
def test_a_vote_takes_the_likeliest_sharpness_and_draw(zero_shot: bool) -> None:
    setting = synthetic(zero_shot)
    gallery = Gallery(setting)
    useless = torch.randn(gallery.features.shape, generator=torch.Generator().manual_seed(0))
    chosen = gallery.best([[useless], [gallery.features]])
    candidates = [gallery.shares(gallery.features, sharpness) for sharpness in SHARPNESS]
    likeliest = max(candidates, key=lambda shares: gallery.likelihood(shares["validation"]))
    assert list(chosen) == ["validation", "test", "far/noise", "near/held-out classes"]
    for part, shares in chosen.items():
        assert torch.allclose(shares, likeliest[part])
        assert torch.allclose(shares.sum(1), torch.ones(len(shares)), atol=1e-5)


@pytest.mark.parametrize("zero_shot", [False, True])
def test_every_score_answer_and_set_of_a_setting_is_measured(zero_shot: bool) -> None:
    result = measured(synthetic(zero_shot))
    doubts = {f"vote, {name}" for name in VOTES}
    assert doubts | {"trust", "trust with joint samples", "gallery distance", "1/kappa"} <= set(
        result["scores"]
    )
    assert set(result["accuracy"]) == doubts | {"nearest item"}
    assert set(result["sets"]) == set(VOTES)
    assert all(0 <= value <= 1 for score in result["scores"].values() for value in score.values())
    assert result["accuracy"]["vote, features"] > 0.5  # of four classes
    assert result["scores"]["vote, features"]["far"] > 0.5


@pytest.fixture(scope="module")
def pool() -> tuple[torch.Tensor, np.ndarray]:
    """Rows (240, 10) around four class means, and their labels."""
    generator = np.random.default_rng(1)
    labels = np.arange(240) % 4
    h = generator.standard_normal((4, 10))[labels] + generator.standard_normal((240, 10))
    return torch.from_numpy(h.astype(np.float32)), labels


def test_priorities_are_what_their_names_say(pool: tuple[torch.Tensor, np.ndarray]) -> None:
    h, labels = pool
    labelled = np.arange(40)
    head = trained_head(h[labelled].numpy(), labels[labelled], 0)
    chosen = {name: priorities(name, h, labelled, labels, head) for name in STRATEGIES[1:]}
    assert all(values.shape == (240,) and bool(values.isfinite().all()) for values in chosen.values())
    z = nn.functional.normalize(head(h), dim=1).detach()
    for i in (50, 239):
        assert float(chosen["gallery distance"][i]) == pytest.approx(
            -max(float(z[i] @ z[j]) for j in labelled)
        )
    names = nn.functional.one_hot(torch.from_numpy(labels[labelled])).float()
    shares = votes(z, z[labelled], names, active.SHARP)
    ordered = shares.sort(dim=1, descending=True).values
    assert torch.allclose(chosen["margin"], ordered[:, 1] - ordered[:, 0], atol=1e-6)
    assert torch.allclose(chosen["vote"], torch.distributions.Categorical(shares).entropy(), atol=1e-4)
    # Mutual information is at least zero, by the concavity of the entropy, and at most log 4.
    assert float(chosen["joint samples"].min()) > -1e-5
    assert float(chosen["joint samples"].max()) <= np.log(4)


def test_strategies_begin_alike_and_learn(
    pool: tuple[torch.Tensor, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    h, labels = pool
    monkeypatch.setattr(active, "image_set_features", lambda *_: {"h": h.numpy(), "labels": labels})
    monkeypatch.setattr(active, "ROUNDS", 2)
    root = Path()
    curves = {name: curve(root, root, "any", name, 0)["accuracy"] for name in ("random", "margin")}
    assert {len(accuracy) for accuracy in curves.values()} == {3}
    assert len({accuracy[0] for accuracy in curves.values()}) == 1
    assert min(accuracy[-1] for accuracy in curves.values()) > 0.6


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=8).filter(lambda v: np.std(v) > 1e-6))
def test_differences_are_bold_where_their_interval_excludes_zero(values: list[float]) -> None:
    text = difference(values)
    interval = ttest_1samp(values, 0).confidence_interval(0.95)
    mean, half = (float(part) for part in re.findall(r"-?\d+\.\d+", text))
    assert mean == pytest.approx(np.mean(values), abs=6e-4)
    assert half == pytest.approx((interval.high - interval.low) / 2, abs=6e-4)
    assert text.startswith("**") == bool(interval.low > 0 or interval.high < 0)


def test_tables_pair_runs_by_their_seeds() -> None:
    runs = [{"own": own, "rival": rival} for own, rival in ((0.5, 0.4), (0.7, 0.6), (0.9, 0.85))]
    lines = table({"one": runs, "two": runs}, lambda run, name: run[name], "own", ("rival",))
    differences = difference([0.1, 0.1, 0.05])
    assert lines[0] == "| situation | own | above rival |"
    assert lines[2] == f"| one | 0.700 | {differences} |"
    assert len(lines) == 5


def test_sections_have_a_line_for_each_situation_and_pool() -> None:
    run = {"sets": {name: {"size": 2.0, "coverage": 0.9} for name in VOTES}}
    assert sets_section({"few": [run, run]})[-1].count("2.00 (0.900)") == len(VOTES)
    curves = {name: [[0.1, 0.5, 0.7], [0.1, 0.6, 0.8]] for name in STRATEGIES}
    line = labelling_section({"cifar": curves})[-1]
    assert line.startswith("| cifar | 0.650 |")
    assert line.count("+0.000 ± 0.000") == len(STRATEGIES) - 1


def test_results_are_kept_with_five_digits() -> None:
    assert rounded({"a": [1 / 3, {"b": 2 / 3}]}) == {"a": [0.33333, {"b": 0.66667}]}
