"""The loop: the same steps as by hand, the same bits from a seed, nothing left behind, and epochs chosen fairly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hessians import Pairs
from laplacian_metric import metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.data import TestDataError
from laplacian_metric.training import TrainingOptions, checkpoint, load_best, train
from laplacian_metric.training.checks import validation_loss
from laplacian_metric.training.options import learning_rate
from laplacian_metric.training.pair_streams import epoch_batches
from tests.pages import run_page
from tests.training.cases import LOSS, Case, Plain, an_encoder, clusters, pictures, plain, timeless


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


# --- the steps ---


def test_it_takes_the_steps_that_one_writes_by_hand(tmp_path: Path) -> None:
    images, validation = clusters(), clusters(20, seed=1)
    options = TrainingOptions(epochs=3, batch_size=8, optimizer="adam", learning_rate=0.01, clip_norm=0.05)  # type: ignore[arg-type]
    learner, by_hand = plain(), plain().module
    history = train(learner, images, validation, options, tmp_path, seed=4).history
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=0.01)
    inputs = images.inputs
    assert isinstance(inputs, Tensor)
    for epoch, entry in enumerate(history):
        optimizer.param_groups[0]["lr"] = learning_rate(options, epoch)
        total, seen = 0.0, 0
        by_hand.train()
        for rows in epoch_batches(images.labels, options, 4, epoch):
            loss = LOSS(by_hand(inputs[rows]), Pairs.from_labels(images.labels[rows]))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(by_hand.parameters(), 0.05)
            optimizer.step()
            total += float(loss.detach()) * len(rows)
            seen += len(rows)
        by_hand.eval()
        points = nn.functional.normalize(by_hand(validation.inputs)).detach()
        assert entry["loss"] == pytest.approx(total / seen, abs=1e-12)
        assert entry["learning_rate"] == 0.01 * np.exp(-0.1 * epoch)
        assert entry["recall@1"] == pytest.approx(metrics.recall_at_k(points, validation.labels, k=1))
        for k in (1, 5, 10):
            expected = metrics.map_at_k(points, validation.labels, k=k)
            assert entry[f"map@{k}"] == pytest.approx(expected), k
    assert torch.equal(weights(learner.module), weights(by_hand))


@pytest.mark.parametrize(
    "case",
    [Case(), Case("plain", {"rate": 0.5}), Case("mc-dropout"), Case("online-laplace", {"warmup": 1})],
)
def test_a_seed_gives_the_same_bits_and_another_gives_others(case: Case, tmp_path: Path) -> None:
    one = case.run(tmp_path / "one")
    torch.manual_seed(123)  # whatever the caller did before
    np.random.seed(7)  # noqa: NPY002
    other = case.run(tmp_path / "other")
    assert timeless(one.history) == timeless(other.history)
    names = [checkpoint.LAST, checkpoint.BEST]
    first, second = (
        [checkpoint.read(tmp_path / name / file)[0] for file in names] for name in ("one", "other")
    )
    for some, same in zip(first, second, strict=True):
        assert all(torch.equal(some[key], same[key]) for key in some)
    third = case.run(tmp_path / "third", seed=6)
    assert timeless(third.history) != timeless(one.history)


# --- nothing is left behind ---


class Broken(Plain):
    """Fails in the third step."""

    def __init__(self, module: nn.Module, value: float | None = None, at: int = 3) -> None:
        super().__init__(module)
        self.value, self.at, self.steps = value, at, 0

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        self.steps += 1
        loss = super().loss(inputs, labels)
        if self.steps < self.at:
            return loss
        if self.value is None:
            raise RuntimeError("broken")
        return loss * self.value


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("workers", [None, 0])
def test_the_random_states_modes_and_gradients_are_as_before(
    fails: bool, workers: int | None, tmp_path: Path
) -> None:
    module = plain().module.eval()
    module[0][3].train()
    modes = [part.training for part in module.modules()]
    learner = Broken(module) if fails else Plain(module, rate=0.3)
    images = clusters() if workers is None else pictures(augmented=True, workers=workers)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    options = TrainingOptions(epochs=2, batch_size=8, sampling="balanced", images_per_class=2)  # type: ignore[arg-type]
    try:
        train(learner, images, clusters(20, seed=1), options, tmp_path)
    except RuntimeError as error:
        assert fails and str(error) == "broken"  # noqa: PT017, PT018
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # type: ignore[index]  # noqa: NPY002
    assert [part.training for part in module.modules()] == modes
    if not fails:
        assert all(parameter.grad is None for parameter in module.parameters())


# --- losses that are not numbers ---


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_loss_that_is_not_finite_names_its_step_and_keeps_the_checkpoints(
    value: float, said: str, tmp_path: Path
) -> None:
    options = TrainingOptions(epochs=4, batch_size=8, checkpoint_every=2)
    with pytest.raises(FloatingPointError, match=f"step 4 of epoch 2 is {said}"):
        train(Broken(plain().module, value, at=10), clusters(), clusters(20, seed=1), options, tmp_path)
    _, _, progress = checkpoint.read(tmp_path / checkpoint.LAST)
    assert (len(progress.history), progress.step) == (1, 2)
    learner = plain()
    load_best(learner, tmp_path)
    assert bool(weights(learner.module).isfinite().all())
    resumed = train(plain(), clusters(), clusters(20, seed=1), options, tmp_path)
    assert len(resumed.history) == 4


class Rooted(Plain):
    """Its loss is 0 and the gradient infinite in the fourth step."""

    steps = 0

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        self.steps += 1
        extra = self.module[1].bias.sum() * 0
        return super().loss(inputs, labels) + (extra.sqrt() if self.steps == 4 else extra)


@pytest.mark.parametrize("every", [2, None])
def test_a_gradient_that_is_not_finite_spoils_no_checkpoint(every: int | None, tmp_path: Path) -> None:
    images, options = clusters(32), TrainingOptions(epochs=2, batch_size=8, checkpoint_every=every)
    with pytest.raises(FloatingPointError, match="step 4 of epoch 1"):
        train(Rooted(plain().module), images, clusters(20, seed=1), options, tmp_path)
    if every is None:
        assert not list(tmp_path.iterdir())
    else:
        tensors, _, progress = checkpoint.read(tmp_path / checkpoint.LAST)
        assert progress.step == 2
        assert all(bool(tensor.isfinite().all()) for name, tensor in tensors.items() if "random" not in name)


# --- the epoch that is kept ---


class Scripted(Plain):
    """Its validation points are as good as a script says: the share of images that lie with their class."""

    def __init__(self, module: nn.Module, goods: list[int]) -> None:
        super().__init__(module)
        self.goods = goods
        self.at = 0

    def points(self, inputs: Any) -> Tensor:
        labels = torch.arange(20) % 4
        wrong = torch.arange(20) >= self.goods[int(self.epochs) - 1]
        directions = torch.eye(5)
        wrong_points = torch.where(wrong[:, None], directions[4], directions[labels])
        rows = wrong_points[self.at : self.at + len(inputs)]
        self.at = (self.at + len(inputs)) % 20
        return rows + 1e-3 * torch.arange(len(inputs))[:, None]


@pytest.mark.parametrize(
    ("goods", "patience", "best", "length"),
    [
        ([4, 12, 12, 8], None, 2, 4),  # the first of equal ones
        ([16, 4, 8, 20], None, 4, 4),
        ([16, 4, 8, 20], 2, 1, 3),
        ([4, 8, 4, 4], 1, 2, 3),
        ([4, 4, 4, 4], 3, 1, 4),
    ],
)
def test_the_best_epoch_is_kept_and_patience_ends(
    goods: list[int], patience: int | None, best: int, length: int, tmp_path: Path
) -> None:
    options = TrainingOptions(epochs=4, batch_size=8, patience=patience)
    module = plain().module
    trained = train(Scripted(module, goods), clusters(), clusters(20), options, tmp_path)
    assert (trained.best_epoch, len(trained.history)) == (best, length)
    assert checkpoint.read(tmp_path / checkpoint.BEST)[0]["learner/epochs"] == best
    assert json.loads((tmp_path / checkpoint.LOG).read_text())["best_epoch"] == best
    assert trained.seconds == pytest.approx(sum(entry["seconds"] for entry in trained.history))
    # Whoever has more patience goes on.
    more = TrainingOptions(epochs=4, batch_size=8)
    again = train(Scripted(plain().module, goods), clusters(), clusters(20), more, tmp_path)
    assert len(again.history) == 4


def test_no_epoch_at_all_keeps_the_initial_weights(tmp_path: Path) -> None:
    learner = plain(seed=1)
    before = weights(learner.module)
    trained = train(learner, clusters(), clusters(20), TrainingOptions(epochs=0), tmp_path)
    assert (trained.history, trained.best_epoch, trained.seconds) == ([], 0, 0)
    again = plain(seed=2)
    load_best(again, tmp_path)
    assert torch.equal(weights(again.module), before)
    # Those of another network do not stay.
    train(plain(seed=3), clusters(), clusters(20), TrainingOptions(epochs=0), tmp_path)
    load_best(again, tmp_path)
    assert torch.equal(weights(again.module), weights(plain(seed=3).module))


# --- validation images ---


@pytest.mark.parametrize("labels", [[0], [], [0, 1, 2, 3, 4]])
def test_validation_images_that_choose_nothing_are_refused_at_once(labels: list[int], tmp_path: Path) -> None:
    learner, validation = plain(), Dataset(torch.randn(len(labels), 6), torch.tensor(labels).long())
    before = weights(learner.module)
    with pytest.raises(ValueError, match="validation image"):
        train(learner, clusters(), validation, TrainingOptions(epochs=1, batch_size=8), tmp_path / "run")
    assert torch.equal(weights(learner.module), before)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["test", "all"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_test_images_are_refused(split: str, in_memory: bool, tmp_path: Path) -> None:
    def images(split: str) -> Dataset:
        shown = pictures(split)
        return shown.in_memory() if in_memory else shown

    options = TrainingOptions(epochs=1, batch_size=8)
    chosen = images(split).select(torch.arange(20))
    with pytest.raises(TestDataError, match=f"'{split}'.*choose an epoch"):
        train(plain(), images("train"), chosen, options, tmp_path)
    with pytest.raises(TestDataError, match=f"'{split}'.*train"):
        train(plain(), images(split), images("validation"), options, tmp_path)
    train(plain(), images("train"), images("validation"), options, tmp_path)


def test_what_validation_draws_is_not_missed_in_training() -> None:
    class Drawing(Plain):
        def loss(self, inputs: Any, labels: Tensor) -> Tensor:
            return super().loss(inputs, labels) + torch.rand((), generator=self.generator) + torch.rand(())

    learner = Drawing(an_encoder())
    learner.begin(torch.optim.SGD(learner.parameters(), lr=0.1), torch.Generator().manual_seed(3))
    own, of_torch = learner.generator.get_state(), torch.get_rng_state()
    first = validation_loss(learner, clusters(20))
    assert torch.equal(learner.generator.get_state(), own)
    assert torch.equal(torch.get_rng_state(), of_torch)
    assert validation_loss(learner, clusters(20)) == first
    torch.rand((), generator=learner.generator)
    assert validation_loss(learner, clusters(20)) != first


def test_the_code_on_the_page_runs(root: Path) -> None:
    e = run_page(root / "docs" / "training.md")["e"]
    assert isinstance(e, StochasticEmbedding)
    assert bool(e.kappa.isfinite().all())
