"""The options of a training, and what is made of them: optimizer, learning rates, order of the images, miner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hessians import Pairs
from hessians.checks import Choice
from laplacian_metric.core.arguments import at_least, check_known, not_negative, parse_choices, positive
from laplacian_metric.core.method import all_pairs
from laplacian_metric.encoder.precision import Precision


class Optimizer(Choice):
    """Which of torch's optimizers."""

    RMSPROP = "rmsprop"
    ADAM = "adam"
    ADAMW = "adamw"
    SGD = "sgd"


class Schedule(Choice):
    """How the learning rate changes from epoch to epoch."""

    CONSTANT = "constant"
    """It does not."""
    EXPONENTIAL = "exponential"
    """It is multiplied by exp(-decay) after every epoch."""
    COSINE = "cosine"
    """It falls along half a cosine to `final_share` of itself in the last epoch."""
    STEP = "step"
    """It is divided by 10 after a half and after three quarters of the epochs."""


class Sampling(Choice):
    """Which images make up a batch."""

    SHUFFLED = "shuffled"
    """All images, in a new random order in every epoch."""
    BALANCED = "balanced"
    """`images_per_class` images of each of batch_size/images_per_class classes."""
    PAIRS = "pairs"
    """`batch_size` pairs of images, half of which match; they alone are trained on, see `dealt_pairs`."""


@dataclass(frozen=True)
class TrainingOptions:
    """Everything that a training depends on besides the learner, the images and the seed.

    Attributes:
        epochs: how often every image is seen.
        batch_size: of one process; in pairs where these are sampled, else in images.
        optimizer: "rmsprop", "adam", "adamw" or "sgd", as torch has them.
        learning_rate: at the start.
        weight_decay: of the optimizer.
        momentum: of "sgd" and "rmsprop".
        schedule: "constant", "exponential", "cosine" or "step".
        decay: of "exponential", per epoch.
        final_share: of "cosine".
        warmup_epochs: in so many epochs the learning rate rises linearly to where its schedule then starts.
        sampling: "shuffled", "balanced" (P classes of K images, by pytorch-metric-learning's sampler), or "pairs" (half
            of them of two images of one class, half of different ones, at random).
        images_per_class: K, for "balanced".
        steps_per_epoch: for "pairs"; None takes as many as have places for all images.
        miner: a miner of pytorch-metric-learning by its class's name; None trains on all pairs of a batch.
        miner_options: what it is made with.
        precision: "float32", or "bfloat16" for the forward pass where there are instructions for it.
        clip_norm: gradients are scaled down to this norm; None leaves them alone.
        patience: training ends after so many epochs without a better validation score; None never.
        checkpoint_every: steps between checkpoints inside of an epoch; None has them between epochs only.
    """

    epochs: int = 20
    batch_size: int = 256
    optimizer: Optimizer = Optimizer.RMSPROP
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: Schedule = Schedule.EXPONENTIAL
    decay: float = 0.1
    final_share: float = 0.0
    warmup_epochs: int = 0
    sampling: Sampling = Sampling.SHUFFLED
    images_per_class: int = 4
    steps_per_epoch: int | None = None
    miner: str | None = None
    miner_options: tuple[tuple[str, bool | int | float | str], ...] = ()
    precision: Precision = Precision.FLOAT32
    clip_norm: float | None = None
    patience: int | None = None
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        parse_choices(self)
        for name in ("learning_rate", "clip_norm"):
            positive(name, getattr(self, name))
        for name in ("weight_decay", "momentum", "decay", "final_share"):
            not_negative(**{name: getattr(self, name)})
        counts = {"epochs": 0, "batch_size": 2, "warmup_epochs": 0, "images_per_class": 2}
        for name, least in {**counts, "patience": 1, "checkpoint_every": 1, "steps_per_epoch": 1}.items():
            at_least(least, **{name: getattr(self, name)})
        if self.sampling is Sampling.BALANCED and self.batch_size % self.images_per_class:
            raise ValueError(
                f"batch_size is {self.batch_size}, which is no multiple of images_per_class, {self.images_per_class}: "
                "a balanced batch has as many images of each of its classes"
            )
        if self.sampling is Sampling.PAIRS:
            if self.batch_size % 2:
                raise ValueError(
                    f"batch_size is {self.batch_size}: half of the pairs match, so take an even number"
                )
            if self.miner is not None:
                raise ValueError(
                    f"miner is {self.miner!r}, but with sampling 'pairs' the pairs are dealt: leave out one of them"
                )
        elif self.steps_per_epoch is not None:
            raise ValueError(
                f"steps_per_epoch is {self.steps_per_epoch}, but an epoch of sampling {self.sampling.value!r} is all "
                "images: leave it out, or take sampling 'pairs'"
            )


