"""What a report is about: embedded images with their labels, and every number that is measured of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from hessians.checks import check_finite
from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.search import search
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.metrics import Consensus, Evaluation, Ranking, Uncertainties
from laplacian_metric.metrics.positives import Labels, Positives, as_labels, check_length
from laplacian_metric.metrics.ranking import check_uncertainty
from laplacian_metric.report.blocks.gallery import as_pixels

OtherScore = Uncertainties  # an uncertainty to compare with, by its earlier name


@dataclass(frozen=True, eq=False)
class Evaluated:
    """One run of one method on one set of images; only what has no default has to be there.

    Attributes:
        title: of the page.
        embedding: of the N images; its ``uncertainty`` is what the page is about.
        labels: (N,), whole numbers.
        class_names: the name of every label, from 0; None names them by their number.
        thumbnails: (N, h, w) or (N, h, w, 3), uint8; None leaves all images out of the page.
        file_names: of the images; only what follows the last slash is shown.
        ood: sets of out-of-distribution images by name, each with its embedding and its thumbnails or None.
        probability: (N,), predicted, that the nearest other image is of the same class; None without one.
        consensus: what jointly sampled spaces agree on, `metrics.consensus`; without it calibration is left out.
        diagnostics: of the posterior.
        scores: other uncertainties by name, which the embedding's has to beat.
        provenance: versions, seeds and settings, in pairs of what and which.
        strangers: the earlier name of ``ood``.
        gallery: what is searched in place of the other images: the embedding of M items and their labels (M,), in which
            equal numbers are the same class as in ``labels``.

    Example:
        >>> e = StochasticEmbedding(torch.eye(3), torch.eye(3), torch.ones(3), torch.ones(3))
        >>> Evaluated("Run", e, [0, 0, 7], class_names=["cat"])
        Traceback (most recent call last):
        ...
        ValueError: labels has the label 7, class_names has 1 names: give one for every label from 0
    """

    title: str
    embedding: StochasticEmbedding
    labels: Labels
    class_names: Sequence[str] | None = None
    thumbnails: Any = None
    file_names: Sequence[str] | None = None
    ood: Mapping[str, tuple[StochasticEmbedding, Any]] = field(default_factory=dict)
    probability: torch.Tensor | None = None
    consensus: Consensus | None = None
    diagnostics: Diagnostics | None = None
    scores: Mapping[str, Uncertainties] = field(default_factory=dict)
    provenance: Sequence[tuple[str, str]] = ()
    strangers: InitVar[Mapping[str, tuple[StochasticEmbedding, Any]] | None] = None
    gallery: tuple[StochasticEmbedding, Labels] | None = None

    def __post_init__(self, strangers: Mapping[str, tuple[StochasticEmbedding, Any]] | None) -> None:
        if strangers is not None:
            warnings.warn("Evaluated(strangers=...) is now called ood=...", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "ood", strangers)
        if not self.title.strip():
            raise ValueError("title is empty; say what was evaluated")
        number = len(self.embedding)
        labels = as_labels("labels", self.labels)
        check_length("labels", len(labels), number, "embeddings")
        if self.class_names is not None:
            outside = labels[(labels < 0) | (labels >= len(self.class_names))]
            if len(outside):
                raise ValueError(
                    f"labels has the label {int(outside[0])}, class_names has {len(self.class_names)} names: give "
                    "one for every label from 0"
                )
        if self.file_names is not None and len(self.file_names) != number:
            raise ValueError(
                f"file_names has {len(self.file_names)} entries for {number} embeddings: one for each is needed"
            )
        _check_embedding("embedding", self.embedding)
        if self.thumbnails is not None:
            as_pixels("thumbnails", self.thumbnails, number)
        for name, (images, thumbnails) in self.ood.items():
            _check_embedding(f"ood[{name!r}]", images)
            if images.dim != self.embedding.dim:
                raise ValueError(
                    f"ood[{name!r}] has {images.dim} dimensions and the embedding {self.embedding.dim}: both "
                    "come from one encoder"
                )
            if thumbnails is not None:
                as_pixels(f"the thumbnails of ood[{name!r}]", thumbnails, len(images))
        if self.gallery is not None:
            items, item_labels = self.gallery
            _check_embedding("gallery", items)
            check_length("the gallery's labels", len(as_labels("gallery", item_labels)), len(items), "items")
        if self.consensus is not None and len(self.consensus.answerable) != number:
            raise ValueError(
                f"consensus is of {len(self.consensus.answerable)} images, there are {number} embeddings"
            )
        if self.probability is not None:
            check_uncertainty("probability", self.probability, number)
        for name, score in self.scores.items():
            self._check_score(name, score)

    def _check_score(self, name: str, score: Uncertainties) -> None:
        check_uncertainty(f"scores[{name!r}]", score.queries, len(self.embedding))
        for other, values in score.ood.items():
            if other not in self.ood:
                raise ValueError(
                    f"scores[{name!r}] is given for the OOD images {other!r}, there are: "
                    + (", ".join(self.ood) or "none")
                )
            check_uncertainty(f"scores[{name!r}] of {other!r}", values, len(self.ood[other][0]))

    def class_name(self, label: int) -> str:
        """The name of a label; its number where it has none."""
        name = "" if self.class_names is None else str(self.class_names[label])
        return name if name.strip() else f"class {label}"

    def file_name(self, row: int) -> str | None:
        """The last part of an image's file name, whichever system it is written for."""
        return None if self.file_names is None else PureWindowsPath(str(self.file_names[row])).name or None


