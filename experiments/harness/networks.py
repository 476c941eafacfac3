"""What cells and suites have in common: new encoders, heads of frozen backbones, and learners with their setup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from experiments.harness.sections import LossSection, MethodSection, NetworkSection
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Learner, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.heads import identity_head, principal_head, random_head, whitening_head
from laplacian_metric.training import TrainingOptions, pair_choice


def initial_encoder(
    network: NetworkSection,
    frozen: Encoder | None,
    features: Callable[[], Dataset],
    seed: int,
    data_dir: Path | None = None,
    *,
    shape_only: bool = False,
) -> Encoder:
    """Return a new encoder; of a frozen backbone the head alone.

    Args:
        network: which network.
        frozen: the encoder with the frozen backbone, or None.
        features: returns those of the training images, which some heads are made of.
        seed: of random weights.
        data_dir: the folder of the data sets, which may hold weights.
        shape_only: the head is random in any case: what it will hold is read from a checkpoint.
    """
    if frozen is None:
        return network.make(seed, data_dir)
    head = initial_head(network, frozen, features, seed, shape_only=shape_only)
    return Encoder(nn.Identity(), head, normalize=frozen.normalize)


def initial_head(
    section: NetworkSection,
    encoder: Encoder,
    features: Callable[[], Dataset],
    seed: int,
    *,
    shape_only: bool = False,
) -> nn.Linear:
    """Return the head that a section asks for above a frozen encoder; only a random one depends on the seed."""
    width = encoder.num_features
    dim = section.dim or (encoder.dim if section.head == "random" else width)
    if shape_only or section.head == "random":
        return random_head(width, dim, generator=torch.Generator().manual_seed(seed))
    if section.head in ("principal", "whitening"):
        head = principal_head if section.head == "principal" else whitening_head
        return head(features().features, dim)
    if dim != width:
        raise ValueError(
            f"network.head is 'identity', which keeps all {width} features, but dim is {dim}: leave dim out, or take "
            "'principal', 'whitening' or 'random'"
        )
    return identity_head(width)


def learner_of(
    method: MethodSection,
    loss: LossSection,
    training: TrainingOptions,
    encoders: list[Encoder],
    images: Dataset,
    seed: int,
) -> Learner:
    """Return what a method trains, or fits, from encoders and training images."""
    setup = Setup(
        loss=loss.make(),
        num_images=len(images),
        num_classes=None if images.labels is None else int(images.labels.max()) + 1,
        weight_decay=training.weight_decay,
        seed=seed,
        pairs=pair_choice(training),
    )
    return method.make().learner(encoders, setup)


def check_base(learner: Learner, encoder: Encoder, name: str) -> None:
    """Refuse a base that trains more than the encoder which others start from."""
    if learner.module is not encoder:
        raise ValueError(f"{name} trains more than an encoder: take a base whose method is deterministic")
