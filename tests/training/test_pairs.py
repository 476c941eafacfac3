"""Batches of pairs: in equal parts in every batch, the same after a kill, and trained on alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.core.method import Keep, Learner
from laplacian_metric.training import TrainingOptions, pair_choice, validate
from laplacian_metric.training.options import dealt_pairs
from laplacian_metric.training.pair_streams import epoch_batches
from tests.training.cases import clusters, plain

LABELS = torch.arange(40) % 5


def options(**more: Any) -> TrainingOptions:
    return TrainingOptions(**{"sampling": "pairs", "batch_size": 6, "steps_per_epoch": 7, **more})


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 10), st.integers(1, 12), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_half_of_every_batch_matches(half: int, steps: int, seed: int, epoch: int) -> None:
    chosen = options(batch_size=2 * half, steps_per_epoch=steps)
    batches = epoch_batches(LABELS, chosen, seed, epoch)
    assert len(batches) == steps
    for rows in batches:
        assert rows.shape == (4 * half,)
        first, second = rows.view(-1, 2).unbind(1)
        assert bool((first != second).all())
        assert int((LABELS[first] == LABELS[second]).sum()) == half
        pairs = dealt_pairs(torch.zeros(len(rows), 2), LABELS[rows])
        assert (pairs.num_positives, pairs.num_negatives) == (half, half)


def test_an_epoch_has_places_for_all_images_unless_its_steps_are_given() -> None:
    assert len(epoch_batches(LABELS, options(steps_per_epoch=None, batch_size=4), 0, 0)) == 5
    assert len(epoch_batches(LABELS, options(steps_per_epoch=None, batch_size=100), 0, 0)) == 1


def test_the_dealt_pairs_alone_are_trained_on() -> None:
    choose = pair_choice(options())
    labels = torch.tensor([3, 3, 1, 3, 1, 2])
    u = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = ContrastiveLoss(margin=0.7)
    listed = Pairs.from_indices(
        (torch.tensor([0]), torch.tensor([1]), torch.tensor([2, 4]), torch.tensor([3, 5])), 6
    )
    assert float(loss(u, choose(u, labels))) == float(loss(u, listed))
    assert float(loss(u, choose(u, labels))) != float(loss(u, Pairs.from_labels(labels)))
    with pytest.raises(ValueError, match="3 images"):
        choose(u[:3], labels[:3])


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ({"batch_size": 7}, "batch_size"),
        ({"miner": "BatchHardMiner"}, "miner"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"sampling": "shuffled"}, "steps_per_epoch"),
    ],
)
def test_wrong_options_are_named(given_options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        options(**given_options)


def test_euclidean_points_are_validated_by_their_distance() -> None:
    validation = clusters(20, seed=1)

    def measured(euclidean: bool, scale: float) -> dict[str, float]:
        learner: Learner = plain(norm=False)
        learner.euclidean = euclidean
        away = torch.tensor([scale, 0.0, 0.0])
        with torch.no_grad():
            learner.module[1].bias += away
        return validate(learner, validation)

    assert Learner.keep is Keep.RETRIEVAL
    here, far = measured(True, 0.0), measured(True, 1e3)
    # Distances do not depend on where the origin is; directions do.
    assert far["map@5"] == pytest.approx(here["map@5"], abs=0.02)
    assert measured(False, 0.0)["map@5"] != here["map@5"]
