"""The posterior of the demo's network, and what its scores can tell: strangers, and wrong neighbours."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from hessians import ContrastiveLoss
from laplacian_metric import metrics
from laplacian_metric.demo.settings import RANK
from laplacian_metric.embedding import StochasticEmbedding
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.laplace.features import Features
from laplacian_metric.laplace.posthoc import LAM


@dataclass(frozen=True)
class Score:
    """What one uncertainty can tell.

    Attributes:
        name: of the score.
        strangers: AUROC of MNIST against FashionMNIST.
        errors: AUROC of wrong nearest neighbours against right ones, within FashionMNIST.
    """

    name: str
    strangers: float
    errors: float


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """A fitted posterior, with the concentrations kappa of both test sets, (N,) each."""

    fit_seconds: float
    embed_seconds: float
    prior_precision: float
    diagnostics: Diagnostics
    inside: torch.Tensor
    outside: torch.Tensor
    scores: list[Score]


def assess(
    backbone: torch.nn.Module,
    head: torch.nn.Linear,
    loss: ContrastiveLoss,
    train: Features,
    test: Features,
    strangers: Features,
    seed: int,
) -> Uncertainty:
    """Fit the posterior to the training features, and embed both test sets."""
    begin = time.perf_counter()
    lam = LAM(Encoder(backbone, head), loss, structure="lowrank", rank=RANK)
    lam.fit_features(train, generator=torch.Generator().manual_seed(seed), check_mode=False)
    lam.optimize_prior_precision()
    fitted = time.perf_counter()
    inside, outside = lam.embed_features(test), lam.embed_features(strangers)
    embedded = time.perf_counter()
    ranking = metrics.rank(inside.point, test.labels, k=1)

    def score(name: str, one: torch.Tensor, other: torch.Tensor) -> Score:
        found = metrics.evaluate_ranking(ranking, one, ood_uncertainty=other, resamples=0)
        return Score(name, found["ood_auroc"], found["r_auroc"])

    return Uncertainty(
        fit_seconds=fitted - begin,
        embed_seconds=embedded - fitted,
        prior_precision=lam.prior_precision,
        diagnostics=lam.diagnostics(),
        inside=inside.kappa,
        outside=outside.kappa,
        scores=[
            score("1/kappa", inside.uncertainty, outside.uncertainty),
            score("variance of the raw embedding", _spread(inside), _spread(outside)),
            score(
                "norm of the features (needs no posterior)",
                metrics.feature_norm(test.features),
                metrics.feature_norm(strangers.features),
            ),
        ],
    )


def _spread(e: StochasticEmbedding) -> torch.Tensor:
    """The trace of the covariance of u, (N,)."""
    return e.variance.sum(1)
