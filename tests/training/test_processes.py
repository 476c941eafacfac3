"""Two processes: the steps of one that averages the gradients of both, on both the same weights, and no waiting."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hessians import Pairs
from laplacian_metric.core.batch import Batch
from laplacian_metric.core.parallel import OtherProcessError
from laplacian_metric.training import checkpoint, load_best, train
from laplacian_metric.training.options import learning_rate
from laplacian_metric.training.pair_streams import epoch_batches
from tests.training.cases import (
    LOSS,
    Case,
    Plain,
    an_encoder,
    assert_same_end,
    clusters,
    die_at,
    fork,
    pictures,
    plain,
    timeless,
)

pytestmark = pytest.mark.skipif(
    not (hasattr(os, "fork") and dist.is_available() and dist.is_gloo_available()),
    reason="this needs gloo, and processes that can be forked",
)
PROCESSES = 2
Work = Callable[[int, Path], Any]


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What torch imports when an optimizer or a wrapper is made is there before processes are forked: it takes long."""
    importlib.import_module("torch._dynamo")

    ADAM.run(tmp_path_factory.mktemp("imported"))


def in_a_process(rank: int, folder: Path, work: Work) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=PROCESSES,
        timeout=timedelta(seconds=30),
    )
    torch.save(work(rank, folder), folder / f"{rank}.pt")
    dist.destroy_process_group()


def in_both(folder: Path, work: Work, *, dies: bool = False) -> list[Any]:
    """What the work returns in each of two processes; with ``dies`` at least one of them is killed."""
    folder.mkdir(exist_ok=True)
    (folder / "meeting").unlink(missing_ok=True)
    processes = [fork(in_a_process, rank, folder, work) for rank in range(PROCESSES)]
    if dies:  # whoever does not die by himself is killed as soon as another one is gone, as torchrun does it
        while all(process.is_alive() for process in processes):
            processes[0].join(0.02)
        for process in processes:
            process.kill()
    for process in processes:
        process.join(60)
    codes = [process.exitcode for process in processes]
    if dies:
        assert -signal.SIGKILL in codes
        return []
    assert codes == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(PROCESSES)]


def finished(case: Case) -> Work:
    """Train, and give the weights, buffers and history of this process."""

    def work(rank: int, folder: Path) -> Any:
        learner = case.learner()
        history = train(
            learner, case.images(), case.validation(), case.training_options(), folder / "run", seed=5
        )
        return learner.module.state_dict(), history.history, history.best_epoch

    return work


def assert_same_in_both(outcomes: list[Any]) -> None:
    (state, history, best), (other, other_history, other_best) = outcomes
    assert timeless(history) == timeless(other_history)
    assert best == other_best
    assert all(torch.equal(state[name], other[name]) for name in state)


def of_one_process(case: Case) -> tuple[nn.Module, list[float]]:
    """The steps by hand: gradients of two batches are averaged, running statistics are those of the first batches."""
    options, images = case.training_options(), case.images()
    encoder, inputs = an_encoder(), images.inputs
    assert isinstance(inputs, Tensor)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1.0)
    losses = []
    for epoch in range(options.epochs):
        optimizer.param_groups[0]["lr"] = learning_rate(options, epoch)
        parts = [epoch_batches(images.labels, options, 5, epoch, process, 2) for process in (0, 1)]
        encoder.train()
        total, seen = 0.0, 0
        for pair in zip(*parts, strict=True):
            optimizer.zero_grad()
            for process, rows in enumerate(pair):
                buffers = [buffer.clone() for buffer in encoder.buffers()]
                loss = LOSS(encoder.raw(inputs[rows]), Pairs.from_labels(images.labels[rows]))
                (loss / 2).backward()
                total, seen = total + float(loss.detach()) * len(rows), seen + len(rows)
                if process:
                    for buffer, before in zip(encoder.buffers(), buffers, strict=True):
                        buffer.copy_(before)
            optimizer.step()
        losses.append(total / seen)
    return encoder, losses


# 44 images make 5 batches of 8 and one of 4: three steps for each process.
ADAM = Case(options={"optimizer": "adam", "checkpoint_every": 1})


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    outcomes = in_both(tmp_path, finished(ADAM))
    assert_same_in_both(outcomes)
    state, history, _ = outcomes[0]
    encoder, losses = of_one_process(ADAM)
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6)
    assert [entry["loss"] for entry in history] == pytest.approx(losses, rel=1e-6)


