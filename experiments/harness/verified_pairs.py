"""How pairs of test images are verified and images named by their neighbours, and what uncertainty tells of both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from experiments.harness.cell_fitting import Fitted
from experiments.harness.image_sets import TEST, TESTS
from experiments.harness.measurements import norms
from experiments.harness.results import rounded
from experiments.harness.sections import VerificationSection
from experiments.harness.verification import binned, distances, falling, pair_average_precision, vote
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder
from laplacian_metric.core.search import best_by_score
from laplacian_metric.core.splits import permutation
from laplacian_metric.methods.gaussian.match_probability import (
    ELEMENTS_AT_ONCE,
    MatchProbability,
    distances_of,
    paired_match_probability,
    self_mismatch,
)
from laplacian_metric.metrics.evaluation import OWN
from laplacian_metric.training.pair_streams import balanced_pairs, random_pairs

LATENT_DIM = 3
PAIRS_AT_ONCE = 1 << 14  # whose samples are gathered together
BLOCK = 128  # pairs that are scored together by a similarity of all with all
PERFORMANCES = ("average_precision", "knn")


@torch.no_grad()
def mismatch_probability(first: Tensor, second: Tensor, match: MatchProbability) -> Tensor:
    """1 less `match_probability`, (N, M), computed so that it keeps its digits where images are alike.

    Example:
        >>> one = torch.zeros(1, 1, 2)
        >>> float(mismatch_probability(one, one, MatchProbability(scale=1.0, offset=20.0)))
        2.06...e-09
    """
    samples, size, dim = second.shape
    members = second.reshape(-1, dim)
    rows = max(1, ELEMENTS_AT_ONCE // max(1, len(members)))
    probabilities = first.new_zeros(first.shape[1], size)
    for start in range(0, first.shape[1], rows):
        for one in first[:, start : start + rows]:
            part = match(distances_of(one, members)).neg_().sigmoid_().view(len(one), samples, size)
            probabilities[start : start + rows] += part.sum(1)
    return probabilities / (len(first) * samples)


@runtime_checkable
class Hedged(Protocol):
    """An embedder of mixtures of Gaussians in a space of their own, whose samples match by their distance."""

    @property
    def match(self) -> MatchProbability: ...

    def mixtures(self, inputs: Any) -> tuple[Tensor, Tensor]: ...

    def drawn(
        self, mixtures: tuple[Tensor, Tensor], samples: int, generator: torch.Generator | None = None
    ) -> Tensor: ...


class HedgedImages:
    """Mixtures, of which K samples are drawn, twice: of the first and of the second image of a pair.

    Scores are the greater the more alike two images are: of pairs (P, 2), and of some images with a whole gallery.
    """

    def __init__(self, embedder: Hedged, inputs: Dataset, samples: int, *, has_uncertainty: bool) -> None:
        self.embedder = embedder
        self.samples = samples
        self.has_uncertainty = has_uncertainty
        self.mixtures = embedder.mixtures(inputs)
        self.match = embedder.match

    def drawn(self, generator: torch.Generator) -> None:
        self.first, self.second = (
            self.embedder.drawn(self.mixtures, self.samples, generator) for _ in range(2)
        )

    def pairs(self, pairs: Tensor) -> Tensor:
        # In float64: probabilities next to 1 must not be equal.
        scores = [
            paired_match_probability(
                self.first[:, rows[:, 0]].double(), self.second[:, rows[:, 1]].double(), self.match
            ).cpu()
            for rows in pairs.split(PAIRS_AT_ONCE)
        ]
        return torch.cat(scores)

    def among(self, gallery: Any) -> Callable[[Tensor], Tensor]:
        assert isinstance(gallery, HedgedImages)
        second = gallery.second
        # The score falls with the probability of a mismatch, which keeps its digits where images are alike.
        return lambda rows: -mismatch_probability(self.first[:, rows], second, self.match)

    def uncertainty(self) -> Tensor | None:
        return self_mismatch(self.first, self.second, self.match).cpu() if self.has_uncertainty else None

    @property
    def means(self) -> Tensor:
        """Of the mixtures, (N, Z)."""
        return self.mixtures[0].mean(1)


class EmbeddedImages:
    """Distributions on the sphere, compared by the method's own similarity or by the cosine of their points."""

    def __init__(self, embedder: Embedder, inputs: Dataset, *, has_uncertainty: bool) -> None:
        self.embedder = embedder
        self.has_uncertainty = has_uncertainty
        self.e = embedder.embed(inputs)
        self.own = embedder.similarity(self.e[:2], self.e[:2]) is not None

    def drawn(self, generator: torch.Generator) -> None:
        """Nothing of it is drawn: it is the same each time."""

    def pairs(self, pairs: Tensor) -> Tensor:
        if not self.own:
            return (self.e.point[pairs[:, 0]].double() * self.e.point[pairs[:, 1]].double()).sum(1).cpu()
        return torch.cat(
            [self._score(self.e[rows[:, 0]], self.e[rows[:, 1]]).diagonal() for rows in pairs.split(BLOCK)]
        ).cpu()

    def among(self, gallery: Any) -> Callable[[Tensor], Tensor]:
        assert isinstance(gallery, EmbeddedImages)
        other = gallery.e
        return lambda rows: self._score(self.e[rows], other)

    def _score(self, first: StochasticEmbedding, second: StochasticEmbedding) -> Tensor:
        scores = self.embedder.similarity(first, second) if self.own else None
        # Unit vectors are ordered by distance as by their cosine, and distances of close ones have more digits.
        return -distances(first.point, second.point) if scores is None else scores

    def uncertainty(self) -> Tensor | None:
        return self.e.uncertainty.cpu() if self.has_uncertainty else None


