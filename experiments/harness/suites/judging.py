"""Scores of a set's images, each searched for among the others: of the image alone, and of image and gallery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import metrics
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.check import Floats
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.metrics import Uncertainties, statistics
from laplacian_metric.metrics.resampling import Interval, bootstrap_all
from laplacian_metric.trust import Trust
from laplacian_metric.trust.fitting import Logistic
from laplacian_metric.trust.inputs import RESPONSE, log_distance
from laplacian_metric.trust.view import GaussianView

IMAGE, GALLERY = "image alone", "image and gallery"
GALLERY_DISTANCE, GAP, MATCH_RISK, TRUST = "gallery distance", "distance gap", "match risk", "Trust"
TRIVIAL_OF_GALLERY = (GALLERY_DISTANCE, "LOF", "margin", "vote", "kernel vote")
LABELLED = ("margin", "vote", "kernel vote", TRUST, "Trust match")  # these need the labels of the gallery
SIGNS = {"uncertainty": -1, "log distance": -1, "gap to the tenth": 1}  # by which the nearest is right
TENTH = 9


@dataclass(frozen=True, eq=False)
class Searched:
    """The images of a set, each searched for among the others.

    Attributes:
        points: (N, Z), unit embeddings.
        neighbours: of each, without itself; ids are rows.
        classes: (N,), numbers of their classes.
    """

    points: Tensor
    neighbours: Neighbours
    classes: NDArray[np.int64]

    @staticmethod
    def of(points: Tensor, labels: Tensor) -> Searched:
        """Return the neighbourhoods of embeddings (N, Z) with labels (N,).

        Example:
            >>> z = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
            >>> Searched.of(z, torch.arange(30) % 3).right.shape
            (30,)
        """
        units = F.normalize(points.detach().cpu().float())
        classes = labels.cpu().numpy()
        gallery = ArrayGallery(units, classes)
        neighbours = gallery.search(units, RESPONSE + 1).without(np.arange(len(units)))
        return Searched(units, neighbours, classes)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the nearest other image has an image's class, (N,)."""
        assert self.neighbours.labels is not None
        right: NDArray[np.bool_] = self.neighbours.labels[:, 0] == self.classes
        return right

    def inputs(self, uncertainty: Floats) -> Floats:
        """Return what the match risk is made of, (N, 3): an image's uncertainty, its distance, the gap to the tenth."""
        distances = log_distance(self.neighbours.distances[:, [0, min(TENTH, self.neighbours.k - 1)]])
        return np.column_stack([uncertainty, distances[:, 0], distances[:, 1] - distances[:, 0]])


@dataclass(frozen=True, eq=False)
class MatchRisk:
    """A logistic of three numbers: an image's uncertainty, its distance to the nearest item, and the gap to the tenth.

    The uncertainty counts by its rank among validation images, so that any increasing map of it gives the same risk.

    Attributes:
        reference: ascending (N,), the uncertainties of validation images.
        logistic: of the inputs, that the nearest item is right.
    """

    reference: Floats
    logistic: Logistic

    @staticmethod
    def fit(searched: Searched, uncertainty: Tensor) -> MatchRisk:
        """Fit on validation images, whose classes nothing was trained on.

        Example:
            >>> generator = torch.Generator().manual_seed(0)
            >>> searched = Searched.of(torch.randn(60, 3, generator=generator), torch.arange(60) % 3)
            >>> MatchRisk.fit(searched, torch.rand(60, generator=generator)).logistic.weights.shape
            (3,)
        """
        reference = np.sort(_plain(uncertainty))
        inputs = searched.inputs(normal_rank(reference, _plain(uncertainty)))
        return MatchRisk(reference, Logistic.fit(inputs, searched.right, SIGNS))

    def __call__(self, searched: Searched, uncertainty: Tensor) -> Tensor:
        """Return the risk (N,) as a logit: the greater, the likelier a wrong answer."""
        inputs = searched.inputs(normal_rank(self.reference, _plain(uncertainty)))
        return torch.from_numpy(-self.logistic.logit(inputs))