DISTRIBUTED = {
    "deterministic": ADAM,
    "online-laplace": Case("online-laplace", {"warmup": 1}, {"checkpoint_every": 1}),
    "own draws": Case(
        "plain",
        {"rate": 0.4},
        {"optimizer": "sgd", "momentum": 0.9, "checkpoint_every": 1},
        lambda: pictures(augmented=True),
    ),
    "mc-dropout": Case("mc-dropout", {}, {"checkpoint_every": 2}),
}


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_killed_processes_go_on_to_the_bit(name: str, tmp_path: Path) -> None:
    case = DISTRIBUTED[name]
    whole = in_both(tmp_path / "whole", finished(case))
    assert_same_in_both(whole)
    for victim, event, count in ((1, "step", 3), (0, "writing", 2), (0, "step", 4)):

        def work(
            rank: int, folder: Path, victim: int = victim, event: str = event, count: int = count
        ) -> Any:
            if rank == victim:
                die_at(event, count)
            return finished(case)(rank, folder)

        in_both(tmp_path / "killed", work, dies=True)
    resumed = in_both(tmp_path / "killed", finished(case))
    assert_same_in_both(resumed)
    assert_same_in_both([whole[0], resumed[0]])
    assert_same_end(tmp_path / "killed" / "run", tmp_path / "whole" / "run")


def test_each_process_draws_for_itself(tmp_path: Path) -> None:
    """The masks of the dropout, and what the readers of the images draw."""

    class Recording(Plain):
        drawn: list[float]

        def loss(self, inputs: Any, labels: Tensor) -> Tensor:
            self.drawn.append(float(torch.rand(())))
            self.drawn.append(float(torch.rand((), generator=self.generator)))
            return super().loss(inputs, labels)

    def work(rank: int, folder: Path) -> Any:
        learner = Recording(plain().module)
        learner.drawn = []
        train(learner, clusters(), clusters(20), ADAM.training_options(), folder / "run")
        return learner.drawn

    first, second = in_both(tmp_path, work)
    assert len(first) == len(second) > 0
    assert not set(first) & set(second)


# --- what one cannot do, none does ---


class Failing(Plain):
    """What it does in its fourth step, and in its second validation."""

    def __init__(self, how: str) -> None:
        super().__init__(plain().module)
        self.how, self.steps, self.validations = how, 0, 0

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        self.steps += 1
        loss = super().loss(inputs, labels)
        if self.steps == 4 and self.how == "loss":
            raise RuntimeError("the loss is broken")
        return loss * (float("nan") if self.steps == 4 and self.how == "nan" else 1)

    def points(self, inputs: Any) -> Tensor:
        if self.how == "validation" and int(self.epochs) == 2:
            raise RuntimeError("the validation is broken")
        return super().points(inputs)


def unreadable(*_: Any) -> Iterator[Any]:
    yield Batch(torch.zeros(2, 6), torch.zeros(2, dtype=torch.long))
    raise OSError("the second batch cannot be read")


def failure(how: str) -> Work:
    def work(rank: int, folder: Path) -> str:
        learner = Failing(how if rank == 1 else "")
        images, validation, run = clusters(), clusters(20), folder / "run"
        if rank == 1 and how == "reading":
            object.__setattr__(images, "batches", unreadable)
        if rank == (0 if how == "disk" else -1):

            def full(*_: Any) -> None:
                raise OSError("No space left on device")

            checkpoint.save_log = full
        seed = 7 if rank == 1 and how == "seed" else 5
        if rank == 1 and how == "folder":
            run = folder / "another"
        options = ADAM.training_options()
        if how == "folder":
            train(plain(), images, validation, options, folder / "run", seed=seed)
        if rank == 1 and how == "few images":
            validation = clusters(1)
        try:
            train(learner, images, validation, options, run, seed=seed)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    return work


FIRST, OTHER = (
    f"{OtherProcessError.__name__}: process {rank} of 2 cannot go on: see its error" for rank in (0, 1)
)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("loss", (OTHER, "RuntimeError: the loss is broken")),
        ("nan", (OTHER, "FloatingPointError: the loss of step 1 of epoch 2 is nan")),
        ("validation", (OTHER, "RuntimeError: the validation is broken")),
        ("reading", (OTHER, "OSError: the second batch cannot be read")),
        ("disk", ("OSError: ", FIRST)),
        ("few images", (OTHER, "ValueError: there are 1 validation images")),
        ("seed", 2 * ("ValueError: seed is not the same in all processes: 5, 7",)),
        ("folder", 2 * ("ValueError: whether there is a last.safetensors is not the same in all",)),
    ],
)
def test_an_error_of_one_stops_both(how: str, said: tuple[str, str], tmp_path: Path) -> None:
    outcomes = in_both(tmp_path, failure(how))
    for each, expected in zip(outcomes, said, strict=True):
        assert each.startswith(expected), outcomes


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    in_both(tmp_path, finished(ADAM))
    with pytest.raises(ValueError, match="processes was 2 and is now 1"):
        ADAM.run(tmp_path / "run")
    load_best(ADAM.learner(), tmp_path / "run")


def test_patience_ends_in_both_at_once(tmp_path: Path) -> None:
    """Running statistics differ between processes until they are shared, and with them the numbers of an epoch."""
    case = Case(options={"epochs": 12, "patience": 1, "learning_rate": 0.3})
    outcomes = in_both(tmp_path, finished(case))
    assert_same_in_both(outcomes)
