"""Small networks for 28x28 grey images, as the LAM paper (appendix G.2) uses them for FashionMNIST."""

from __future__ import annotations

import torch
from torch import nn

FASHION_FEATURES = 64 * 12 * 12


def fashion_backbone() -> nn.Sequential:
    """Two unpadded 3x3 convolutions and a pooling: (N, 1, 28, 28) -> (N, 9216).

    The weights come from torch's global generator, as those of every torch module do; `fashion_network` takes a
    seed instead.

    Example:
        >>> import torch
        >>> tuple(fashion_backbone()(torch.zeros(2, 1, 28, 28)).shape)
        (2, 9216)
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )


def fashion_network(dimensions: int = 3, seed: int | None = None) -> tuple[nn.Sequential, nn.Linear]:
    """The backbone and the linear head of the FashionMNIST network.

    Args:
        dimensions: Z, the number of dimensions of the embedding.
        seed: where the initial weights come from; the global generator is left as it was. Without a seed it is
            the global generator that they come from.

    Returns:
        The backbone, (N, 1, 28, 28) -> (N, 9216), and the head, (N, 9216) -> (N, Z).

    Example:
        >>> backbone, head = fashion_network(seed=0)
        >>> tuple(head.weight.shape)
        (3, 9216)
    """
    if dimensions < 2:
        raise ValueError(f"dimensions is {dimensions}; a direction on a sphere needs at least 2")
    if seed is None:
        return fashion_backbone(), nn.Linear(FASHION_FEATURES, dimensions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return fashion_backbone(), nn.Linear(FASHION_FEATURES, dimensions)
