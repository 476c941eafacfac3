"""Learners that choose what is read in place of a batch: when they are asked, and that it is gone on from exactly."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hessians import ContrastiveLoss
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Setup
from laplacian_metric.methods import make
from laplacian_metric.methods.pairs.triplet import TripletLearner
from laplacian_metric.training import TrainingOptions, checkpoint, train
from tests.training.cases import (
    Case,
    Plain,
    an_encoder,
    assert_same_end,
    clusters,
    die_at,
    pictures,
    timeless,
)
from tests.training.test_processes import assert_same_in_both, finished, in_both
from tests.training.test_processes import pytestmark as needs_processes


class Choosing(Plain):
    """Reads every batch backwards and notes what it was asked."""

    def __init__(self, refresh: int | None, dropped: int = 0) -> None:
        super().__init__(an_encoder())
        self.refresh = refresh
        self.dropped = dropped
        self.batch_counts: list[int] = []
        self.seen: list[Tensor] = []

    def choose(self, images: Dataset, rows: Sequence[Tensor]) -> list[Tensor]:
        assert len(images) == 44
        assert not self.module.training
        assert not torch.is_grad_enabled()
        self.batch_counts.append(len(rows))
        return [batch.flip(0) for batch in rows][self.dropped :]

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        assert self.module.training or not torch.is_grad_enabled()
        self.seen.append(labels)
        return super().loss(inputs, labels)


def run(learner: Choosing, folder: Path, **options: Any) -> list[Tensor]:
    train(
        learner, clusters(), clusters(20, seed=1), TrainingOptions(epochs=1, batch_size=4, **options), folder
    )
    return learner.seen


@pytest.mark.parametrize(
    ("refresh", "every", "expected"),
    [(None, None, []), (100, None, [11]), (4, None, [4, 4, 3]), (4, 6, [4, 2, 2, 3]), (5, 5, [5, 5, 1])],
)
def test_a_learner_is_asked_at_every_refresh_and_after_every_checkpoint(
    refresh: int | None, every: int | None, expected: list[int], tmp_path: Path
) -> None:
    learner = Choosing(refresh)
    seen = run(learner, tmp_path / "some", checkpoint_every=every)
    assert learner.batch_counts == expected
    plain = run(Choosing(None), tmp_path / "plain")
    assert len(seen) == len(plain) == 11
    for batch, dealt in zip(seen, plain, strict=True):
        assert torch.equal(batch, dealt if refresh is None else dealt.flip(0))


def test_another_number_of_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Choosing"):
        run(Choosing(100, dropped=1), tmp_path)


# --- mining out of a cache goes on exactly ---


def mining(name: str, on_pictures: bool) -> TripletLearner:
    encoder = an_encoder() if on_pictures else an_encoder(norm=False)
    setup = Setup(ContrastiveLoss(), num_images=44)
    learner = make(name, cache=20, refresh=3, negatives=2).learner([encoder], setup)
    assert isinstance(learner, TripletLearner)
    return learner


@pytest.mark.parametrize("name", ["triplet", "triplet-regression", "btl"])
@pytest.mark.parametrize("on_pictures", [False, True])
def test_an_interrupted_training_ends_with_the_same_bits(
    name: str, on_pictures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (
        (pictures(augmented=True), pictures("validation"))
        if on_pictures
        else (clusters(), clusters(20, seed=1))
    )
    options = TrainingOptions(epochs=3, batch_size=5, learning_rate=1e-3, checkpoint_every=4)
    whole = train(mining(name, on_pictures), *data, options, tmp_path / "whole", seed=2)
    for stop in (6, 13):  # in the middle of an epoch, and between a refresh and a checkpoint
        learner = mining(name, on_pictures)
        steps, own = [0], learner.loss

        def loss(inputs: Any, labels: Tensor, own: Any = own, steps: Any = steps, stop: int = stop) -> Tensor:
            steps[0] += 1
            if steps[0] == stop:
                raise KeyboardInterrupt
            batch_loss: Tensor = own(inputs, labels)
            return batch_loss

        monkeypatch.setattr(learner, "loss", loss)
        with pytest.raises(KeyboardInterrupt):
            train(learner, *data, options, tmp_path / "parts", seed=2)
    parts = train(mining(name, on_pictures), *data, options, tmp_path / "parts", seed=2)
    assert timeless(parts.history) == timeless(whole.history)
    for file in (checkpoint.BEST, checkpoint.LAST):
        one, other = (checkpoint.read(tmp_path / folder / file)[0] for folder in ("whole", "parts"))
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(one[key], other[key]), key


@needs_processes
def test_two_processes_mine_for_themselves_and_go_on_exactly(tmp_path: Path) -> None:
    importlib.import_module("torch._dynamo")  # before processes are forked: it takes long
    case = Case("btl", {"cache": 20, "refresh": 3, "negatives": 2}, {"batch_size": 3, "checkpoint_every": 4})
    outcomes = in_both(tmp_path / "whole", finished(case))
    assert_same_in_both(outcomes)

    def dying(rank: int, folder: Path) -> object:
        if rank == 1:
            die_at("step", 13)
        return finished(case)(rank, folder)

    in_both(tmp_path / "parts", dying, dies=True)
    assert_same_in_both(in_both(tmp_path / "parts", finished(case)))
    assert_same_end(tmp_path / "parts" / "run", tmp_path / "whole" / "run")
