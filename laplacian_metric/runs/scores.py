"""What an uncertainty can tell: wrong neighbours, strangers, corrupted images, crops; and scores without a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from laplacian_metric import metrics
from laplacian_metric.core.batch import inputs_of, to_device
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, scores_of
from laplacian_metric.core.modes import evaluating
from laplacian_metric.data.labelled import LabelledInputs
from laplacian_metric.encoder import Encoder
from laplacian_metric.metrics.calibration import ranking_ece
from laplacian_metric.metrics.ranking import Ranking
from laplacian_metric.metrics.sparsification import error_auroc
from laplacian_metric.runs.images import CORRUPTED, CROPPED, OUT, TEST, VALIDATION

OWN = "own"
EVERY = 5  # of the training images, so many are what the nearest distance is taken to
ROC_POINTS = 201
CALIBRATED = (1, 5, 10)  # k of the calibration error by rank

# Of every score the values (N,) for every set.
Scores = dict[str, dict[str, Tensor]]


def method_scores(
    embedder: Embedder, sets: Mapping[str, LabelledInputs], known: Mapping[str, StochasticEmbedding]
) -> Scores:
    """The scores that an embedder has, for every set; of what is embedded already they are taken from there."""
    plain = type(embedder).scores is Embedder.scores
    found: Scores = {}
    for name, inputs in sets.items():
        ready = plain and name in known
        for score, values in (scores_of(known[name]) if ready else embedder.scores(inputs)).items():
            found.setdefault(score, {})[name] = values.detach().cpu()
    return found


def trivial_scores(encoder: Encoder, sets: Mapping[str, LabelledInputs], train: LabelledInputs) -> Scores:
    """The norms before and after the head, and the distance to the nearest of every fifth training image."""
    reference = _norms_and_raw(encoder, train.select(torch.arange(0, len(train), EVERY)))[1]
    reference = nn.functional.normalize(reference)
    found: Scores = {"feature norm": {}, "embedding norm": {}, "nearest distance": {}}
    for name, inputs in sets.items():
        norms, u = _norms_and_raw(encoder, inputs)
        found["feature norm"][name] = norms
        found["embedding norm"][name] = metrics.embedding_norm(u)
        found["nearest distance"][name] = metrics.nearest_distance(
            nn.functional.normalize(u), database=reference
        )
    return found


def norms(encoder: Encoder, inputs: Iterable[Any]) -> dict[str, Tensor]:
    """The norms before and after the head, as the scores (N,) that they are by name."""
    features, u = _norms_and_raw(encoder, inputs)
    return {"feature norm": features, "embedding norm": metrics.embedding_norm(u)}


def _norms_and_raw(encoder: Encoder, inputs: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """|h| (N,) and u (N, Z), batch by batch: all features may be more than the memory holds."""
    norms, raw = [], []
    with evaluating(encoder):
        for batch in inputs_of(inputs):
            h = encoder.features(to_device(batch, encoder))
            norms.append(metrics.feature_norm(h).cpu())
            raw.append(encoder.head(h).cpu())
    return torch.cat(norms), torch.cat(raw)


def judged(
    values: Mapping[str, Tensor],
    ranking: Ranking,
    validation: Ranking,
    entropy: Tensor | None = None,
) -> dict[str, Any]:
    """What a score, given for every set, can tell; what was not asked for is None."""
    test = values[TEST]
    areas = metrics.sparsify(ranking, test)
    return {
        "r_auroc": error_auroc(ranking, test),
        "ausc": areas.area,
        "ausc_oracle": areas.oracle,
        "ausc_random": areas.random,
        **{f"ece_at_{k}": ranking_ece(ranking, test, k) if ranking.k >= k else None for k in CALIBRATED},
        "validation_r_auroc": error_auroc(validation, values[VALIDATION]),
        "corrupted_auroc": (
            metrics.ood_auroc(values[VALIDATION], values[CORRUPTED]) if CORRUPTED in values else None
        ),
        "crop_test": metrics.crop_test(test, values[CROPPED]) if CROPPED in values else None,
        "rank_correlation": None if entropy is None else metrics.rank_correlation(test, entropy),
        "out": {
            name.removeprefix(OUT): {
                "auroc": metrics.ood_auroc(test, out),
                "average_precision": metrics.ood_average_precision(test, out),
            }
            for name, out in values.items()
            if name.startswith(OUT)
        },
    }


def curves(values: Mapping[str, Tensor], ranking: Ranking) -> dict[str, Any]:
    """The curves of a score: of telling strangers, and of leaving the most uncertain queries out."""
    areas = metrics.sparsify(ranking, values[TEST])
    return {
        "roc": {
            name.removeprefix(OUT): roc(values[TEST], out)
            for name, out in values.items()
            if name.startswith(OUT)
        },
        "sparsification": {
            "own": areas.curve.tolist(),
            "oracle": areas.oracle_curve.tolist(),
            "random": [areas.random] * len(areas.curve),
        },
    }


def roc(inside: Tensor, outside: Tensor) -> dict[str, list[float]]:
    """The rates of true and false positives where the threshold goes down, at no more than 201 of the thresholds.

    Example:
        >>> roc(torch.tensor([0.1, 0.5]), torch.tensor([0.5, 0.9]))
        {'false_positive_rate': [0.0, 0.0, 0.5, 1.0], 'true_positive_rate': [0.0, 0.5, 1.0, 1.0]}
    """
    score = torch.cat([inside, outside]).double()
    is_out = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).double()
    ordered, order = score.sort(descending=True)
    last = torch.ones(len(score), dtype=torch.bool)
    last[:-1] = ordered[:-1] != ordered[1:]  # of equal scores all are above the threshold, or none
    true = is_out[order].cumsum(0)[last] / len(outside)
    false = (1 - is_out[order]).cumsum(0)[last] / len(inside)
    true, false = (torch.cat([torch.zeros(1, dtype=torch.float64), rate]) for rate in (true, false))
    if len(true) > ROC_POINTS:
        # Half of the length of the curve is across and half is up: steps along both keep its shape.
        along = true + false
        wanted = torch.linspace(0, 2, ROC_POINTS, dtype=torch.float64)
        chosen = torch.searchsorted(along, wanted).clamp_max(len(along) - 1).unique()
        true, false = true[chosen], false[chosen]
    return {"false_positive_rate": false.tolist(), "true_positive_rate": true.tolist()}
