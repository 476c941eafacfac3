"""What every method returns: for each image a distribution of directions, with one number that says how wide it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from hessians.checks import check_matrix, check_same_device
from laplacian_metric import vmf
from laplacian_metric.core.gaussian import Gaussians, Rows, as_rows


@dataclass(frozen=True, eq=False)
class StochasticEmbedding:
    """The directions of N images in Z dimensions, each with its distribution.

    Attributes:
        point: the deterministic embedding z, (N, Z), unit rows; what retrieval uses.
        mean: the direction of E[u/|u|], (N, Z), unit rows.
        kappa: the concentration around it, (N,); 0 knows nothing, infinity everything.
        uncertainty: (N,), the greater the less sure; 1/kappa unless a method has a score of its own.
        gaussians: the Gaussians of the raw embeddings u, where the method has them.
        samples: joint samples, (S, N, Z), unit; sample s embeds all images with one draw of the weights.
        source: the fingerprint of the posterior that made them, where it has one.

    Example:
        >>> gaussians = Gaussians(torch.tensor([[2.0, 0.0], [0.0, 0.1]]), torch.full((2, 2), 0.01))
        >>> e = StochasticEmbedding.from_gaussians(gaussians)
        >>> len(e), e.point, e.kappa[0] > e.kappa[1]
        (2, tensor([[1., 0.],
                [0., 1.]]), tensor(True))
        >>> e.sample(10, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([10, 2, 2])
    """

    point: Tensor
    mean: Tensor
    kappa: Tensor
    uncertainty: Tensor
    gaussians: Gaussians | None = None
    samples: Tensor | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        check_matrix("point", self.point)
        num, dim = self.point.shape
        expected: dict[str, tuple[int, ...]] = {
            "mean": (num, dim),
            "kappa": (num,),
            "uncertainty": (num,),
        }
        for name, shape in expected.items():
            tensor = getattr(self, name)
            if tuple(tensor.shape) != shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, {shape} is needed for this point")
        if self.samples is not None and self.samples.shape[1:] != self.point.shape:
            raise ValueError(f"samples has shape {tuple(self.samples.shape)}, (S, {num}, {dim}) is needed")
        if self.gaussians is not None and self.gaussians.mean.shape != self.point.shape:
            raise ValueError(f"gaussians are {tuple(self.gaussians.mean.shape)}, ({num}, {dim}) is needed")

    @staticmethod
    def from_gaussians(gaussians: Gaussians, *, samples: Tensor | None = None) -> StochasticEmbedding:
        """From the Gaussians of u, in closed form; the point is the direction of their mean.

        With joint samples (S, N, Z) these only ride along: mean and kappa are those of the closed form.
        """
        point = unit_rows(gaussians.mean)
        direction = gaussians.direction()
        return StochasticEmbedding(
            point=point,
            mean=direction.mean,
            kappa=direction.kappa,
            uncertainty=direction.kappa.reciprocal(),
            gaussians=gaussians,
            samples=samples,
        )

    @staticmethod
    def from_samples(samples: Tensor, point: Tensor | None = None) -> StochasticEmbedding:
        """From joint samples (S, N, Z) alone; the point is their mean direction unless it is given."""
        mean, kappa = vmf.fit(samples)
        return StochasticEmbedding(
            point=mean if point is None else point,
            mean=mean,
            kappa=kappa,
            uncertainty=kappa.reciprocal(),
            samples=samples,
        )

    def __len__(self) -> int:
        return len(self.point)

    @property
    def dim(self) -> int:
        """Z."""
        return self.point.shape[1]

    @property
    def variance(self) -> Tensor:
        """The variance of every component of the raw embedding u, before the norm, (N, Z)."""
        if self.gaussians is None:
            raise ValueError("this method has no Gaussian of u, so there is no variance before the norm")
        return self.gaussians.marginal_variance

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Tensor:
        """k directions of every image, (k, N, Z), unit: independent between images.

        Projected Gaussian where the method has one, else von Mises-Fisher, of which an infinite kappa leaves the mean
        alone. What needs the same weights for every image (calibration by neighbours) takes the joint samples of
        ``embed(..., samples=S)`` instead.
        """
        if self.gaussians is not None:
            raw = self.gaussians.sample(k, generator=generator)
            return F.normalize(raw, dim=2, eps=torch.finfo(raw.dtype).tiny)
        certain = self.kappa.isposinf()
        drawn = vmf.sample(self.mean, self.kappa.masked_fill(certain, 1.0), k, generator=generator)
        return torch.where(certain[:, None], self.mean, drawn)

    def with_uncertainty(self, uncertainty: Tensor) -> StochasticEmbedding:
        """The same directions, with another score (N,) as their uncertainty."""
        return replace(self, uncertainty=uncertainty)

    def with_source(self, source: str | None) -> StochasticEmbedding:
        """The same distributions, said to come from this posterior."""
        return replace(self, source=source)

    def with_samples(self, samples: Tensor) -> StochasticEmbedding:
        """The same distributions with joint samples (S, N, Z) beside them."""
        return replace(self, samples=samples)

    def __getitem__(self, rows: Rows) -> StochasticEmbedding:
        """Some of the images, as a StochasticEmbedding."""
        rows = as_rows(rows, len(self))
        return StochasticEmbedding(
            self.point[rows],
            self.mean[rows],
            self.kappa[rows],
            self.uncertainty[rows],
            None if self.gaussians is None else self.gaussians[rows],
            None if self.samples is None else self.samples[:, rows],
            self.source,
        )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> StochasticEmbedding:
        """Everything moved to a device or converted to a dtype."""
        return StochasticEmbedding(
            self.point.to(device, dtype),
            self.mean.to(device, dtype),
            self.kappa.to(device, dtype),
            self.uncertainty.to(device, dtype),
            None if self.gaussians is None else self.gaussians.to(device, dtype),
            None if self.samples is None else self.samples.to(device, dtype),
            self.source,
        )

    @staticmethod
    def cat(parts: Sequence[StochasticEmbedding]) -> StochasticEmbedding:
        """All images of several embeddings by one method, in order."""
        if not parts:
            raise ValueError("there are no parts: at least one is needed")
        if len(parts) == 1:
            return parts[0]
        gaussians = [part.gaussians for part in parts if part.gaussians is not None]
        samples = [part.samples for part in parts if part.samples is not None]
        if len(gaussians) not in (0, len(parts)) or len(samples) not in (0, len(parts)):
            raise ValueError("some parts have Gaussians or samples and some have not: embed them alike")
        dims, counts = sorted({part.dim for part in parts}), sorted({len(drawn) for drawn in samples})
        for what, numbers in (("dimensions", dims), ("joint samples", counts)):
            if len(numbers) > 1:
                raise ValueError(
                    f"the parts have different numbers of {what}, {' and '.join(map(str, numbers))}: embed them alike"
                )
        if len({part.source for part in parts}) > 1:
            raise ValueError("the parts come from different posteriors: embed them with one")
        return StochasticEmbedding(
            torch.cat([part.point for part in parts]),
            torch.cat([part.mean for part in parts]),
            torch.cat([part.kappa for part in parts]),
            torch.cat([part.uncertainty for part in parts]),
            Gaussians.cat(gaussians) if gaussians else None,
            torch.cat(samples, dim=1) if samples else None,
            parts[0].source,
        )


def unit_rows(u: Tensor) -> Tensor:
    """u/|u| of (N, Z); a row without a direction is refused."""
    norm = torch.linalg.vector_norm(u, dim=1)
    wrong = ((norm == 0) | ~norm.isfinite()).nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"{len(wrong)} of {len(u)} embeddings have no direction, the first is row {row} with norm "
            f"{float(norm[row]):g}: remove those images or mend the network that made them"
        )
    unit: Tensor = u / norm[:, None]
    return unit


@dataclass(frozen=True, eq=False)
class Combined:
    """N images with both uncertainties.

    Attributes:
        total: the directions with the concentration that both together leave; its uncertainty is the total variance, in
            float64, since it is all but 1 for whatever is hardly known in many dimensions.
        aleatoric: the share of the variance that is the image's, (N,), from 0 to 1.
        epistemic: the share that is the network's, (N,); both add up to the total.
        aleatoric_kappa: (N,).
        epistemic_kappa: (N,).

    Example:
        >>> z = torch.eye(3, dtype=torch.float64)
        >>> learned = StochasticEmbedding(z, z, z.new_tensor([5.0, 500.0, 500.0]), z.new_ones(3))
        >>> deduced = StochasticEmbedding(z, z, z.new_tensor([500.0, 5.0, 500.0]), z.new_ones(3))
        >>> both = combine(learned, deduced)
        >>> (both.aleatoric > both.epistemic).tolist(), both.total.uncertainty.argmin()
        ([True, False, True], tensor(2))
    """

    total: StochasticEmbedding
    aleatoric: Tensor
    epistemic: Tensor
    aleatoric_kappa: Tensor
    epistemic_kappa: Tensor

    def __len__(self) -> int:
        return len(self.total)


def combine(aleatoric: StochasticEmbedding, epistemic: StochasticEmbedding) -> Combined:
    """Both uncertainties of the same images, apart and together.

    Points and directions are those of the epistemic embedding, whose network is the one that retrieves. The two may
    be of different networks, and of different dimensions: the share of the variance that a concentration leaves is
    then taken in the space that it is of.

    Args:
        aleatoric: of a method that learned what images leave open.
        epistemic: of a method that deduced what the network does not know, for the same images in the same order.
    """
    if len(aleatoric) != len(epistemic):
        raise ValueError(
            f"there are {len(aleatoric)} aleatoric and {len(epistemic)} epistemic embeddings: both are of the same "
            "images"
        )
    check_same_device(aleatoric=aleatoric.kappa, epistemic=epistemic.kappa)
    dtype = torch.promote_types(aleatoric.kappa.dtype, epistemic.kappa.dtype)
    image_length, from_image = vmf.length_and_variance(aleatoric.kappa, aleatoric.dim)
    network_length, left = vmf.length_and_variance(epistemic.kappa, epistemic.dim)
    from_network = image_length.square() * left
    variance = from_image + from_network
    kappa = vmf.concentration(image_length * network_length, epistemic.dim, variance=variance.clamp(0, 1))
    total = StochasticEmbedding(
        point=epistemic.point,
        mean=epistemic.mean,
        kappa=kappa.to(dtype),
        uncertainty=variance,
    )
    return Combined(total, from_image.to(dtype), from_network.to(dtype), aleatoric.kappa, epistemic.kappa)


def at_norm(e: StochasticEmbedding, norm: float) -> StochasticEmbedding:
    """The same Gaussians with all means as far from the origin: what the weights leave open, and nothing else.

    How far a direction may be off depends on the variance of the raw embedding u and on its norm. The variance is what
    the posterior of the weights says. The norm is the network's own answer: it is short where an image looks like
    several classes at a time, which is a matter of the image. With one norm for all, corrupted images no longer count
    as unknown because the network sees little in them.

    Args:
        e: of a method with Gaussians of raw embeddings, such as LAM.
        norm: for instance the median of those of validation images.

    Example:
        >>> from laplacian_metric.core.gaussian import Gaussians
        >>> gaussians = Gaussians(torch.tensor([[10.0, 0.0], [0.0, 1.0]]), torch.full((2, 2), 0.01))
        >>> e = StochasticEmbedding.from_gaussians(gaussians)
        >>> at_norm(e, 10.0).kappa.round()
        tensor([10000., 10000.])
    """
    if e.gaussians is None or not norm > 0:
        raise ValueError(
            f"norm is {norm}: a positive number is needed, and Gaussians of raw embeddings, as LAM has them"
        )
    placed = replace(e.gaussians, mean=norm * unit_rows(e.gaussians.mean))
    return StochasticEmbedding.from_gaussians(placed)
