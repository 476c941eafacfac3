"""What an index answers to each query, in words and plain values. Torch is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from laplacian_metric.retrieval.answers import Answers
from laplacian_metric.retrieval.ids import is_text
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.ranking import Order
from laplacian_metric.retrieval.retriever import Retriever

TRUSTED = (
    "trusted"  # as laplacian_metric.trust.answer says it, which is imported only where an index has a Trust
)


@dataclass(frozen=True)
class Match:
    """An item, its cosine similarity to the query, and the probability that both are of one class."""

    item: str
    similarity: float
    probability: float | None


@dataclass(frozen=True)
class Reply:
    """The answer to one query.

    Attributes:
        query: its id.
        uncertainty: of the query.
        answered: whether it is answered; None if the index has no threshold.
        reason: why it is refused.
        probability: that the nearest item is right; None if the index has no `Trust`.
        trust: "trusted", "unlike anything seen" or "no reliable match", with the input that spoke for it.
        matches: the items in order; none if the query is refused.
    """

    query: str
    uncertainty: float
    answered: bool | None
    reason: str | None
    probability: float | None
    trust: str | None
    matches: tuple[Match, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def query_embedded(
    index: Retriever,
    queries: Items,
    names: Sequence[str],
    k: int = 5,
    *,
    order: Order = "cosine",
    answer_all: bool = False,
    features: Any = None,
) -> list[Reply]:
    """Return the replies to queries that were embedded before.

    Args:
        index: the items that are searched.
        queries: embedded by the posterior that embedded the items.
        names: one for each query.
        k: how many items each query returns.
        order: "cosine", "expected distance" or "match probability".
        answer_all: return items for refused queries too. An index with a threshold refuses by it; one with `Trust` and
            without a threshold refuses queries that are not trusted.
        features: (Q, H) of the queries, which an index with `Trust` needs.

    Example:
        >>> import numpy as np
        >>> from laplacian_metric.retrieval import Index
        >>> items = Items(np.eye(2), kappa=[10, 20], uncertainty=[0.1, 0.05], variance=None, source="a4f0")
        >>> query_embedded(Index(items, ["ant", "bee"]), items[1:], ["new"], k=1)[0].matches[0].item
        'bee'
    """
    abstain = index.threshold is not None and not answer_all
    if index.trust is None:
        features = None
    elif features is None:
        raise ValueError(
            "the queries have no features, which this index needs to say what can be trusted: embed them again with "
            "`lam embed` and the model that the index was built with"
        )
    answers = index.query(queries, k, order=order, abstain=abstain, features=features)
    return _replies(index, names, queries, answers, answer_all)


def query_ids(
    index: Retriever, ids: Sequence[str], k: int = 5, *, order: Order = "cosine", answer_all: bool = False
) -> list[Reply]:
    """Return the replies to items of the index itself; each is left out of its own answers.

    Args:
        index: the items that are searched.
        ids: of the queries, as text; converted where the index has numbers.
        k, order, answer_all: as `query_embedded` takes them.
    """
    if len(index) < 2:
        raise ValueError("the index has a single item, which has no other to be compared with")
    known: Any = list(ids)
    if not is_text(index.ids):
        try:
            known = [int(name) for name in ids]
        except ValueError:
            wrong = next(name for name in ids if not name.lstrip("-").isdigit())
            raise ValueError(f"the ids of this index are whole numbers, {wrong!r} is none") from None
    try:
        rows = index.rows(known)
    except KeyError as error:
        raise ValueError(f"{error.args[0]}; ids there look like {str(index.ids[0])!r}") from error
    abstain = index.threshold is not None and not answer_all
    answers = index.query_ids(known, k, order=order, abstain=abstain)
    return _replies(index, ids, index.state.gallery.items_at(rows), answers, answer_all)


def _replies(
    index: Retriever, names: Sequence[str], queries: Items, answers: Answers, answer_all: bool
) -> list[Reply]:
    threshold, trust, replies = index.threshold, answers.trust, []
    uncertainty = (queries.uncertainty if trust is None else 1 - trust.probability).tolist()
    answered = [None] * len(names) if answers.answered is None else answers.answered.tolist()
    if trust is not None and threshold is None:
        answered = (trust.reason == TRUSTED).tolist()
    probability = None if answers.probability is None else answers.probability.tolist()
    ids, similarity = answers.ids.tolist(), answers.similarity.tolist()
    for row, name in enumerate(names):
        reason = said = None
        if trust is not None:
            said = f"{trust.reason[row]} ({trust.because[row]})"
        if answered[row] is False:
            reason = said
            if threshold is not None:
                reason = _below(threshold.value, uncertainty[row], said)
        matches = tuple(
            Match(
                str(ids[row][column]),
                similarity[row][column],
                None if probability is None else probability[row][column],
            )
            for column, place in enumerate(answers.rows[row].tolist())
            if place >= 0 and (answered[row] is not False or answer_all)
        )
        right = None if trust is None else float(trust.probability[row])
        replies.append(Reply(name, uncertainty[row], answered[row], reason, right, said, matches))
    return replies


def _below(threshold: float, uncertainty: float, said: str | None) -> str:
    if said is None:
        return f"its uncertainty {uncertainty:.4g} is above the threshold {threshold:.4g}"
    return f"its probability {1 - uncertainty:.4g} is below the threshold {1 - threshold:.4g}: {said}"
