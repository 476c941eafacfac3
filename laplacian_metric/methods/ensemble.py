"""Several networks that were trained from different initial weights (Lakshminarayanan et al., 2017)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hessians.choices import Choice
from laplacian_metric.alignment import nearest_orthogonal
from laplacian_metric.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.encoder import Encoder
from laplacian_metric.inputs import inputs_of, to_device
from laplacian_metric.method import Embedder, FitData, Learner, Method, Setup, Start
from laplacian_metric.modes import evaluating
from laplacian_metric.progress import track
from laplacian_metric.vmf import StreamedFit


class Combine(Choice):
    """What M members make of an image.

    Pair losses see similarities only, and these are the same in a space that is rotated: members agree on similarities
    long before they agree on directions.
    """

    SIMILARITY = "similarity"
    """Similarities are averaged. The average of the members' cosines is the cosine of their embeddings side by side,
    which is the point, (N, M Z)."""
    ALIGNED = "aligned"
    """Members are brought onto the first one on training images, and their directions are averaged, (N, Z)."""
    NAIVE = "naive"
    """Directions are averaged as they are, which is wrong, and is here to show how wrong."""


@dataclass(frozen=True)
class Ensemble(Method):
    """Embeds with several trained encoders of the same number of dimensions; there is nothing to train.

    kappa is that of the members' directions in Z dimensions, brought onto the first member's unless ``combine`` is
    "naive". It is fitted to the members as they are (variance over M, not M - 1): so few draws would leave images of
    little agreement with a debiased kappa of 0 each, and no order among them.

    Where similarities are averaged, mean and point are the same; member m's sample is its embedding in the m-th Z of
    the M Z dimensions, with zeros in all others. The mean direction of these is the point, and similarities within one
    are the member's own. There kappa tells how far members agree, and is not the width of a distribution on that
    sphere.

    Attributes:
        combine: what the members make of an image.
        reflections: whether a member may be mirrored to bring it onto the first.

    Example:
        >>> Ensemble(combine="aligned").combine.value
        'aligned'
    """

    name: ClassVar[str] = "ensemble"
    start: ClassVar[Start] = Start.NETWORKS
    trains: ClassVar[bool] = False

    combine: Combine = Combine.SIMILARITY
    reflections: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "combine", Combine.parse(self.combine, "combine"))

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return EnsembleLearner(encoders, self)


class EnsembleLearner(Learner):
    """The trained encoders."""

    def __init__(self, encoders: Sequence[Encoder], method: Ensemble) -> None:
        if len(encoders) < 2:
            raise ValueError(
                f"ensemble takes several trained encoders, {len(encoders)} is given: 5 are usual"
            )
        dims = [encoder.dim for encoder in encoders]
        if len(set(dims)) > 1:
            raise ValueError(
                f"the encoders have {', '.join(map(str, dims))} dimensions: all members need the same number"
            )
        super().__init__(nn.ModuleList(encoders))
        self.encoders = list(encoders)
        self.method = method

    def parameters(self) -> list[nn.Parameter]:
        """None: the members are trained already."""
        return []

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        raise RuntimeError("an ensemble is not trained: train its members one by one with another method")

    def points(self, inputs: Any) -> Tensor:
        """The members' embeddings side by side, (N, M Z), unit."""
        return beside(members_of(self.encoders, inputs))

    def embedder(self, data: FitData) -> Embedder:
        if self.method.combine is Combine.NAIVE:
            return EnsembleEmbedder(self.encoders, self.method, None)
        rotations = align(self.encoders, self.module, data, reflections=self.method.reflections)
        return EnsembleEmbedder(self.encoders, self.method, rotations)


class EnsembleEmbedder(Embedder):
    """The members' embeddings and how far they agree; its samples are the members.

    Args:
        encoders: the members.
        method: its options.
        rotations: (M, Z, Z), what each member's embeddings are multiplied with; None to leave them as they are.
    """

    def __init__(self, encoders: Sequence[Encoder], method: Ensemble, rotations: Tensor | None) -> None:
        super().__init__(nn.ModuleList(encoders))
        self.encoders = list(encoders)
        self.method = method
        self.rotations = rotations

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        members = members_of(self.encoders, inputs)
        found = StreamedFit()
        found.add(self._aligned(members))
        mean, kappa = found.fit(debiased=False)
        if self.method.combine is Combine.SIMILARITY:
            mean = beside(members)
        return StochasticEmbedding(mean, mean, kappa, kappa.reciprocal())

    def sample_embeddings(
        self, inputs: Any, samples: int, *, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """The members in turn, and from the first one again: nothing is drawn.

        With a multiple of M samples every member has the same share, and calibration is the same as with M.
        """
        single = isinstance(inputs, (Tensor, tuple, dict))
        parts = []
        with evaluating(self.module):
            for batch in [inputs] if single else inputs_of(track(inputs, "embeddings")):
                parts.append(members_of(self.encoders, to_device(batch, self.module)))
            if not parts:
                raise ValueError("the loader is empty: there is no image to embed")
            members = torch.cat(parts, dim=1)
            if self.method.combine is not Combine.SIMILARITY:
                members = self._aligned(members)
        for sample in range(samples):
            member = sample % len(members)
            yield self._padded(members[member], member)

    def _aligned(self, members: Tensor) -> Tensor:
        """Members (M, N, Z) in the space of the first."""
        if self.rotations is None:
            return members
        turned = members @ self.rotations.to(members)
        return nn.functional.normalize(turned, dim=2)  # of unit length but for rounding

    def _padded(self, z: Tensor, member: int) -> Tensor:
        """A member's embeddings (N, Z) where the point has them."""
        if self.method.combine is not Combine.SIMILARITY:
            return z
        dim = z.shape[1]
        padded: Tensor = nn.functional.pad(z, (member * dim, (len(self.encoders) - 1 - member) * dim))
        return padded


def members_of(encoders: Sequence[Encoder], inputs: Any) -> Tensor:
    """The unit embeddings of every member, (M, N, Z)."""
    return torch.stack([unit_rows(encoder.raw(inputs)) for encoder in encoders])


def beside(members: Tensor) -> Tensor:
    """Members (M, N, Z) side by side, (N, M Z), unit: their cosines are the averages of the members' cosines.

    Example:
        >>> members = torch.nn.functional.normalize(torch.randn(3, 5, 2, generator=torch.manual_seed(0)), dim=2)
        >>> z = beside(members)
        >>> bool(torch.allclose(z @ z.T, (members @ members.mT).mean(0), atol=1e-6))
        True
    """
    count, num, dim = members.shape
    stacked: Tensor = members.transpose(0, 1).reshape(num, count * dim)
    return stacked / math.sqrt(count)


def align(encoders: Sequence[Encoder], module: nn.Module, data: FitData, *, reflections: bool) -> Tensor:
    """The rotations (M, Z, Z) that bring every member onto the first one, on the training images."""
    dim, seen = encoders[0].dim, 0
    products: Tensor | float = 0.0  # (M, Z, Z), summed over images
    with evaluating(module):
        for inputs in inputs_of(track(data.train, "alignment")):
            members = members_of(encoders, to_device(inputs, module)).double()
            products = products + members.mT @ members[0]
            seen += members.shape[1]
    if not isinstance(products, Tensor):
        raise ValueError("there are no training images: members are brought onto the first one on them")
    if seen < dim:
        warnings.warn(
            f"{seen} training images leave the alignment of {dim} dimensions open: give at least as many",
            stacklevel=3,
        )
    return torch.stack([nearest_orthogonal(product, reflections=reflections) for product in products])
