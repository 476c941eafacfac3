"""Asking a saved index; torch is not needed for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from laplacian_metric.cli.steps.embedding_files import Embedded
from laplacian_metric.retrieval.answers import Answers
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.ranking import Order
from laplacian_metric.retrieval.storage import load

ORDERS = ("cosine", "expected distance", "match probability")


@dataclass(frozen=True)
class Match:
    """An item that was found, the cosine with the query, and the probability that both are of one class."""

    item: str
    similarity: float
    probability: float | None


@dataclass(frozen=True)
class Reply:
    """What an index says to one query.

    Attributes:
        query: its id.
        uncertainty: of the query.
        answered: whether it is answered; None where the index has no threshold.
        reason: why it is refused.
        matches: the items, the first ones first; none where it is refused.
    """

    query: str
    uncertainty: float
    answered: bool | None
    reason: str | None
    matches: tuple[Match, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        matches = [vars(match) for match in self.matches]
        return {**vars(self), "matches": matches}


def ask(
    index: Index | Path,
    *,
    ids: list[str] | None = None,
    array: Path | None = None,
    k: int = 5,
    order: str = "cosine",
    answer_all: bool = False,
) -> list[Reply]:
    """Ask an index with items of its own, or with what was embedded before.

    Args:
        index: or the folder that it was saved in.
        ids: of items of the index; each is left out of its own answers.
        array: a file that `lam embed` wrote.
        k: how many items.
        order: what comes first: "cosine", "expected distance" or "match probability".
        answer_all: give items for refused queries too.
    """
    if (ids is None) == (array is None):
        raise ValueError(
            "ask with --id, an item of the index, or with --array, a file of embeddings: one of them"
        )
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}, one of {', '.join(map(repr, ORDERS))} is needed")
    asked = load(index) if isinstance(index, Path) else index
    if k < 1:
        raise ValueError(f"k is {k}, at least 1 is needed")
    abstain = asked.threshold is not None and not answer_all
    if array is not None:
        embedded = Embedded.read(array)
        queries, names = embedded.items, list(embedded.ids)
        answers = asked.query(queries, min(k, len(asked)), order=cast(Order, order), abstain=abstain)
    else:
        assert ids is not None
        names = ids
        try:
            rows = asked.rows(_as_kind(asked, ids))
        except KeyError as error:
            raise ValueError(f"{error.args[0]}; ids there look like {str(asked.ids[0])!r}") from error
        queries = asked.items[rows]
        if len(asked) < 2:
            raise ValueError("the index has a single item, which has no other to be compared with")
        answers = asked.query_ids(
            _as_kind(asked, ids), min(k, len(asked) - 1), order=cast(Order, order), abstain=abstain
        )
    return [_reply(asked, name, queries, answers, row) for row, name in enumerate(names)]


def _as_kind(index: Index, ids: list[str]) -> Any:
    """Ids as the index has them, text or numbers."""
    if index.ids.dtype.kind == "U":
        return ids
    try:
        return [int(one) for one in ids]
    except ValueError:
        wrong = next(one for one in ids if not one.lstrip("-").isdigit())
        raise ValueError(f"the ids of this index are whole numbers, {wrong!r} is none") from None


def _reply(index: Index, name: str, queries: Items, answers: Answers, row: int) -> Reply:
    uncertainty = float(queries.uncertainty[row])
    answered = None if answers.answered is None else bool(answers.answered[row])
    reason = None
    if answered is False:
        threshold = index.threshold
        assert threshold is not None
        reason = f"its uncertainty {uncertainty:.4g} is above the threshold {threshold.value:.4g}"
    matches = []
    for column, place in enumerate(answers.rows[row].tolist()):
        if place < 0:
            continue
        probability = None if answers.probability is None else float(answers.probability[row, column])
        item = str(np.asarray(index.ids[place]))
        matches.append(Match(item, float(answers.similarity[row, column]), probability))
    return Reply(name, uncertainty, answered, reason, tuple(matches))
