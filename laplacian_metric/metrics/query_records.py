"""What was measured of every query, so that two evaluations of the same images can be compared query by query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from laplacian_metric.core.checked import Vector
from laplacian_metric.metrics.groups import Group, Uncertainties, groups_of
from laplacian_metric.metrics.ranking import Ranking
from laplacian_metric.metrics.resampling import Interval, Statistic, bootstrap_all


class OodRecord(BaseModel):
    """The uncertainties (M,) of one set of OOD images; ``images`` is a digest of which images they are."""

    model_config = ConfigDict(frozen=True)

    images: str
    uncertainty: Vector


class QueryRecord(BaseModel):
    """What was measured of each of Q queries.

    Attributes:
        images: a digest of the ids and classes of all images: equal ones may be compared query by query.
        hits: for each query a text with a 1 for each of its nearest items that is right, and a 0 for each that is not.
        positives: how many right items there are for each query, (Q,).
        uncertainty: of the method, (Q,).
        probability: that the nearest item is right, (Q,), where it is predicted.
        ood: by name, the uncertainties of OOD images.

    Example:
        >>> record = QueryRecord(images="4f", hits=("10", "01"), positives=[1, 1], uncertainty=[0.1, 0.9])
        >>> record.values()["recall@1"], record.values()["map@2"], record.values()["r_auroc"]
        (0.5, 0.75, 1.0)
    """

    model_config = ConfigDict(frozen=True)

    images: str
    hits: tuple[str, ...]
    positives: Vector
    uncertainty: Vector
    probability: Vector | None = None
    ood: Mapping[str, OodRecord] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> QueryRecord:
        count = len(self.hits)
        rows = {"positives": self.positives, "uncertainty": self.uncertainty, "probability": self.probability}
        for name, values in rows.items():
            if values is not None and len(values) != count:
                raise ValueError(f"{name} has {len(values)} entries for {count} queries")
        if len({len(row) for row in self.hits}) != 1 or not set("".join(self.hits)) <= {"0", "1"}:
            raise ValueError("hits are not as many zeros and ones for every query")
        return self

    @classmethod
    def of(
        cls,
        images: str,
        ranking: Ranking,
        uncertainty: Tensor,
        probability: Tensor | None = None,
        ood: Mapping[str, tuple[str, Tensor]] | None = None,
    ) -> QueryRecord:
        """Return the record of a search; ``ood`` has a digest and the uncertainties of each set of OOD images."""

        def plain(values: Tensor) -> Any:
            return values.detach().double().cpu().numpy()

        return cls(
            images=images,
            hits=tuple("".join(map(str, row)) for row in ranking.hits.int().tolist()),
            positives=plain(ranking.positives),
            uncertainty=plain(uncertainty),
            probability=None if probability is None else plain(probability),
            ood={
                name: OodRecord(images=digest, uncertainty=plain(values))
                for name, (digest, values) in (ood or {}).items()
            },
        )

    def groups(self) -> list[Group]:
        """Return the statistics of these queries, as `laplacian_metric.metrics.evaluate` has them."""
        hits = torch.tensor([[int(hit) for hit in row] for row in self.hits], dtype=torch.bool)
        nothing = torch.zeros(len(hits), dtype=torch.int64)
        positives = torch.from_numpy(self.positives).long()
        ranking = Ranking(hits, positives, nothing, nothing.double(), nothing, gallery_size=len(hits))
        ood = {label: torch.from_numpy(record.uncertainty) for label, record in self.ood.items()}
        own = Uncertainties(torch.from_numpy(self.uncertainty), ood)
        probability = None if self.probability is None else torch.from_numpy(self.probability)
        return groups_of(ranking, own, probability, [k for k in (1, 2, 5, 10) if k <= hits.shape[1]])

    def values(self) -> dict[str, float]:
        """Return the numbers of these queries by name."""
        return {name: value for group in self.groups() for name, value in group.named_values().items()}


def images_digest(ids: Sequence[str], labels: Sequence[str] | None = None) -> str:
    """Return a digest of which images were evaluated, in their order, and of their classes.

    Example:
        >>> images_digest(["a", "b"]) == images_digest(["a", "b"]) != images_digest(["b", "a"])
        True
    """
    content: list[Any] = [list(ids), None if labels is None else list(labels)]
    return hashlib.sha256(json.dumps(content).encode("utf-8", "backslashreplace")).hexdigest()


def paired_intervals(
    first: QueryRecord,
    second: QueryRecord,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> dict[str, Interval]:
    """Return bootstrap intervals of first less second, by metric; every draw has the same queries for both.

    Only what both measured of the same images is compared; of other images there is nothing.

    Example:
        >>> one = QueryRecord(images="4f", hits=("1", "1", "0"), positives=[1] * 3, uncertainty=[0.1, 0.2, 0.9])
        >>> other = one.model_copy(update={"hits": ("1", "0", "0")})
        >>> interval = paired_intervals(one, other)["recall@1"]
        >>> interval.low, interval.high
        (0.0, 1.0)
    """
    intervals: dict[str, Interval] = {}
    if first.images != second.images or len(first.hits) != len(second.hits):
        return intervals
    others = {(group.label, group.sizes): group for group in second.groups()}
    for group in first.groups():
        other = others.get((group.label, group.sizes))
        label = group.label
        if other is None or (label is not None and first.ood[label].images != second.ood[label].images):
            continue
        theirs = other.named()
        gaps = {
            name: _difference(statistic, theirs[name])
            for name, statistic in group.named().items()
            if name in theirs
        }
        intervals |= bootstrap_all(gaps, group.sizes, resamples=resamples, level=level, generator=generator)
    return intervals


def _difference(one: Statistic, other: Statistic) -> Statistic:
    return lambda weights: one(weights) - other(weights)
