"""`Trust`: from what any search returned to a calibrated probability, a novelty and a verdict; numpy only."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.check import Floats, as_ids, as_labels, check, unit_rows
from laplacian_metric.core.gallery import Gallery
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust.answer import SMALLEST_WEIGHT, Answer, reasons, verdicts
from laplacian_metric.trust.calibration import Calibration, calibrate
from laplacian_metric.trust.fitting import CalibrationError, Flags, sigmoid, stratified
from laplacian_metric.trust.guarantee import Guarantee
from laplacian_metric.trust.head import Head
from laplacian_metric.trust.inputs import CLASS_INPUTS, GAP_INPUTS, LOF, RESPONSE
from laplacian_metric.trust.observed import ITEM, MEAN, VOTE, Observed, observe
from laplacian_metric.trust.relevance import right_of, target_of
from laplacian_metric.trust.view import GaussianView

NUMBERS_AT_ONCE = 1 << 25  # of the neighbours' vectors that are in memory together
MOST_LEFT_OUT = 2000  # items that a new gallery is measured on
VIEW_FOLDS, ITEMS_PER_DIMENSION = 10, 50


@dataclass(frozen=True, eq=False)
class Spaces:
    """What is searched, as one answer sees it.

    Attributes:
        gallery: of the embeddings z; None where the caller searches.
        features: of the features h, with the same ids; None where h = z.
        head: from h to z; None where h = z.
        view: of the features; None without one.
    """

    gallery: Gallery | None
    features: Gallery | None
    head: Head | None
    view: GaussianView | None

    @staticmethod
    def of_arrays(h: Any, labels: Any, head: Head | None, name: str, ids: Any = None) -> Spaces:
        """Return array galleries of features (N, H) and of the embeddings that the head makes of them."""
        features = ArrayGallery(h, labels, ids, name=name)
        if head is None:
            return Spaces(features, None, None, None)
        items = features.items
        if head.width != features.dim:
            raise ValueError(f"{name} has {features.dim} columns, the encoder's head takes {head.width}")
        embeddings = head.embed(items.vectors).astype(np.float32)
        listed = None if items.labels is None else items.labels.tolist()
        return Spaces(ArrayGallery(embeddings, listed, items.ids), features, head, None)

    @property
    def of_features(self) -> Gallery | None:
        """The gallery of the features."""
        return self.gallery if self.features is None else self.features

    def viewed(self) -> Spaces:
        """Return the same with the view computed anew."""
        return replace(self, view=None if self.of_features is None else GaussianView.of(self.of_features))

    def observe(
        self, h: NDArray[Any], answer: str = ITEM, scores: Mapping[str, Any] | None = None, own: Any = None
    ) -> Observed:
        """Search for queries and return what the responses say.

        Args:
            h: (Q, H), features.
            answer: which class is answered.
            scores: further inputs by name, each (Q,).
            own: (Q,), the ids of queries that are items, which are left out of their responses.
        """
        width = h.shape[1] + (0 if self.gallery is None else self.gallery.dim)
        at_once = max(1, NUMBERS_AT_ONCE // (RESPONSE * width))
        parts = []
        for start in range(0, len(h), at_once):
            some = slice(start, start + at_once)
            few = {name: np.asarray(values)[some] for name, values in (scores or {}).items()}
            parts.append(self._observe(h[some], answer, few, None if own is None else own[some]))
        return Observed.joined(parts)

    def _observe(self, h: NDArray[Any], answer: str, scores: Mapping[str, Any], own: Any) -> Observed:
        if self.gallery is None:
            raise ValueError(
                "this Trust was fitted on responses of a search: pass neighbours= to be answered"
            )
        units = unit_rows("h", h)
        queries = units if self.head is None else self.head.embed(h)
        k = RESPONSE + (own is not None)
        neighbours = self.gallery.search(queries, k)
        in_h = None if self.features is None else self.features.search(units, k)
        if own is not None:
            neighbours = neighbours.without(own)
            in_h = None if in_h is None else in_h.without(own)
        return observe(neighbours, in_h, units, self.view, answer=answer, scores=scores)


@dataclass(eq=False)
class Trust:
    """The calibrated probability that the nearest item is right, a novelty, and a verdict.

    `Trust.fit` makes one from a gallery and labelled validation queries, `Trust.fit_responses` from what a search
    returned. An answer sees one gallery and one view, also while another thread updates them.

    Attributes:
        spaces: what is searched, and the Gaussian view of it.
        calibration: what the validation queries said.
        target: "top1", "any@k" or "each@k".
        answered: "item", "vote" or "mean": by which class the answer is chosen.
        threshold: from which probability on an answer is accepted.
        inputs: name of an input -> its weight, or why it was left out.
        next_id: the number that an item gets which is added without an id; numbers are never used again.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> labels = np.arange(400) % 4
        >>> h = np.eye(4)[labels] + 0.4 * generator.standard_normal((400, 4))
        >>> trust = Trust.fit((h[:200], labels[:200]), (h[200:300], labels[200:300]))
        >>> answer = trust(h[300:])
        >>> bool((answer.labels == labels[300:])[answer.probability > 0.9].mean() > 0.85)
        True
    """

    spaces: Spaces
    calibration: Calibration
    target: str = "top1"
    answered: str = ITEM
    threshold: float = 0.5
    inputs: dict[str, float | str] = field(default_factory=dict)
    next_id: int = 0

    @staticmethod
    def fit(
        gallery: Any,
        queries: tuple[Any, Any],
        *,
        features: Gallery | None = None,
        encoder: Any = None,
        relevant: Any = None,
        expected_ood: float | None = 0.1,
        alpha: float = 0.05,
        target: str = "top1",
        answer: str = ITEM,
        scores: Mapping[str, Any] | None = None,
        signs: Mapping[str, int] | None = None,
    ) -> Trust:
        """Calibrate on validation queries, which nothing was trained on and which are not in the gallery.

        Args:
            gallery: a pair (h, labels) of arrays or tensors, (N, H) and (N,); labels of any hashable kind, or None with
                ``relevant``. Or a gallery that searches the embeddings z.
            queries: a pair (h, labels) of validation queries, (Q, H) and (Q,).
            features: a gallery with the same ids that searches the features h; without it z = h.
            encoder: what makes z of h: an encoder, a LAM, a linear layer or a pair (weight, bias).
            relevant: for each query an id, or a list or a set of ids, or a boolean for each item (Q, N).
            expected_ood: the share of OOD queries that will come; it moves the ranking and the verdict, while the
                probability stays calibrated for known queries. None: no discount.
            alpha: the share of known queries to flag as unlike anything seen.
            target: what the probability is of: "top1", that the nearest item is right; "any@5", that any of the first
                five is; "each@10", of "any@10" and of each of the first ten.
            answer: the class of the nearest "item"; or that of a "vote" or of the nearest class "mean", where
                validation queries are then answered rightly more often.
            scores: further inputs of the match by name, each (Q,).
            signs: the sign that their weights may have, 1 or -1.
        """
        head = Head.of(encoder)
        spaces = _spaces(gallery, features, head)
        query_h, query_labels = _pair("queries", queries)
        rows = check("query_h", query_h, "Q H", H=_width(spaces))
        spaces = spaces.viewed()
        observed = spaces.observe(rows, scores=scores)
        flags = right_of(observed.neighbours, query_labels, relevant, _ids(spaces.gallery))
        answered = ITEM
        if answer != ITEM:
            if answer not in (VOTE, MEAN) or target != "top1" or relevant is not None:
                raise ValueError(
                    f"answer is {answer!r}: 'item', or for labels and 'top1' 'vote' or 'mean', is needed"
                )
            other = spaces.observe(rows, answer, scores)
            right = _equal(other.labels, query_labels)
            if right.sum() > flags[:, 0].sum():
                answered, observed, flags = answer, other, right[:, None]
        return _fitted(spaces, observed, flags, target, answered, signs, expected_ood, alpha)

    @staticmethod
    def fit_responses(
        neighbours: Neighbours,
        right: Any,
        *,
        feature_neighbours: Neighbours | None = None,
        features: Any = None,
        view: GaussianView | None = None,
        scores: Mapping[str, Any] | None = None,
        signs: Mapping[str, int] | None = None,
        expected_ood: float | None = 0.1,
        alpha: float = 0.05,
        target: str = "top1",
    ) -> Trust:
        """Calibrate on what any search returned to validation queries, in the caller's order, a reranker's say.

        Args:
            neighbours: of Q queries; their first item is the answer.
            right: (Q,), whether the answer is right; (Q, k) for the target "each@k".
            feature_neighbours: what a second search, among features, returned.
            features: (Q, H), of the queries, where there is a view.
            view: `GaussianView.of` the gallery's features.
            scores: further inputs by name, each (Q,), such as the scores of BM25 or of a reranker.
            signs: the sign that their weights may have.
            expected_ood, alpha, target: as in `fit`.
        """
        flags = np.asarray(right)
        if flags.dtype != np.bool_ or flags.ndim not in (1, 2) or len(flags) != len(neighbours):
            raise TypeError(
                f"right has dtype {flags.dtype} and shape {flags.shape}: booleans are needed, one a query"
            )
        units = _units(features, len(flags))
        observed = observe(neighbours, feature_neighbours, units, view, scores=scores)
        spaces = Spaces(None, None, None, view)
        flags = flags[:, None] if flags.ndim == 1 else flags
        return _fitted(spaces, observed, flags, target, ITEM, signs, expected_ood, alpha)

    def __call__(
        self,
        h: Any = None,
        *,
        neighbours: Neighbours | None = None,
        feature_neighbours: Neighbours | None = None,
        features: Any = None,
        scores: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Answer queries with features h (Q, H), or what a search returned to them, as in `fit_responses`."""
        # One gallery and one view, whatever other threads do meanwhile.
        spaces, calibration = self.spaces, self.calibration
        if neighbours is not None:
            units = _units(features, len(neighbours))
            observed = observe(
                neighbours, feature_neighbours, units, spaces.view, answer=self.answered, scores=scores
            )
        else:
            rows = check("h", h, "Q H", H=_width(spaces))
            observed = spaces.observe(rows, self.answered, scores)
        return self._answer(observed, calibration)

    def items(self) -> Answer:
        """Answer every item as a query that is left out of its own response, in the order of the gallery.

        A view that is large for the gallery is fitted without the items that it answers, in ten folds.
        """
        if self.spaces.view is None:
            raise ValueError(
                "this Trust was fitted on responses of a search: pass neighbours= to be answered"
            )
        rows, _, observed = left_out(self.spaces, self._num_items())
        return self._answer(observed, self.calibration).at(np.argsort(rows))

    def with_gallery(self, h: Any, labels: Any = None, *, features: Gallery | None = None) -> Trust:
        """Return the same match over another gallery, whose classes may be others.

        Up to 2,000 items, each left out of its own response, say what is known there, and where enough of them have a
        wrong neighbour the last sigmoid and the calibration error are measured on them too. The items must not have
        trained the head. Without labels novelty and sigmoid stay, because documents are no queries.

        Args:
            h: features (N, H), or a gallery that searches the embeddings.
            labels: (N,), of features.
            features: with a gallery: the one of the features.
        """
        gallery = h if _searches(h) else (h, labels)
        spaces = _spaces(gallery, features, self.spaces.head).viewed()
        names = set(self.calibration.match.names)
        if not names & set(CLASS_INPUTS):
            note = "the calibration error was measured on another gallery"
            return replace(self, spaces=spaces, next_id=0, calibration=self.calibration.withdrawn(note))
        if spaces.view is None or len(spaces.view.names) < 2:
            raise ValueError(
                "labels are needed, of at least two classes: the calibration has inputs of classes"
            )
        _, sample, observed = left_out(spaces, MOST_LEFT_OUT)
        sizes = np.unique([spaces.view.numbers[label] for label in sample], return_counts=True)[1]
        items = 0 if spaces.gallery is None else len(spaces.gallery)
        right = (
            _equal(observed.labels, sample) if self.target == "top1" else np.zeros(len(sample), dtype=bool)
        )
        calibration = self.calibration.over(
            observed, right, class_size=float(np.median(sizes)) * items / len(sample), items=items
        )
        return replace(self, spaces=spaces, next_id=0, calibration=calibration)

    def update(self, *, add: tuple[Any, ...] | None = None, remove: Any = None) -> None:
        """Let items of array galleries go and come, in place; ids are stable, and the view stays until `refresh`.

        Args:
            add: features (N, H) and labels (N,) of further items, and their ids, by default the next numbers.
            remove: ids of items, or a boolean for each item in the order of the gallery.
        """
        if add is None and remove is None:
            raise ValueError("add or remove is needed: there is nothing to update")
        with self._lock:
            gallery, features = self.spaces.gallery, self.spaces.features
            if not _of_arrays(gallery) or not (features is None or _of_arrays(features)):
                raise TypeError(
                    "update is for galleries of arrays: add to other galleries themselves, then refresh()"
                )
            parts = [part for part in (gallery, features) if part is not None]
            changed = [(ArrayGallery.of_items(part.items, part.where), part is gallery) for part in parts]
            gone = None if remove is None else _ids_to_remove(gallery.items.ids, remove)
            new = None if add is None else _items_to_add(gallery, add, _width(self.spaces), self.next_id)
            for part, is_gallery in changed:
                if gone is not None and len(gone):
                    part.remove(gone)
                if new is not None:
                    ids, h, labels = new
                    head = self.spaces.head if is_gallery else None
                    part.add(ids, h if head is None else head.embed(h).astype(np.float32), labels)
            if new is not None and new[0].dtype.kind == "i":
                self.next_id = max(self.next_id, int(new[0].max()) + 1)
            self.spaces = replace(
                self.spaces, gallery=changed[0][0], features=changed[1][0] if len(changed) > 1 else None
            )
            self.calibration = self.calibration.withdrawn("the gallery was updated since the calibration")

    def refresh(self) -> None:
        """Compute the Gaussian view anew, after items came or went."""
        with self._lock:
            self.spaces = self.spaces.viewed()

    def expecting(self, ood: float | None) -> Trust:
        """Return the same calibration for queries of which another share is expected to be OOD; None: no discount.

        It moves the ranking and the verdict. The probability stays calibrated for known queries.

        Example:
            >>> generator = np.random.default_rng(0)
            >>> labels = np.arange(400) % 4
            >>> h = np.eye(4)[labels] + 0.4 * generator.standard_normal((400, 4))
            >>> trust = Trust.fit((h[:200], labels[:200]), (h[200:], labels[200:]))
            >>> trust.expecting(0.3).calibration.expected_ood
            0.3
        """
        return replace(self, calibration=self.calibration.expecting(ood, self._num_items()))

    def accepting(self, threshold: float | Guarantee) -> Trust:
        """Return the same Trust that accepts from another probability on, or as a `Guarantee` promises."""
        value = threshold.threshold if isinstance(threshold, Guarantee) else float(threshold)
        if not value > 0:
            raise ValueError(f"threshold is {threshold}: a probability above 0, or a Guarantee, is needed")
        return replace(self, threshold=value)

    def guarantee(
        self, queries: tuple[Any, Any], *, error: float = 0.1, confidence: float = 0.9
    ) -> Guarantee:
        """Return a threshold on the probability, among the answers above which at most ``error`` are wrong.

        Args:
            queries: features (Q, H) and labels (Q,) of queries that nothing was fitted on.
            error: the share of wrong answers that is allowed.
            confidence: the probability, over draws of these queries, that the promise holds.
        """
        h, labels = _pair("queries", queries)
        answer = self(h)
        if answer.labels is None:
            raise ValueError(
                "labels are needed: use Guarantee.fit with probabilities and flags of right answers"
            )
        return Guarantee.fit(
            answer.probability, _equal(answer.labels, labels), error=error, confidence=confidence
        )

    @property
    def calibration_error(self) -> CalibrationError | None:
        """The calibration error to expect of known queries; None, with a `note`, after the gallery has changed."""
        return self.calibration.error

    @property
    def note(self) -> str:
        """Why there is no calibration error."""
        return self.calibration.note

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write everything into a folder; an array gallery with it, any other by its address."""
        from laplacian_metric.trust.storage import save

        save(self, folder, overwrite=overwrite)

    @staticmethod
    def load(
        folder: str | os.PathLike[str], *, gallery: Gallery | None = None, features: Gallery | None = None
    ) -> Trust:
        """Read what `save` wrote; pass galleries whose addresses need credentials, which are not saved."""
        from laplacian_metric.trust.storage import load

        return load(folder, gallery, features)

    def __repr__(self) -> str:
        error = self.calibration.error or self.note
        return f"Trust({self._num_items()} items, {self.target}, calibration error {error})"

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        gallery: object = self.spaces.gallery
        if isinstance(gallery, ArrayGallery) and len(gallery) and gallery.items.ids.dtype.kind == "i":
            self.next_id = max(self.next_id, int(gallery.items.ids.max()) + 1)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and copied: all but the lock."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def _num_items(self) -> int:
        return 0 if self.spaces.gallery is None else len(self.spaces.gallery)

    def _answer(self, observed: Observed, calibration: Calibration) -> Answer:
        missing = [name for name in calibration.match.names if name not in observed.match]
        missing += [name for name in calibration.novelty.tails if name not in observed.novelty]
        if missing:
            raise ValueError(
                f"these responses lack {missing[0]!r}, which was calibrated with: search as for the fit"
            )
        inputs = np.column_stack([observed.match[name] for name in calibration.match.names])
        logits = calibration.match.logit(inputs)
        tails = calibration.novelty.parts(observed.novelty)
        novelty = tails.sum(axis=1)
        known = calibration.novelty.known(novelty)
        probability = calibration.probability(logits, novelty)
        verdict = verdicts(probability, known, self.threshold)
        weighty = np.flatnonzero(np.abs(calibration.match.weights) > SMALLEST_WEIGHT)
        names = [calibration.match.names[column] for column in weighty]
        contributions = calibration.match.contributions(inputs)[:, weighty]
        because = reasons(verdict, contributions, names, tails, list(calibration.novelty.tails))
        return Answer(
            probability,
            sigmoid(logits),
            known,
            novelty,
            observed.nearest,
            observed.labels,
            observed.distance,
            verdict,
            because,
            None if calibration.each is None else calibration.each(observed.neighbours),
            None if self.target == "top1" else 1 - probability,
            observed.neighbours,
        )


def _fitted(
    spaces: Spaces,
    observed: Observed,
    flags: Flags,
    target: str,
    answered: str,
    signs: Mapping[str, int] | None,
    expected_ood: float | None,
    alpha: float,
) -> Trust:
    """Return the Trust of validation queries whose neighbours are right where the flags (Q, k) say so."""
    kind, k = target_of(target)
    if kind == "each" and flags.shape[1] < k:
        raise ValueError(
            f"right has {flags.shape[1]} columns: the target {target!r} needs one for each of {k} items"
        )
    each = flags[:, :k] if kind == "each" else None
    calibration = calibrate(
        observed,
        np.asarray(flags[:, :k].any(axis=1)),
        signs=signs,
        expected_ood=expected_ood,
        alpha=alpha,
        items=0 if spaces.gallery is None else len(spaces.gallery),
        each_right=each,
    )
    inputs: dict[str, float | str] = dict(
        zip(calibration.match.names, calibration.match.weights.tolist(), strict=True)
    )
    for name in CLASS_INPUTS if observed.labels is not None else GAP_INPUTS:
        inputs.setdefault(name, "left out: there is no view of the gallery, or no vectors are returned")
    if LOF not in calibration.novelty.tails:
        inputs[LOF] = "left out: no vectors are returned"
    return Trust(spaces, calibration, target, answered, inputs=inputs)


def left_out(spaces: Spaces, most: int) -> tuple[NDArray[np.int64], list[Any], Observed]:
    """Return the rows of up to so many items, their labels, and what their responses say without themselves."""
    of_features = spaces.of_features
    assert of_features is not None
    assert spaces.view is not None
    num, r = len(of_features), spaces.view.basis.shape[1]
    everything = isinstance(of_features, ArrayGallery) or num < ITEMS_PER_DIMENSION * r
    ids, vectors, labels = of_features.sample(num if everything else most)
    listed = [] if labels is None else labels.tolist()
    rows = np.unique(np.linspace(0, len(ids) - 1, min(most, len(ids))).round().astype(np.int64))
    if num >= ITEMS_PER_DIMENSION * r:
        return rows, [listed[row] for row in rows], spaces.observe(vectors[rows], own=ids[rows])
    codes = np.array([spaces.view.numbers[label] for label in listed])
    fold = (stratified(codes, VIEW_FOLDS) + codes) % VIEW_FOLDS
    parts, order = [], []
    for number in range(VIEW_FOLDS):
        some = rows[fold[rows] == number]
        if len(some):
            others = np.flatnonzero(fold != number)
            view = GaussianView.of(vectors[others], [listed[row] for row in others])
            parts.append(replace(spaces, view=view).observe(vectors[some], own=ids[some]))
            order.append(some)
    rows = np.concatenate(order)
    return rows, [listed[row] for row in rows], Observed.joined(parts)


def _of_arrays(gallery: object) -> TypeGuard[ArrayGallery]:
    """Return whether a gallery is one of arrays, and not an index that is kept beside them."""
    return type(gallery) is ArrayGallery


def _searches(gallery: Any) -> bool:
    return hasattr(gallery, "search") and hasattr(gallery, "sample")


def _spaces(gallery: Any, features: Gallery | None, head: Head | None) -> Spaces:
    """Return the galleries of both spaces."""
    if not _searches(gallery):
        if features is not None:
            raise ValueError("features is for a gallery that searches: arrays are the features already")
        h, labels = _pair("gallery", gallery)
        return Spaces.of_arrays(h, labels, head, "gallery_h")
    if (features is None) != (head is None):
        raise ValueError(
            "features and encoder belong together: pass the gallery of the features and what embeds them"
        )
    if features is not None and head is not None and (features.dim, gallery.dim) != head.weight.shape[::-1]:
        raise ValueError(
            f"encoder maps {head.width} features to {len(head.weight)} dimensions, the galleries differ"
        )
    return Spaces(gallery, features, head, None)


def _width(spaces: Spaces) -> int:
    """Return the number of features of a query."""
    if spaces.of_features is None:
        raise ValueError("this Trust was fitted on responses of a search: pass neighbours= to be answered")
    return spaces.of_features.dim


def _ids(gallery: Gallery | None) -> NDArray[Any] | None:
    return gallery.items.ids if isinstance(gallery, ArrayGallery) else None


def _units(features: Any, num: int) -> Floats | None:
    """Return queries' features (Q, H) scaled to unit length."""
    return None if features is None else unit_rows("features", check("features", features, "Q H", Q=num))


