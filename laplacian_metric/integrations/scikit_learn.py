"""scikit-learn: features to unit embeddings with an uncertainty each, and a classifier that says whom to trust."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.encoder import Encoder, train_head, whitening_head
from laplacian_metric.integrations.optional import base_class, require
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.prior import NoOptimumError
from laplacian_metric.metrics import recall_at_k
from laplacian_metric.trust.answer import Answer
from laplacian_metric.trust.calibration import TooFewQueriesError
from laplacian_metric.trust.fitting import stratified
from laplacian_metric.trust.trust import Trust

INSTALL = "scikit-learn>=1.6"
MOST_COMPONENTS = 32
# Directions of features with less than this share of the largest variance are not blown up to unit variance.
WHITENING_FLOOR = 1e-3

_FeatureNames: Any = base_class("sklearn.base", "ClassNamePrefixFeaturesOutMixin", INSTALL)
_Transformer: Any = base_class("sklearn.base", "TransformerMixin", INSTALL)
_Classifier: Any = base_class("sklearn.base", "ClassifierMixin", INSTALL)
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
        ((3,), array(['cat', 'cat', 'cat'], dtype=object))
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
        X, y = _checked_classes(self, X, y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        features, labels = torch.tensor(X), torch.tensor(numbers, dtype=torch.long)
        random = require("sklearn.utils", "LaplaceEmbedding", INSTALL).check_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(random.randint(np.iinfo(np.int32).max)))
        loss = ContrastiveLoss(margin=self.margin, negatives="active")
        dim = max(2, min(X.shape[1], MOST_COMPONENTS)) if self.n_components is None else self.n_components
        if int(dim) != dim or dim < 2:
            raise ValueError(f"n_components is {dim}: a whole number of at least 2 is needed")
        if self.init not in ("whitening", "random"):
            raise ValueError(f'init is {self.init!r}: "whitening" or "random" is needed')
        marginal = self.prior_precision == "marginal"
        if isinstance(self.prior_precision, str) and not marginal:
            raise ValueError(f'prior_precision is {self.prior_precision!r}: a number or "marginal" is needed')
        whitened = self.init == "whitening" and dim <= X.shape[1]
        head = train_head(
            features,
            labels,
            loss,
            int(dim),
            init=whitening_head(features, int(dim), eps=WHITENING_FLOOR) if whitened else None,
            steps=self.max_iter,
            batch_size=self.batch_size,
            images_per_class=self.images_per_class,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            generator=generator,
        )
        self.encoder_, self.n_iter_ = Encoder(nn.Identity(), head), self.max_iter
        self.lam_ = LAM(
            self.encoder_,
            loss,
            self.approximation,
            self.structure,
            temperature=self.temperature,
            prior_precision=None if isinstance(self.prior_precision, str) else self.prior_precision,
        )
        # A fixed number of steps ends near a mode at best: lam_.diagnostics() says how near.
        self.lam_.fit_features(features, labels, generator=generator, check_mode=False)
        if marginal:
            try:
                self.lam_.optimize_prior_precision()
            except NoOptimumError as error:
                warnings.warn(f"the prior precision stays at 1: {error}", stacklevel=2)
        return self

    def transform(self, X: Any) -> Any:
        """Return the unit embeddings (N, Z) of features X (N, H)."""
        return self.embed(X).point.numpy()

    def score_uncertainty(self, X: Any) -> Any:
        """Return how uncertain the embedding of each row of X is, (N,): 1/kappa."""
        return self.embed(X).uncertainty.numpy()

    def kappa(self, X: Any) -> Any:
        """Return the concentration of each row's direction, (N,): the greater, the more certain."""
        return self.embed(X).kappa.numpy()

    def embed(self, X: Any) -> StochasticEmbedding:
        """Return the distribution of each row's embedding, with mean, variance and samples."""
        features = _checked(self, X, "lam_")
        return self.lam_.embed_features(torch.tensor(features, dtype=self.encoder_.head.weight.dtype))

    def fit_trust(
        self, gallery: tuple[Any, Any], queries: tuple[Any, Any], **options: Any
    ) -> LaplaceEmbedding:
        """Calibrate how far the nearest item of a gallery can be trusted; `trust` answers then.

        Args:
            gallery: features (M, H) and classes (M,) of what is searched.
            queries: those of rows that the estimator was not fitted to and that are not in the gallery.
            options: of `Trust.fit`.
        """
        rows = [(_checked(self, X, "lam_"), y) for X, y in (gallery, queries)]
        self.trust_ = Trust.fit(rows[0], rows[1], encoder=self.encoder_, **options)
        return self

    def trust(self, X: Any) -> Answer:
        """Return, for each row of X, the nearest item, the probability that it is right, and the verdict."""
        X = _checked(self, X, "trust_")
        return self.trust_(X)

    def score(self, X: Any, y: Any) -> float:
        """Return the share of rows whose nearest other row, as embedded, is of their class."""
        _, numbers = np.unique(np.asarray(y), return_inverse=True)
        return recall_at_k(self.embed(X).point, torch.tensor(numbers, dtype=torch.long), 1)

    @property
    def _n_features_out(self) -> int:
        return self.encoder_.dim

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class TrustClassifier(_Classifier, _Estimator):
    """The class of the nearest row by cosine, and the calibrated probability that it is right.

    A share of the rows is split off, by class, and calibrates `Trust`; the others are the gallery. Where these rows are
    too few to calibrate, `fit` warns, all rows are the gallery and every probability is NaN, which is never accepted.
    Rows of zeros, which have no direction, count as rows of ones.

    Args:
        validation: the share of rows that calibrate.
        expected_ood: the share of queries of no class at all that will come; None for no discount.
        alpha: the share of known queries to flag as unlike anything seen.
        threshold: from which probability on an answer is accepted.
        random_state: of the split: an integer, a RandomState or None.

    Attributes:
        trust_: the `Trust`, which says more: ``trust_(X).verdict``; None where the rows are too few.
        gallery_: the rows that are searched.
        classes_: (C,), the classes that were seen.

    Example:
        >>> generator, y = np.random.default_rng(0), np.repeat(["cat", "dog"], 100)
        >>> X = np.eye(4)[np.repeat([0, 1], 100)] + 0.5 * generator.standard_normal((200, 4))
        >>> model = TrustClassifier(random_state=0).fit(X, y)
        >>> model.predict(np.eye(4)[:2]).tolist(), model.probability(np.eye(4)[:2]).min() > 0.9
        (['cat', 'dog'], np.True_)
    """

    def __init__(
        self,
        *,
        validation: float = 0.3,
        expected_ood: float | None = 0.1,
        alpha: float = 0.05,
        threshold: float = 0.5,
        random_state: Any = None,
    ) -> None:
        self.validation = validation
        self.expected_ood = expected_ood
        self.alpha = alpha
        self.threshold = threshold
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> TrustClassifier:
        """Keep rows X (N, H) of classes y (N,) as a gallery, and calibrate on those that are split off."""
        X, y = _checked_classes(self, X, y)
        X = _directed(X)
        if not 0 < self.validation < 1:
            raise ValueError(f"validation is {self.validation}: a share above 0 and below 1 is needed")
        self.classes_, codes = np.unique(y, return_inverse=True)
        random = require("sklearn.utils", "TrustClassifier", INSTALL).check_random_state(self.random_state)
        order, rank = random.permutation(len(X)), np.empty(len(X), dtype=np.int64)
        rank[order] = stratified(codes[order], len(X))  # within each class
        held = rank >= np.ceil((1 - self.validation) * np.bincount(codes)[codes])
        options: dict[str, Any] = {"expected_ood": self.expected_ood, "alpha": self.alpha}
        self.gallery_, self.trust_ = ArrayGallery(X[~held], y[~held]), None
        try:
            self.trust_ = Trust.fit(self.gallery_, (X[held], y[held]), **options).accepting(self.threshold)
        except TooFewQueriesError as error:
            self.gallery_ = ArrayGallery(X, y)
            warnings.warn(f"no answer will be accepted: {error}", stacklevel=2)
        return self

    def predict(self, X: Any) -> Any:
        """Return the class of the nearest row of the gallery, (N,)."""
        X = _directed(_checked(self, X, "gallery_"))
        return np.array(self.gallery_.search(X, 1).labels)[:, 0].astype(self.classes_.dtype)

    def probability(self, X: Any) -> Any:
        """Return the calibrated probability that the predicted class is right, (N,)."""
        X = _directed(_checked(self, X, "gallery_"))
        return np.full(len(X), np.nan) if self.trust_ is None else self.trust_(X).probability


def _directed(X: Any) -> Any:
    """Return features in which rows of zeros, which have no direction, are rows of ones."""
    return np.where(X.any(axis=1, keepdims=True), X, np.ones_like(X))


def _checked_classes(estimator: Any, X: Any, y: Any) -> tuple[Any, Any]:
    """Return features (N, H) and classes (N,), before an estimator is fitted to them."""
    name = type(estimator).__name__
    validation = require("sklearn.utils.validation", name, INSTALL)
    X, y = validation.validate_data(estimator, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2)
    require("sklearn.utils.multiclass", name, INSTALL).check_classification_targets(y)
    return X, y


def _checked(estimator: Any, X: Any, fitted: str) -> Any:
    """Return features (N, H), after the attribute ``fitted`` of the estimator was."""
    validation = require("sklearn.utils.validation", type(estimator).__name__, INSTALL)
    validation.check_is_fitted(estimator, fitted)
    return validation.validate_data(estimator, X, dtype=[np.float64, np.float32], reset=False)
