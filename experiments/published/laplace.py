"""The posterior as the published code makes it after training: curvatures of random triplets, summed as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.published.triplets import random_triplets
from hessians import Pairs, last_layer_ggn_diagonal
from hessians.loss_summary import summarise
from laplacian_metric import vmf
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, FitData, Learner, Setup, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.fit import Fitted, features_and_labels, layer_data, pull_back, sum_of_squares
from laplacian_metric.laplace.layer import DiagonalCurvature, Structure
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.methods.laplace.embedder import LAMEmbedder
from laplacian_metric.methods.laplace.laplace import Laplace, LaplaceLearner


def fit_summed(
    lam: LAM, features: Dataset, *, batch_size: int, triplets: int, generator: torch.Generator | None = None
) -> LAM:
    """Sum the curvature of random triplets of shuffled batches, each triplet a positive and a negative pair.

    Nothing is divided by the number of pairs, images or batches, repeats are counted, and the negative entries of the
    sum are set to 0.

    Args:
        lam: with structure "diag"; its n_effective multiplies the sum.
        features: of the training images.
        batch_size: of the batches.
        triplets: of a batch, at most.
        generator: of batches and triplets, on the processor.
    """
    rows, labels = features_and_labels(features, None)
    assert isinstance(labels, Tensor)
    data = layer_data(lam.encoder.head, lam.loss, rows, labels, lam.approximation)
    curvature = torch.zeros(
        len(data.weight), rows.shape[1] + int(data.bias is not None), dtype=torch.float64, device=rows.device
    )
    output = torch.zeros_like(data.embeddings)
    value, positives, negatives, batches = 0.0, 0.0, 0.0, 0
    for chosen in torch.randperm(len(rows), generator=generator).split(batch_size):
        mined = random_triplets(labels[chosen].cpu(), triplets, generator)
        if not len(mined[0]):
            continue
        own = chosen.to(rows.device)
        pairs = Pairs.from_indices(tuple(index.to(rows.device) for index in mined), len(chosen))
        positives, negatives = positives + pairs.num_positives, negatives + pairs.num_negatives
        pairs = pairs.with_population((1.0, 1.0))
        u = data.embeddings[own]
        w, b = last_layer_ggn_diagonal(
            rows[own], data.weight, data.bias, pairs, lam.loss, lam.approximation, embeddings=u
        )
        curvature += w if b is None else torch.cat([w, b[:, None]], dim=1)
        part = summarise(lam.loss, u, pairs)
        output[own] += part.positive_gradient + part.negative_gradient
        value, batches = value + part.value, batches + 1
    if not batches:
        raise ValueError("no batch has a triplet: two images of one class and one of another are needed")
    weight = lam.encoder.head.weight
    lam.fitted = Fitted(
        curvature=DiagonalCurvature(curvature.to(weight.device, data.embeddings.dtype)),
        num_images=len(rows),
        num_positives=positives,
        num_negatives=negatives,
        num_batches=batches,
        loss_value=value,
        gradient=pull_back(output, rows, data.bias is not None).to(weight.device),
        bias_is_random=data.bias is not None,
        fingerprint=lam.encoder.fingerprint(),
        length=math.sqrt(sum_of_squares(data.embeddings) / len(rows)),
    )
    return lam


class SampledEmbedder(LAMEmbedder):
    """Embeds by weights that are drawn once: the point is the mean of their unit embeddings.

    The uncertainty is the sum over the dimensions of the standard deviation of those unit embeddings.

    Args:
        lam: fitted.
        samples: how many weights are drawn, at least 2.
        generator: of the draws, on the head's device.
    """

    def __init__(self, lam: LAM, samples: int, generator: torch.Generator | None = None) -> None:
        super().__init__(lam)
        if samples < 2:
            raise ValueError(f"samples is {samples}, at least 2 are needed for a standard deviation")
        self.weights = lam.sample_weights(samples, generator=generator)

    def distributions(self, encoded: Tensor) -> StochasticEmbedding:
        e = self.lam.embed_features(encoded)
        drawn = self.lam.head.embed_with(encoded, *self.weights)
        mean, kappa = vmf.fit(drawn)
        return replace(e, point=mean, mean=mean, kappa=kappa, uncertainty=drawn.std(0).sum(1))


@dataclass(frozen=True, kw_only=True)
class PublishedLaplace(Laplace):
    """The method "laplace" with the variant of the published code.

    Attributes:
        variant: "published" does as the published code: the curvature is summed over random triplets of shuffled
            batches, and images are embedded by ``samples`` draws of the weights, whose mean is the point and whose
            standard deviations, summed over the dimensions, are the uncertainty. Prior precision and n_effective are 1
            there where they are not given.
        triplets: of a batch at most, in the published variant.
        batch_size: of the published variant's batches.
        samples: of the published variant.

    Example:
        >>> PublishedLaplace(variant="published").triplets
        5000
    """

    variant: Literal["default", "published"] = "default"
    triplets: Annotated[int, Field(ge=1)] = 5000
    batch_size: Annotated[int, Field(ge=3)] = 256
    samples: Annotated[int, Field(ge=2)] = 100

    def __post_init__(self) -> None:
        if self.variant == "default":
            return
        if self.structure is not Structure.DIAGONAL:
            raise ValueError(
                f'structure is "{self.structure.value}", but variant="published" has "diag" only'
            )

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        if self.variant == "default":
            return super().learner(encoders, setup)
        n_effective = 1.0 if self.n_effective is None else self.n_effective
        summed = replace(self, n_effective=n_effective, prior=1.0 if self.prior is None else self.prior)
        return SummedLearner(only(encoders, self.name), summed, setup)


class SummedLearner(LaplaceLearner):
    """A trained encoder whose posterior is that of the published code."""

    method: PublishedLaplace

    def embedder(self, data: FitData) -> Embedder:
        method, lam = self.method, self.method.lam(self.encoder, self.setup)
        train = self.features(data, "train")
        fit_summed(
            lam,
            train,
            batch_size=method.batch_size,
            triplets=method.triplets,
            generator=self.new_generator(),
        )
        self.choose_prior(lam, data)
        device = self.encoder.head.weight.device
        return SampledEmbedder(lam, method.samples, torch.Generator(device).manual_seed(method.seed))
