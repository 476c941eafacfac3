"""All calibrations at once: each is what its own function gives, and promises hold on other queries."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

import laplacian_metric.retrieval as retrieval
from laplacian_metric.retrieval import HNSW, Index, NoThresholdError, calibrate, choose_threshold
from laplacian_metric.retrieval.items import Items
from tests.retrieval.clusters import clusters

ITEMS, CLASSES = clusters(600, spread=0.35)
QUERIES, OWN = clusters(900, seed=1, spread=0.35)
OTHERS, THEIRS = clusters(900, seed=2, spread=0.35)


def test_each_is_what_its_own_function_gives() -> None:
    index = calibrate(Index(ITEMS), QUERIES, OWN, CLASSES, alpha=0.5, k=7)
    answers = Index(ITEMS).query(QUERIES, 7)
    wrong = CLASSES[answers.rows[:, 0]] != OWN
    assert index.threshold == choose_threshold(QUERIES.uncertainty, wrong, alpha=0.5)
    assert index.matching is not None
    assert index.matching.num_pairs == 900 * 7
    assert index.matching.num_matching == int((CLASSES[answers.rows] == OWN[:, None]).sum())
    assert index.drift is not None
    assert index.drift.update(OTHERS.kappa).seen == 900


@pytest.mark.parametrize("kind", ["flat", HNSW(links=8)])
def test_the_promises_hold_on_other_queries(kind: str | HNSW) -> None:
    index = calibrate(Index(ITEMS, kind=kind), QUERIES, OWN, CLASSES, alpha=0.5, level=0.8)
    answers = index.query(OTHERS, 1, abstain=True)
    assert answers.answered is not None
    answered = answers.answered
    assert answered.any()
    assert (CLASSES[answers.rows[answered, 0]] != THEIRS[answered]).mean() <= 0.5
    assert (answers.rows[~answered] == -1).all()
    sets = index.credible_sets(OTHERS)
    covered = [THEIRS[i] in CLASSES[ids] for i, ids in enumerate(sets)]
    assert index.credible is not None
    inside = index.credible.contains(index.angle_to_right(OTHERS, THEIRS, CLASSES), OTHERS.kappa)
    assert inside.mean() == pytest.approx(0.8, abs=0.05)
    # A set has at least the nearest item, so it may cover what its cap does not.
    assert (np.array(covered) >= inside).all()


def test_parts_may_be_left_out() -> None:
    index = calibrate(Index(ITEMS), QUERIES, OWN, CLASSES, alpha=None, level=None)
    assert index.threshold is None
    assert index.credible is None
    assert index.matching is not None


def test_matches_without_an_exception_have_no_probability(caplog: pytest.LogCaptureFixture) -> None:
    near, classes = clusters(200, spread=0.01)
    queries, own = clusters(200, seed=1, spread=0.01)
    with caplog.at_level(logging.WARNING):
        index = calibrate(Index(near), queries, own, classes, k=2)
    assert index.matching is None
    assert "no match probability" in caplog.text
    assert index.threshold is not None


def test_what_cannot_be_promised_is_refused() -> None:
    with pytest.raises(NoThresholdError, match="no threshold"):
        calibrate(Index(ITEMS), QUERIES, OWN, CLASSES, alpha=0.01)
    with pytest.raises(ValueError, match="too few"):
        calibrate(Index(ITEMS), QUERIES[:5], OWN[:5], CLASSES, alpha=None)
    with pytest.raises(ValueError, match=r"labels has shape \(5,\), \(900,\) is needed"):
        calibrate(Index(ITEMS), QUERIES, OWN[:5], CLASSES)
    with pytest.raises(ValueError, match=r"item_labels has shape \(900,\), \(600,\) is needed"):
        calibrate(Index(ITEMS), QUERIES, OWN, OWN)
    other = Items(QUERIES.mean, QUERIES.kappa, QUERIES.uncertainty, None, "another")
    with pytest.raises(ValueError, match="another"):
        calibrate(Index(ITEMS), other, OWN, CLASSES)


def test_every_public_name_is_there() -> None:
    for name in retrieval.__all__:
        assert getattr(retrieval, name) is not None
    assert retrieval.calibrate is calibrate
    with pytest.raises(AttributeError, match="no attribute 'calibration'"):
        _ = retrieval.calibration


def test_an_index_answers_without_torch() -> None:
    script = (
        "import sys, numpy as np\n"
        "from laplacian_metric.retrieval import Index, Items, choose_threshold, MatchProbability\n"
        "items = Items(np.eye(3), [1, 2, 3], [1, 0.5, 0.3], None, 'a')\n"
        "index = Index(items).calibrated(matching=MatchProbability(1.0, 0.0, 2, 1, 0.1))\n"
        "assert index.query(items, 2).probability.shape == (3, 2)\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("named", [OWN + 100, OWN.astype(str)])
def test_classes_that_are_named_otherwise_are_no_matter_of_alpha(named: np.ndarray) -> None:
    with pytest.raises(ValueError, match="none of the classes of the calibration queries"):
        calibrate(Index(ITEMS), QUERIES, named, CLASSES, alpha=0.5)


def test_queries_that_are_items_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        calibrate(Index(ITEMS), ITEMS, CLASSES, CLASSES, alpha=0.5)
    assert "600 of 600 calibration queries are items of the index themselves" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        calibrate(Index(ITEMS), QUERIES, OWN, CLASSES, alpha=0.5)
    assert "items of the index themselves" not in caplog.text