@dataclass(frozen=True)
class _Set:
    """A test set, and the pairs of it that are looked at."""

    name: str
    inputs: Dataset
    images: HedgedImages | EmbeddedImages
    balanced: Tensor
    random: Tensor

    @property
    def labels(self) -> Tensor:
        return self.inputs.known_labels(by_class=False)


def verify(fitted: Fitted, section: VerificationSection, *, has_uncertainty: bool) -> dict[str, Any]:
    """What is measured of the test set, "test", and of others by name.

    Of each: the average precision of the match probability (or similarity) at telling pairs that match from as many
    that do not; the share of images whose nearest neighbours among the others vote for their class; and, for every
    uncertainty, Kendall's tau of both with it over bins, its sign turned so that 1 is best.
    """
    embedder = fitted.embedder
    sets: dict[str, _Set] = {}
    for name in (TEST, *(name.removeprefix(TESTS) for name in fitted.sets if name.startswith(TESTS))):
        inputs = fitted.sets[name if name == TEST else TESTS + name]
        images = (
            HedgedImages(embedder, inputs, section.samples, has_uncertainty=has_uncertainty)
            if isinstance(embedder, Hedged)
            else EmbeddedImages(embedder, inputs, has_uncertainty=has_uncertainty)
        )
        # Twins have the same pairs, since these depend on the labels alone.
        balanced = balanced_pairs(inputs.labels, section.pairs, (section.seed,))
        random = random_pairs(len(inputs), section.random_pairs, (section.seed,))
        images.drawn(torch.Generator().manual_seed(section.seed))
        sets[name] = _Set(name, inputs, images, balanced, random)
    return {
        name: _measured(one, sets.get(section.galleries.get(name, "")), fitted, section)
        for name, one in sets.items()
    }


def _measured(
    one: _Set, gallery: _Set | None, fitted: Fitted, section: VerificationSection
) -> dict[str, Any]:
    images, labels = one.images, one.labels
    right, score = _named(one, one, section.neighbours)
    matching = labels[one.balanced[:, 0]] == labels[one.balanced[:, 1]]
    fixed = {} if fitted.encoder is None else norms(fitted.encoder, one.inputs)
    fixed["nearest distance"] = -score
    precisions: list[float] = []
    bins_of: dict[str, list[dict[str, list[float]]]] = {}
    for repeat in range(section.repeats if isinstance(images, HedgedImages) else 1):
        if repeat:
            images.drawn(torch.Generator().manual_seed(section.seed + repeat))
        precisions.append(pair_average_precision(images.pairs(one.balanced), matching))
        own = images.uncertainty()
        scores = fixed if own is None else {OWN: own, **fixed}
        probability = images.pairs(one.random)
        for name, values in scores.items():
            bins_of.setdefault(name, []).append(
                _told(values, right, one.random, probability, labels, section.bins)
            )
    images.drawn(torch.Generator().manual_seed(section.seed))  # as others compare themselves with it
    return {
        "average_precision": statistics.fmean(precisions),
        "knn": float(right.mean()),
        "knn_of_means": _by_means(one, section.neighbours),
        "knn_in_gallery": None
        if gallery is None
        else float(_named(one, gallery, section.neighbours)[0].mean()),
        "correlations": {name: _correlations(bins) for name, bins in bins_of.items()},
        "bins": {name: _mean_bins(bins) for name, bins in bins_of.items()},
        "images": len(labels),
        "space": _space(one, section.drawn, section.seed) if section.drawn else None,
    }


