"""Everything that is measured of a fitted cell. Test images are measured only; nothing is chosen by them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, Method
from laplacian_metric.data.labelled import LabelledInputs
from laplacian_metric.encoder import Encoder
from laplacian_metric.metrics.calibration import NUM_BINS, Consensus, ranking_ece
from laplacian_metric.metrics.ranking import Ranking
from laplacian_metric.runs.fitting import Fitted, Sets
from laplacian_metric.runs.images import CORRUPTED, CROPPED, OUT, TEST, TRAIN, VALIDATION
from laplacian_metric.runs.matching import Matching
from laplacian_metric.runs.scores import OWN, Scores, curves, judged, method_scores, trivial_scores
from laplacian_metric.runs.sections import EvaluationSection
from laplacian_metric.runs.verification import verify

EXTREMES = 16  # images with the lowest and the highest uncertainty
LATENT_DIM = 3
OF_STRANGERS = ("ood_auroc", "ood_average_precision")  # as `metrics` calls what belongs to one set of them
LATENT_IMAGES = 300


def evaluate(
    fitted: Fitted,
    method: type[Method],
    section: EvaluationSection,
    out: list[str],
    entropy: Tensor | None = None,
) -> dict[str, Any]:
    """The measured part of a result.

    Args:
        fitted: what embeds, and what.
        method: whose embedder it is.
        section: what is measured.
        out: the labels of the sets of strangers.
        entropy: of the labels that people gave to the test images, (N,).
    """
    embedder, names = fitted.embedder, [OUT + label for label in out]
    sets = {name: fitted.sets[name] for name in _needed(section, names)}
    embedded = {name: embedder.embed(sets[name]).to("cpu") for name in (TEST, VALIDATION)}
    matchings = {name: fitted.sets.matching(name) for name in embedded}
    rankings = {
        name: matchings[name].rank(e.point, max(_ks(section, matchings[name].gallery_size(len(e)))))
        for name, e in embedded.items()
    }
    test, labels = embedded[TEST], sets[TEST].labels
    scores: Scores = {}
    if method.has_uncertainty:
        scores |= method_scores(embedder, sets, embedded)
    if not method.has_uncertainty if section.trivial is None else section.trivial:
        scores |= trivial_scores(_one(fitted.encoder), sets, fitted.sets[TRAIN])
    # Neighbours can only agree on a class.
    can_agree = method.has_uncertainty and not matchings[TEST].by_distance
    agreed = _agreed(embedder, sets[TEST], section) if can_agree else None
    extremes = _extremes(scores[OWN]) if OWN in scores else None
    scores = {name: _of_queries(values, matchings) for name, values in scores.items()}
    own = scores.get(OWN)
    return {
        "retrieval": {
            "test": _retrieval(rankings[TEST], section),
            "validation": _retrieval(rankings[VALIDATION], section),
            **_own_retrieval(embedder, test, matchings[TEST], own, section),
        },
        "scores": {
            name: judged(values, rankings[TEST], rankings[VALIDATION], entropy)
            for name, values in scores.items()
        },
        "calibration": None if agreed is None else _calibration(agreed),
        "curves": None if own is None else curves(own, rankings[TEST]),
        "extremes": extremes,
        "latent": _latent(fitted, test, labels, names),
        "intervals": _intervals(rankings[TEST], own, agreed, names, section) if section.resamples else None,
        "counts": _counts(rankings, sets),
        "settings": embedder.settings(),
        **_verification(fitted, method, section),
    }


def _verification(fitted: Fitted, method: type[Method], section: EvaluationSection) -> dict[str, Any]:
    """The part of that name, where it is asked for."""
    if section.verification is None:
        return {}
    images = fitted.sets.tests()
    return {
        "verification": verify(fitted, section.verification, images, has_uncertainty=method.has_uncertainty)
    }


def _needed(section: EvaluationSection, out: list[str]) -> list[str]:
    optional = {CORRUPTED: section.corrupted, CROPPED: section.crop_test}
    return [TEST, VALIDATION, *(name for name, asked in optional.items() if asked), *out]


def _one(encoder: Encoder | None) -> Encoder:
    if encoder is None:
        raise ValueError(
            "trivial scores are those of one network, and this method has several: leave evaluation.trivial out"
        )
    return encoder


# --- retrieval ---


def _ks(section: EvaluationSection, number: int) -> list[int]:
    """Those that a ranking among so many others has."""
    ks = [k for k in section.ks if k <= number]
    if not ks:
        raise ValueError(f"{number} other images are too few for any of ks, {list(section.ks)}")
    return ks


def _of_queries(values: dict[str, Tensor], matchings: dict[str, Matching]) -> dict[str, Tensor]:
    """The values of queries alone, where some images are no queries."""
    whose = {TEST: TEST, CROPPED: TEST, VALIDATION: VALIDATION}
    return {
        name: matchings[whose[name]].of_queries(given) if name in whose else given
        for name, given in values.items()
    }


def _retrieval(ranking: Ranking, section: EvaluationSection) -> dict[str, float]:
    found = metrics.evaluate_ranking(ranking, ks=_ks(section, ranking.k), resamples=0)
    return {name: value for name, value in found.values.items() if name != "r_precision"}


def _own_retrieval(
    embedder: Embedder,
    test: StochasticEmbedding,
    matching: Matching,
    own: dict[str, Tensor] | None,
    section: EvaluationSection,
) -> dict[str, dict[str, float] | None]:
    """Retrieval by the method's own similarity, None where it has none, and by its others.

    With the calibration error of the method's uncertainty (see `ranking_ece`), since the answers are other ones.
    """

    def similarities(queries: StochasticEmbedding, database: StochasticEmbedding) -> dict[str, Tensor]:
        first = embedder.similarity(queries, database)
        others = embedder.other_similarities(queries, database)
        named = {f"{name}_similarity": found for name, found in others.items()}
        return named if first is None else {"own_similarity": first, **named}

    found: dict[str, dict[str, float] | None] = {"own_similarity": None}
    ks = _ks(section, matching.gallery_size(len(test)))
    for name in similarities(test[:2], test[:2]):
        ranking = matching.rank_by(partial(_one_of, similarities, name), test, max(ks))
        errors = {} if own is None else {f"ece@{k}": ranking_ece(ranking, own[TEST], k) for k in ks}
        found[name] = {**_retrieval(ranking, section), **errors}
    return found


def _one_of(
    similarities: Callable[[StochasticEmbedding, StochasticEmbedding], dict[str, Tensor]],
    name: str,
    queries: StochasticEmbedding,
    database: StochasticEmbedding,
) -> Tensor:
    return similarities(queries, database)[name]


def _agreed(embedder: Embedder, inputs: LabelledInputs, section: EvaluationSection) -> Consensus | None:
    if not section.samples:
        return None
    generator = torch.Generator().manual_seed(section.seed)
    draws = embedder.sample_embeddings(inputs, section.samples, generator=generator)
    return metrics.consensus((z.cpu() for z in draws), inputs.labels)


def _calibration(agreed: Consensus) -> dict[str, Any]:
    table = [
        {"low": number / NUM_BINS, "high": (number + 1) / NUM_BINS, **row}
        for number, row in enumerate(agreed.table())
    ]
    return {"ece": agreed.error, "samples": agreed.num_samples, "table": table}


def _intervals(
    ranking: Ranking,
    own: dict[str, Tensor] | None,
    agreed: Consensus | None,
    out: list[str],
    section: EvaluationSection,
) -> dict[str, Any]:
    """Bootstrap intervals of the test figures, and under "out" of the strangers of every set."""

    def found(strangers: Tensor | None) -> dict[str, Any]:
        measured = metrics.evaluate_ranking(
            ranking,
            None if own is None else own[TEST],
            agreed=agreed,
            ood_uncertainty=strangers,
            ks=_ks(section, ranking.k),
            resamples=section.resamples,
            generator=torch.Generator().manual_seed(section.seed),
        )
        intervals: dict[str, Any] = measured.to_dict()["intervals"]
        return intervals

    if own is None or not out:
        return {**found(None), "out": {}}
    of_sets = {name.removeprefix(OUT): found(own[name]) for name in out}
    plain = {name: value for name, value in next(iter(of_sets.values())).items() if name not in OF_STRANGERS}
    strangers = {
        label: {"auroc": intervals[OF_STRANGERS[0]], "average_precision": intervals[OF_STRANGERS[1]]}
        for label, intervals in of_sets.items()
    }
    return {**plain, "out": strangers}


# --- pictures ---


def _extremes(own: dict[str, Tensor]) -> dict[str, dict[str, list[int]]]:
    """Where the images with the lowest and the highest uncertainty are, of test images and of strangers."""
    found = {}
    for name, values in own.items():
        if name == TEST or name.startswith(OUT):
            order = values.double().argsort(stable=True)
            number = min(EXTREMES, len(order))
            found[name.removeprefix(OUT)] = {
                "lowest": order[:number].tolist(),
                "highest": order.flip(0)[:number].tolist(),
            }
    return found


def _latent(
    fitted: Fitted, test: StochasticEmbedding, labels: Tensor, out: list[str]
) -> dict[str, Any] | None:
    """Some images as they lie on a sphere that can be drawn, with their Gaussians."""
    if test.dim > LATENT_DIM:
        return None
    rows = _some(len(test))
    found = _drawn(test[rows])
    found["labels"] = labels[rows].tolist()
    found["out"] = {}
    for name in out:
        inputs = fitted.sets[name]
        strangers = fitted.embedder.embed(inputs.select(_some(len(inputs)))).to("cpu")
        found["out"][name.removeprefix(OUT)] = _drawn(strangers)
    return found


def _some(number: int) -> Tensor:
    """Up to 300 positions at even steps."""
    taken = min(number, LATENT_IMAGES)
    return torch.arange(taken) * number // taken


def _drawn(e: StochasticEmbedding) -> dict[str, Any]:
    covariances = None if e.gaussians is None else e.gaussians.covariance.flatten(1).tolist()
    return {"points": e.point.tolist(), "covariances": covariances, "kappa": e.kappa.tolist()}


def _counts(rankings: dict[str, Ranking], sets: dict[str, LabelledInputs]) -> dict[str, Any]:
    ranking = rankings[TEST]
    return {
        "queries": len(ranking.hits),
        "answerable": int(ranking.answerable.sum()),
        "unanswerable": ranking.num_unanswerable,
        "gallery": ranking.gallery_size,
        "tied_queries": int((ranking.ties > 0).sum()),
        "images": {name.removeprefix(OUT): len(inputs) for name, inputs in sets.items()},
    }


def label_entropy(sets: Sets, human: Tensor | None) -> Tensor:
    """The entropy of people's labels for the test images, (N,), from their distribution (N, C)."""
    if human is None:
        raise ValueError(
            "evaluation.label_entropy needs what people said about the test images, which this data set does not "
            "have: leave it out, or get the human labels"
        )
    found = metrics.label_entropy(human)
    if len(found) != len(sets[TEST]):
        raise ValueError(f"there are human labels for {len(found)} of {len(sets[TEST])} test images")
    return found
