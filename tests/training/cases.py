"""Small trainings for the tests of the loop."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.core import tensor_file
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Embedder, FitData, Learner, Setup
from laplacian_metric.data import from_arrays
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods import make
from laplacian_metric.training import Trained, TrainingOptions, checkpoint, pair_choice, train

LOSS = ContrastiveLoss(margin=0.7)
CLASSES = 4


def clusters(count: int = 44, seed: int = 0, spread: float = 0.8) -> Dataset:
    """Points of six numbers around four centres."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, 6, generator=torch.Generator().manual_seed(99))
    points = centres[labels] + spread * torch.randn(count, 6, generator=generator)
    return Dataset(points, labels, batch_size=7)


def shifted(image: Tensor) -> Tensor:
    """An augmentation that draws from torch's generator."""
    return torch.roll(image, int(torch.randint(3, ())), dims=2)


def pictures(split: str = "train", *, augmented: bool = False, workers: int = 0, count: int = 44) -> Dataset:
    """Random pictures of 1 x 2 x 3."""
    generator = torch.Generator().manual_seed(len(split))
    pixels = torch.randint(256, (count, 1, 2, 3), generator=generator, dtype=torch.uint8)
    augment = shifted if augmented else None
    images = from_arrays(pixels, torch.arange(count) % CLASSES, split=split, augment=augment)
    return replace(images, batch_size=7, workers=workers)


def an_encoder(seed: int = 0, *, norm: bool = True) -> Encoder:
    """With batch normalisation, which has buffers, one of them an integer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Flatten(), nn.Linear(6, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Tanh()]
        return Encoder(nn.Sequential(*layers), nn.Linear(8, 3))


class Plain(Learner):
    """A network and its pair loss, with dropout that draws from torch's global generator, and a count of its own."""

    def __init__(self, module: nn.Module, rate: float = 0.0) -> None:
        super().__init__(module)
        self.rate = rate
        self.epochs = torch.zeros((), dtype=torch.int64)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        backbone, head = self.module.children()
        return LOSS(head(F.dropout(backbone(inputs), self.rate)), Pairs.from_labels(labels))

    def end_epoch(self) -> None:
        self.epochs += 1

    def points(self, inputs: Any) -> Tensor:
        outputs: Tensor = self.module(inputs)
        return outputs

    def state(self) -> dict[str, Tensor]:
        return {"epochs": self.epochs}

    def restore(self, state: Any) -> None:
        self.epochs = state["epochs"].clone()

    def embedder(self, data: FitData) -> Embedder:
        raise NotImplementedError


def plain(seed: int = 0, rate: float = 0.0, *, norm: bool = True) -> Plain:
    encoder = an_encoder(seed, norm=norm)
    return Plain(nn.Sequential(encoder.backbone, encoder.head), rate)


@dataclass(frozen=True)
class Case:
    """One training: of which method, with which options, on which images."""

    method: str = "deterministic"
    method_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    images: Callable[[], Dataset] = clusters
    validation: Callable[[], Dataset] = lambda: clusters(20, seed=1)

    def training_options(self) -> TrainingOptions:
        few = {"epochs": 3, "batch_size": 8, "learning_rate": 0.02, "checkpoint_every": 2}
        return TrainingOptions(**{**few, **self.options})

    def learner(self) -> Learner:
        if self.method == "plain":
            return plain(**self.method_options)
        setup = Setup(LOSS, 44, 1e-3, pairs=pair_choice(self.training_options()))
        return make(self.method, **self.method_options).learner([an_encoder()], setup)

    def run(self, folder: Path, *, seed: int = 5, **others: Any) -> Trained:
        return train(
            self.learner(),
            self.images(),
            self.validation(),
            self.training_options(),
            folder,
            seed=seed,
            **others,
        )


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in history]


def assert_same_end(folder: Path, other: Path) -> None:
    """Both checkpoints are the same to the bit: weights, averages, the learner's state, generators and history."""
    for name in (checkpoint.BEST, checkpoint.LAST):
        tensors, identity, progress = checkpoint.read(folder / name)
        expected, expected_identity, expected_progress = checkpoint.read(other / name)
        assert tensors.keys() == expected.keys()
        for key, tensor in expected.items():
            assert tensors[key].dtype == tensor.dtype, key
            assert torch.equal(tensors[key], tensor), key
        assert identity == expected_identity
        assert timeless(progress.history) == timeless(expected_progress.history)


# --- processes that die ---


def killer(count: int) -> Callable[[], None]:
    """Ends this process at once when it is called for the count-th time."""
    calls = [0]

    def called() -> None:
        calls[0] += 1
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    return called


def die_at(event: str, count: int) -> None:
    """Have this process die in the middle of a step, of writing a checkpoint, or between two files."""
    kill = killer(count)
    if event == "step":
        step = torch.optim.Optimizer.zero_grad

        def zero_grad(self: Any, *args: Any) -> None:
            kill()
            step(self, *args)

        torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
    elif event == "writing":
        whole = tensor_file.atomic_write

        @contextmanager
        def atomic_write(path: Any, **options: Any) -> Iterator[Path]:
            with whole(path, **options) as temporary:
                yield temporary
                content = temporary.read_bytes()
                os.truncate(temporary, len(content) // 2)
                kill()
                temporary.write_bytes(content)

        tensor_file.atomic_write = atomic_write
    else:
        assert event == "log"  # the best epoch is written by then, and the last checkpoint is not
        log = checkpoint.save_log

        def save_log(*args: Any) -> None:
            kill()
            log(*args)

        checkpoint.save_log = save_log


def fork(target: Callable[..., None], *args: Any) -> multiprocessing.process.BaseProcess:
    """A copy of this process, which needs no second to import torch."""
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def train_and_die(case: Case, folder: Path, event: str, count: int) -> None:
    """Train in another process, which is killed on the way."""

    def work() -> None:
        die_at(event, count)
        case.run(folder)

    process = fork(work)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL, (process.exitcode, event, count)
