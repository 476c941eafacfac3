"""scikit-learn: a transformer from features to unit embeddings, which also says how sure it is of each."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.encoder import Encoder, train_head, whitening_head
from laplacian_metric.integrations.optional import base_class, require
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.prior import NoOptimumError
from laplacian_metric.metrics import recall_at_k
from laplacian_metric.trust.answer import Answer
from laplacian_metric.trust.trust import Trust

INSTALL = "scikit-learn"
MOST_COMPONENTS = 32
# Directions of features with less than this share of the largest variance are not blown up to unit variance.
WHITENING_FLOOR = 1e-3
INITS = ("whitening", "random")

_FeatureNames: Any = base_class("sklearn.base", "ClassNamePrefixFeaturesOutMixin", INSTALL)
_Transformer: Any = base_class("sklearn.base", "TransformerMixin", INSTALL)
_Estimator: Any = base_class("sklearn.base", "BaseEstimator", INSTALL)


class LaplaceEmbedding(_FeatureNames, _Transformer, _Estimator):
    """Features (N, H) and classes -> unit embeddings (N, Z) in which classes lie together, with an uncertainty each.

    A linear layer is trained on the features by the contrastive loss over pairs, and gets a Laplace posterior over its
    weights afterwards. ``transform`` gives the embeddings, `score_uncertainty` and `kappa` how sure they are.

    Args:
        n_components: Z, at least 2; by default as many as there are features, between 2 and 32.
        margin: of the contrastive loss, on the distance of unit embeddings.
        init: where training starts: "whitening" (principal components of unit variance; a random layer where there
            are more components than features) or "random".
        max_iter: how many batches are trained on.
        batch_size: images in a batch.
        images_per_class: how many of each of its classes.
        learning_rate: of the first step; it falls to zero.
        weight_decay: of the training.
        approximation: what is kept of the loss's Hessian: "fixed", "positive", "full" or "clipped".
        structure: what is kept of the weights' covariances: "diag", "kron", "lowrank" or "full".
        temperature: divides the number of images in the posterior's precision.
        prior_precision: a number, or "marginal", which maximises the marginal likelihood.
        random_state: where random weights and batches come from: an integer, a RandomState or None.

    Attributes:
        lam_: the fitted `LAM`, with diagnostics, files and samples; ``encoder_`` the `Encoder` in it.
        classes_: (C,), the classes that were seen.
        n_iter_: how many batches were trained on.
        trust_: what `fit_trust` calibrated, a `Trust`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(["cat", "dog"], 30)
        >>> X = rng.normal(size=(60, 5)) + 4 * (y == "dog")[:, None]
        >>> model = LaplaceEmbedding(n_components=2, max_iter=50, random_state=0).fit(X, y)
        >>> model.transform(X).shape, model.score_uncertainty(X).shape
        ((60, 2), (60,))

        Which answers can be trusted, over a gallery and by queries that it was not fitted to:

        >>> y_new = np.repeat(["cat", "dog"], 60)
        >>> X_new = rng.normal(size=(120, 5)) + 2 * (y_new == "dog")[:, None]
        >>> answer = model.fit_trust((X, y), (X_new, y_new)).trust(X_new[:3])
        >>> answer.probability.shape, answer.labels
        ((3,), ['cat', 'cat', 'cat'])
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        margin: float = 0.7,
        init: str = "whitening",
        max_iter: int = 500,
        batch_size: int = 256,
        images_per_class: int = 16,
        learning_rate: float = 1e-2,
        weight_decay: float = 1e-5,
        approximation: str = "fixed",
        structure: str = "diag",
        temperature: float = 1.0,
        prior_precision: float | str = "marginal",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.margin = margin
        self.init = init
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.images_per_class = images_per_class
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.approximation = approximation
        self.structure = structure
        self.temperature = temperature
        self.prior_precision = prior_precision
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> LaplaceEmbedding:
        """Train the layer and fit its posterior to features X (N, H) and classes y (N,)."""
        validation = require("sklearn.utils.validation", "LaplaceEmbedding", INSTALL)
        check_targets = require("sklearn.utils.multiclass", "LaplaceEmbedding", INSTALL)
        X, y = validation.validate_data(self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_targets.check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        features, labels = torch.tensor(X), torch.tensor(numbers, dtype=torch.long)
        seed = validation.check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        generator = torch.Generator().manual_seed(int(seed))
        loss = ContrastiveLoss(margin=self.margin, negatives="active")
        self.encoder_ = Encoder(nn.Identity(), self._trained(features, labels, loss, generator))
        self.n_iter_ = self.max_iter
        marginal = self._marginal()
        self.lam_ = LAM(
            self.encoder_,
            loss,
            self.approximation,
            self.structure,
            temperature=self.temperature,
            prior_precision=None if marginal else float(self.prior_precision),
        )
        # A fixed number of steps ends near a mode at best: lam_.diagnostics() says how near.
        self.lam_.fit_features(features, labels, generator=generator, check_mode=False)
        if marginal:
            try:
                self.lam_.optimize_prior_precision()
            except NoOptimumError as error:
                warnings.warn(f"the prior precision stays at 1: {error}", stacklevel=2)
        return self

    def _trained(
        self,
        features: torch.Tensor,
        labels: torch.Tensor,
        loss: ContrastiveLoss,
        generator: torch.Generator,
    ) -> nn.Linear:
        dim = self._dim(features.shape[1])
        return train_head(
            features,
            labels,
            loss,
            dim,
            init=self._start(features, dim),
            steps=self.max_iter,
            batch_size=self.batch_size,
            images_per_class=self.images_per_class,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            generator=generator,
        )

    def transform(self, X: Any) -> Any:
        """The unit embeddings (N, Z) of features X (N, H)."""
        return self.embed(X).point.numpy()

    def score_uncertainty(self, X: Any) -> Any:
        """How unsure the embedding of each row of X is, (N,): 1/kappa."""
        return self.embed(X).uncertainty.numpy()

    def kappa(self, X: Any) -> Any:
        """The concentration of each row's direction, (N,): the greater the surer."""
        return self.embed(X).kappa.numpy()

    def embed(self, X: Any) -> StochasticEmbedding:
        """The distribution of each row's embedding, with mean, variance and samples."""
        return self.lam_.embed_features(torch.tensor(self._checked(X), dtype=self.encoder_.head.weight.dtype))

    def _checked(self, X: Any) -> Any:
        """Return features (N, H) as numbers, after the estimator was fitted."""
        validation = require("sklearn.utils.validation", "LaplaceEmbedding", INSTALL)
        validation.check_is_fitted(self, "lam_")
        return validation.validate_data(self, X, dtype=[np.float64, np.float32], reset=False)

    def fit_trust(
        self, gallery: tuple[Any, Any], queries: tuple[Any, Any], *, alpha: float = 0.05
    ) -> LaplaceEmbedding:
        """Calibrate how far the nearest item of a gallery can be trusted; `trust` answers then.

        Args:
            gallery: features (M, H) and classes (M,) of what is searched.
            queries: those of at least 50 rows that the estimator was not fitted to and that are not in the gallery.
            alpha: the share of known queries that may be flagged as unlike anything seen.
        """
        X, y = gallery
        query_X, query_y = queries
        rows = self._checked(X), self._checked(query_X)
        self.trust_ = Trust.fit((rows[0], y), (rows[1], query_y), encoder=self.encoder_, alpha=alpha)
        return self

    def trust(self, X: Any) -> Answer:
        """Return, for each row of X, the nearest item, the probability that it is right, and the reason."""
        require("sklearn.utils.validation", "LaplaceEmbedding", INSTALL).check_is_fitted(
            self, "trust_", msg="call fit_trust(gallery, queries) first: it calibrates the probability"
        )
        return self.trust_(self._checked(X))

    def score(self, X: Any, y: Any) -> float:
        """The share of rows whose nearest other row, as embedded, is of their class; what a grid search maximises."""
        _, numbers = np.unique(np.asarray(y), return_inverse=True)
        return recall_at_k(self.embed(X).point, torch.tensor(numbers, dtype=torch.long), 1)

    def _dim(self, num_features: int) -> int:
        if self.n_components is None:
            return max(2, min(num_features, MOST_COMPONENTS))
        if int(self.n_components) != self.n_components or self.n_components < 2:
            raise ValueError(
                f"n_components is {self.n_components}, a whole number of at least 2 is needed: directions in one "
                "dimension are two points"
            )
        return int(self.n_components)

    def _start(self, features: torch.Tensor, dim: int) -> nn.Linear | None:
        if self.init not in INITS:
            raise ValueError(f'init is {self.init!r}, "whitening" or "random" is needed')
        if self.init == "random" or dim > features.shape[1]:
            return None
        return whitening_head(features, dim, eps=WHITENING_FLOOR)

    def _marginal(self) -> bool:
        if isinstance(self.prior_precision, str):
            if self.prior_precision != "marginal":
                raise ValueError(
                    f'prior_precision is {self.prior_precision!r}, a positive number or "marginal" is needed'
                )
            return True
        return False

    @property
    def _n_features_out(self) -> int:
        return self.encoder_.dim

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
