"""What the head of a frozen backbone begins with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laplacian_metric.encoder.heads import identity_head, random_head, whitening_head
from laplacian_metric.runs.features import FeatureSets
from laplacian_metric.runs.images import TRAIN
from laplacian_metric.runs.sections import NetworkSection


def initial_head(
    section: NetworkSection, sets: FeatureSets, seed: int, *, shape_only: bool = False
) -> nn.Linear:
    """The head that the section asks for; only a random one depends on the seed.

    With ``shape_only`` it is random in any case: what it will hold is read from a checkpoint.
    """
    width = sets.encoder.num_features
    dim = section.dim or (sets.encoder.dim if section.head == "random" else width)
    if shape_only or section.head == "random":
        return random_head(width, dim, generator=torch.Generator().manual_seed(seed))
    if section.head == "whitening":
        features = sets[TRAIN].inputs
        assert isinstance(features, Tensor)
        return whitening_head(features, dim)
    if dim != width:
        raise ValueError(
            f"network.head is 'identity', which keeps all {width} features, but dim is {dim}: leave dim out, or take "
            "'whitening' or 'random'"
        )
    return identity_head(width)
