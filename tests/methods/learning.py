"""What tests of methods share: small data, encoders and learners, and steps of a training."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric import methods
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData, Learner, Setup, Start
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.self_supervised.two_views import TwoViewLearner
from tests.generators import seeded

LOSS = ContrastiveLoss(margin=0.7)
SETUP = Setup(LOSS, num_images=100)
NOTHING = FitData([], [])


def two_clusters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return two clusters, and between them images whose class is drawn by lot: rows (N, 2) and labels."""
    generator = seeded(seed)
    labels = torch.randint(2, (count,), generator=generator)
    centres = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])[labels]
    centres[: count // 4, 0] = 0
    return centres + 0.3 * torch.randn(count, 2, generator=generator), labels


def noisy(count: int, seed: int, classes: int = 6) -> Dataset:
    """Return rows whose last entry says how noisy they are, and so how likely to be among wrong neighbours."""
    generator = seeded(seed)
    labels = torch.arange(count) % classes
    noise = torch.rand(count, 1, generator=generator)
    rows = torch.eye(classes)[labels] + noise * torch.randn(count, classes, generator=generator)
    return Dataset(torch.cat([rows, 2 * noise], dim=1), labels)


def encoder_of(
    dim: int = 3, *, inputs: int = 2, hidden: int = 32, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Encoder:
    """Return an encoder of rows with one hidden layer, its weights drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU())
        return Encoder(backbone, nn.Linear(hidden, dim)).to(dtype)


@functools.cache
def _trained_weights(seed: int) -> dict[str, Tensor]:
    learner = begun(methods.make("deterministic").learner([encoder_of(seed=seed)], SETUP))
    learn_two_clusters(learner, 100)
    return learner.module.state_dict()


def trained_encoder(seed: int = 0, dtype: torch.dtype = torch.float32) -> Encoder:
    """Return an encoder that the pair loss was trained with on `two_clusters`."""
    encoder = encoder_of(seed=seed)
    encoder.load_state_dict(_trained_weights(seed))
    return encoder.to(dtype)


def jittered(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return a view of rows, in place of one of images."""
    return x + 0.1 * torch.randn(x.shape, generator=generator).to(x)


def begun(learner: Learner, *, adam: float = 1e-2, seed: int = 0) -> Learner:
    """Return a learner whose training has begun, with Adam where there is anything to train."""
    if parameters := learner.parameters():
        learner.begin(torch.optim.Adam(parameters, lr=adam), seeded(seed))
    return learner


def learner_of(
    name: str,
    *encoders: Encoder,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    adam: float = 1e-2,
    setup: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return the begun learner of a method, from the encoders that it starts from: small, or trained on clusters."""
    method = methods.make(name, **options)
    if not encoders and method.start is Start.SCRATCH:
        encoders = (encoder_of(dtype=dtype),)
    elif not encoders:
        count = 3 if method.start is Start.NETWORKS else 1
        encoders = tuple(trained_encoder(number, dtype) for number in range(count))
    own = {
        "loss": LOSS,
        "num_images": 100,
        "num_classes": 2,
        "weight_decay": 1e-4,
        "seed": seed,
        **(setup or {}),
    }
    learner = method.learner(encoders, Setup(**own))
    if isinstance(learner, TwoViewLearner):  # by default views are of images
        learner.augmentation = jittered
    return begun(learner, adam=adam)


def step(learner: Learner, inputs: Tensor, labels: Tensor) -> float:
    """Take one step of a training that has begun, and return its loss."""
    learner.train_mode()
    loss = learner.loss(inputs, labels)
    learner.optimizer.zero_grad()
    loss.backward()
    learner.step()
    return float(loss.detach())


def epoch(learner: Learner, inputs: Tensor, labels: Tensor, steps: int) -> list[float]:
    """Take so many steps on one batch, end the epoch, and return the losses."""
    losses = [step(learner, inputs, labels) for _ in range(steps)]
    learner.end_epoch()
    return losses


def learn_two_clusters(learner: Learner, steps: int, *, batch: int = 40) -> None:
    """Train on random batches of 800 images of `two_clusters`, in epochs of 20 steps."""
    images, labels = two_clusters(800, 0)
    generator = seeded(5)
    for number in range(steps):
        chosen = torch.randint(800, (batch,), generator=generator)
        step(learner, images[chosen], labels[chosen])
        if number % 20 == 19:
            learner.end_epoch()


def check_nothing_is_learned(learner: Learner, labels: list[int]) -> None:
    """A batch without any pair or triplet has the loss 0 and no gradient."""
    loss = learner.loss(torch.randn(len(labels), 2), torch.tensor(labels))
    assert float(loss.detach()) == 0
    loss.backward()
    assert all(p.grad is None or not bool(p.grad.any()) for p in learner.parameters())