@dataclass(frozen=True, eq=False)
class GalleryScores:
    """What is calibrated on validation images once: the match risk, and `Trust` in the embedding alone."""

    risk: MatchRisk
    trust: Trust

    @staticmethod
    def fit(searched: Searched, uncertainty: Tensor) -> GalleryScores:
        """Fit on validation images."""
        view = GaussianView.of(searched.points, searched.classes)
        trust = Trust.fit_responses(searched.neighbours, searched.right, features=searched.points, view=view)
        return GalleryScores(MatchRisk.fit(searched, uncertainty), trust)

    def __call__(self, searched: Searched, uncertainty: Tensor) -> dict[str, Tensor]:
        """Return every score (N,) of image and gallery."""
        free = metrics.trivial_scores((searched.points, searched.classes))
        scores = {name: free[name] for name in TRIVIAL_OF_GALLERY}
        distances = searched.neighbours.distances
        scores[GAP] = torch.from_numpy(distances[:, 0] - distances[:, min(TENTH, distances.shape[1] - 1)])
        scores[MATCH_RISK] = self.risk(searched, uncertainty)
        answer = self.trust.with_gallery(searched.points, searched.classes).items()
        return scores | {
            TRUST: torch.from_numpy(-answer.probability),
            "Trust match": torch.from_numpy(-answer.match),
            "Trust novelty": torch.from_numpy(answer.novelty),
        }


def retrieval_numbers(searched: Searched, scores: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return recall@1 and, for every score, how well it detects the wrong answers: by the one evaluator."""
    evaluation = metrics.evaluate_ranking(
        metrics.rank(searched.points, searched.classes, 1),
        scores={name: Uncertainties(values) for name, values in scores.items()},
        classes=torch.from_numpy(searched.classes),
        ks=(1,),
        resamples=0,
    )
    kept = ("r_auroc", "r_auroc_within", "nausc")
    return {
        "recall@1": evaluation.retrieval["test"]["recall@1"],
        "images": evaluation.counts.queries,
        "scores": {
            name: {key: score.values[key] for key in kept} for name, score in evaluation.scores.items()
        },
    }


def intervals(
    searched: Searched,
    scores: Mapping[str, Tensor],
    differences: Mapping[str, tuple[str, str]],
    resamples: int,
) -> dict[str, Interval]:
    """Return intervals by drawing classes, of every score's R-AUROC and of paired differences between two of them."""
    wrong = torch.from_numpy(~searched.right).double()

    def area(name: str, weights: Tensor) -> Tensor:
        return statistics.auroc(scores[name].double(), wrong, weights)

    def gap(first: str, second: str, weights: Tensor) -> Tensor:
        return area(first, weights) - area(second, weights)

    wanted = {name: partial(area, name) for name in scores}
    wanted |= {name: partial(gap, *pair) for name, pair in differences.items()}
    wanted["recall@1"] = partial(statistics.mean, 1 - wrong)
    classes = torch.from_numpy(searched.classes)
    return bootstrap_all(wanted, len(wrong), resamples=resamples, groups=classes)


def _plain(values: Tensor) -> Floats:
    numbers: Floats = values.detach().cpu().double().numpy()
    return numbers


def normal_rank(reference: Floats, values: Floats) -> Floats:
    """Return the log odds of the values' ranks among ascending reference values, (N,).

    Example:
        >>> normal_rank(np.array([1.0, 2.0, 3.0]), np.array([2.0, 9.0])).round(3).tolist()
        [0.0, 1.946]
    """
    low, high = (np.searchsorted(reference, values, side=side) for side in ("left", "right"))
    share = ((low + high) / 2 + 0.5) / (len(reference) + 1)
    odds: Floats = np.log(share) - np.log1p(-share)
    return odds
