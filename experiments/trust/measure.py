"""What `Trust` and every free rival say of a setting's queries, and how good that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.trust.features import Arrays
from experiments.trust.settings import Setting
from laplacian_metric.core.labelled_gallery import LabelledGallery
from laplacian_metric.core.neighbours import Surroundings
from experiments.second_moment import SecondMoment
from laplacian_metric.core.vector_search import Vectors
from laplacian_metric.metrics.statistics import auroc
from laplacian_metric.metrics.trivial import scores_of
from laplacian_metric.trust.calibration import (
    CalibrationError,
    calibration_error,
    discounted,
    fit_match,
    match_inputs,
    novelty_inputs,
    sigmoid,
)
from laplacian_metric.trust.novelty import MOST_REFERENCE, Novelty

ALPHA = 0.05
TRUST, NOVELTY = "trust", "novelty"
OWN = (TRUST, NOVELTY, "match", "known")
MEASURES = ("R", "S", "near", "far", "O")

Scores = dict[str, NDArray[np.float64]]
Compress = Callable[[NDArray[Any]], NDArray[Any]]


# --- the inputs of all queries, computed once ---


def inputs(setting: Setting, compress: Compress | None = None) -> Arrays:
    """Return, by part, the match inputs "M", the novelty inputs "N", "right", and the free scores of its queries.

    Parts are "validation", which is calibrated on, "reference", by which novelty is judged in the gallery, "test" and
    those of OOD queries. With ``compress`` features are replaced before they are compared, and embeddings are not.
    """
    arrays: Arrays = {}

    def add(part: str, gallery: LabelledGallery, around: Surroundings, labels: Any = None) -> None:
        arrays[f"{part}:M"] = match_inputs(around)
        arrays[f"{part}:N"] = novelty_inputs(around.h, around.queries)
        if labels is not None:
            arrays[f"{part}:right"] = around.classes == gallery.classes_of(labels, len(labels))[0]

    def compressed(vectors: Vectors) -> Vectors:
        return vectors if compress is None else Vectors.of("compressed features", compress(vectors.rows))

    def gallery_of(part: str) -> LabelledGallery:
        plain = LabelledGallery.of(setting.parts[f"{part}:h"], setting.labels(part), setting.head)
        if compress is None:
            return plain
        features = compressed(plain.features)
        embeddings = features if setting.head is None else plain.embeddings
        return LabelledGallery(features, embeddings, plain.names, plain.codes)

    def surroundings(gallery: LabelledGallery, part: str) -> tuple[Surroundings, Vectors]:
        features = Vectors.of(part, setting.h(part))
        shown = compressed(features)
        embeddings = shown if setting.head is None else setting.head.embed(features.rows)
        return gallery.surroundings(shown, embeddings), embeddings

    gallery = fitted_on = gallery_of("gallery")
    if setting.zero_shot:
        fitted_on = gallery_of("calibration")
        own = gallery.reference(MOST_REFERENCE)
        items = (
            Vectors(np.asarray(vectors.rows[own]), vectors.norms[own])
            for vectors in (gallery.features, gallery.embeddings)
        )
        add("reference", gallery, gallery.surroundings(*items, own=own))
    add("validation", fitted_on, surroundings(fitted_on, "validation")[0], setting.labels("validation"))
    moment = SecondMoment.of(gallery.features.rows)
    for part in ("test", *setting.ood()):
        around, embeddings = surroundings(gallery, part)
        add(part, gallery, around, setting.labels("test") if part == "test" else None)
        arrays |= {
            f"{part}:score:{name}": v.numpy() for name, v in scores_of(around, embeddings, moment).items()
        }
    if setting.zero_shot:
        arrays["test:classes"] = np.unique(setting.labels("test"), return_inverse=True)[1]
    return arrays


# --- from inputs to scores ---


@dataclass(frozen=True)
class Scored:
    """The scores of the queries of a setting, the greater the less sure, by the name of the part and of the score.

    Attributes:
        right: (N,), of the test queries.
        scores: of each part.
        announced: the calibration error that was announced.
        probability: (N,), of the test queries.
        flagged: the share of test queries that are not quite known.
    """

    right: NDArray[np.bool_]
    scores: dict[str, Scores]
    announced: CalibrationError
    probability: NDArray[np.float64]
    flagged: float

    @property
    def calibration_error(self) -> float:
        """That of the test queries."""
        return calibration_error(self.probability, self.right)

    def ood(self, kind: str = "") -> list[str]:
        """Return the names of the OOD parts, "near" or "far" or all."""
        return [name for name in self.scores if name != "test" and name.startswith(kind)]


def expecting(share: float) -> str:
    """Return the name of the probability where such a share of OOD queries is expected."""
    return f"{TRUST}, {share:.0%} OOD"


def scored(
    arrays: Arrays, rows: NDArray[np.int64] | slice, *, free: bool = True, shares: tuple[float, ...] = ()
) -> Scored:
    """Return what `Trust` says, calibrated on some of the validation queries, and with ``free`` what its rivals say.

    It says, too, what the probability is where each of ``shares`` of OOD queries is expected.
    """
    parts = [name.split(":")[0] for name in arrays if name.endswith(":M")]
    novelty_fit = Novelty.fit(arrays["validation:N"][rows], ALPHA)
    soft = novelty_fit.log_soft_known(novelty_fit.parts(arrays["validation:N"][rows]).sum(axis=1))
    match, (a, b), (known_a, known_b), announced = fit_match(
        arrays["validation:M"][rows], soft, arrays["validation:right"][rows]
    )
    if "reference" in parts:
        novelty_fit = Novelty.fit(arrays["reference:N"], ALPHA)
    scores: dict[str, Scores] = {}
    for part in parts:
        if part in ("validation", "reference"):
            continue
        logits = match.logit(arrays[f"{part}:M"])
        novelty = novelty_fit.parts(arrays[f"{part}:N"]).sum(axis=1)
        scores[part] = {
            TRUST: -(a + b * discounted(logits, novelty_fit.log_soft_known(novelty))),
            NOVELTY: novelty,
            "match": -logits,
            "known": -novelty_fit.known(novelty),
            **{
                expecting(share): -discounted(
                    known_a + known_b * logits, novelty_fit.log_known(novelty, share)
                )
                for share in shares
            },
        }
        prefix = f"{part}:score:"
        if free:
            scores[part] |= {name[len(prefix) :]: arrays[name] for name in arrays if name.startswith(prefix)}
    probability = sigmoid(-scores["test"][TRUST])
    flagged = float((scores["test"]["known"] > -1).mean())
    return Scored(arrays["test:right"], scores, announced, probability, flagged)


# --- from scores to measures ---


def weighted(scored_queries: Scored, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return every measure of one score by the weights (B, N) of each part's queries, each (B,).

    "R": AUROC of wrong answers among test queries. "S", "near", "far": AUROC of OOD queries against test queries, the
    mean over OOD sets. "O": open-set AUROC, known and OOD queries in equal weight, the mean over OOD sets.
    """
    test = torch.from_numpy(scored_queries.scores["test"][name])
    wrong = torch.from_numpy(~scored_queries.right).double()
    values = {"R": auroc(test, wrong, weights["test"])}
    detection, open_set = {}, {}
    for part in scored_queries.ood():
        out = torch.from_numpy(scored_queries.scores[part][name])
        both = torch.cat([test, out])
        outside = torch.cat([torch.zeros_like(test), torch.ones_like(out)])
        detection[part] = auroc(both, outside, torch.cat([weights["test"], weights[part]], dim=-1))
        equal = [weights[side] / weights[side].sum(-1, keepdim=True) for side in ("test", part)]
        open_set[part] = auroc(both, torch.cat([wrong, torch.ones_like(out)]), torch.cat(equal, dim=-1))
    for label, kind in (("S", ""), ("near", "near"), ("far", "far")):
        if parts := [detection[part] for part in scored_queries.ood(kind)]:
            values[label] = torch.stack(parts).mean(0)
    values["O"] = torch.stack(list(open_set.values())).mean(0)
    return values


