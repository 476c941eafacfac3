"""What is measured of an embedder: its own scores, which see the image alone, and scores that see the gallery too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.core.labelled_gallery import LabelledGallery
from laplacian_metric.core.neighbours import Surroundings, log_distance
from laplacian_metric.core.vector_search import Floats
from laplacian_metric.metrics import Ranking, Uncertainties, statistics, trivial_scores
from laplacian_metric.metrics.positives import Positives
from laplacian_metric.metrics.resampling import Interval, bootstrap_all
from laplacian_metric.trust.calibration import Logistic, discounted, fit_match, match_inputs, novelty_inputs
from laplacian_metric.trust.novelty import MOST_REFERENCE, Novelty

IMAGE, GALLERY = "image alone", "image and gallery"
GALLERY_DISTANCE, GAP, MATCH_RISK, TRUST = "gallery distance", "distance gap", "match risk", "Trust"
TRIVIAL_OF_GALLERY = (GALLERY_DISTANCE, "LOF", "margin", "vote", "kernel vote")
LABELLED = ("margin", "vote", "kernel vote", TRUST, "Trust match")  # these need the labels of the gallery
ALPHA = 0.05
DEPTH = 10


@dataclass(frozen=True, eq=False)
class Searched:
    """The images of a set, each searched for among the others.

    Attributes:
        gallery: of all of them.
        around: what surrounds each.
        right: (N,), whether the nearest other image has its class.
        classes: (N,), numbers of their classes.
    """

    gallery: LabelledGallery
    around: Surroundings
    right: NDArray[np.bool_]
    classes: NDArray[np.int64]

    @staticmethod
    def of(points: Tensor, labels: Tensor) -> Searched:
        """Return the neighbourhoods of unit embeddings (N, Z) with labels (N,).

        Example:
            >>> z = torch.nn.functional.normalize(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)))
            >>> Searched.of(z, torch.arange(30) % 3).right.shape
            (30,)
        """
        gallery = LabelledGallery.of(points.detach().cpu().float(), labels.tolist(), name="embeddings")
        around = gallery.around_items(np.arange(len(gallery)))
        assert gallery.codes is not None
        assert around.classes is not None
        return Searched(gallery, around, around.classes == gallery.codes, gallery.codes)

    @property
    def ranking(self) -> Ranking:
        """The first neighbours, for the evaluator."""
        counts = Positives.from_labels(torch.from_numpy(self.classes)).counts
        nearest = torch.from_numpy(self.around.nearest)
        distance = torch.from_numpy(self.around.z.nearest.copy())
        hits = torch.from_numpy(self.right)[:, None]
        return Ranking(hits, counts, nearest, distance, torch.zeros_like(nearest), len(self.gallery) - 1)

    def inputs(self, uncertainty: Floats | None) -> Floats:
        """Return what the match risk is made of: the image's uncertainty, its distance, and the gap to the tenth."""
        near, tenth = log_distance(self.around.z.nearest), log_distance(self.around.z.tenth)
        columns = [near, tenth - near] if uncertainty is None else [uncertainty, near, tenth - near]
        return np.stack(columns, axis=1)


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
            >>> z = torch.nn.functional.normalize(torch.randn(60, 3, generator=generator))
            >>> searched = Searched.of(z, torch.arange(60) % 3)
            >>> MatchRisk.fit(searched, torch.rand(60, generator=generator)).logistic.weights.shape
            (3,)
        """
        reference = np.sort(_plain(uncertainty))
        inputs = searched.inputs(normal_rank(reference, _plain(uncertainty)))
        signs = np.array([-1, -1, 1])
        return MatchRisk(reference, Logistic.fit(inputs, searched.right, signs))

    def __call__(self, searched: Searched, uncertainty: Tensor) -> Tensor:
        """Return the risk (N,) as a logit: the greater, the likelier a wrong answer."""
        inputs = searched.inputs(normal_rank(self.reference, _plain(uncertainty)))
        return torch.from_numpy(-self.logistic.logit(inputs))


@dataclass(frozen=True, eq=False)
class GalleryScores:
    """What is calibrated on validation images once: the match risk, and `Trust`'s match in the embedding alone."""

    risk: MatchRisk
    match: Logistic
    slope: tuple[float, float]

    @staticmethod
    def fit(searched: Searched, uncertainty: Tensor) -> GalleryScores:
        """Fit on validation images."""
        around = searched.around
        features = novelty_inputs(around.h, around.queries)
        novelty = Novelty.fit(features, ALPHA)
        soft = novelty.log_soft_known(novelty.parts(features).sum(axis=1))
        fitted = fit_match(match_inputs(around), soft, searched.right)
        return GalleryScores(MatchRisk.fit(searched, uncertainty), fitted.logistic, fitted.slope)

    def __call__(self, searched: Searched, uncertainty: Tensor) -> dict[str, Tensor]:
        """Return every score (N,) of image and gallery."""
        around, gallery = searched.around, searched.gallery
        free = trivial_scores((np.asarray(gallery.embeddings.rows), gallery.codes))
        scores = {name: free[name] for name in TRIVIAL_OF_GALLERY}
        scores[GAP] = torch.from_numpy(np.asarray(around.z.nearest - around.z.tenth))
        scores[MATCH_RISK] = self.risk(searched, uncertainty)
        inputs = novelty_inputs(around.h, around.queries)
        own = Novelty.fit(
            inputs[gallery.reference(MOST_REFERENCE)], ALPHA
        )  # what is known is measured on this gallery
        novelty = own.parts(inputs).sum(axis=1)
        logits = self.match.logit(match_inputs(around))
        a, b = self.slope
        scores |= {
            TRUST: torch.from_numpy(-(a + b * discounted(logits, own.log_soft_known(novelty)))),
            "Trust match": torch.from_numpy(-logits),
            "Trust novelty": torch.from_numpy(novelty),
        }
        return scores


def retrieval_numbers(searched: Searched, scores: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return recall@1 and, for every score, how well it detects the wrong answers: by the one evaluator."""
    evaluation = metrics.evaluate_ranking(
        searched.ranking,
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
