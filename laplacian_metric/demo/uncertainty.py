"""The posterior of the demo's network, what it makes of both test sets, and scores to compare it with."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from hessians import ContrastiveLoss
from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.demo.settings import RANK, SAMPLED_SPACES
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.laplace.features import Features
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.report.evaluated import OtherScore

STRANGERS = "MNIST"


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """A fitted posterior, and what it makes of images.

    Attributes:
        lam: with its calibrated confidence.
        fit_seconds, embed_seconds: of the posterior with its confidence, and of both test sets.
        diagnostics: of the posterior.
        inside, outside: the embeddings of both test sets.
        consensus: of jointly sampled spaces about the test images.
        scores: other uncertainties by name.
    """

    lam: LAM
    fit_seconds: float
    embed_seconds: float
    diagnostics: Diagnostics
    inside: StochasticEmbedding
    outside: StochasticEmbedding
    consensus: metrics.Consensus
    scores: dict[str, OtherScore]


def assess(
    encoder: Encoder,
    loss: ContrastiveLoss,
    train: Features,
    validation: Features,
    test: Features,
    strangers: Features,
    seed: int,
) -> Uncertainty:
    """Fit the posterior to the training features, calibrate its confidence, and embed both test sets."""
    begin = time.perf_counter()
    lam = LAM(encoder, loss, structure="lowrank", rank=RANK)
    lam.fit_features(train, generator=torch.Generator().manual_seed(seed), check_mode=False)
    lam.optimize_prior_precision()
    lam.fit_confidence(train, validation)
    fitted = time.perf_counter()
    inside, outside = lam.embed_features(test), lam.embed_features(strangers)
    embedded = time.perf_counter()
    spaces = lam.sample_embeddings(test, SAMPLED_SPACES, generator=torch.Generator().manual_seed(seed))
    consensus = metrics.consensus(spaces, test.labels)
    return Uncertainty(
        lam=lam,
        fit_seconds=fitted - begin,
        embed_seconds=embedded - fitted,
        diagnostics=lam.diagnostics(),
        inside=inside,
        outside=outside,
        consensus=consensus,
        scores={
            "1/kappa, without the confidence": _score(1 / inside.kappa, 1 / outside.kappa),
            "variance of the raw embedding": _score(inside.variance.sum(1), outside.variance.sum(1)),
            "norm of the features (needs no posterior)": _score(
                metrics.feature_norm(test.features), metrics.feature_norm(strangers.features)
            ),
        },
    )


def _score(inside: torch.Tensor, outside: torch.Tensor) -> OtherScore:
    return OtherScore(inside, {STRANGERS: outside})
