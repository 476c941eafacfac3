"""What `Trust` answers: for each query the nearest item, how far it can be trusted, and why not."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.vector_search import Floats
from laplacian_metric.trust.calibration import MATCH_INPUTS, NOVELTY_INPUTS

TRUSTED, NOVEL, UNRELIABLE = "trusted", "unlike anything seen", "no reliable match"
KNOWN = "known"  # all that can be said over a gallery without labels


@dataclass(frozen=True, eq=False)
class Answer:
    """Answers to Q queries.

    Attributes:
        nearest: (Q,), the row of the nearest item in the gallery, or its id where an engine searches.
        distance: (Q,), 1 - cosine to it in the embedding.
        known: (Q,), 1 for whatever is no more novel than most known queries, falling to 0 beyond.
        novelty: (Q,), by which out-of-distribution queries are ranked: the greater, the less like anything seen.
        reason: (Q,), "trusted", "unlike anything seen" or "no reliable match"; over a gallery without labels
            "known" in place of the last and the first.
        because: (Q,), the input that spoke loudest for the reason.
        novelty_parts: (Q, 3 or 4), what each of `NOVELTY_INPUTS` adds to the novelty.
        match_parts: (Q, 8), what each of `MATCH_INPUTS`, or of the inputs that were chosen, adds to the logit of the
            match, beside the mean validation query; None without labels.
        labels: the labels of the nearest items; None without labels.
    """

    nearest: NDArray[Any]
    distance: Floats
    known: Floats
    novelty: Floats
    reason: NDArray[Any]
    because: NDArray[Any]
    novelty_parts: Floats
    match_parts: Floats | None = None
    labels: list[Hashable] | None = None
    _probability: Floats | None = None
    _match: Floats | None = None

    def __len__(self) -> int:
        return len(self.nearest)

    @property
    def probability(self) -> Floats:
        """The calibrated probability (Q,) that the nearest item is of the query's class, OOD queries included."""
        return _labelled(self._probability)

    @property
    def match(self) -> Floats:
        """The probability (Q,) that the nearest item is of the query's class, if the query is of a known kind."""
        return _labelled(self._match)


def _labelled(values: Floats | None) -> Floats:
    if values is None:
        raise ValueError(
            "without labels of the gallery there is no probability of a match: use answer.known, rank by "
            "answer.novelty, or fit with gallery labels"
        )
    return values


def reasons(known: Floats, match: Floats | None) -> NDArray[Any]:
    """Return the reason of each query; being unlike anything seen comes first.

    Example:
        >>> reasons(np.array([1.0, 0.3, 1.0]), np.array([0.9, 0.9, 0.2])).tolist()
        ['trusted', 'unlike anything seen', 'no reliable match']
    """
    otherwise = KNOWN if match is None else np.where(match < 0.5, UNRELIABLE, TRUSTED)
    named: NDArray[Any] = np.where(known < 1, NOVEL, otherwise)
    return named


def loudest(
    reason: NDArray[Any],
    novelty_parts: Floats,
    match_parts: Floats | None,
    names: Iterable[str] = MATCH_INPUTS,
) -> NDArray[Any]:
    """Return the name of the input that adds most to each query's reason; ``names`` are those of the match inputs."""
    novelty_names, match_names = np.array(NOVELTY_INPUTS), np.array(list(names))
    for_known = novelty_names[novelty_parts.argmin(axis=1)]
    if match_parts is not None:
        against, supporting = match_names[match_parts.argmin(axis=1)], match_names[match_parts.argmax(axis=1)]
        for_known = np.where(reason == UNRELIABLE, against, supporting)
    named: NDArray[Any] = np.where(reason == NOVEL, novelty_names[novelty_parts.argmax(axis=1)], for_known)
    return named
