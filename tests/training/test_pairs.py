"""Batches of pairs: in equal parts in every batch, the same after a kill, and trained on alone."""

from __future__ import annotations

import os
from pathlib import Path
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
from tests.training.cases import Case, assert_same_end, clusters, plain, timeless, train_and_die

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


def test_batches_depend_on_seed_and_epoch_alone_and_none_is_another_one() -> None:
    def drawn(seed: int, epoch: int) -> list[tuple[int, ...]]:
        return [tuple(rows.tolist()) for rows in epoch_batches(LABELS, options(), seed, epoch)]

    torch.manual_seed(0)
    drawn_pairs = {(seed, epoch): drawn(seed, epoch) for seed in range(2) for epoch in range(3)}
    torch.manual_seed(1)
    assert all(drawn(*key) == value for key, value in drawn_pairs.items())
    every = [rows for batches in drawn_pairs.values() for rows in batches]
    assert len(set(every)) == len(every) == 42


def test_an_epoch_has_places_for_all_images_unless_its_steps_are_given() -> None:
    assert len(epoch_batches(LABELS, options(steps_per_epoch=None, batch_size=4), 0, 0)) == 5
    assert len(epoch_batches(LABELS, options(steps_per_epoch=None, batch_size=100), 0, 0)) == 1


@pytest.mark.parametrize("count", [2, 3])
def test_processes_share_the_batches_of_one(count: int) -> None:
    whole = [tuple(rows.tolist()) for rows in epoch_batches(LABELS, options(), 3, 1)]
    parts = [
        [tuple(rows.tolist()) for rows in epoch_batches(LABELS, options(), 3, 1, process, count)]
        for process in range(count)
    ]
    dealt = [rows for turn in zip(*parts, strict=True) for rows in turn]
    assert dealt == whole[: len(dealt)]
    assert len(dealt) == 7 // count * count


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
    with pytest.raises(ValueError, match="a batch of 3 images cannot be pairs"):
        choose(u[:3], labels[:3])


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ({"batch_size": 7}, "batch_size is 7: half of the pairs match"),
        ({"miner": "BatchHardMiner"}, "miner is 'BatchHardMiner', but with sampling 'pairs'"),
        ({"steps_per_epoch": 0}, "steps_per_epoch is 0, at least 1"),
        ({"sampling": "shuffled"}, "steps_per_epoch is 7, but an epoch of sampling 'shuffled' is all images"),
    ],
)
def test_wrong_options_are_named(given_options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        options(**given_options)


PAIRS = {"sampling": "pairs", "batch_size": 4, "steps_per_epoch": 6}
CASES = {
    "deterministic": Case(options=PAIRS),
    "soft-contrastive": Case("soft-contrastive", {"normalize": False}, {**PAIRS, "optimizer": "adam"}),
    "hib": Case(
        "hib",
        {"normalize": False, "head": "linear", "components": 2},
        {**PAIRS, "optimizer": "adam"},
    ),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.parametrize("name", CASES)
def test_a_killed_training_ends_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = case.run(tmp_path / "whole")
    for event, count in (("step", 2), ("writing", 2), ("log", 1)):
        train_and_die(case, tmp_path / "killed", event, count)
    resumed = case.run(tmp_path / "killed")
    assert timeless(resumed.history) == timeless(whole.history)
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_another_number_of_steps_is_another_training(tmp_path: Path) -> None:
    Case(options=PAIRS).run(tmp_path)
    with pytest.raises(ValueError, match="steps_per_epoch was 6 and is now 5"):
        Case(options={**PAIRS, "steps_per_epoch": 5}).run(tmp_path)


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