def ones(scored_queries: Scored) -> dict[str, Tensor]:
    """Return the weights of the measures themselves."""
    return {
        part: torch.ones(1, len(scores[NOVELTY])).double() for part, scores in scored_queries.scores.items()
    }


def bootstrap_weights(
    scored_queries: Scored, draws: int, seed: int = 0, classes: NDArray[np.int64] | None = None
) -> dict[str, Tensor]:
    """Return how often each of ``draws`` bootstrap draws has each query; test queries by whole classes where given."""
    generator = np.random.default_rng(seed)
    weights = {}
    for part, scores in scored_queries.scores.items():
        num = len(scores[NOVELTY])
        if part == "test" and classes is not None:
            count = classes.max() + 1
            weights[part] = generator.multinomial(count, np.full(count, 1 / count), draws)[:, classes]
        else:
            weights[part] = generator.multinomial(num, np.full(num, 1 / num), draws)
    return {part: torch.from_numpy(values).double() for part, values in weights.items()}


def measures(scores: Scored, name: str) -> dict[str, float]:
    """Return every measure of one score."""
    values = {key: float(value[0]) for key, value in weighted(scores, name, ones(scores)).items()}
    return values | {
        "error at 40 %": mixture_error(scores, name),
        "error at 80 %": answered_error(scores, name),
    }


def answered_error(scored_queries: Scored, name: str, share: float = 0.8) -> float:
    """Return the share of wrong answers among the surest of the test queries."""
    order = np.argsort(scored_queries.scores["test"][name], kind="stable")
    return float((~scored_queries.right)[order[: round(share * len(order))]].mean())


def mixture_error(scored_queries: Scored, name: str, share: float = 0.4) -> float:
    """Return the share of wrong answers among the surest of a mixture that is half OOD, the mean over OOD sets."""
    errors = []
    for part in scored_queries.ood():
        test, out = scored_queries.scores["test"][name], scored_queries.scores[part][name]
        wrong = np.append(~scored_queries.right, np.ones(len(out), dtype=bool))
        weights = np.append(np.full(len(test), 0.5 / len(test)), np.full(len(out), 0.5 / len(out)))
        order = np.argsort(np.append(test, out), kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        taken = np.clip(share - before, 0, weights[order])
        errors.append(float((taken * wrong[order]).sum() / share))
    return float(np.mean(errors))
