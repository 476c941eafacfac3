"""Architectures: an encoder with the names that published files of weights use, and networks that are made by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from laplacian_metric.encoder.encoder import Encoder


@dataclass(frozen=True)
class Target:
    """A module that the weights of a file may be those of, and how its head is called there.

    ``complete`` says that the module has all that the encoder needs: if not, only its backbone can be read from there.
    ``names`` has the name in the file for each of the module's own, where they differ, and ``new`` is what the module
    has beyond the published one.
    """

    module: nn.Module
    head: str
    complete: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    new: tuple[str, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """An encoder, and the modules whose names published files of weights use; they share its parameters."""

    encoder: Encoder
    published: tuple[Target, ...] = ()


class ReadyMade(ABC):
    """A backbone with a name: a subclass is a frozen dataclass of its options.

    Attributes:
        default_dim: Z, the rows of the linear head where none are named.
        images: the side and the channels of images, as they are prepared by default; None leaves their size.

    Example:
        >>> import torch
        >>> @dataclass(frozen=True)
        ... class Linear(ReadyMade):
        ...     default_dim = 4
        ...     images = 28, 1
        ...     width: int = 32
        ...
        ...     @property
        ...     def num_features(self) -> int:
        ...         return self.width
        ...
        ...     def backbone(self) -> nn.Module:
        ...         return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, self.width), nn.Tanh())
        >>> Linear(width=8).backbone()(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 8])
    """

    default_dim: ClassVar[int]
    images: ClassVar[tuple[int | None, int]] = 224, 3

    @property
    @abstractmethod
    def num_features(self) -> int:
        """H, what the backbone returns for an image."""

    @abstractmethod
    def backbone(self) -> nn.Module:
        """Return a new backbone, inputs -> (N, H); its weights come from torch's global generator."""

    def published(self, backbone: nn.Module) -> tuple[Target, ...]:
        """Return the parts of a backbone whose names published files of weights use."""
        return ()
