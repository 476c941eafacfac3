"""A posterior over the last layer of a trained network, made afterwards: `LAM`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from hessians.approximations import Approximation
from hessians.contrastive import Distance
from hessians.pair_loss import PairLoss
from laplacian_metric.core.arguments import at_least, one_of, parse_choices, positive
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, Start, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.confidence import MatchConfidence
from laplacian_metric.laplace.frozen_features import features_of
from laplacian_metric.laplace.layer import Structure
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.methods.laplace.embedder import LAMEmbedder

PRIORS = ("marginal", "validation", "decay")
SCORES = ("1/kappa", "confidence")


@dataclass(frozen=True)
class Laplace(Method):
    """Fits a Gaussian over the weights of a trained encoder's last layer; see `LAM`. Nothing is trained.

    Attributes:
        approximation: what is kept of the loss's Hessian.
        structure: what is kept of the covariances of the weights.
        rank: how many eigenvectors "lowrank" keeps.
        temperature: divides n_effective.
        prior: how the prior precision is found: "marginal" maximises the marginal likelihood, "validation" the
            likelihood of validation pairs, "decay" is the training's weight decay times n_effective/temperature; or a
            number. None is "marginal".
        norm: whether the l2 norm has a part in the curvature.
        n_effective: how many independent observations the loss's average stands for; None is the number of training
            images.
        score: what the uncertainty is: 1/kappa, or 1 - the probability that a match can be trusted, calibrated on
            validation images.
        seed: of the draws of the fit.

    Example:
        >>> Laplace(structure="kron").structure
        <Structure.KRONECKER: 'kron'>
    """

    name: ClassVar[str] = "laplace"
    start: ClassVar[Start] = Start.FROZEN
    trains: ClassVar[bool] = False
    former: ClassVar[Mapping[str, Any]] = {
        "variant": "default",
        "triplets": 5000,
        "batch_size": 256,
        "samples": 100,
    }

    approximation: Approximation = Approximation.FIXED
    structure: Structure = Structure.DIAGONAL
    rank: int = 50
    temperature: float = 1.0
    prior: float | Literal["marginal", "validation", "decay"] | None = None
    norm: bool = True
    n_effective: float | None = None
    score: Literal["1/kappa", "confidence"] = "1/kappa"
    seed: int = 0

    def __post_init__(self) -> None:
        parse_choices(self)
        one_of(SCORES, score=self.score)
        if isinstance(self.prior, str) and self.prior not in PRIORS:
            raise ValueError(
                f"prior is {self.prior!r}, one of {', '.join(map(repr, PRIORS))} or a number is needed"
            )
        for name in ("temperature", "n_effective", "prior"):
            if not isinstance(getattr(self, name), str):
                positive(name, getattr(self, name))
        at_least(1, rank=self.rank)

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return LaplaceLearner(only(encoders, self.name), self, setup)

    def lam(self, encoder: Encoder, setup: Setup) -> LAM:
        """The `LAM` of these options, not fitted yet."""
        if self.prior == "decay" and not setup.weight_decay:
            raise ValueError(
                'prior is "decay", but the training had no weight decay: take "marginal" or a number'
            )
        number = self.prior if isinstance(self.prior, int | float) else None
        return LAM(
            encoder,
            setup.loss if self.norm else without_norm(setup.loss),
            self.approximation,
            self.structure,
            rank=self.rank,
            n_effective=self.n_effective,
            temperature=self.temperature,
            prior_precision=number,
            weight_decay=setup.weight_decay or None,
        )


def without_norm(loss: PairLoss) -> PairLoss:
    """The contrastive loss of raw embeddings, whose curvature weighs long and short embeddings alike.

    Example:
        >>> without_norm(ContrastiveLoss(margin=0.5)).normalize
        False
    """
    if not isinstance(loss, ContrastiveLoss):
        raise ValueError(
            f"norm is False, which a {type(loss).__name__} does not know: it takes a ContrastiveLoss, or norm=True"
        )
    return replace(loss, distance=Distance.EUCLIDEAN, normalize=False)


class LaplaceLearner(Learner):
    """A trained encoder that stays as it is; the posterior is made when the embedder is."""

    def __init__(self, encoder: Encoder, method: Laplace, setup: Setup) -> None:
        super().__init__(encoder)
        self.encoder = encoder
        self.method = method
        method.lam(encoder, setup)  # refuses options that do not go together before anything is computed
        self.setup = setup

    def parameters(self) -> list[nn.Parameter]:
        return []

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        raise RuntimeError("laplace trains nothing: train a network first, and give its encoder to laplace")

    def train_mode(self) -> None:
        self.module.eval()

    def points(self, inputs: Any) -> Tensor:
        return self.encoder.raw(inputs)

    def embedder(self, data: FitData) -> Embedder:
        method, lam = self.method, self.method.lam(self.encoder, self.setup)
        train = self.features(data, "train")
        # The diagnostics are among the settings; a warning in between would be lost in a run of many cells.
        lam.fit_features(train, generator=self.new_generator(), check_mode=False)
        judged = method.prior == "validation" or method.score == "confidence"
        validation = self.features(data, "validation") if judged else None
        self.choose_prior(lam, validation)
        if method.score == "confidence":
            assert validation is not None
            lam.set_confidence(MatchConfidence.fit(lam.head, train, validation))
        return LAMEmbedder(lam)

    def choose_prior(self, lam: LAM, validation: Dataset | None) -> None:
        """Choose the prior precision of a fitted LAM, unless the method says it."""
        prior = self.method.prior or "marginal"
        if prior in ("marginal", "validation"):
            lam.optimize_prior_precision(str(prior), validation, generator=self.new_generator())

    def features(self, data: FitData, name: Literal["train", "validation"]) -> Dataset:
        """Return the features of one of the sets: as they are, from the folder, or computed."""
        folder = None if data.folder is None else data.folder / name
        return features_of(self.encoder, getattr(data, name), folder)

    def new_generator(self) -> torch.Generator:
        """Return a new generator that starts at the method's seed."""
        return torch.Generator().manual_seed(self.method.seed)
