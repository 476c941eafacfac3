"""A posterior over the last layer of a trained network, made afterwards: `LAM`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from hessians import ContrastiveLoss
from hessians.contrastive import Distance
from hessians.pair_loss import PairLoss
from laplacian_metric.core.arguments import Positive
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, Start, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.frozen_features import features_of
from laplacian_metric.laplace.options import LamOptions
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.methods.laplace.embedder import LAMEmbedder


@dataclass(frozen=True, kw_only=True)
class Laplace(LamOptions, Method):
    """Fits a Gaussian over the weights of a trained encoder's last layer; see `LAM`. Nothing is trained.

    Attributes:
        prior: how the prior precision is found: "marginal" maximises the marginal likelihood, "validation" the
            likelihood of validation pairs, "decay" is the training's weight decay times n_effective/temperature; or a
            number. None is "marginal".
        norm: whether the l2 norm has a part in the curvature.
        seed: of the draws of the fit.

    Example:
        >>> Laplace(structure="kron").structure
        <Structure.KRONECKER: 'kron'>
    """

    name: ClassVar[str] = "laplace"
    start: ClassVar[Start] = Start.FROZEN
    trains: ClassVar[bool] = False

    prior: Positive | Literal["marginal", "validation", "decay"] | None = None
    norm: bool = True
    seed: int = 0

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return LaplaceLearner(only(encoders, self.name), self, setup)

    def lam(self, encoder: Encoder, setup: Setup) -> LAM:
        """The `LAM` of these options, not fitted yet."""
        if self.prior == "decay" and not setup.weight_decay:
            raise ValueError(
                'prior is "decay", but the training had no weight decay: take "marginal" or a number'
            )
        number = self.prior if isinstance(self.prior, float) else self.prior_precision
        decay = self.weight_decay or setup.weight_decay or None
        loss = setup.loss if self.norm else without_norm(setup.loss)
        return LAM.of(encoder, loss, replace(self, prior_precision=number, weight_decay=decay))


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
        super().__init__(encoder, encoder)
        self.method = method
        method.lam(encoder, setup)  # refuses options that do not go together before anything is computed
        self.setup = setup

    def parameters(self) -> list[nn.Parameter]:
        return []

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        raise RuntimeError("laplace trains nothing: train a network first, and give its encoder to laplace")

    def train_mode(self) -> None:
        self.module.eval()

    def embedder(self, data: FitData) -> Embedder:
        lam = self.method.lam(self.encoder, self.setup)
        train = self.features(data, "train")
        # The diagnostics are among the settings; a warning in between would be lost in a run of many cells.
        lam.fit_features(train, generator=self.new_generator(), check_mode=False)
        self.choose_prior(lam, data)
        return LAMEmbedder(lam)

    def choose_prior(self, lam: LAM, data: FitData) -> None:
        """Choose the prior precision of a fitted LAM, unless the method says it."""
        prior = self.method.prior
        if prior is None and self.method.prior_precision is None:
            prior = "marginal"
        if prior in ("marginal", "validation"):
            validation = self.features(data, "validation") if prior == "validation" else None
            lam.optimize_prior_precision(str(prior), validation, generator=self.new_generator())

    def features(self, data: FitData, name: Literal["train", "validation"]) -> Dataset:
        """Return the features of one of the sets: as they are, from the folder, or computed."""
        folder = None if data.folder is None else data.folder / name
        return features_of(self.encoder, getattr(data, name), folder)

    def new_generator(self) -> torch.Generator:
        """Return a new generator that starts at the method's seed."""
        return torch.Generator().manual_seed(self.method.seed)
