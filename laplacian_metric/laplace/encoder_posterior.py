"""What posteriors over weights of an encoder have in common: the numbers that scale them, and a guard of the encoder.

A posterior is refused once its encoder has changed. How long embeddings are before the norm tells images that were
prepared in another way than those of the fit: pixels from 0 to 255 in place of 0 to 1 make features, embeddings and
their standard deviations longer alike. A direction and its kappa do not change by that, so that nothing else would
notice.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from hessians.approximations import Approximation
from hessians.checks import CurvatureWarning
from hessians.pair_loss import PairLoss
from laplacian_metric.core.checked import checked
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.options import PosthocOptions

# OOD images and noise are about as long as what was fitted; pixels up to 255 are up to 255 times as long.
FAR = 10.0


class NotFittedError(RuntimeError):
    """There is no posterior yet."""


class EncoderChangedError(RuntimeError):
    """The encoder has other weights than when the posterior was made."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedData:
    """What a curvature is over, and of which encoder.

    Attributes:
        num_images: how many images it was fitted to.
        num_positives, num_negatives: the pairs that the loss's average is over.
        num_batches: over how many batches they were summed.
        loss_value: L(theta*).
        fingerprint: of the encoder.
    """

    num_images: int
    num_positives: float
    num_negatives: float
    num_batches: int
    loss_value: float
    fingerprint: str


F = TypeVar("F", bound=FittedData)
Options = TypeVar("Options", bound=PosthocOptions)


class EncoderPosterior(Generic[F, Options]):
    """A Gaussian over weights of an encoder, of the precision n_effective/temperature times a curvature plus a prior.

    Attributes:
        encoder: whose weights they are.
        loss: whose curvature is taken.
        options: the settings.
        fitted: the curvature and what it is of; None before a fit.
    """

    FITTED_BY: ClassVar[str] = "fit(loader)"

    def __init__(self, encoder: Encoder, loss: PairLoss, options: Options) -> None:
        check_model(encoder, loss)
        self.encoder = encoder
        self.loss = loss
        self.options = options
        self.fitted: F | None = None
        self._tensors: list[Tensor] = []
        self._marks: list[tuple[int, int, int]] = []
        self._encoder_fingerprint = ""

    def _fit(self) -> F:
        if self.fitted is None:
            raise NotFittedError(f"this {type(self).__name__} has no posterior yet: call {self.FITTED_BY}")
        return self.fitted

    def change(self, **values: Any) -> None:
        """Replace settings."""
        self.options = checked(type(self.options), **{**vars(self.options), **values})

    @property
    def approximation(self) -> Approximation:
        """What is kept of the loss's Hessian."""
        return self.options.approximation

    @property
    def weight_decay(self) -> float | None:
        """Of the training."""
        return self.options.weight_decay

    @property
    def n_effective(self) -> float:
        """How many independent observations the loss's average stands for."""
        given = self.options.n_effective
        return float(self._fit().num_images) if given is None else given

    @n_effective.setter
    def n_effective(self, value: float | None) -> None:
        self.change(n_effective=value)

    @property
    def temperature(self) -> float:
        """Divides n_effective."""
        return self.options.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.change(temperature=value)

    @property
    def scale(self) -> float:
        """n_effective / temperature, what the curvature is multiplied with."""
        return self.n_effective / self.options.temperature

    @property
    def prior_precision(self) -> Any:
        """Of every weight, or of those of each layer."""
        if self.options.prior_precision is not None:
            return self.options.prior_precision
        return self.scale * self.options.weight_decay if self.options.weight_decay else 1.0

    @prior_precision.setter
    def prior_precision(self, value: Any) -> None:
        self.change(prior_precision=value)

    def encoder_fingerprint(self) -> str:
        """The encoder's fingerprint, computed anew only when a tensor was written to or replaced.

        torch counts the writes to a tensor, except those that go through ``.data``, which are not seen until
        something else changes.
        """
        # They are kept, so that no other takes their place in memory.
        tensors = list(chain(self.encoder.parameters(), self.encoder.buffers()))
        marks = [(id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
        marks.append((int(self.encoder.normalize), 0, 0))
        if marks != self._marks:
            self._encoder_fingerprint = self.encoder.fingerprint()
            self._tensors, self._marks = tensors, marks
        return self._encoder_fingerprint

    def check_encoder(self) -> None:
        """Refuse an encoder that has changed since the fit."""
        if self.encoder_fingerprint() != self._fit().fingerprint:
            raise EncoderChangedError(
                "the encoder has changed since this posterior was fitted, which is around its former weights: fit "
                "again, or load the weights that it had"
            )


def check_model(encoder: Any, loss: Any) -> None:
    """Refuse a bare module, and a loss whose curvature is not known; a loss of None is not checked."""
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"the encoder is a {type(encoder).__name__}: make it one with Encoder.from_module(module), which finds the "
            "last linear layer, or Encoder(backbone, head)"
        )
    if loss is not None and not isinstance(loss, PairLoss):
        raise TypeError(
            f"the loss is a {type(loss).__name__}, whose curvature is not known: pass a hessians.ContrastiveLoss. It "
            "can be taken for a network that another loss has trained too: see 'Trained with another loss' in "
            "docs/existing_checkpoints.md"
        )


def warn_of_no_curvature(stacklevel: int) -> None:
    """Say that there is nothing in a posterior but its prior."""
    warnings.warn(
        "the curvature is 0 for every weight, or was clamped at 0: the posterior is the prior. Train longer, or take "
        "another approximation",
        CurvatureWarning,
        stacklevel=stacklevel,
    )


class PreparationWarning(UserWarning):
    """These images look as if they were prepared in another way than those that the posterior was fitted to."""


def warn_if_longer(u: Tensor, fitted: float | None) -> None:
    """Say so where half of the embeddings u (N, Z) are more than `FAR` times as long as the fitted ones.

    Args:
        u: raw, before the norm.
        fitted: the root mean square of the lengths at the fit; None where it is not known.

    Example:
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warn_if_longer(torch.full((3, 2), 100.0), fitted=1.0)
        >>> said[0].category.__name__
        'PreparationWarning'
    """
    if not fitted or not len(u):
        return
    times = float(torch.linalg.vector_norm(u, dim=1).median()) / fitted
    if times > FAR:
        warnings.warn(
            f"before the norm these embeddings are {times:.3g} times as long as those that the posterior was fitted "
            "to: prepare the images as those were, with pixels in the same range. kappa cannot be trusted here: it "
            "does not depend on the length",
            PreparationWarning,
            stacklevel=4,
        )
