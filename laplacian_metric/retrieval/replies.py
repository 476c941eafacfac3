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
        matches: the items in order; none if the query is refused.
    """

    query: str
    uncertainty: float
    answered: bool | None
    reason: str | None
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
) -> list[Reply]:
    """Return the replies to queries that were embedded before.

    Args:
        index: the items that are searched.
        queries: embedded by the posterior that embedded the items.
        names: one for each query.
        k: how many items each query returns.
        order: "cosine", "expected distance" or "match probability".
        answer_all: return items for refused queries too.

    Example:
        >>> import numpy as np
        >>> from laplacian_metric.retrieval import Index
        >>> items = Items(np.eye(2), kappa=[10, 20], uncertainty=[0.1, 0.05], variance=None, source="a4f0")
        >>> query_embedded(Index(items, ["ant", "bee"]), items[1:], ["new"], k=1)[0].matches[0].item
        'bee'
    """
    abstain = index.threshold is not None and not answer_all
    return _replies(index, names, queries, index.query(queries, k, order=order, abstain=abstain))


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
    return _replies(index, ids, index.state.gallery.items_at(rows), answers)


def _replies(index: Retriever, names: Sequence[str], queries: Items, answers: Answers) -> list[Reply]:
    threshold, replies = index.threshold, []
    answered = [None] * len(names) if answers.answered is None else answers.answered.tolist()
    probability = None if answers.probability is None else answers.probability.tolist()
    ids, similarity = answers.ids.tolist(), answers.similarity.tolist()
    for row, (name, uncertainty) in enumerate(zip(names, queries.uncertainty.tolist(), strict=True)):
        reason = None
        if threshold is not None and not answered[row]:
            reason = f"its uncertainty {uncertainty:.4g} is above the threshold {threshold.value:.4g}"
        matches = tuple(
            Match(
                str(ids[row][column]),
                similarity[row][column],
                None if probability is None else probability[row][column],
            )
            for column, place in enumerate(answers.rows[row].tolist())
            if place >= 0
        )
        replies.append(Reply(name, uncertainty, answered[row], reason, matches))
    return replies
