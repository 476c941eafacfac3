"""Two uncertainties of one image as one: what its pixels leave open, and what the network has not learned.

An aleatoric kappa is learned (PFE, HIB, BTL): it says how far an image, blurred or cut off, may lie from where a
clear one would. An epistemic kappa is deduced (LAM): it says how far the network's weights may be off. With the
network's direction m' drawn from a von Mises-Fisher distribution around m with the epistemic kappa, and the image's
direction z drawn around m' with the aleatoric one, E z = A(k_a) A(k_e) m: the law of total variance on the sphere is

    1 - A(k_a)^2 A(k_e)^2  =  1 - A(k_a)^2  +  A(k_a)^2 (1 - A(k_e)^2).
      total                   aleatoric        epistemic
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessians.checks import check_same_device
from laplacian_metric import vmf
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows


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
