"""`Trust`: the probability that the nearest item is right, and whether the query is like anything seen."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.labelled_gallery import Head, LabelledGallery
from laplacian_metric.core.neighbours import Neighbours, Surroundings
from laplacian_metric.core.vector_search import Floats, Vectors
from laplacian_metric.trust.answer import Answer, loudest, reasons
from laplacian_metric.trust.calibration import (
    CalibrationError,
    Logistic,
    discounted,
    fit_match,
    match_inputs,
    match_signs,
    novelty_inputs,
    sigmoid,
)
from laplacian_metric.trust.novelty import MOST_REFERENCE, Novelty, moment_of
from laplacian_metric.trust.risk import FeatureRisk
from laplacian_metric.trust.searched import SearchedGallery

LEAST_QUERIES = 50
SAME = 1e-6  # 1 - cosine of rows that are one and the same but for rounding
SAME_SHARE = 0.1  # of validation queries that may be in the gallery by chance, as duplicates in the data
QUERIES_AT_ONCE = 4096


@dataclass(eq=False)
class Trust:
    """What says how far the nearest item of a query can be trusted, over one gallery.

    Attributes:
        gallery: what is searched: arrays, or a collection in an engine.
        head: of the encoder, None where the features are the embeddings.
        alpha: the share of known queries that may count as not quite known.
        novelty: what counts as known.
        match: the logistic of the match inputs; None without labels.
        slope: a and b of the last sigmoid.
        calibration_error: how far the probability is expected to be off, with an interval; None without labels.
        risk: a risk head whose prediction is a further input of the match, or None.
        use_labels: whether the labels of a gallery are inputs of the match; without, galleries need none.
        known_slope: a and b of the sigmoid for queries that are known; None in folders of earlier versions.
        expected_ood: the share of OOD queries that the probability expects; None where none is said.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> labels = np.arange(500) % 5
        >>> h = np.eye(5)[labels] + 0.35 * generator.standard_normal((500, 5))
        >>> trust = Trust.fit((h[:300], labels[:300]), (h[300:], labels[300:]))
        >>> answer = trust(np.array([[2.0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [-1, -1, -1, -1, -1]]))
        >>> answer.reason.tolist()
        ['trusted', 'no reliable match', 'unlike anything seen']
        >>> bool(answer.probability[0] > 0.9), bool(answer.probability[2] < 0.2)
        (True, True)
    """

    gallery: SearchedGallery
    head: Head | None
    alpha: float
    novelty: Novelty
    match: Logistic | None = None
    slope: tuple[float, float] = (0.0, 1.0)
    calibration_error: CalibrationError | None = None
    risk: FeatureRisk | None = None
    use_labels: bool = True
    known_slope: tuple[float, float] | None = None
    expected_ood: float | None = None

    @staticmethod
    def fit(
        gallery: tuple[Any, Any] | SearchedGallery,
        queries: tuple[Any, Any] | None,
        *,
        encoder: Any = None,
        lam: Any = None,
        alpha: float = 0.05,
        training_h: Any = None,
        gallery_trained_head: bool | None = None,
        risk: Any = None,
        use_labels: bool = True,
        expected_ood: float | None = None,
    ) -> Trust:
        """Calibrate on queries whose classes are known and that nothing was trained on.

        Args:
            gallery: features h (N, H) and labels (N,) of what is searched; numpy arrays, mapped ones too, which stay in
                their files, or torch tensors. They are not copied. Labels may be of any hashable kind, or None: then
                the answers say what is known, and no probability. Or what an engine searches, an
                `laplacian_metric.retrieval.engines.EngineGallery`.
            queries: features and labels of validation queries, about 300 of the kind that will come; None calibrates
                on the items of the gallery, each searched without itself.
            encoder: whose head makes embeddings of features; None where the rows are the embeddings.
            lam: a posterior in place of its encoder.
            alpha: the share of known queries that may count as not quite known.
            training_h: features that the encoder was trained on. With them the Mahalanobis distance by their second
                moment counts to the novelty, too; it hardly changes anything where the gallery is large.
            gallery_trained_head: without queries, whether the head was trained on the gallery. It has to be answered:
                items that trained the head are nearer to each other than new queries will be.
            risk: a risk head for these features, such as `laplacian_metric.methods.risk.load` returns: what it predicts
                is a further input of the match.
            use_labels: False leaves votes and margins out of the inputs, so that the calibration, which needs labels,
                holds for galleries without labels too; see `with_gallery`.
            expected_ood: the share of OOD queries among those that will come, see `expecting`.
        """
        if not 0 < alpha < 0.5:
            raise ValueError(f"alpha is {alpha}: the share of known queries to flag, such as 0.05, is needed")
        if encoder is not None and lam is not None:
            raise ValueError("encoder and lam are both given: one of them is enough")
        head = Head.of(encoder if encoder is not None else lam)
        items = _searched("gallery", gallery, head)
        moment = moment_of(training_h, items.width)
        if queries is None:
            _check_may_leave_one_out(items, gallery_trained_head)
            own = items.reference(MOST_REFERENCE)
            around = items.around_items(own)
            classes = items.classes_at(own)
        else:
            query_h, labels = _pair("queries", queries)
            query_features, points = _vectors("query_h", query_h, items, head)
            around = items.surroundings(query_features, points)
            _check_not_items(around)
            classes = _query_classes(items, labels, len(query_features)) if items.labelled else None
        novelty = Novelty.fit(novelty_inputs(around.h, around.queries, moment), alpha, moment)
        predicted = None if risk is None else FeatureRisk.of(risk)
        if predicted is not None:
            predicted.check_width(items.width)
        if classes is None and (predicted is not None or not use_labels):
            raise ValueError(
                "risk and use_labels=False are of the match, which is calibrated with labels: pass a gallery and "
                "queries with labels; afterwards with_gallery takes a gallery without"
            )
        trust = Trust(items, head, alpha, novelty, risk=predicted, use_labels=use_labels)
        if classes is not None and around.classes is not None:
            right = around.classes == classes
            soft = novelty.log_soft_known(trust._novelty_parts(around).sum(axis=1))
            trust.match, trust.slope, trust.known_slope, trust.calibration_error = fit_match(
                trust._match_inputs(around), soft, right, trust._match_signs()
            )
        return trust if expected_ood is None else trust.expecting(expected_ood)

    def __call__(
        self, h: Any, *, neighbours: Neighbours | None = None, feature_neighbours: Neighbours | None = None
    ) -> Answer:
        """Answer queries with features h (Q, H).

        Args:
            h: of the queries, numpy or torch.
            neighbours: the nearest items in the embedding, at least 50 of each query, where an engine has found them;
                their ids are rows of the gallery. Without them every item is looked at.
            feature_neighbours: likewise the nearest in the features, at least 10.
        """
        features, embeddings = _vectors("h", h, self.gallery, self.head)
        parts = []
        for start in range(0, len(features), QUERIES_AT_ONCE):
            some = slice(start, start + QUERIES_AT_ONCE)
            few = Vectors(features.rows[some], features.norms[some])
            points = few if self.head is None else Vectors(embeddings.rows[some], embeddings.norms[some])
            around = self.gallery.surroundings(
                few,
                points,
                neighbours=None if neighbours is None else neighbours[some],
                feature_neighbours=None if feature_neighbours is None else feature_neighbours[some],
            )
            parts.append(self._answer(around))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def items(self, rows: NDArray[Any] | None = None) -> Answer:
        """Answer items of the gallery itself, each searched for among the others: by default all of them.

        Example:
            >>> generator = np.random.default_rng(0)
            >>> labels = np.arange(400) % 4
            >>> h = np.eye(4)[labels] + 0.4 * generator.standard_normal((400, 4))
            >>> trust = Trust.fit((h[:200], labels[:200]), (h[200:], labels[200:]))
            >>> answer = trust.with_gallery(h[200:], labels[200:]).items()
            >>> len(answer), bool((answer.nearest != np.arange(200)).all())
            (200, True)
        """
        rows = self.gallery.reference() if rows is None else rows
        parts = np.array_split(rows, max(1, -(-len(rows) // QUERIES_AT_ONCE)))
        return _joined([self._answer(self.gallery.around_items(some)) for some in parts])

    def with_gallery(self, h: Any, labels: Any = None) -> Trust:
        """Return the same calibration over another gallery, whose classes may be others.

        What counts as known is measured anew on the items, each compared with the others; the match's weights stay.
        Labels may be left out where the calibration has ``use_labels=False``.

        Args:
            h: features (N, H), or what an engine searches, an `laplacian_metric.retrieval.engines.EngineGallery`.
            labels: (N,), of features.
        """
        items = _searched("h", h if _searches(h) else (h, labels), self.head)
        if self.use_labels and items.labelled != self.gallery.labelled:
            raise ValueError(
                "labels: a gallery with labels is needed where the calibration has them, else one without"
            )
        around = items.around_items(items.reference(MOST_REFERENCE))
        moment = self.novelty.moment
        novelty = Novelty.fit(novelty_inputs(around.h, around.queries, moment), self.alpha, moment)
        return replace(self, gallery=items, novelty=novelty)

    def expecting(self, ood: float | None) -> Trust:
        """Return the same calibration for queries of which a known share is out-of-distribution (OOD).

        The probability is that of a match among known queries times the probability of being known, by Bayes' rule
        with this share and the novelty. It is meant to be right for that mixture, and thus too low for queries that
        are all known; `calibration_error` is about the form without.

        Args:
            ood: above 0 and below 1; None: no share is known, and only queries more novel than 98 % of the validation
                queries become less probable.

        Example:
            >>> generator = np.random.default_rng(0)
            >>> labels = np.arange(400) % 4
            >>> h = np.eye(4)[labels] + 0.4 * generator.standard_normal((400, 4))
            >>> trust = Trust.fit((h[:200], labels[:200]), (h[200:], labels[200:]))
            >>> bool((trust.expecting(0.5)(h).probability < trust.expecting(0.1)(h).probability).all())
            True
        """
        if ood is not None and not 0 < ood < 1:
            raise ValueError(
                f"the expected share of OOD queries is {ood}: a number above 0 and below 1 is needed"
            )
        if ood is not None and (self.match is None or self.known_slope is None or self.novelty.ratio is None):
            raise ValueError(
                "an expected share of OOD queries changes the probability, which this Trust does not have: fit it with "
                "labels"
                if self.match is None
                else "this Trust was saved by an earlier version, without what an expected share of OOD queries needs: "
                "fit it again"
            )
        return replace(self, expected_ood=ood)

    def update(self, *, add: tuple[Any, Any] | None = None, remove: Any = None) -> None:
        """Let items go and come, in place; the calibration stays.

        Args:
            add: features and labels of further items, which get the last rows.
            remove: rows of items; those after them move up.
        """
        if add is None and remove is None:
            raise ValueError("add or remove is needed: there is nothing to update")
        h, labels = (None, None) if add is None else _pair("add", add)
        self.gallery = self.gallery.updated(h, labels, remove, self.head)

    def store_scales(self) -> None:
        """Compute the local scales of all items now, so that no query has to: one search for every item."""
        self.gallery.store_scales()

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write everything, the gallery too, into a folder that is there whole or not at all."""
        from laplacian_metric.trust.storage import save

        save(self, folder, overwrite=overwrite)

    @staticmethod
    def load(folder: str | os.PathLike[str], *, mmap: bool = True) -> Trust:
        """Read and check what `save` wrote; with ``mmap`` the gallery's vectors stay in their files."""
        from laplacian_metric.trust.storage import load

        return load(folder, mmap=mmap)

    def __repr__(self) -> str:
        labels = "with" if self.gallery.labelled else "without"
        return f"Trust({len(self.gallery)} items {labels} labels, calibration error {self.calibration_error})"

    def _novelty_parts(self, around: Surroundings) -> Floats:
        return self.novelty.parts(novelty_inputs(around.h, around.queries, self.novelty.moment))

    def _match_inputs(self, around: Surroundings) -> Floats:
        risk = None if self.risk is None else self.risk(around.queries.rows)
        return match_inputs(around, labelled=self.use_labels, risk=risk)

    def _match_signs(self) -> dict[str, int]:
        return match_signs(labelled=self.use_labels, risk=self.risk is not None)

    def _discounted(self, logits: Floats, novelty: Floats) -> Floats:
        """Return the logits (Q,) of the probability from those of the match."""
        if self.expected_ood is None or self.known_slope is None:
            a, b = self.slope
            return a + b * discounted(logits, self.novelty.log_soft_known(novelty))
        a, b = self.known_slope
        return discounted(a + b * logits, self.novelty.log_known(novelty, self.expected_ood))

    def _answer(self, around: Surroundings) -> Answer:
        parts = self._novelty_parts(around)
        novelty = parts.sum(axis=1)
        known = self.novelty.known(novelty)
        probability = match = match_parts = labels = None
        if self.match is not None:
            inputs = self._match_inputs(around)
            match_parts, logits = self.match.contributions(inputs), self.match.logit(inputs)
            match = sigmoid(logits)
            probability = sigmoid(self._discounted(logits, novelty))
        if around.classes is not None:
            labels = self.gallery.labels_of(around.classes)
        reason = reasons(known, match)
        because = loudest(reason, parts, match_parts, self._match_signs())
        distance = around.z.nearest.copy()
        return Answer(
            around.nearest,
            distance,
            known,
            novelty,
            reason,
            because,
            parts,
            match_parts,
            labels,
            probability,
            match,
        )


def _pair(name: str, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"{name} is a {type(pair).__name__}: pass a pair of features (N, H) and labels (N,)")
    return pair[0], pair[1]


def _searches(gallery: Any) -> bool:
    return hasattr(gallery, "surroundings")


def _searched(name: str, gallery: Any, head: Head | None) -> SearchedGallery:
    """Return what is searched: an engine's items as they are, or features and labels as a gallery."""
    if _searches(gallery):
        items: SearchedGallery = gallery
        return items
    h, labels = _pair(name, gallery)
    return LabelledGallery.of(h, labels, head, name="gallery_h" if name == "gallery" else name)


def _vectors(name: str, h: Any, items: SearchedGallery, head: Head | None) -> tuple[Vectors, Vectors]:
    """Return the features and the embeddings of queries."""
    features = Vectors.of(name, h)
    if features.rows.shape[1] != items.width:
        raise ValueError(f"{name} has {features.rows.shape[1]} columns, the gallery has {items.width}")
    return features, features if head is None else head.embed(features.rows)


def _query_classes(items: SearchedGallery, labels: Any, num: int) -> NDArray[Any]:
    if labels is None:
        raise ValueError(
            "queries have no labels: pass them, so that right and wrong answers can be distinguished"
        )
    classes, missing = items.classes_of(labels, num)
    if missing:
        warnings.warn(
            f"{missing} of {num} validation queries are of classes that the gallery does not have: they count as wrong "
            "answers and as known queries; leave them out where such queries are not usual",
            stacklevel=3,
        )
    return classes


def _check_may_leave_one_out(items: SearchedGallery, gallery_trained_head: bool | None) -> None:
    if gallery_trained_head is None:
        raise ValueError(
            "without validation queries, gallery_trained_head= has to be answered: was the encoder's head trained on "
            "the items of the gallery? Pass False where it was not, or validation queries"
        )
    if gallery_trained_head:
        raise ValueError(
            "the gallery trained the head, whose items are nearer to each other than new queries will be: a "
            "calibration on them would trust too much. Pass queries that nothing was trained on"
        )
    if len(items) < LEAST_QUERIES:
        raise ValueError(
            f"the gallery has {len(items)} items, at least {LEAST_QUERIES} are needed to calibrate on"
        )


def _check_not_items(around: Surroundings) -> None:
    """Refuse validation queries that are in the gallery, where each of them finds itself."""
    num = len(around.queries)
    same = int((around.h.nearest < SAME).sum())
    if same > SAME_SHARE * num:
        raise ValueError(
            f"{same} of {num} validation queries are rows of the gallery, where they find themselves: a calibration "
            "on them would trust too much. Take queries that are not in the gallery"
        )
    if num < LEAST_QUERIES:
        raise ValueError(
            f"there are {num} validation queries, at least {LEAST_QUERIES} are needed: {LEAST_QUERIES - num} are "
            "missing"
        )


def _joined(parts: list[Answer]) -> Answer:
    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            return None
        return list(chain(*values)) if isinstance(values[0], list) else np.concatenate(values)

    return Answer(**{name: joined(name) for name in Answer.__dataclass_fields__})