def _pair(name: str, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"{name} is a {type(pair).__name__}: pass a pair of features (N, H) and labels (N,)")
    return pair[0], pair[1]


def _equal(answered: NDArray[Any] | None, labels: Any) -> Flags:
    """Return whether the answered labels (Q,) are those of the queries."""
    assert answered is not None
    queries = as_labels("query_labels", labels, len(answered))
    return np.array([a == b for a, b in zip(answered.tolist(), queries, strict=True)], dtype=bool)


def _ids_to_remove(ids: NDArray[Any], remove: Any) -> NDArray[Any]:
    """Return the ids of items to remove, which were given as ids or as a mask."""
    mask = np.asarray(remove) if not isinstance(remove, (set, frozenset)) else np.asarray(list(remove))
    if mask.dtype == np.bool_:
        if mask.shape != ids.shape:
            raise ValueError(
                f"remove has shape {mask.shape}: one boolean for each of the {len(ids)} items is needed"
            )
        chosen: NDArray[Any] = ids[mask]
        return chosen
    return as_ids("remove", mask.tolist())


def _items_to_add(
    gallery: ArrayGallery, add: tuple[Any, ...], width: int, next_id: int
) -> tuple[Any, Any, Any]:
    """Return ids, features and labels of further items."""
    if not isinstance(add, (tuple, list)) or len(add) not in (2, 3):
        raise TypeError("add needs features (N, H) and labels (N,), and may have ids (N,)")
    rows = check("add", add[0], "N H", H=width)
    if len(add) == 3:
        return as_ids("add", add[2]), rows, add[1]
    if gallery.items.ids.dtype.kind != "i":
        raise ValueError("add needs ids, as the third of its parts: those of the gallery are texts")
    return np.arange(next_id, next_id + len(rows)), rows, add[1]
