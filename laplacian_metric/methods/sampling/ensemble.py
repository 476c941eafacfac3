"""Several networks that were trained from different initial weights (Lakshminarayanan et al., 2017)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from hessians.checks import Choice
from laplacian_metric.core.arguments import Draws, Positive
from laplacian_metric.core.batch import Batch, device_of, map_batches
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.method import Embedder, FitData, JointEmbedder, Learner, Method, Setup, Start
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.sampling.soft_neighbours import RandomImages, neighbour_disagreement
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


class Disagreement(Choice):
    """What tells how unsure the members are of an image."""

    KAPPA = "kappa"
    """1/kappa: how far their directions spread. Where classes can lie beside each other in several ways, as in few
    dimensions, no rotation brings members together, and the spread tells more of the classes than of the image."""
    NEIGHBOURS = "neighbours"
    """How differently they choose an image's neighbours among training images (see `neighbour_disagreement`), which
    depends on similarities alone."""


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
        disagreement: what the uncertainty is; None is "neighbours", and "kappa" for "naive".
        references: how many training images "neighbours" looks at, drawn at random.
        sharpness: how near these have to be to count.
        seed: of the draw of the references.

    Example:
        >>> Ensemble(combine="aligned").combine.value
        'aligned'
    """

    name: ClassVar[str] = "ensemble"
    start: ClassVar[Start] = Start.NETWORKS
    trains: ClassVar[bool] = False

    combine: Combine = Combine.SIMILARITY
    reflections: bool = True
    disagreement: Disagreement | None = None
    references: Draws = 1000
    sharpness: Positive = 30.0
    seed: int = 0

    @property
    def by_neighbours(self) -> bool:
        """Whether members are compared by the neighbours that they choose."""
        if self.disagreement is not None:
            return self.disagreement is Disagreement.NEIGHBOURS
        return self.combine is not Combine.NAIVE

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
        method = self.method
        aligns, compares = method.combine is not Combine.NAIVE, method.by_neighbours
        if not aligns and not compares:
            return EnsembleEmbedder(self.encoders, method)
        products, references = look_through(self.encoders, self.module, data, method)
        rotations = [nearest_orthogonal(product, reflections=method.reflections) for product in products]
        return EnsembleEmbedder(
            self.encoders,
            method,
            torch.stack(rotations) if aligns else None,
            references if compares else None,
        )


class EnsembleEmbedder(JointEmbedder):
    """The members' embeddings and how far they agree; its samples are the members.

    Args:
        encoders: the members.
        method: its options.
        rotations: (M, Z, Z), what each member's embeddings are multiplied with; None to leave them as they are.
        references: (M, R, Z), the training images among which neighbours are compared; None for 1/kappa.
    """

    def __init__(
        self,
        encoders: Sequence[Encoder],
        method: Ensemble,
        rotations: Tensor | None = None,
        references: Tensor | None = None,
    ) -> None:
        super().__init__(nn.ModuleList(encoders))
        self.encoders = list(encoders)
        self.method = method
        self.rotations = rotations
        self.references = references

    def encode(self, inputs: Any) -> Tensor:
        return members_of(self.encoders, inputs)

    def distributions(self, encoded: Tensor) -> StochasticEmbedding:
        members, streamed = encoded, StreamedFit()
        streamed.add(self._aligned(members))
        mean, kappa = streamed.fit(debiased=False)
        if self.method.combine is Combine.SIMILARITY:
            mean = beside(members)
        uncertainty = kappa.reciprocal()
        if self.references is not None:
            references = self.references.to(members)
            uncertainty = neighbour_disagreement(members, references, self.method.sharpness).to(kappa)
        return StochasticEmbedding(mean, mean, kappa, uncertainty)

    def settings(self) -> dict[str, Any]:
        return {"members": len(self.encoders)}

    def sample_encoded(
        self, encoded: list[Tensor], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        """Yield the members in turn, and from the first one again: nothing is drawn.

        With a multiple of M samples every member has the same share, and calibration is the same as with M.
        """
        members = torch.cat(encoded, dim=1)
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


def look_through(
    encoders: Sequence[Encoder], module: nn.Module, data: FitData, method: Ensemble
) -> tuple[Tensor, Tensor]:
    """What is needed of the training images.

    Returns:
        products: (M, Z, Z), the sum over them of a member's embedding times the first one's.
        references: (M, R, Z), the members' embeddings of some of them.
    """
    drawn, dim = RandomImages(method.references, method.seed), encoders[0].dim
    products = torch.zeros(len(encoders), dim, dim, dtype=torch.float64, device=device_of(module))

    def add(batch: Batch) -> int:
        members = members_of(encoders, batch.inputs)
        products.add_(members.double().mT @ members[0].double())
        drawn.add(members)
        return members.shape[1]

    seen = sum(map_batches(add, data.train, module, title="training images"))
    if seen < dim and method.combine is not Combine.NAIVE:
        warnings.warn(
            f"{seen} training images leave the alignment of {dim} dimensions open: give at least as many",
            stacklevel=3,
        )
    return products, drawn.members


def nearest_orthogonal(matrix: Tensor, *, reflections: bool = True) -> Tensor:
    """The orthogonal matrix closest to a square one: U V' of its singular value decomposition U S V'.

    Without reflections the direction of the smallest singular value is turned round where the determinant would be -1.
    Of the sum of the products of rows, ``source.T @ target``, it is the one that brings ``source`` onto ``target``.

    Example:
        >>> nearest_orthogonal(torch.diag(torch.tensor([2.0, -0.5]))).tolist()
        [[1.0, 0.0], [0.0, -1.0]]
        >>> nearest_orthogonal(torch.diag(torch.tensor([2.0, -0.5])), reflections=False).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    U, _, Vh = torch.linalg.svd(matrix)
    if not reflections and float(torch.linalg.det(U @ Vh)) < 0:
        U = torch.cat([U[:, :-1], -U[:, -1:]], dim=1)
    rotation: Tensor = U @ Vh + 0.0  # no -0.0
    return rotation