def _check_embedding(name: str, embedding: StochasticEmbedding) -> None:
    if len(embedding) == 0:
        raise ValueError(f"{name} has no images: at least one is needed")
    check_finite(f"{name}.point", embedding.point)
    check_uncertainty(f"{name}.uncertainty", embedding.uncertainty)
    if bool(torch.isnan(embedding.kappa).any()):
        row = int(torch.isnan(embedding.kappa).nonzero()[0])
        raise ValueError(f"{name}.kappa has NaN, the first is entry {row}")


DEPTHS = (1, 5, 10)


@dataclass(frozen=True)
class OutOfDistribution:
    """One set of out-of-distribution images: its embedding, and the nearest known image of each (M,)."""

    embedding: StochasticEmbedding
    nearest: Tensor

    @property
    def uncertainty(self) -> Tensor:
        """Float64 (M,)."""
        return self.embedding.uncertainty.detach().double()


@dataclass(frozen=True, eq=False)
class Measured:
    """The images of a run and their numbers, on the CPU.

    ``nearest`` (N,) is the nearest other image of each, None of a single one; with a gallery the nearest item, whose
    classes are ``item_labels``. Where no image has another of its class, the evaluation has no retrieval, nothing is
    ``answerable`` (N,), there is no ``ranking``, and ``reason`` says so.
    """

    embedding: StochasticEmbedding
    labels: Tensor
    uncertainty: Tensor
    nearest: Tensor | None
    answerable: Tensor
    evaluation: Evaluation
    ood: Mapping[str, OutOfDistribution]
    reason: str = ""
    ranking: Ranking | None = None
    item_labels: Tensor | None = None

    @property
    def least_certain_first(self) -> Tensor:
        """The rows in the order of their uncertainty."""
        return self.uncertainty.argsort(descending=True, stable=True)

    @property
    def right(self) -> Tensor | None:
        """Whether the nearest neighbour is of the same class, bool (N,)."""
        if self.nearest is None:
            return None
        items = self.labels if self.item_labels is None else self.item_labels
        return items[self.nearest] == self.labels

    def position(self, uncertainty: Tensor) -> Tensor:
        """Return where uncertainties lie among those of the known images, 0 (surest) to 1, equal ones in the middle."""
        ordered = self.uncertainty.sort().values
        low, high = (torch.searchsorted(ordered, uncertainty, right=right) for right in (False, True))
        return (low + high) / (2 * len(ordered))


def measure(evaluated: Evaluated, *, resamples: int = 1000, seed: int = 0) -> Measured:
    """Return all that a report shows; the intervals are by ``resamples`` draws of a bootstrap, none with 0."""
    embedding = evaluated.embedding.to("cpu")
    point = embedding.point.detach()
    labels = as_labels("labels", evaluated.labels).cpu()
    items = item_labels = None
    if evaluated.gallery is not None:
        items = evaluated.gallery[0].to("cpu").point.detach()
        item_labels = as_labels("gallery", evaluated.gallery[1]).cpu()
    ranking, reason = _rank(point, labels, items, item_labels)
    most = len(labels) if items is None else len(items) + 1
    ood = {}
    for name, (outside, _) in evaluated.ood.items():
        outside = outside.to("cpu")
        searched = point if items is None else items
        nearest = search(outside.point.detach(), 1, database=searched).indices[:, 0]
        ood[name] = OutOfDistribution(outside, nearest)
    uncertainty = embedding.uncertainty.detach().double()
    evaluation = metrics.evaluate_ranking(
        ranking,
        uncertainty,
        agreed=evaluated.consensus,
        probability=evaluated.probability,
        ood_uncertainty={name: images.uncertainty for name, images in ood.items()},
        scores=evaluated.scores,
        ks=[k for k in DEPTHS if k < most],
        resamples=resamples,
        generator=torch.Generator().manual_seed(seed),
    )
    if ranking is not None:
        neighbour: Tensor | None = ranking.nearest
    else:
        neighbour = None if most < 2 else search(point, 1, database=items).indices[:, 0]
    return Measured(
        embedding=embedding,
        labels=labels,
        uncertainty=uncertainty,
        nearest=neighbour,
        answerable=torch.zeros(len(labels), dtype=torch.bool) if ranking is None else ranking.answerable,
        evaluation=evaluation,
        ood=ood,
        reason=reason,
        ranking=ranking,
        item_labels=item_labels,
    )


def _rank(
    point: Tensor, labels: Tensor, items: Tensor | None, item_labels: Tensor | None
) -> tuple[Ranking | None, str]:
    if items is None and len(point) < 2:
        return None, "there is only one image, so it has no neighbour"
    if not bool((Positives.from_labels(labels, item_labels).counts > 0).any()):
        where = "another" if items is None else "an item in the gallery"
        return None, f"no image has {where} of its class, so there is no right answer to any query"
    most = len(point) if items is None else len(items) + 1
    depth = max(k for k in DEPTHS if k < most)
    return metrics.rank(point, labels, depth, database=items, database_labels=item_labels, at_r=True), ""
