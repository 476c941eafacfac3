"""What an index answers to each query, in words and plain values. Torch is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from laplacian_metric.retrieval.answers import Answers
from laplacian_metric.retrieval.items import Items, is_text
from laplacian_metric.retrieval.retriever import Order, Retriever

if TYPE_CHECKING:
    from laplacian_metric.retrieval.engines.collection import Collection

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
        verdict: the first of both by itself.
        because: the second.
        label: of the nearest item; None if the index has no `Trust`.
        matches: the items in order; none if the query is refused.
    """

    query: str
    uncertainty: float
    answered: bool | None
    reason: str | None
    probability: float | None
    trust: str | None
    matches: tuple[Match, ...]
    verdict: str | None = None
    because: str | None = None
    label: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def query_embedded(
    index: Retriever | Collection,
    queries: Items,
    names: Sequence[str],
    k: int = 5,
    *,
    order: Order = "cosine",
    answer_all: bool = False,
    features: Any = None,
    where: Any = None,
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
        where: a filter, for collections in an engine.

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
    if isinstance(index, Retriever):
        if where is not None:
            raise ValueError(
                "where is given: an index has no columns to filter by, a collection in an engine has"
            )
        answers = index.query(queries, k, order=order, abstain=abstain, features=features)
    else:
        answers = index.query(queries, k, order=order, abstain=abstain, features=features, where=where)
    return _replies(index, names, queries, answers, answer_all)


def query_ids(
    index: Retriever | Collection,
    ids: Sequence[str],
    k: int = 5,
    *,
    order: Order = "cosine",
    answer_all: bool = False,
) -> list[Reply]:
    """Return the replies to items of the index itself; each is left out of its own answers.

    Args:
        index: the items that are searched.
        ids: of the queries, as text; converted where the index has numbers.
        k, order, answer_all: as `query_embedded` takes them.
    """
    if len(index) < 2:
        raise ValueError("the index has a single item, which has no other to be compared with")
    queried: Any = list(ids)
    text = is_text(index.ids) if isinstance(index, Retriever) else index.engine.text_ids
    if not text:
        try:
            queried = [int(name) for name in ids]
        except ValueError:
            wrong = next(name for name in ids if not name.lstrip("-").isdigit())
            raise ValueError(f"the ids of this index are whole numbers, {wrong!r} is none") from None
    abstain = index.threshold is not None and not answer_all
    if not isinstance(index, Retriever):
        try:
            queries, named = index.items(queried)
        except KeyError as error:
            raise ValueError(f"{error.args[0]}") from error
        answers = index.query_ids(named, k, order=order, abstain=abstain)
        return _replies(index, ids, queries, answers, answer_all)
    try:
        rows = index.rows(queried)
    except KeyError as error:
        raise ValueError(f"{error.args[0]}; ids there look like {str(index.ids[0])!r}") from error
    answers = index.query_ids(queried, k, order=order, abstain=abstain)
    return _replies(index, ids, index.state.gallery.items_at(rows), answers, answer_all)


def _replies(
    index: Retriever | Collection, names: Sequence[str], queries: Items, answers: Answers, answer_all: bool
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
            for column, cosine in enumerate(similarity[row])
            if cosine == cosine and (answered[row] is not False or answer_all)
        )
        right = None if trust is None else float(trust.probability[row])
        about = {}
        if trust is not None:
            label = None if trust.labels is None else str(trust.labels[row])
            about = {"verdict": str(trust.reason[row]), "because": str(trust.because[row]), "label": label}
        replies.append(Reply(name, uncertainty[row], answered[row], reason, right, said, matches, **about))
    return replies


def _below(threshold: float, uncertainty: float, said: str | None) -> str:
    if said is None:
        return f"its uncertainty {uncertainty:.4g} is above the threshold {threshold:.4g}"
    return f"its probability {1 - uncertainty:.4g} is below the threshold {1 - threshold:.4g}: {said}"
