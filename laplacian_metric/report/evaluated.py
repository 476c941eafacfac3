"""The images of a page with their embeddings and labels, and every number that is measured of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.metrics import Consensus, Evaluation, Ranking, Uncertainties
from laplacian_metric.metrics.positives import Positives, as_labels, check_length

Pixels = npt.NDArray[np.uint8]

SIDE = 96  # pixels of the longer side
LOSSLESS = 64  # up to this side images are kept without loss
QUALITY = 80


def as_pixels(name: str, images: Any, number: int) -> Pixels:
    """Return thumbnails (N, h, w), (N, h, w, 1) or (N, h, w, 3), uint8, as an array (N, h, w) or (N, h, w, 3).

    Example:
        >>> as_pixels("thumbnails", np.zeros((2, 4, 4, 1), dtype=np.uint8), 2).shape
        (2, 4, 4)
    """
    array = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    fits = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))
    if not fits or 0 in array.shape[1:] or len(array) != number or array.dtype != np.uint8:
        raise ValueError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; uint8 of shape ({number}, h, w) or "
            f"({number}, h, w, 3) is needed"
        )
    return array[..., 0] if array.ndim == 4 and array.shape[3] == 1 else array


def encode(pixels: Pixels, side: int = SIDE) -> str:
    """Return an image (h, w) or (h, w, 3) as a data URI, no larger than ``side`` on either side.

    Example:
        >>> encode(np.zeros((28, 28), dtype=np.uint8))[:22]
        'data:image/png;base64,'
    """
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(pixels))
    kind = "png" if max(picture.size) <= LOSSLESS else "jpeg"
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, format=kind, optimize=True, **({"quality": QUALITY} if kind == "jpeg" else {}))
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


DEPTHS = (1, 5, 10)


@dataclass(frozen=True, eq=False)
class Images:
    """Embedded images of one kind.

    Attributes:
        embedding: of the N images.
        labels: (N,), whole numbers; None of OOD images.
        thumbnails: (N, h, w) or (N, h, w, 3), uint8; None leaves the images out of the page.
        names: file names, of which the page shows what follows the last slash.
    """

    embedding: StochasticEmbedding
    labels: Any = None
    thumbnails: Any = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        number = len(self.embedding)
        if number == 0:
            raise ValueError("embedding has no images: at least one is needed")
        if self.labels is not None:
            object.__setattr__(self, "labels", as_labels("labels", self.labels).cpu())
            check_length("labels", len(self.labels), number, "embeddings")
        if self.thumbnails is not None:
            object.__setattr__(self, "thumbnails", as_pixels("thumbnails", self.thumbnails, number))
        if self.names is not None:
            check_length("names", len(self.names), number, "embeddings")
        object.__setattr__(self, "embedding", self.embedding.to("cpu"))

    @property
    def points(self) -> Tensor:
        """The unit vectors (N, Z) that are searched."""
        return self.embedding.point.detach()

    @property
    def uncertainty(self) -> Tensor:
        """Float64 (N,)."""
        return self.embedding.uncertainty.detach().double()

    def thumbnail(self, row: int) -> str | None:
        """Return an image as a data URI; None without thumbnails."""
        return None if self.thumbnails is None else encode(self.thumbnails[row])

    def name(self, row: int) -> str | None:
        """Return the last part of an image's file name, whichever system it is written for."""
        return None if self.names is None else PureWindowsPath(str(self.names[row])).name or None


