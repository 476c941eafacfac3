"""Small networks: those of the LAM paper (appendix G.2), for 28x28 grey images and for 32x32 colour images, and that of
the HIB paper for digits side by side.

Two things make a step of theirs take two thirds of the time, or half, and change nothing of what they compute: weights
whose channels are innermost in memory, which convolutions and poolings hand on, and a pooling that comes before the
ReLU. The largest of some numbers, cut off at 0, is the largest of the same numbers that were cut off one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from laplacian_metric.core.arguments import at_least

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
    return _channels_innermost(
        nn.Conv2d(1, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )


def cifar_backbone(poolings: int = 1) -> nn.Sequential:
    """Three unpadded 3x3 convolutions with one pooling, (N, 3, 32, 32) -> (N, 9216), or with two, -> (N, 1024).

    One pooling, after the second convolution, is what appendix G.2 prints, with three input channels where it says one:
    the sides are 32, 30, 28, 14 and 12, and 64 * 12 * 12 is the 9216 that it gives for the linear layer. With two,
    after the first and the second, they are 32, 30, 15, 13, 6 and 4: the 1024 of the code published with the paper.

    Args:
        poolings: 1 or 2.

    Example:
        >>> import torch
        >>> tuple(cifar_backbone()(torch.zeros(2, 3, 32, 32)).shape)
        (2, 9216)
        >>> tuple(cifar_backbone(poolings=2)(torch.zeros(2, 3, 32, 32)).shape)
        (2, 1024)
    """
    if poolings not in (1, 2):
        raise ValueError(
            f"poolings is {poolings}: 1 (as the paper prints it) or 2 (as its code has it) is needed"
        )
    return _channels_innermost(
        nn.Conv2d(3, 32, kernel_size=3),
        *([nn.MaxPool2d(2)] if poolings == 2 else []),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3),
        nn.ReLU(),
        nn.Flatten(),
    )


def cifar_features(poolings: int = 1) -> int:
    """How many features `cifar_backbone` gives.

    Example:
        >>> cifar_features(1), cifar_features(2)
        (9216, 1024)
    """
    side = {1: 12, 2: 4}[poolings]
    return 64 * side * side


def n_digit_backbone(
    digits: int = 2, channels: tuple[int, int] = (8, 16), padded: bool = False, hidden: int = 0
) -> nn.Sequential:
    """Two 5x5 convolutions, each with a pooling: (N, 1, 28, 28 digits) -> (N, 16 * 4 * (7 digits - 3)).

    As section 4.1 of the HIB paper (Oh et al., 2019) has it; that says neither the number of channels, nor the
    activation, nor whether there is a padding.

    Args:
        digits: how many stand side by side.
        channels: of both convolutions.
        padded: whether both convolutions keep the size of their input, for 16 * 49 digits features.
        hidden: units of a fully connected layer after them, which the paper does not speak of; 0 for none. Without it
            the embedding is a sum over places of the image, and hardly anything in it depends on two digits together.

    Example:
        >>> import torch
        >>> tuple(n_digit_backbone()(torch.zeros(2, 1, 28, 56)).shape)
        (2, 704)
    """
    at_least(1, digits=digits)
    at_least(0, hidden=hidden)
    if len(channels) != 2 or min(channels) < 1:
        raise ValueError(f"channels is {list(channels)}: two numbers from 1 on are needed")
    first, second = channels
    padding = 2 if padded else 0
    last = [nn.Linear(n_digit_features(digits, channels, padded), hidden), nn.ReLU()] if hidden else []
    return _channels_innermost(
        nn.Conv2d(1, first, kernel_size=5, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, kernel_size=5, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        *last,
    )


def n_digit_features(
    digits: int = 2, channels: tuple[int, int] = (8, 16), padded: bool = False, hidden: int = 0
) -> int:
    """How many features `n_digit_backbone` gives.

    Example:
        >>> n_digit_features(2), n_digit_features(3), n_digit_features(2, padded=True)
        (704, 1152, 1568)
    """
    return hidden or channels[1] * (49 * digits if padded else 4 * (7 * digits - 3))


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
    _check_dimensions(dimensions)
    with seeded(seed):
        return fashion_backbone(), nn.Linear(FASHION_FEATURES, dimensions)


def cifar_network(dimensions: int = 16, seed: int | None = None) -> tuple[nn.Sequential, nn.Linear]:
    """The backbone and the linear head of the CIFAR-10 network; see `fashion_network`.

    Example:
        >>> backbone, head = cifar_network(seed=0)
        >>> tuple(head.weight.shape)
        (16, 9216)
    """
    _check_dimensions(dimensions)
    with seeded(seed):
        return cifar_backbone(), nn.Linear(cifar_features(), dimensions)


def _channels_innermost(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def _check_dimensions(dimensions: int) -> None:
    if dimensions < 2:
        raise ValueError(f"dimensions is {dimensions}; a direction on a sphere needs at least 2")


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Inside, torch's global generator starts at ``seed``; afterwards it is as it was. Without a seed: no effect."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
