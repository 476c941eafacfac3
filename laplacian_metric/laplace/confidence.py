r"""The probability that a match can be trusted: one number for OOD images and ambiguous places.

A posterior over the weights knows what it has not seen, and says little of where known classes meet; the place on the
sphere knows that, and nothing of OOD images. Both are probabilities, so they can be multiplied:

    confidence(x) = known(x) * match(x).

**match** is the chance that two images that lie where x lies share a class, sum_c P_c(x)^2, with P_c the share of class
c around x among labelled reference embeddings z_i, seen through a von Mises-Fisher kernel as wide as x is uncertain:

    P_c(x) ~ sum_{i in c} exp(k(x) (z . z_i - 1)),    1/k(x) = 1/k_0 + t l(x)/|u|^2,

l the predictive variance of a component of u. k_0 and t maximise the likelihood, on validation images, of "the nearest
other image is of its class".

**known** is a tail probability. An image is strange if l is large, if rho is, the share of the prior's variance of u
that the data have not removed, or if the two and l/|u|^2 do not go together as they do in known images. Their
logarithms v are standardised on validation images, where they have the correlation matrix C, and combined as Fisher
does with p-values,

    T = -log p(l) - log p(rho) + v^T C^-1 v / 2;

beyond T's (1 - alpha) quantile on validation images, known decays as the exponential tail that they have there. Without
the last term dark or blurred images, of which all features are small, would count as known.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.laplace.head import HeadPosterior
from laplacian_metric.metrics import rank

ROWS_AT_ONCE = 1 << 24  # entries of the matrix of kernels that is in memory at a time
FLOOR = 1e-9
COMPARED = 64  # validation images that are looked for among the reference images
SAME = 1e-6  # how far apart two embeddings of one image may be by rounding
KERNELS = (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
SHARES = (0.0, 0.003, 0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True, eq=False)
class MatchConfidence:
    """The probability that the nearest neighbour of an image is of its class, for OOD images too.

    Attributes:
        reference: unit embeddings of labelled images, (M, Z).
        classes: their classes as 0, 1, ..., (M,).
        kernel: k_0, the concentration of the kernel around a perfectly certain image.
        spread: t, how much of the predictive variance widens it.
        location, scale: mean and standard deviation of log l, log rho and log l/|u|^2 on validation images, (3,).
        precision: the inverse of their correlation matrix, (3, 3).
        threshold: T's quantile on validation images.
        tail: the mean excess of T beyond it.
    """

    reference: Tensor
    classes: Tensor
    kernel: float
    spread: float
    location: Tensor
    scale: Tensor
    precision: Tensor
    threshold: float
    tail: float

    def __repr__(self) -> str:
        classes = int(self.classes.max()) + 1
        return f"MatchConfidence({len(self.reference)} reference images of {classes} classes, kernel {self.kernel:g})"

    @staticmethod
    def fit(
        head: HeadPosterior,
        reference: Dataset,
        validation: Dataset,
        *,
        alpha: float = 0.1,
        max_reference: int = 10_000,
    ) -> MatchConfidence:
        """Calibrate on validation images; nothing from outside the distribution is needed.

        Args:
            head: of a fitted `LAM`.
            reference: images of the classes that are retrieved, e.g. the training images or the gallery.
            validation: other images of the same distribution, on which everything is chosen.
            alpha: the share of validation images that may count as not quite known.
            max_reference: so many reference images are kept at most, evenly spaced.

        Example:
            >>> from torch import nn
            >>> from laplacian_metric.laplace.layer import DiagonalCurvature
            >>> generator = torch.Generator().manual_seed(0)
            >>> labels = torch.arange(60) % 3
            >>> h = torch.eye(3)[labels] + 0.2 * torch.randn(60, 3, generator=generator)
            >>> curvature = DiagonalCurvature(torch.ones(3, 3))
            >>> head = HeadPosterior(nn.Linear(3, 3, bias=False), curvature.posterior(60.0, 1.0), bias_is_random=False)
            >>> _ = nn.init.eye_(head.weight)
            >>> confidence = MatchConfidence.fit(head, Dataset(h[:40], labels[:40]), Dataset(h[40:], labels[40:]))
            >>> near, far = confidence(head, torch.tensor([[1.0, 0.0, 0.0], [20.0, 0.0, 0.0]]))
            >>> bool(near > 0.9), bool(far < 0.1)
            (True, True)
        """
        for name, argument in (("reference", reference), ("validation", validation)):
            if not isinstance(argument, Dataset):
                raise TypeError(
                    f"{name} is a {type(argument).__name__}: pass what lam.features(loader) returns"
                )
        if not 0 < alpha < 1:
            raise ValueError(f"alpha is {alpha}, a share between 0 and 1 is needed")
        if len(reference) == 0:
            raise ValueError(
                "reference is empty: labelled images of the classes that are retrieved are needed"
            )
        if len(torch.unique(validation.labels)) == len(validation):
            raise ValueError("no two validation images share a class: there is no match to be confident of")
        step = -(-len(reference) // max_reference)
        points = head.embed(reference.features[::step]).point
        classes = torch.unique(reference.labels, return_inverse=True)[1][::step].to(points.device)
        measured = _Measured.of(head, validation.features)
        _warn_of_the_same(points, measured.point[::step])
        ranking = rank(measured.point, validation.labels, k=1)
        location, scale = measured.logs.mean(0), measured.logs.std(0, correction=0)
        standard = (measured.logs - location) / torch.where(scale > 0, scale, 1)
        # Singular where the three hang together, as for features that are all of one length.
        precision = torch.linalg.pinv(standard.T @ standard / len(standard), rtol=1e-6, hermitian=True)
        draft = MatchConfidence(points, classes, 1.0, 0.0, location, scale, precision, 0.0, 1.0)
        surprise = draft._surprise(measured.logs)
        threshold = float(torch.quantile(surprise, 1 - alpha))
        excess = surprise[surprise > threshold] - threshold
        tail = float(excess.mean()) if len(excess) else 1.0
        kernel, spread = draft._choose(measured, ranking.first_is_right(), ranking.answerable)
        return MatchConfidence(
            points, classes, kernel, spread, location, scale, precision, threshold, max(tail, 1e-12)
        )

    def __call__(self, head: HeadPosterior, features: Tensor, e: StochasticEmbedding | None = None) -> Tensor:
        """The confidence of images with these features (N, H), (N,); ``e`` where they are embedded already."""
        measured = _Measured.of(head, features, e)
        return (self._known(measured.logs) * self._match(measured, self.kernel, self.spread)).to(
            measured.point.dtype
        )

    def known(self, head: HeadPosterior, features: Tensor) -> Tensor:
        """The share of the confidence that says whether such images have been seen, (N,)."""
        return self._known(_Measured.of(head, features).logs)

    def match(self, head: HeadPosterior, features: Tensor) -> Tensor:
        """The share of the confidence that says whether the place is one of a single class, (N,)."""
        return self._match(_Measured.of(head, features), self.kernel, self.spread)

    def to(self, device: torch.device | str) -> MatchConfidence:
        """Moved to a device."""
        return MatchConfidence.from_tensors(
            {name: tensor.to(device) for name, tensor in self.tensors().items()}
        )

    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value
            for name, value in values.items()
        }

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> MatchConfidence:
        """The inverse of `tensors`."""
        return MatchConfidence(
            tensors["reference"],
            tensors["classes"],
            float(tensors["kernel"]),
            float(tensors["spread"]),
            tensors["location"],
            tensors["scale"],
            tensors["precision"],
            float(tensors["threshold"]),
            float(tensors["tail"]),
        )

    def _surprise(self, logs: Tensor) -> Tensor:
        """T, (N,), in float64."""
        scale = torch.where(self.scale > 0, self.scale, 1)
        # log_ndtr(-z) is the logarithm of the upper tail of a normal distribution.
        v = (logs - self.location) / scale
        tails: Tensor = torch.special.log_ndtr(-v[:, :2])
        return -tails.sum(1) + ((v @ self.precision) * v).sum(1) / 2

    def _known(self, logs: Tensor) -> Tensor:
        return torch.exp(-(self._surprise(logs) - self.threshold).clamp(min=0) / self.tail)

    def _match(self, measured: _Measured, kernel: float, spread: float) -> Tensor:
        """sum_c P_c^2, (N,), in float64."""
        concentration = (1 / (1 / kernel + spread * measured.relative)).to(measured.point.dtype)
        labels = F.one_hot(self.classes).to(measured.point.dtype)
        rows = max(1, ROWS_AT_ONCE // len(self.reference))
        blocks = []
        for z, k in zip(measured.point.split(rows), concentration.split(rows), strict=True):
            weights = torch.exp(k[:, None] * (z @ self.reference.T - 1)) @ labels + FLOOR
            shares = weights.double() / weights.double().sum(1, keepdim=True)
            blocks.append(shares.square().sum(1))
        return torch.cat(blocks)

    def _choose(self, measured: _Measured, right: Tensor, answerable: Tensor) -> tuple[float, float]:
        """k_0 and t under which "my nearest neighbour is of my class" is most likely."""
        chosen = measured.take(answerable)
        right = right.to(chosen.point.device).double()
        middle = float(chosen.relative.median())
        best = (-math.inf, KERNELS[0], 0.0)
        for kernel in KERNELS:
            for share in SHARES:
                spread = share / middle if middle > 0 else 0.0
                p = self._match(chosen, kernel, spread).clamp(1e-6, 1 - 1e-6)
                value = float((right * p.log() + (1 - right) * (-p).log1p()).mean())
                best = max(best, (value, kernel, spread))
        return best[1], best[2]


@dataclass(frozen=True, eq=False)
class _Measured:
    """What the confidence needs of N images: ``point`` z (N, Z), ``relative`` l/|u|^2 (N,), ``logs`` of l, of rho and
    of l/|u|^2 (N, 3); the last two in float64."""

    point: Tensor
    relative: Tensor
    logs: Tensor

    @staticmethod
    def of(head: HeadPosterior, features: Tensor, e: StochasticEmbedding | None = None) -> _Measured:
        e = head.embed(features) if e is None else e
        assert e.gaussians is not None
        variance = e.gaussians.marginal_variance.double().mean(1)
        prior = torch.cat([head.prior_variance(h) for h in head.blocks(features)]).double()
        tiny = torch.finfo(torch.float64).tiny
        relative = variance / e.gaussians.mean.double().square().sum(1)
        logs = torch.stack([variance, variance / prior.clamp(min=tiny), relative], dim=1)
        return _Measured(e.point, relative, logs.clamp(min=tiny).log())

    def take(self, rows: Tensor) -> _Measured:
        rows = rows.to(self.point.device)
        return _Measured(self.point[rows], self.relative[rows], self.logs[rows])


def _warn_of_the_same(reference: Tensor, validation: Tensor) -> None:
    """Say where validation images are reference images, by the points of both: each is then its own nearest."""
    few = validation[:COMPARED].double()
    apart = torch.cdist(few, reference.double(), compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    if bool((apart < SAME).float().mean() > 0.5):
        warnings.warn(
            "the validation images are among the reference images: what is calibrated on images that the network knows "
            "trusts too much; take images that neither trained it nor are retrieved",
            stacklevel=4,
        )