# --- neighbours ---


def _named(one: _Set, gallery: _Set, neighbours: int) -> tuple[Tensor, Tensor]:
    """Whether the neighbours of every image say its class, float64 (N,), and the score of the nearest, (N,)."""
    number, size = len(one.labels), len(gallery.labels)
    if not torch.equal(one.labels, gallery.labels):
        raise ValueError(
            f"the test sets {one.name} and {gallery.name} have different labels, so that they are no twins: name "
            "another gallery"
        )
    score = one.images.among(gallery.images)
    members, scores = best_by_score(score, number, size, neighbours, own=torch.arange(number))
    members, scores = members.cpu(), scores.cpu()
    return (vote(gallery.labels[members]) == one.labels).double(), scores[:, 0].double()


def _by_means(one: _Set, neighbours: int) -> float | None:
    """The same by the Euclidean distance of the means, where there are mixtures."""
    if not isinstance(one.images, HedgedImages):
        return None
    means = one.images.means.cpu().double()
    number = len(means)
    members = best_by_score(
        lambda rows: -distances(means[rows], means), number, number, neighbours, own=torch.arange(number)
    )[0]
    return float((vote(one.labels[members]) == one.labels).double().mean())


# --- what uncertainty tells ---


def _told(
    values: Tensor, right: Tensor, pairs: Tensor, probability: Tensor, labels: Tensor, bins: int
) -> dict[str, list[float]]:
    """Performance in bins, from the lowest to the highest uncertainty (N,); a pair's is the mean of its images'."""
    values = values.double()
    matching = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    return {
        "average_precision": binned(
            values[pairs].mean(1),
            lambda rows: pair_average_precision(probability[rows], matching[rows]),
            bins,
        ),
        "knn": binned(values, lambda rows: float(right[rows].mean()), bins),
    }


def _correlations(repeats: list[dict[str, list[float]]]) -> dict[str, float]:
    """Means and standard deviations of the correlations over what was drawn; NaN where too few are defined."""
    correlations = {}
    for name in PERFORMANCES:
        values = [value for bins in repeats if not math.isnan(value := falling(bins[name]))]
        correlations[name] = statistics.fmean(values) if values else math.nan
        if len(repeats) > 1:
            correlations[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else math.nan
    return correlations


def _mean_bins(repeats: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    kept = {
        name: torch.tensor([bins[name] for bins in repeats], dtype=torch.float64).nanmean(0).tolist()
        for name in PERFORMANCES
    }
    means: dict[str, list[float]] = rounded(kept)
    return means


# --- pictures ---


def _space(one: _Set, number: int, seed: int) -> dict[str, Any] | None:
    """Some images, drawn at random, as they lie in their space, and the centres of all classes."""
    if not isinstance(one.images, HedgedImages) or one.images.means.shape[1] > LATENT_DIM:
        return None
    means, log_variances = (tensor.cpu() for tensor in one.images.mixtures)
    # Not at even steps: data sets may go through their classes in turn.
    rows = torch.from_numpy(permutation((seed,), len(means))[:number]).sort().values
    classes, class_of, counts = torch.unique(one.labels, return_inverse=True, return_counts=True)
    points = one.images.means.cpu().double()
    centres = (
        points.new_zeros(len(classes), points.shape[1]).index_add_(0, class_of, points) / counts[:, None]
    )
    kept: Mapping[str, Any] = {
        "means": means[rows].tolist(),
        "variances": log_variances[rows].exp().tolist(),
        "labels": one.labels[rows].tolist(),
        "indices": rows.tolist(),
        "centres": {"labels": classes.tolist(), "points": centres.tolist()},
    }
    content: dict[str, Any] = rounded(kept)
    return content