def make_optimizer(options: TrainingOptions, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Torch's optimizer, with its default settings where the options have none."""
    trained = list(parameters)
    if not trained:
        raise ValueError(
            "there is nothing to train: no parameter requires a gradient. Methods that start from networks which are "
            "trained (laplace, ensemble) have nothing to do here: call learner.embedder(FitData(train, validation))"
        )
    rate, decay = options.learning_rate, options.weight_decay
    if options.optimizer is Optimizer.RMSPROP:
        return torch.optim.RMSprop(trained, lr=rate, weight_decay=decay, momentum=options.momentum)
    if options.optimizer is Optimizer.SGD:
        return torch.optim.SGD(trained, lr=rate, weight_decay=decay, momentum=options.momentum)
    adam = torch.optim.AdamW if options.optimizer is Optimizer.ADAMW else torch.optim.Adam
    return adam(trained, lr=rate, weight_decay=decay)


def learning_rate(options: TrainingOptions, epoch: int) -> float:
    """The learning rate of an epoch, counted from 0.

    Example:
        >>> options = TrainingOptions(epochs=4, learning_rate=1.0, schedule="step")
        >>> [learning_rate(options, epoch) for epoch in range(4)]
        [1.0, 1.0, 0.1, 0.01]
    """
    rate = options.learning_rate
    if epoch < options.warmup_epochs:
        return rate * (epoch + 1) / (options.warmup_epochs + 1)
    if options.schedule is Schedule.EXPONENTIAL:
        return rate * math.exp(-options.decay * (epoch - options.warmup_epochs))
    if options.schedule is Schedule.COSINE:
        last = max(options.epochs - 1 - options.warmup_epochs, 1)
        share = (1 + math.cos(math.pi * min((epoch - options.warmup_epochs) / last, 1.0))) / 2
        return rate * (options.final_share + (1 - options.final_share) * share)
    if options.schedule is Schedule.STEP:
        passed = sum(epoch >= share * options.epochs for share in (0.5, 0.75))
        return rate / float(10**passed)
    return rate


def pair_choice(options: TrainingOptions) -> Callable[[Tensor, Tensor], Pairs]:
    """What chooses the pairs of a batch that are trained on: all of them, a miner's, or those that were dealt."""
    if options.sampling is Sampling.PAIRS:
        return dealt_pairs
    if options.miner is None:
        return all_pairs
    miner = make_miner(options.miner, dict(options.miner_options))

    def mined(u: Tensor, labels: Tensor) -> Pairs:
        mined_pairs = miner(nn.functional.normalize(u.detach().float()), labels)
        return Pairs.from_indices(mined_pairs, len(u))

    return mined


def dealt_pairs(u: Tensor, labels: Tensor) -> Pairs:
    """The first image of a batch with the second, the third with the fourth, and so on.

    Example:
        >>> pairs = dealt_pairs(torch.zeros(4, 2), torch.tensor([7, 7, 7, 8]))
        >>> pairs.num_positives, pairs.num_negatives
        (1, 1)
    """
    if len(labels) % 2:
        raise ValueError(f"a batch of {len(labels)} images cannot be pairs: an even number is needed")
    first, second = torch.arange(len(labels), device=labels.device).view(-1, 2).unbind(1)
    match = labels[first] == labels[second]
    return Pairs.from_indices((first[match], second[match], first[~match], second[~match]), len(u))


def make_miner(name: str, settings: dict[str, Any]) -> Any:
    """A miner of pytorch-metric-learning by the name of its class."""
    from pytorch_metric_learning import miners

    miner_names = [entry for entry in dir(miners) if entry.endswith("Miner") and not entry.startswith("Base")]
    check_known("miner", name, miner_names)
    try:
        return getattr(miners, name)(**settings)
    except TypeError as error:
        raise ValueError(f"{name} does not take these options: {error}") from error
