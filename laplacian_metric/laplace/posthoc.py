"""LAM: the Laplace approximation of a trained encoder's last layer, and the embeddings that it gives."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hessians import Pairs
from hessians.approximations import Approximation
from hessians.checks import CurvatureWarning, check_matrix
from hessians.features import FeatureReader
from hessians.pair_loss import PairLoss
from hessians.pairs import LabelPairs
from laplacian_metric.embedding import StochasticEmbedding
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.accumulate import LayerData, Settings, accumulate
from laplacian_metric.laplace.batches import BATCH_SIZE
from laplacian_metric.laplace.diagnostics import (
    Diagnostics,
    diagnose,
    loss_and_gradient,
    recall_lost,
    warn_unless_mode,
)
from laplacian_metric.laplace.distributed import reducer
from laplacian_metric.laplace.features import DEFAULT_LIMIT, Features, collect_features, inputs_of, to_device
from laplacian_metric.laplace.head import FEATURE_MEMORY, HeadPosterior, apply_draws
from laplacian_metric.laplace.layer import LayerPosterior, Structure
from laplacian_metric.laplace.prior import log_marginal_likelihood, optimal_prior, validated_prior
from laplacian_metric.laplace.state import Fitted
from laplacian_metric.modes import evaluating
from laplacian_metric.progress import track


class NotFittedError(RuntimeError):
    """There is no posterior yet."""


class LAM:
    r"""The Laplacian Metric Learner: a Gaussian over the last layer's weights, made from the curvature of a pair loss.

    The posterior's precision is n_effective/temperature times the loss's generalised Gauss-Newton matrix, plus the
    prior's. The loss is an average and has no scale of its own: ``n_effective`` says how many independent observations
    the average stands for.

    Args:
        encoder: trained; nothing of it is changed.
        loss: what it was trained with, e.g. `hessians.ContrastiveLoss`.
        approximation: what is kept of the loss's Hessian: "fixed", "positive", "full" or "clipped".
        structure: what is kept of the covariances of the weights: "diag", "kron", "lowrank" or "full".
        rank: how many eigenvectors "lowrank" keeps.
        n_effective: the number of images unless it is given.
        temperature: divides n_effective.
        prior_precision: of the weights. By default n_effective * weight_decay / temperature where the weight decay is
            given, which is what the training had, and 1 otherwise.
        weight_decay: of the training.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3))
        >>> features, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> lam = LAM(encoder, ContrastiveLoss(margin=0.7))
        >>> e = lam.fit_features(features, labels, check_mode=False).embed_features(features)
        >>> e.mean.shape, e.kappa.shape
        (torch.Size([40, 3]), torch.Size([40]))
    """

    def __init__(
        self,
        encoder: Encoder,
        loss: PairLoss,
        approximation: str | Approximation = Approximation.FIXED,
        structure: str | Structure = Structure.DIAGONAL,
        *,
        rank: int = 50,
        n_effective: float | None = None,
        temperature: float = 1.0,
        prior_precision: float | None = None,
        weight_decay: float | None = None,
    ) -> None:
        self.encoder = encoder
        self.loss = loss
        self.approximation = Approximation.parse(approximation)
        self.structure = Structure.parse(structure)
        if rank < 1:
            raise ValueError(f"rank is {rank}, at least 1 is needed")
        self.rank = rank
        self._n_effective = _positive("n_effective", n_effective)
        self._temperature = _positive("temperature", temperature) or 1.0
        self._prior_precision = _positive("prior_precision", prior_precision)
        self.weight_decay = None if not weight_decay else _positive("weight_decay", weight_decay)
        self.fitted: Fitted | None = None
        self._head: HeadPosterior | None = None

    # --- fitting ---

    def fit(
        self,
        loader: Iterable[Any],
        *,
        cache: str | Path | None = None,
        memory_limit: int = DEFAULT_LIMIT,
        progress: bool | None = None,
        **options: Any,
    ) -> LAM:
        """One pass over a loader of (inputs, labels) with a frozen network; then as `fit_features`.

        Args:
            loader: of the training images.
            cache: a folder to keep the features in: what was interrupted goes on from there, and `features` serves
                all later fits. Without it they are kept in memory, or in a temporary file beyond ``memory_limit``.
            memory_limit: bytes of features to keep in memory.
            progress: whether to show bars; None asks the terminal.
            options: of `fit_features`.
        """
        found = collect_features(
            self.encoder, loader, folder=cache, memory_limit=memory_limit, progress=progress
        )
        return self.fit_features(found, progress=progress, **options)

    def features(self, loader: Iterable[Any], **options: Any) -> Features:
        """The features and labels of a loader's images, for any number of fits and embeddings; see `fit`."""
        return collect_features(self.encoder, loader, **options)

    @torch.no_grad()
    def fit_features(
        self,
        features: Tensor | Features,
        labels: Tensor | Sequence[int] | Pairs | None = None,
        *,
        batches: Sequence[Tensor] | None = None,
        batch_size: int = BATCH_SIZE,
        generator: torch.Generator | None = None,
        check_mode: bool = True,
        progress: bool | None = None,
    ) -> LAM:
        """Fit to features h (N, H) of the backbone, and labels (N,) or pairs over them.

        "fixed" and "positive" are over all pairs of the data set. "full" and "clipped" (and "positive" with
        structure "kron") are summed over class-balanced batches, each standing for its share.

        Args:
            features: may be mapped from a file.
            labels: integers, or `hessians.Pairs`.
            batches: positions of the images of each batch, where they are to be those and no others.
            batch_size: of the class-balanced batches.
            generator: of these batches, and of the start of "lowrank".
            check_mode: warn where theta* is no mode of its loss.
            progress: whether to show bars; None asks the terminal.
        """
        rows, pairs = _features_and_labels(features, labels)
        head = self.encoder.head
        if rows.shape[1] != head.in_features:
            raise ValueError(
                f"features has {rows.shape[1]} columns, the encoder's head takes {head.in_features}: they are of "
                "another backbone"
            )
        weight = head.weight.detach().to(rows.device)
        bias = None if head.bias is None else head.bias.detach().to(rows.device)
        embeddings = FeatureReader(rows, FEATURE_MEMORY).embed(weight, bias)
        random_bias = bias if self._bias_is_random() else None
        data = LayerData(rows, pairs, embeddings, weight, random_bias, self.loss)
        settings = Settings(
            self.structure,
            self.approximation,
            batch_size,
            self.rank,
            generator=generator,
            reduce=reducer(),
            progress=progress,
        )
        self._take(data, settings, batches)
        if check_mode:
            warn_unless_mode(self.diagnostics())
        return self

    def _take(self, data: LayerData, settings: Settings, batches: Sequence[Tensor] | None) -> None:
        """Accumulate the curvature, and keep it with what else is known about the data."""
        with warnings.catch_warnings():
            if isinstance(data.labels, Tensor):
                # Said once for the data set, not for every batch.
                warnings.simplefilter("ignore", CurvatureWarning)
            found = accumulate(data, settings, batches)
            value, gradient = loss_and_gradient(self.loss, data, found, settings.reduce)
        count = torch.tensor([len(data.features)], dtype=torch.float64, device=gradient.device)
        device = self.encoder.head.weight.device
        self.fitted = Fitted(
            curvature=found.curvature.to(device),
            num_images=round(float(count if settings.reduce is None else settings.reduce(count))),
            num_positives=found.num_positives,
            num_negatives=found.num_negatives,
            num_batches=len(found.batches),
            loss_value=value,
            gradient=gradient.to(device),
            bias_is_random=data.bias is not None,
            fingerprint=self.encoder.fingerprint(),
        )
        self._head = None

    def _bias_is_random(self) -> bool:
        """Without a norm a translation changes no distance: the data say nothing of the bias, and it stays fixed."""
        moves_distances = getattr(self.loss, "normalize", True) or self.approximation is Approximation.FIXED
        return self.encoder.head.bias is not None and moves_distances

    # --- the posterior ---

    @property
    def n_effective(self) -> float:
        """How many independent observations the loss's average stands for."""
        return self._n_effective if self._n_effective is not None else float(self._fit().num_images)

    @n_effective.setter
    def n_effective(self, value: float | None) -> None:
        self._n_effective, self._head = _positive("n_effective", value), None

    @property
    def temperature(self) -> float:
        """Divides n_effective."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature, self._head = _positive("temperature", value) or 1.0, None

    @property
    def scale(self) -> float:
        """n_effective / temperature, what the curvature is multiplied with."""
        return self.n_effective / self.temperature

    @property
    def prior_precision(self) -> float:
        """Of every weight."""
        if self._prior_precision is not None:
            return self._prior_precision
        return 1.0 if self.weight_decay is None else self.scale * self.weight_decay

    @prior_precision.setter
    def prior_precision(self, value: float | None) -> None:
        self._prior_precision, self._head = _positive("prior_precision", value), None

    @property
    def head(self) -> HeadPosterior:
        """The head with the posterior over its weights."""
        if self._head is None:
            fitted = self._fit()
            posterior = fitted.curvature.posterior(self.scale, self.prior_precision)
            self._head = HeadPosterior(self.encoder.head, posterior, fitted.bias_is_random)
        return self._head

    @property
    def posterior(self) -> LayerPosterior:
        """The Gaussian over the deviations of [W | b] from the trained weights."""
        return self.head.posterior

    def _fit(self) -> Fitted:
        if self.fitted is None:
            raise NotFittedError(
                "this LAM has no posterior yet: call fit(loader) or fit_features(features, labels)"
            )
        return self.fitted

    def sample_weights(
        self, k: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """k draws of the weights (k, Z, H) and biases (k, Z); None for a layer without a bias."""
        return self.head.sample_weights(k, generator)

    def log_marginal_likelihood(self, prior_precision: float | None = None) -> float:
        """log p(D), but for the constants of the likelihood."""
        fitted = self._fit()
        prior = self.prior_precision if prior_precision is None else prior_precision
        return log_marginal_likelihood(fitted.curvature, self.scale, prior, self._square(), fitted.loss_value)

    def _square(self) -> float:
        """|theta*|^2."""
        return float(self.head.theta.double().square().sum())

    def optimize_prior_precision(
        self,
        method: str = "marginal",
        features: Tensor | Features | None = None,
        labels: Tensor | Sequence[int] | None = None,
        *,
        samples: int = 20,
        max_images: int = 1000,
        generator: torch.Generator | None = None,
    ) -> float:
        """Choose the prior precision, set it and return it.

        Args:
            method: "marginal" maximises the marginal likelihood, by a fixed-point iteration until it converges.
                "validation" maximises the likelihood of validation pairs under the sampled networks: whether a pair
                is positive, told by its distance (never by anything out of distribution).
            features: of the validation images, for "validation"; with ``labels``.
            labels: (N,).
            samples: weight draws; the same ones for every precision that is tried.
            max_images: so many validation images are drawn at most.
            generator: of the images and the draws.
        """
        if method == "marginal":
            curvature = self._fit().curvature
            self.prior_precision = optimal_prior(curvature, self.scale, self._square(), self.prior_precision)
        elif method == "validation":
            if features is None:
                raise ValueError('method "validation" needs features and labels of validation images')
            rows, chosen = _features_and_labels(features, labels)
            if isinstance(chosen, Pairs):
                raise TypeError("labels are pairs, but images are drawn at random here: pass the labels (N,)")
            self.prior_precision = validated_prior(
                self.encoder.head,
                self._fit(),
                self.scale,
                self.loss,
                rows,
                chosen,
                samples,
                max_images,
                generator,
            )
        else:
            raise ValueError(f"method is {method!r}, one of 'marginal', 'validation' is needed")
        return self.prior_precision

    def diagnostics(self) -> Diagnostics:
        """What to look at before this posterior is used."""
        fitted = self._fit()
        return diagnose(
            self.posterior,
            fitted.gradient,
            self.head.theta,
            scale=self.scale,
            loss_value=fitted.loss_value,
            clamped=fitted.curvature.clamped,
            trace=fitted.curvature.trace(),
        )

    def recall_lost(
        self,
        features: Tensor,
        labels: Tensor,
        *,
        samples: int = 10,
        generator: torch.Generator | None = None,
    ) -> float:
        """recall@1 of the trained network less the mean recall@1 of sampled ones: large where the posterior collapses.

        A posterior that is too wide embeds at random: its sampled networks find nothing any more.
        """
        return recall_lost(self.head, features, labels, samples, generator)

    # --- embedding ---

    def embed(
        self,
        inputs: Any,
        *,
        samples: int = 0,
        generator: torch.Generator | None = None,
        progress: bool | None = None,
    ) -> StochasticEmbedding:
        """Embed images (a tensor, or a tuple or dictionary of the backbone's inputs), or a loader's.

        A loader yields inputs, or tuples whose first entry they are. With ``samples`` the embedding has joint samples
        (samples, N, Z): sample s embeds all images with one draw of the weights.
        """
        head = self.head
        weights = head.sample_weights(samples, generator) if samples else None
        single = isinstance(inputs, (Tensor, tuple, dict))
        batches = [inputs] if single else inputs_of(track(inputs, "embeddings", show=progress))
        parts = []
        with evaluating(self.encoder):
            for batch in batches:
                h = self.encoder.features(to_device(batch, self.encoder))
                e = StochasticEmbedding.from_gaussians(head.gaussians(h))
                parts.append(
                    e if weights is None else e.with_samples(F.normalize(apply_draws(h, *weights), dim=2))
                )
        if not parts:
            raise ValueError("the loader is empty: there is no image to embed")
        return parts[0] if len(parts) == 1 else StochasticEmbedding.cat(parts)

    @torch.no_grad()
    def embed_features(
        self, features: Tensor | Features, *, samples: int = 0, generator: torch.Generator | None = None
    ) -> StochasticEmbedding:
        """Embed features (N, H) of the backbone, which may be mapped from a file; see `embed`."""
        rows = features.features if isinstance(features, Features) else features
        e = self.head.embed(rows)
        if not samples:
            return e
        drawn = e.point.new_empty(samples, *e.point.shape)
        for s, z in enumerate(self.head.sampled(rows, samples, generator)):
            drawn[s] = z
        return e.with_samples(drawn)

    def sample_embeddings(
        self, features: Tensor | Features, samples: int, *, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Joint samples one after the other, (N, Z) unit rows each: what `metrics.retrieval_ece` takes as well.

        All images share a draw of the weights; few draws are in memory at a time.
        """
        rows = features.features if isinstance(features, Features) else features
        return self.head.sampled(rows, samples, generator)

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior into one safetensors file; the encoder stays where it is."""
        from laplacian_metric.laplace.storage import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], encoder: Encoder) -> LAM:
        """The posterior in a file, for the encoder that it was fitted to; any other is refused."""
        from laplacian_metric.laplace.storage import load

        return load(path, encoder)


def _features_and_labels(
    features: Tensor | Features, labels: Tensor | Sequence[int] | Pairs | None
) -> tuple[Tensor, Tensor | Pairs]:
    """Rows (N, H) and labels (N,) or pairs that fit them."""
    if isinstance(features, Features):
        labels = features.labels if labels is None else labels
        features = features.features
    check_matrix("features", features)
    if labels is None:
        raise ValueError("labels are missing: they say which images are pairs")
    if isinstance(labels, Pairs):
        if labels.num_images != len(features):
            raise ValueError(f"the pairs are over {labels.num_images} images for {len(features)} features")
        return features, labels
    checked = LabelPairs(labels)
    _check_classes(checked, len(features))
    return features, checked.labels.to(features.device)


def _positive(name: str, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}, a positive number is needed")
    return None if value is None else float(value)


def _check_classes(labels: LabelPairs, num_images: int) -> None:
    """Refuse too few images, and say what is lost where classes are few or small."""
    if labels.num_images != num_images:
        raise ValueError(f"labels has {labels.num_images} entries for {num_images} rows of features")
    if num_images < 2:
        raise ValueError(
            f"there is {num_images} image: a pair needs two, and a loss of pairs knows nothing of fewer"
        )
    sizes = labels.class_sizes
    single = int((sizes == 1).sum())
    if len(sizes) == 1:
        message = (
            "all images are of one class: there is no negative pair, and the curvature knows nothing of what separates "
            "classes"
        )
    elif single == len(sizes):
        message = (
            "no two images share a class: there is no positive pair, and the curvature is clamped to 0 wherever "
            "negatives push; little is left but the prior"
        )
    elif single:
        message = (
            f"{single} of {len(sizes)} classes have a single image: it has no positive pair, and counts as a negative "
            "only"
        )
    else:
        return
    warnings.warn(message, CurvatureWarning, stacklevel=4)
