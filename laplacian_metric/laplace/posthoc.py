"""LAM: the Laplace approximation of a trained encoder's last layer, and the embeddings that it gives."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessians import Pairs
from hessians.approximations import Approximation
from hessians.checks import exact_device, without_autocast
from hessians.pair_loss import PairLoss
from laplacian_metric.core.batch import Batch, Loader, is_single, map_batches
from laplacian_metric.core.checked import checked
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.labels import Labels
from laplacian_metric.core.parallel import reducer, together, watched
from laplacian_metric.core.tensor_file import digest
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.diagnostics import (
    Diagnostics,
    diagnose,
    recall_lost,
    warn_unless_mode,
)
from laplacian_metric.laplace.encoder_posterior import (
    EncoderPosterior,
    NotFittedError,
    check_model,
    warn_if_longer,
)
from laplacian_metric.laplace.features import DEFAULT_LIMIT, collect_features
from laplacian_metric.laplace.fit import (
    Fitted,
    checked_batches,
    features_and_labels,
    fit_layer,
    layer_data,
)
from laplacian_metric.laplace.head import HeadPosterior
from laplacian_metric.laplace.layer import LayerPosterior, Structure
from laplacian_metric.laplace.options import BATCH_SIZE, TOLERANCE, FitSettings, LamOptions, PairChoice
from laplacian_metric.laplace.prior import log_marginal_likelihood, optimal_prior, validated_prior

__all__ = ["LAM", "NotFittedError"]


class LAM(EncoderPosterior[Fitted, LamOptions]):
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
        pairs: "exact" looks at all pairs of the data set, "estimate" at a random share of the negative ones, and "auto"
            at all pairs of up to 65,536 images. The diagnostics have the error of an estimate. This is for "fixed" and
            "positive"; "full" and "clipped" go over batches.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3))
        >>> labels = torch.arange(40) % 4
        >>> features = torch.eye(4)[labels] + 0.1 * torch.randn(40, 4)
        >>> lam = LAM(encoder, ContrastiveLoss(margin=0.7))
        >>> e = lam.fit_features(features, labels, check_mode=False).embed_features(features)
        >>> e.mean.shape, e.kappa.shape
        (torch.Size([40, 3]), torch.Size([40]))
    """

    FITTED_BY = "fit(loader) or fit_features(features, labels)"

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
        pairs: str | PairChoice = PairChoice.AUTO,
    ) -> None:
        options = checked(
            LamOptions,
            approximation=approximation,
            structure=structure,
            rank=rank,
            n_effective=n_effective,
            temperature=temperature,
            prior_precision=prior_precision,
            weight_decay=weight_decay,
            pairs=pairs,
        )
        super().__init__(encoder, loss, options)
        self._head: tuple[tuple[Any, ...], HeadPosterior] | None = None
        self._fingerprint: tuple[tuple[Any, ...], str] | None = None

    @classmethod
    def of(cls, encoder: Encoder, loss: PairLoss, options: LamOptions) -> LAM:
        """Return a LAM with these options, or with those of a class that extends them."""
        return cls(
            encoder, loss, **{field.name: getattr(options, field.name) for field in fields(LamOptions)}
        )

    @property
    def structure(self) -> Structure:
        """What is kept of the covariances of the weights."""
        return self.options.structure

    def __repr__(self) -> str:
        fitted = "not fitted" if self.fitted is None else f"fitted to {self.fitted.num_images} images"
        size = f"{self.encoder.dim} x {self.encoder.num_features} weights"
        return f"LAM({self.structure.value}, {self.approximation.value}, {size}, {fitted})"

    # --- fitting ---

    def fit(
        self,
        loader: Loader,
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
                Each of many processes has a folder of its own in it.
            memory_limit: bytes of features to keep in memory.
            progress: whether to show bars; None asks the terminal.
            options: of `fit_features`.
        """
        with watched():
            with together(reducer()):
                features = collect_features(
                    self.encoder, loader, folder=cache, memory_limit=memory_limit, progress=progress
                )
            return self.fit_features(features, progress=progress, **options)

    def features(self, loader: Loader, **options: Any) -> Dataset:
        """The features and labels of a loader's images, for any number of fits and embeddings; see `fit`."""
        return collect_features(self.encoder, loader, **options)

    @without_autocast
    def fit_features(
        self,
        features: Tensor | Dataset,
        labels: Labels | Pairs | None = None,
        *,
        batches: Sequence[Tensor] | None = None,
        batch_size: int = BATCH_SIZE,
        generator: torch.Generator | None = None,
        pair_tolerance: float = TOLERANCE,
        check_mode: bool = True,
        progress: bool | None = None,
    ) -> LAM:
        """Fit to features h (N, H) of the backbone, and labels (N,) or pairs over them.

        "fixed" and "positive" are over all pairs of the data set. "full" and "clipped" (and "positive" with
        structure "kron") are summed over class-balanced batches, each standing for its share. Where
        ``torch.distributed`` is initialised, every process passes its share of the images, and all get the same
        posterior: "fixed" of all pairs, the others of the pairs of images that are in the same process.

        Args:
            features: may be mapped from a file.
            labels: integers, or `hessians.Pairs`.
            batches: positions of the images of each batch, where they are to be those and no others.
            batch_size: of the class-balanced batches.
            generator: of these batches, of the start of "lowrank", and of an estimate over pairs, which is the same in
                every fit without one. An interrupted search for pairs is resumed where the features have a folder.
            pair_tolerance: the relative error that an estimate over pairs may have.
            check_mode: warn where theta* is no mode of its loss.
            progress: whether to show bars; None asks the terminal.
        """
        settings = FitSettings(
            self.options,
            batch_size,
            generator,
            pair_tolerance,
            0 if generator is None else int(generator.initial_seed() % (1 << 31)),
            features.folder if isinstance(features, Dataset) else None,
            reducer(),
            progress,
        )
        with watched():
            with together(settings.reduce):
                if not 0 < pair_tolerance < 1:
                    raise ValueError(
                        f"pair_tolerance is {pair_tolerance}, a number between 0 and 1 is needed"
                    )
                rows, pairs = features_and_labels(features, labels)
                data = layer_data(self.encoder.head, self.loss, rows, pairs, self.options.approximation)
                chosen = None if batches is None else checked_batches(batches, rows)
                fingerprint = self.encoder_fingerprint()
            self.fitted = fit_layer(data, settings, chosen, self.encoder, fingerprint)
        if check_mode:
            warn_unless_mode(self.diagnostics())
        return self

    # --- the posterior ---

    @property
    @without_autocast
    def head(self) -> HeadPosterior:
        """The head with the posterior over its weights; refused if the encoder has changed since the fit."""
        fitted = self._fit()
        self.check_encoder()
        device = exact_device(self.encoder.head.weight.device)
        made_of = (fitted, self.encoder.head, device, self.scale, self.prior_precision)
        if self._head is None or self._head[0] != made_of:
            posterior = fitted.curvature.to(device).posterior(self.scale, self.prior_precision)
            self._head = made_of, HeadPosterior(self.encoder.head, posterior, fitted.bias_is_random)
        return self._head[1]

    @property
    def posterior(self) -> LayerPosterior:
        """The Gaussian over the deviations of [W | b] from the trained weights."""
        return self.head.posterior

    def to(self, device: torch.device | str) -> LAM:
        """Move the encoder and its posterior to a device, in place.

        The posterior of an encoder on a device without float64 stays on the processor, as do its embeddings.
        """
        self.encoder.to(device)
        device = exact_device(device)
        if self.fitted is not None:
            fitted = self.fitted
            self.fitted = replace(
                fitted, curvature=fitted.curvature.to(device), gradient=fitted.gradient.to(device)
            )
        return self

    def sample_weights(
        self, k: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """k draws of the weights (k, Z, H) and biases (k, Z); None for a layer without a bias."""
        return self.head.sample_weights(k, generator)

    @without_autocast
    def log_marginal_likelihood(self, prior_precision: float | None = None) -> float:
        """log p(D), but for the constants of the likelihood."""
        fitted, square = self._fit(), float(self.head.theta.double().square().sum())
        prior = self.prior_precision if prior_precision is None else prior_precision
        return log_marginal_likelihood(fitted.curvature, self.scale, prior, square, fitted.loss_value)

    @without_autocast
    def optimize_prior_precision(
        self,
        method: str = "marginal",
        features: Tensor | Dataset | None = None,
        labels: Labels | None = None,
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
            labels: (N,). Many processes have to pass the same images and generator, or each chooses for itself.
            samples: weight draws; the same ones for every precision that is tried.
            max_images: so many validation images are drawn at most.
            generator: of the images and the draws.
        """
        if method == "marginal":
            curvature, square = self._fit().curvature, float(self.head.theta.double().square().sum())
            self.prior_precision = optimal_prior(curvature, self.scale, square, self.prior_precision)
        elif method == "validation":
            if features is None:
                raise ValueError('method "validation" needs features and labels of validation images')
            rows, chosen = features_and_labels(features, labels)
            if isinstance(chosen, Pairs):
                raise TypeError("labels are pairs, but images are drawn at random here: pass the labels (N,)")
            fitted, head = self._fit(), self.encoder.head
            self.prior_precision = validated_prior(
                head, fitted, self.scale, self.loss, rows, chosen, samples, max_images, generator
            )
        else:
            raise ValueError(f"method is {method!r}, one of 'marginal', 'validation' is needed")
        return float(self.prior_precision)

    def fingerprint(self) -> str:
        """A digest of all that an embedding depends on: encoder, curvature, scale and prior; 64 hex digits.

        What an index is bound to: equal fingerprints say that embeddings may be compared.
        """
        fitted = self._fit()
        depends = (fitted, self.scale, self.prior_precision)
        if self._fingerprint is None or self._fingerprint[0] != depends:
            tensors = {f"curvature.{name}": tensor for name, tensor in fitted.curvature.tensors().items()}
            settings = {
                "encoder": fitted.fingerprint,
                "structure": self.options.structure.value,
                "scale": self.scale,
                "prior": self.prior_precision,
                "bias": fitted.bias_is_random,
            }
            self._fingerprint = depends, digest(tensors, settings)
        return self._fingerprint[1]

    def _bound(self, e: StochasticEmbedding) -> StochasticEmbedding:
        """Return an embedding with the fingerprint of this posterior."""
        assert e.gaussians is not None  # which HeadPosterior gives
        warn_if_longer(e.gaussians.mean, self._fit().length)
        return e.with_source(self.fingerprint())

    @without_autocast
    def diagnostics(self) -> Diagnostics:
        """What to look at before this posterior is used."""
        return diagnose(self.posterior, self.head.theta, self._fit(), self.scale)

    @without_autocast
    def recall_lost(
        self,
        features: Tensor | Dataset,
        labels: Labels | None = None,
        *,
        samples: int = 10,
        generator: torch.Generator | None = None,
    ) -> float:
        """recall@1 of the trained network less the mean recall@1 of sampled ones: large where the posterior collapses.

        A posterior that is too wide embeds at random: its sampled networks find nothing any more.
        """
        rows, class_labels = features_and_labels(features, labels)
        if isinstance(class_labels, Pairs):
            raise TypeError("labels are pairs, but recall is of labels (N,): pass those")
        return recall_lost(self.head, rows, class_labels, samples, generator)

    # --- embedding ---

    def embed(
        self,
        inputs: Any,
        *,
        samples: int = 0,
        generator: torch.Generator | None = None,
        progress: bool | None = None,
    ) -> StochasticEmbedding:
        """Embed images (a tensor, or a tuple or dictionary of the backbone's inputs), a data set's or a loader's.

        A loader yields inputs, or tuples whose first entry they are. With ``samples`` the embedding has joint samples
        (samples, N, Z): sample s embeds all images with one draw of the weights. A generator in the same state gives
        the same draws to other images, as to a gallery and its queries.
        """
        head = self.head
        weights = head.sample_weights(samples, generator) if samples else None

        numbers = itertools.count()

        def one(batch: Batch) -> StochasticEmbedding:
            h = self.encoder.features(batch.inputs)
            name = "features" if is_single(inputs) else f"the features of batch {next(numbers)} of the loader"
            e = self._bound(head.embed(h, name))
            return e if weights is None else e.with_samples(head.embed_with(h, *weights))

        return StochasticEmbedding.cat(map_batches(one, inputs, self.encoder, progress=progress, shared=True))

    @torch.no_grad()
    def embed_features(
        self, features: Tensor | Dataset, *, samples: int = 0, generator: torch.Generator | None = None
    ) -> StochasticEmbedding:
        """Embed features (N, H) of the backbone, which may be mapped from a file; see `embed`."""
        rows = torch.as_tensor(features.features if isinstance(features, Dataset) else features)
        e = self._bound(self.head.embed(rows))
        if not samples:
            return e
        sampled = self.head.sampled(rows, samples, generator)
        drawn = e.point.new_empty(int(samples), *e.point.shape)
        for s, z in enumerate(sampled):
            drawn[s] = z
        return e.with_samples(drawn)

    def sample_embeddings(
        self, features: Tensor | Dataset, samples: int, *, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Joint samples one after the other, (N, Z) unit rows each: what `metrics.retrieval_ece` takes as well.

        All images share a draw of the weights; few draws are in memory at a time.
        """
        rows = torch.as_tensor(features.features if isinstance(features, Dataset) else features)
        return self.head.sampled(rows, samples, generator)

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior into a folder, in place of a posterior that is there; the encoder stays where it is."""
        from laplacian_metric.laplace.storage import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], encoder: Encoder, loss: PairLoss | None = None) -> LAM:
        """Return the posterior in a folder, for the encoder that it was fitted to; any other is refused.

        A loss that is not this library's has to be passed.
        """
        from laplacian_metric.laplace.storage import load

        check_model(encoder, loss)
        return load(path, encoder, loss)
