"""How unlike everything seen a query is: three tails of its features, by a reference of known queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from laplacian_metric.core.labelled_gallery import LabelledGallery
from laplacian_metric.core.second_moment import SecondMoment
from laplacian_metric.core.surroundings import Place, log_distance
from laplacian_metric.core.vector_search import Floats, Rows, Vectors
from laplacian_metric.trust.calibration import Logistic, Tail, beyond
from laplacian_metric.trust.inputs import UNUSUAL_INPUTS, held_out_distances, unusual_inputs

SOFT_SHARE = 0.02  # of the reference, beyond which the probability falls by the novelty
MOST_REFERENCE = 2000  # items of a gallery that serve as known queries


@dataclass(frozen=True, eq=False)
class Novelty:
    """What counts as known, and how far from it a query is.

    Attributes:
        moment: the second moment of known features.
        from_training: whether the moment is of training features, which another gallery does not change.
        unusual: the logistic that recognises features whose coordinates were shuffled among known queries.
        tails: of its score, of log d_1 in h and of the LOF in h among known queries.
        threshold, excess: of novelty: the quantile beyond which a query is not quite known, and the mean excess.
        soft_threshold, soft_excess: the same for the 98 % quantile.
    """

    moment: SecondMoment
    from_training: bool
    unusual: Logistic
    tails: tuple[Tail, Tail, Tail]
    threshold: float
    excess: float
    soft_threshold: float
    soft_excess: float

    @staticmethod
    def fit(
        gallery: LabelledGallery,
        known: Vectors,
        place: Place,
        alpha: float,
        *,
        own: Rows | None = None,
        training_h: Any = None,
        unusual: Logistic | None = None,
        moment: SecondMoment | None = None,
        generator: np.random.Generator | None = None,
    ) -> Novelty:
        """Fit on known queries alone.

        Args:
            gallery: what they are compared with.
            known: their features.
            place: what surrounds these in the gallery.
            alpha: the share of known queries that may count as not quite known.
            own: their rows where they are items.
            training_h: features for the second moment; by default those of the gallery.
            unusual: a logistic that was fitted before.
            moment: a second moment of training features that was fitted before.
            generator: shuffles; by default with seed 0.
        """
        from_training = training_h is not None or moment is not None
        if moment is None:
            rows = gallery.features.rows if training_h is None else Vectors.of("training_h", training_h).rows
            if rows.shape[1] != gallery.features.rows.shape[1]:
                raise ValueError(
                    f"training_h has {rows.shape[1]} columns, the gallery has {gallery.features.rows.shape[1]}"
                )
            moment = SecondMoment.of(rows)
        of_items = own is not None and not from_training
        distances = held_out_distances(np.asarray(known.rows)) if of_items else moment.distances(known.rows)
        inputs = unusual_inputs(place, distances, known.norms)
        if unusual is None:
            inputs_shuffled = _shuffled_inputs(gallery, known, moment, generator or np.random.default_rng(0))
            both = np.concatenate([inputs, inputs_shuffled])
            target = np.arange(len(both)) >= len(inputs)
            unusual = Logistic.fit(both, target, np.ones(len(UNUSUAL_INPUTS)))
        values = _values(unusual, inputs, place)
        tails = (Tail.fit(values[:, 0]), Tail.fit(values[:, 1]), Tail.fit(values[:, 2]))
        total = sum(tail(column) for tail, column in zip(tails, values.T, strict=True))
        assert isinstance(total, np.ndarray)
        return Novelty(
            moment, from_training, unusual, tails, *beyond(total, alpha), *beyond(total, SOFT_SHARE)
        )

    def parts(self, place: Place, features: Vectors) -> Floats:
        """Return the three tails of queries (Q, 3); their sum is the novelty."""
        inputs = unusual_inputs(place, self.moment.distances(features.rows), features.norms)
        values = _values(self.unusual, inputs, place)
        return np.stack([tail(column) for tail, column in zip(self.tails, values.T, strict=True)], axis=1)

    def known(self, novelty: Floats) -> Floats:
        """Return 1 for whatever is no more novel than 1 - alpha of known queries, falling to 0 beyond, (Q,)."""
        return np.exp(-np.maximum(0, novelty - self.threshold) / self.excess)

    def log_soft_known(self, novelty: Floats) -> Floats:
        """Return the logarithm of 1/(1 + exp((novelty - q2)/e2)), (Q,)."""
        return -np.logaddexp(0, (novelty - self.soft_threshold) / self.soft_excess)


def reference_items(gallery: LabelledGallery, most: int = MOST_REFERENCE) -> Rows:
    """Return the rows of at most so many items, evenly spaced: they serve as known queries, each without itself."""
    number = min(most, len(gallery))
    return np.unique(np.linspace(0, len(gallery) - 1, number).round().astype(np.int64))


def _values(unusual: Logistic, inputs: Floats, place: Place) -> Floats:
    return np.stack([unusual.logit(inputs), log_distance(place.nearest), place.outlier_factor], axis=1)


def _shuffled_inputs(
    gallery: LabelledGallery, known: Vectors, moment: SecondMoment, generator: np.random.Generator
) -> Floats:
    """Return the inputs of features whose coordinates come from different known queries each."""
    rows = generator.permuted(np.asarray(known.rows, dtype=np.float32), axis=0)
    shuffled = Vectors.of("the shuffled features", rows[np.any(rows != 0, axis=1)])
    place = gallery.place_of_features(shuffled)
    return unusual_inputs(place, moment.distances(shuffled.rows), shuffled.norms)
