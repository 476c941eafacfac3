"""The one evaluator: every number of an embedding and its uncertainties, from one search, in one `Evaluation`.

`lam evaluate`, reports, the cells of tables, the demo and benchmarks show numbers of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from laplacian_metric.core.checked import Number, Numbers, OrEmpty, Vector
from laplacian_metric.metrics import statistics
from laplacian_metric.metrics.calibration import Calibration, Consensus, Samples, consensus, reliability
from laplacian_metric.metrics.classification import check_classes, classified, clustering_nmi
from laplacian_metric.metrics.groups import (
    Group,
    Uncertainties,
    of_consensus,
    of_reliability,
    of_retrieval,
    of_score,
    ood_name,
)
from laplacian_metric.metrics.out_of_distribution import Roc, roc
from laplacian_metric.metrics.positives import Labels, Positives
from laplacian_metric.metrics.ranking import Normalisation, Ranking, rank
from laplacian_metric.metrics.resampling import Interval, Statistic, bootstrap_all
from laplacian_metric.metrics.sparsification import Refusal, refusals

OWN = "own"  # the method's uncertainty among the scores
TEST = "test"  # the evaluated queries among what else was retrieved


class Score(BaseModel):
    """What one uncertainty is worth: its numbers by name, and for each set of OOD images those of detecting it.

    In a file the numbers stand beside ``ood``. Files of earlier versions call this "out", and ece@1 "ece_at_1".

    Example:
        >>> score = Score.model_validate_json('{"r_auroc": 0.8, "ece_at_1": null, "out": {"mnist": {"auroc": 0.9}}}')
        >>> score.values, score.ood["mnist"]["auroc"]
        ({'r_auroc': 0.8, 'ece@1': nan}, 0.9)
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Number]

    ood: dict[str, Numbers] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _earlier_names(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        renamed = {str(name).replace("ece_at_", "ece@"): value for name, value in content.items()}
        out = renamed.pop("out", None)
        return {**renamed, "ood": renamed.get("ood") or out or {}}

    @property
    def values(self) -> dict[str, float]:
        """The numbers by name, without those of OOD images."""
        return self.__pydantic_extra__


class Curves(BaseModel):
    """The curves of the method's uncertainty: ROC by set of OOD images, and recall@1 of what refusing leaves.

    The latter (100,) are by "own" uncertainty, by an "oracle" of the errors, and at "random".
    """

    model_config = ConfigDict(frozen=True)

    roc: dict[str, Roc] = Field(default_factory=dict)
    sparsification: dict[str, Vector] = Field(default_factory=dict)


class Counts(BaseModel):
    """How many images there were; queries without a positive in the gallery are unanswerable and left out.

    ``samples`` are the sampled embeddings, ``ood`` all OOD images, ``images`` those of each set.
    """

    model_config = ConfigDict(frozen=True)

    queries: int = 0
    answerable: int = 0
    unanswerable: int = 0
    gallery: int = 0
    tied_queries: int = 0
    samples: int = 0
    ood: int = 0
    images: dict[str, int] = Field(default_factory=dict)


class Evaluation(BaseModel):
    """Every number of one evaluation, with intervals and counts; what is not defined on these data is NaN.

    ``evaluation["recall@1"]`` is one of ``values``, all numbers of the queries and of the method's own uncertainty.
    ``model_dump_json()`` writes it, with null for NaN, and ``model_validate_json(text)`` reads and checks it.

    Attributes:
        retrieval: recall@k, map@k, map@r, r_precision of the queries, under "test"; cells of tables add others.
        scores: by name, the method's uncertainty under "own": r_auroc, ausc with ausc_oracle, ausc_random, ausc_gap and
            nausc, which is 0 at random and 1 for the oracle, surest_error (among the surest 40 %), ece@k, crop_test,
            rank_correlation, r_auroc_within classes where these are given; for each set of OOD images auroc,
            average_precision, open_set_auroc and open_set_surest_error.
        calibration: of the consensus of sampled embeddings.
        reliability: of the predicted probability that the nearest item is right; unanswerable queries count as wrong.
        curves: of the method's uncertainty.
        refusals: the errors among the answers where the least certain queries are refused, for 0 to 99 %.
        intervals: by the names of ``values``, by bootstrap over images. Those of calibration errors lie a little high,
            since a draw with repeats is less even than the set.
        counts: of the images.
    """

    model_config = ConfigDict(frozen=True)

    retrieval: dict[str, Numbers] = Field(default_factory=dict)
    scores: dict[str, Score] = Field(default_factory=dict)
    calibration: Calibration | None = None
    reliability: Calibration | None = None
    curves: Curves | None = None
    refusals: tuple[Refusal, ...] = ()
    intervals: Annotated[dict[str, Interval], OrEmpty] = Field(default_factory=dict)
    counts: Counts = Counts()

    @property
    def values(self) -> dict[str, float]:
        """The numbers of the queries and of the method's uncertainty, by name; "auroc digits" is of OOD set digits."""
        values = dict(self.retrieval.get(TEST, {}))
        if self.calibration is not None:
            values["retrieval_ece"] = self.calibration.ece
        if self.reliability is not None:
            values |= {"probability_ece": self.reliability.ece, "brier": self.reliability.brier}
        if OWN in self.scores:
            values |= self.scores[OWN].values
            for label, numbers in self.scores[OWN].ood.items():
                values |= {ood_name(name, label): value for name, value in numbers.items()}
        return values

    def __getitem__(self, name: str) -> float:
        if name not in (values := self.values):
            raise KeyError(f"{name} was not evaluated, there are: {', '.join(values)}")
        return values[name]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a result file, with all numbers under "values" too."""
        plain = self.model_dump(mode="json", by_alias=True)
        values = {name: None if value != value else value for name, value in self.values.items()}
        return {"values": values, **plain}


def evaluate(
    embeddings: Tensor,
    labels: Labels | Positives,
    uncertainty: Tensor | None = None,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
    samples: Samples | None = None,
    database_samples: Samples | None = None,
    ood_uncertainty: Tensor | Mapping[str, Tensor] | None = None,
    crop_uncertainty: Tensor | None = None,
    label_entropy: Tensor | None = None,
    classes: Tensor | None = None,
    scores: Mapping[str, Uncertainties] | None = None,
    probability: Tensor | None = None,
    neighbours: int | None = None,
    features: Tensor | None = None,
    database_features: Tensor | None = None,
    clusters: int | None = None,
    ks: Sequence[int] = (1, 5, 10),
    normalisation: Normalisation = "min",
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
    drawn: Collection[str] = ("curves", "refusals"),
) -> Evaluation:
    """Return every number for which the inputs are there, from one search of the embeddings.

    Args:
        embeddings: (Q, Z), unit vectors.
        labels: (Q,), or `Positives`.
        uncertainty: (Q,), the greater the less sure; without it 1 - probability, where that is given.
        database, database_labels: the gallery (M, Z), (M,); without it every query searches the others.
        samples, database_samples: (S, Q, Z) or an iterator of (Q, Z), jointly sampled.
        ood_uncertainty: (M,), the same uncertainty of out-of-distribution images; several sets by name.
        crop_uncertainty: (Q,), of a crop of each image.
        label_entropy: (Q,), of what people said about each image.
        classes: (Q,), within which errors are to be detected too.
        scores: other uncertainties by name, such as trivial scores; they get no intervals. "own" is the method's again,
            in place of the arguments above.
        probability: (Q,), predicted, that the nearest item is right.
        neighbours: so many of the gallery vote for a query's class (`weighted_votes`): "knn@200" for 200.
        features, database_features: (Q, H) and (M, H), of a linear classifier (`linear_probe`): "linear probe".
        clusters: of k-means, compared with the classes (`clustering_nmi`): "nmi"; 0 for as many as there are classes.
        ks: of recall@k, map@k and ece@k.
        normalisation: of map@k, see `Ranking.average_precision`.
        resamples: draws of the bootstrap; 0 leaves the intervals out.
        level: of the intervals.
        generator: of the draws.
        drawn: what is drawn of the method's uncertainty; the curves, or the refusals, may be left out.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> evaluation = evaluate(z, [0, 0, 1, 0], torch.tensor([0.1, 0.2, 9.0, 0.3]), ks=(1, 2))
        >>> round(evaluation["recall@1"], 4), evaluation["r_auroc"], evaluation.counts.unanswerable
        (0.6667, 1.0, 1)
    """
    if samples is not None and (database is None) != (database_samples is None):
        raise ValueError(
            "with samples, database and database_samples go together: the gallery is sampled with the queries, or "
            "pass the database itself as database_samples to keep it fixed"
        )
    if samples is None and database_samples is not None:
        raise ValueError("database_samples is given without samples")
    if not ks:
        raise ValueError("ks is empty: give at least one k, such as ks=(1, 5, 10)")
    agreed: Consensus | None = None
    ranking = rank(embeddings, labels, max(ks), database=database, database_labels=database_labels, at_r=True)
    if samples is not None:
        if isinstance(labels, Positives):
            raise TypeError(
                "samples are given, but neighbours can only agree on a class: pass labels, not positives"
            )
        agreed = consensus(samples, labels, database=database_samples, database_labels=database_labels)
    query_labels = None if isinstance(labels, Positives) else labels
    correct, nmi = {}, None
    if any(wanted is not None for wanted in (neighbours, features, database_features)):
        correct = classified(
            embeddings, query_labels, database, database_labels, neighbours, features, database_features
        )
    if clusters is not None:
        nmi = clustering_nmi(embeddings, check_classes(query_labels), clusters=clusters or None)
    return evaluate_ranking(
        ranking,
        uncertainty,
        correct=correct,
        nmi=nmi,
        agreed=agreed,
        ood_uncertainty=ood_uncertainty,
        crop_uncertainty=crop_uncertainty,
        label_entropy=label_entropy,
        classes=classes,
        scores=scores,
        probability=probability,
        ks=ks,
        normalisation=normalisation,
        resamples=resamples,
        level=level,
        generator=generator,
        drawn=drawn,
    )


def evaluate_ranking(
    ranking: Ranking | None,
    uncertainty: Tensor | None = None,
    *,
    correct: Mapping[str, Tensor] | None = None,
    nmi: float | None = None,
    agreed: Consensus | None = None,
    ood_uncertainty: Tensor | Mapping[str, Tensor] | None = None,
    crop_uncertainty: Tensor | None = None,
    label_entropy: Tensor | None = None,
    classes: Tensor | None = None,
    scores: Mapping[str, Uncertainties] | None = None,
    probability: Tensor | None = None,
    ks: Sequence[int] = (1,),
    normalisation: Normalisation = "min",
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
    drawn: Collection[str] = ("curves", "refusals"),
) -> Evaluation:
    """Return the same of a search that was done before; without one (None), what needs no retrieval.

    ``correct`` has for each classifier by name whether it is right about each query (Q,). Of what is ``drawn`` of the
    method's uncertainty, the curves and the refusals, the others are left out.

    Example:
        >>> from laplacian_metric.metrics.ranking import rank
        >>> ranking = rank(torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96]]), [0, 1, 1])
        >>> for uncertainty in (torch.tensor([0.0, 1.0, 0.5]), torch.tensor([0.0, 0.0, 1.0])):
        ...     evaluate_ranking(ranking, uncertainty)["r_auroc"]
        1.0
        0.0
    """
    if uncertainty is None and probability is not None:
        uncertainty = 1 - probability
    optional = {
        "ood_uncertainty": ood_uncertainty,
        "crop_uncertainty": crop_uncertainty,
        "label_entropy": label_entropy,
    }
    for name, values in optional.items():
        if values is not None and uncertainty is None and (name != "label_entropy" or not scores):
            raise ValueError(f"{name} is given without uncertainty, which it is compared with")
    scores = dict(scores or {})
    if uncertainty is not None:
        ood = {"ood": ood_uncertainty} if isinstance(ood_uncertainty, Tensor) else ood_uncertainty or {}
        scores = {OWN: Uncertainties(uncertainty, ood, crop_uncertainty), **scores}
    groups = {name: of_score(score, ranking, ks, label_entropy, classes) for name, score in scores.items()}
    of_queries = [] if ranking is None else [of_retrieval(ranking, ks, normalisation)]
    of_queries += [
        Group({name: partial(statistics.mean, right.double())}, (len(right),), right.device)
        for name, right in (correct or {}).items()
    ]
    numbers = {name: value for group in of_queries for name, value in group.values().items()}
    if nmi is not None:
        numbers["nmi"] = nmi
    predicted = None
    if agreed is not None:
        of_queries.append(of_consensus(agreed))
    if probability is not None and ranking is not None:
        right = ranking.hits[:, 0].double()
        predicted = reliability(right, probability)
        of_queries.append(of_reliability(right, probability))
    draws = {"resamples": resamples, "level": level, "generator": generator}
    return Evaluation(
        retrieval={TEST: numbers} if numbers else {},
        scores={name: _score(score_groups) for name, score_groups in groups.items()},
        calibration=None if agreed is None else agreed.calibration,
        reliability=predicted,
        curves=_curves(scores[OWN], ranking) if OWN in scores and "curves" in drawn else None,
        refusals=_refusals(scores[OWN], ranking) if OWN in scores and "refusals" in drawn else (),
        intervals=_intervals([*of_queries, *groups.get(OWN, ())], **draws) if resamples else {},
        counts=_counts(ranking, scores, agreed),
    )


def _score(groups: Sequence[Group]) -> Score:
    numbers: dict[str, float] = {}
    ood: dict[str, dict[str, float]] = {}
    for group in groups:
        if group.label is None:
            numbers |= group.values()
        else:
            ood[group.label] = group.values()
    return Score.model_validate({**numbers, "ood": ood})


def _intervals(groups: Sequence[Group], **options: Any) -> dict[str, Interval]:
    """All statistics of as many images meet the same draws."""
    by_size: dict[tuple[int, ...], dict[str, Statistic]] = {}
    for group in groups:
        by_size.setdefault(group.sizes, {}).update(group.named())
    intervals: dict[str, Interval] = {}
    for sizes, named in by_size.items():
        if named:
            intervals |= bootstrap_all(named, sizes, device=groups[-1].device, **options)
    return intervals


def _curves(score: Uncertainties, ranking: Ranking | None) -> Curves:
    curves = {}
    if ranking is not None:
        uncertainty, right = ranking.of_answerable(score.queries), ranking.first_is_right()
        own, oracle = (
            statistics.sparsification_curve(values, right, torch.ones_like(right)).cpu().numpy()
            for values in (uncertainty, -right)
        )
        curves = {"own": own, "oracle": oracle, "random": np.full(len(own), float(right.mean()))}
    return Curves(
        roc={label: roc(score.queries, ood) for label, ood in score.ood.items()}, sparsification=curves
    )


def _refusals(score: Uncertainties, ranking: Ranking | None) -> tuple[Refusal, ...]:
    if ranking is None:
        return ()
    ood = {label: values.detach().cpu().numpy() for label, values in score.ood.items()}
    wrong = ranking.first_is_right() == 0
    return tuple(refusals(ranking.of_answerable(score.queries).cpu().numpy(), wrong.cpu().numpy(), ood))


def _counts(ranking: Ranking | None, scores: Mapping[str, Uncertainties], agreed: Consensus | None) -> Counts:
    images = {label: len(values) for score in scores.values() for label, values in score.ood.items()}
    shared: dict[str, Any] = {
        "samples": 0 if agreed is None else agreed.num_samples,
        "ood": sum(images.values()),
        "images": images,
    }
    if ranking is None:
        return Counts(**shared)
    return Counts(
        queries=len(ranking.hits),
        answerable=int(ranking.answerable.sum()),
        unanswerable=ranking.num_unanswerable,
        gallery=ranking.gallery_size,
        tied_queries=int((ranking.ties > 0).sum()),
        **shared,
    )