@dataclass(frozen=True, eq=False)
class Evaluated:
    """One model on one set of labelled images.

    Attributes:
        title: of the page.
        queries: the images, with labels; the page is about their ``embedding.uncertainty``.
        class_names: of every label from 0; None names classes by their number.
        gallery: the items that are searched, with labels; None searches for each query among the others.
        ood: sets of out-of-distribution images by name.
        probability: (N,), predicted, that the nearest item is of the query's class; None without one.
        consensus: agreement of jointly sampled spaces, `metrics.consensus`; without it calibration is left out.
        diagnostics: of the posterior.
        scores: other uncertainties by name, to compare with.
        provenance: versions, seeds and settings as pairs of name and value.

    Example:
        >>> e = StochasticEmbedding(torch.eye(3), torch.eye(3), torch.ones(3), torch.ones(3))
        >>> Evaluated("Run", Images(e, [0, 0, 7]), class_names=["cat"])
        Traceback (most recent call last):
        ...
        ValueError: labels has the label 7, class_names has 1 names: give one for every label from 0
    """

    title: str
    queries: Images
    class_names: Sequence[str] | None = None
    gallery: Images | None = None
    ood: Mapping[str, Images] = field(default_factory=dict)
    probability: Tensor | None = None
    consensus: Consensus | None = None
    diagnostics: Diagnostics | None = None
    scores: Mapping[str, Uncertainties] = field(default_factory=dict)
    provenance: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        labelled = [self.queries, *([] if self.gallery is None else [self.gallery])]
        for images in (*labelled, *self.ood.values()):
            if images.embedding.dim != self.queries.embedding.dim:
                raise ValueError(
                    f"ood or gallery has {images.embedding.dim} dimensions, queries {self.queries.embedding.dim}: "
                    "embed all with one encoder"
                )
        for images in labelled:
            if images.labels is None:
                raise ValueError("labels are missing: queries and gallery need them")
            if self.class_names is None:
                continue
            outside = images.labels[(images.labels < 0) | (images.labels >= len(self.class_names))]
            if len(outside):
                raise ValueError(
                    f"labels has the label {int(outside[0])}, class_names has {len(self.class_names)} names: give "
                    "one for every label from 0"
                )

    @property
    def labels(self) -> Tensor:
        """The queries' labels (N,)."""
        labels: Tensor = self.queries.labels
        return labels

    @property
    def items(self) -> Images:
        """The images that are searched."""
        return self.queries if self.gallery is None else self.gallery

    def class_name(self, label: int) -> str:
        """Return the name of a label; its number where it has none."""
        name = "" if self.class_names is None else str(self.class_names[label])
        return name if name.strip() else f"class {label}"


@dataclass(frozen=True, eq=False)
class Measured:
    """The numbers of a run. Without any right answer there is no ``ranking``, and the ``reason`` says why."""

    evaluation: Evaluation
    ranking: Ranking | None
    reason: str = ""


def measure(run: Evaluated, *, resamples: int = 1000, seed: int = 0) -> Measured:
    """Return every number of a run, with intervals by ``resamples`` draws of a bootstrap; 0 leaves these out."""
    ranking, reason = _rank(run)
    depth = _depth(run)
    evaluation = metrics.evaluate_ranking(
        ranking,
        run.queries.uncertainty,
        agreed=run.consensus,
        probability=run.probability,
        ood_uncertainty={name: images.uncertainty for name, images in run.ood.items()},
        scores=run.scores,
        ks=[k for k in DEPTHS if k <= depth],
        resamples=resamples,
        generator=torch.Generator().manual_seed(seed),
        drawn=("refusals",),
    )
    return Measured(evaluation, ranking, reason)


def _depth(run: Evaluated) -> int:
    """Return how many items a query can find."""
    return len(run.queries.points) - 1 if run.gallery is None else len(run.gallery.points)


def _rank(run: Evaluated) -> tuple[Ranking | None, str]:
    database = None if run.gallery is None else run.gallery.points
    database_labels = None if run.gallery is None else run.gallery.labels
    if _depth(run) == 0:
        return None, "there is only one image, so it has no neighbour"
    if not bool((Positives.from_labels(run.labels, database_labels).counts > 0).any()):
        return None, "no image has another of its class, so there is no right answer to any query"
    ranking = metrics.rank(
        run.queries.points,
        run.labels,
        max(k for k in DEPTHS if k <= _depth(run)),
        database=database,
        database_labels=database_labels,
        at_r=True,
    )
    return ranking, ""
