"""What the Laplace posterior adds to `Trust`: the same calibration with its numbers among the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.trust.features import Arrays
from experiments.trust.measure import ALPHA, MEASURES, Scored, bootstrap_weights, measures, weighted
from experiments.trust.settings import Setting
from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder
from laplacian_metric.trust.calibration import MATCH_INPUTS, Logistic, discounted, fit_sigmoid, folds_of
from laplacian_metric.trust.novelty import Novelty

MOST = 2000  # items that the posterior is fitted on
RESAMPLES = 200


def posterior_inputs(setting: Setting, parts: list[str]) -> dict[str, np.ndarray]:
    """Return log of the raw predictive variance and log 1/kappa of the queries of each part, (N, 2)."""
    assert setting.head is not None
    weight = torch.from_numpy(setting.head.weight)
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.from_numpy(setting.head.bias))
    name = "calibration" if setting.zero_shot else "gallery"
    rows = np.random.default_rng(0).permutation(len(setting.h(name)))[:MOST]
    codes = np.unique(setting.labels(name)[rows], return_inverse=True)[1]
    lam = LAM(Encoder(nn.Identity(), layer).eval(), ContrastiveLoss(margin=0.7, negatives="active"))
    lam.fit_features(torch.from_numpy(setting.h(name)[rows]), torch.from_numpy(codes), progress=False)
    lam.optimize_prior_precision()
    result = {}
    for part in parts:
        e = lam.embed_features(torch.from_numpy(setting.h(part)))
        assert e.gaussians is not None
        variance = e.gaussians.marginal_variance.double().mean(1)
        result[part] = torch.stack([variance.log(), -e.kappa.double().log()], dim=1).detach().numpy()
    return result


def scored_with(
    arrays: Arrays, extra: dict[str, np.ndarray] | None, rows: slice, *, novel: int = 1
) -> Scored:
    """Return the probability and the novelty, with further inputs (N, K) of each part where ``extra`` has them.

    All of them, the greater the less sure, join the match inputs, and the first ``novel`` of them the novelty.
    """
    num_extra = next(iter(extra.values())).shape[1] if extra else 0
    signs = np.array([*MATCH_INPUTS.values(), *([-1] * num_extra)])

    def both(part: str) -> tuple[np.ndarray, np.ndarray]:
        match, novelty = arrays[f"{part}:M"], arrays[f"{part}:N"]
        if extra:
            match = np.concatenate([match, extra[part]], axis=1)
            novelty = np.concatenate([novelty, extra[part][:, :novel]], axis=1)
        return match, novelty

    match_inputs, novelty_inputs = (values[rows] for values in both("validation"))
    right = arrays["validation:right"][rows]
    novelty_fit = Novelty.fit(novelty_inputs, ALPHA)
    soft = novelty_fit.log_soft_known(novelty_fit.parts(novelty_inputs).sum(axis=1))
    fold, crossed = folds_of(right), np.empty(len(right))
    for number in range(fold.max() + 1):
        inside = fold == number
        logistic = Logistic.fit(match_inputs[~inside], right[~inside], signs)
        crossed[inside] = logistic.logit(match_inputs[inside])
    a, b = fit_sigmoid(discounted(crossed, soft), right)
    match = Logistic.fit(match_inputs, right, signs)
    scores: dict[str, dict[str, Any]] = {}
    for part in [name.split(":")[0] for name in arrays if name.endswith(":M")]:
        if part in ("validation", "reference"):
            continue
        inputs, novel_inputs = both(part)
        novelty = novelty_fit.parts(novel_inputs).sum(axis=1)
        logits = discounted(match.logit(inputs), novelty_fit.log_soft_known(novelty))
        scores[part] = {"trust": -(a + b * logits), "novelty": novelty}
    empty = np.zeros(0)
    return Scored(arrays["test:right"], scores, None, empty, 0.0)  # type: ignore[arg-type]


def ablation(setting: Setting, arrays: Arrays, rows: slice) -> dict[str, Any]:
    """Return with less without the posterior's inputs: R and O of the probability, S, near and far of novelty."""
    parts = [name.split(":")[0] for name in arrays if name.endswith(":M")]
    extra = posterior_inputs(setting, parts)
    with_it, without = scored_with(arrays, extra, rows), scored_with(arrays, None, rows)
    weights = bootstrap_weights(without, RESAMPLES)
    result = {}
    for measure in MEASURES:
        name = "trust" if measure in ("R", "O") else "novelty"
        own, other = measures(with_it, name), measures(without, name)
        if measure not in own:
            continue
        draws = (
            weighted(with_it, name, weights)[measure] - weighted(without, name, weights)[measure]
        ).numpy()
        result[measure] = {"value": own[measure] - other[measure], "se": float(draws.std())}
    return result
