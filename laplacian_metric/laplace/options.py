"""The settings of posteriors and of their fits, checked once."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from hessians.approximations import Approximation
from hessians.checks import Choice
from laplacian_metric.core.arguments import Count, Draws, NotNegative, Positive
from laplacian_metric.core.parallel import Reduce
from laplacian_metric.laplace.layer.base import Structure

BATCH_SIZE = 256
TOLERANCE = 0.01  # of the diagonal of the curvature, relative, in the l2 norm


class PairChoice(Choice):
    """Which of the negative pairs of a data set are looked at."""

    AUTO = "auto"
    """All of up to 65,536 images; of more an estimate."""

    EXACT = "exact"
    """All of them."""

    ESTIMATE = "estimate"
    """A stratified random share, so large that the curvature's error is within the tolerance."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class PosteriorOptions:
    """The settings that all posteriors have; None stands for "not set".

    Attributes:
        approximation: what is kept of the loss's Hessian.
        n_effective: how many independent observations the loss's average stands for.
        temperature: divides n_effective.
        prior_precision: of the weights.

    Example:
        >>> from laplacian_metric.core.checked import checked
        >>> checked(PosteriorOptions, temperature=-1.0)
        Traceback (most recent call last):
        ...
        ValueError: temperature is -1.0: input should be greater than 0
    """

    approximation: Approximation = Approximation.FIXED
    n_effective: Positive | None = None
    temperature: Positive = 1.0
    prior_precision: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class PosthocOptions(PosteriorOptions):
    """The settings of a posterior that is fitted after the training.

    Attributes:
        weight_decay: of the training.
    """

    weight_decay: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class LamOptions(PosthocOptions):
    """The settings of a `LAM`.

    Attributes:
        structure: what is kept of the covariances of the weights.
        rank: how many eigenvectors "lowrank" keeps.
        pairs: which of the negative pairs are looked at.
    """

    structure: Structure = Structure.DIAGONAL
    rank: Count = 50
    pairs: PairChoice = PairChoice.AUTO


@dataclass(frozen=True, kw_only=True)
class OnlineOptions(PosteriorOptions):
    """The settings of an `OnlineLAM`; None stands for "not set".

    Attributes:
        memory: a new batch's share in the running curvature, or "paper".
        warmup: so many steps are taken without a draw.
        samples: how many draws a training step has.
    """

    memory: Annotated[float, Field(gt=0, le=1)] | Literal["paper"] | None = None
    warmup: Annotated[int, Field(ge=0)] | None = None
    samples: Count = 1


class Predictive(Choice):
    """How a `NetworkLAM` makes an embedding of an image."""

    LINEARISED = "linearised"
    """By the network's linearisation around theta*: a Gaussian of u for every image, in closed form."""

    SAMPLED = "sampled"
    """By networks with drawn weights, the same ones for all images."""


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(PosthocOptions):
    """The settings of a `NetworkLAM`.

    Attributes:
        prior_precision: of the weights, one number or one for each layer.
        layers: the number of last layers, "all", or names of modules and parameters.
        predictive: how embeddings are made.
        samples: how many networks "sampled" draws.
        memory_budget: bytes that gradients of single images, and draws that are kept, may take at a time.
    """

    prior_precision: Positive | dict[str, Positive] | None = None  # type: ignore[assignment]
    layers: int | str | list[str] = 2
    predictive: Predictive = Predictive.LINEARISED
    samples: Draws = 100
    memory_budget: Count = 256 << 20


@plain_dataclass(frozen=True)
class FitSettings:
    """How the curvature of a `LAM` is accumulated.

    Attributes:
        options: of the posterior.
        batch_size: of the class-balanced batches, where there are batches.
        generator: of the batches, and of the start of "lowrank".
        tolerance: the relative error of the curvature's diagonal, in the l2 norm, that an estimate may have.
        seed: of an estimate.
        folder: where an interrupted search for pairs resumes; None where it starts again.
        reduce: adds up a tensor over processes.
        progress: whether to show bars; None asks the terminal.
        search: whether to search the pairs of all processes, where the loss allows it; otherwise those of this one are
            summed row by row.
    """

    options: LamOptions
    batch_size: int = BATCH_SIZE
    generator: torch.Generator | None = None
    tolerance: float = TOLERANCE
    seed: int = 0
    folder: Path | None = None
    reduce: Reduce | None = None
    progress: bool | None = None
    search: bool = True
