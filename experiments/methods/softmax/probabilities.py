"""Scores of class probabilities, averages of several members' probabilities, and the temperature."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Score = Literal["entropy", "maximum", "energy", "disagreement"]
LARGEST = 80.0  # exp(80) is a float32
LOG_TEMPERATURES = (math.log(0.05), math.log(20.0))


def log_mean_softmax(logits: Tensor) -> Tensor:
    """Return the logarithm of the members' mean probabilities (N, C) of their logits (M, N, C).

    Example:
        >>> log_mean_softmax(torch.tensor([[[0.0, 100.0]], [[100.0, 0.0]]])).exp().round(decimals=3)
        tensor([[0.5000, 0.5000]])
    """
    return torch.logsumexp(torch.log_softmax(logits, dim=2), dim=0) - math.log(len(logits))


def entropy(log_p: Tensor) -> Tensor:
    """Return the entropy of the last dimension of log probabilities.

    Example:
        >>> entropy(torch.tensor([[0.5, 0.5]]).log())
        tensor([0.6931])
    """
    value: Tensor = torch.special.entr(log_p.exp()).sum(-1)
    return value


def scores(logits: Tensor) -> dict[str, Tensor]:
    """Return each score (N,) of the members' logits (M, N, C), all of them greater where the classifier is less sure.

    "entropy" is that of the mean probabilities, "maximum" is 1 - the greatest of them, "energy" is -logsumexp of the
    logits, averaged over members, and "disagreement" the Jensen-Shannon divergence of the members; a single member has
    none.

    Example:
        >>> {name: round(float(score), 4) for name, score in scores(torch.tensor([[[0.0, 0.0]]])).items()}
        {'entropy': 0.6931, 'maximum': 0.5, 'energy': -0.6931}
    """
    log_p = log_mean_softmax(logits)
    values = {
        "entropy": entropy(log_p),
        "maximum": 1 - log_p.amax(1).exp(),
        "energy": -torch.logsumexp(logits, dim=2).mean(0),
    }
    if len(logits) > 1:
        own = entropy(torch.log_softmax(logits, dim=2)).mean(0)
        values["disagreement"] = (values["entropy"] - own).clamp(min=0)
    return values


def kappa_of(uncertainty: Tensor) -> Tensor:
    """Return exp(-uncertainty), (N,): a decreasing map to concentrations, and no width of a distribution.

    Example:
        >>> kappa_of(torch.tensor([0.0]))
        tensor([1.])
    """
    return torch.exp(-uncertainty.clamp(-LARGEST, LARGEST))


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature, from 0.05 to 20, by which the members' mean probabilities make the labels most likely.

    Args:
        logits: (M, N, C) of images that nothing was trained on.
        labels: (N,), from 0 to C - 1.

    Example:
        >>> logits = torch.tensor([[[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]])
        >>> t = fit_temperature(logits, torch.tensor([0, 0, 0, 1]))  # right in three cases of four
        >>> round(float(torch.sigmoid(torch.tensor(4 / t))), 3)
        0.75
    """
    from scipy.optimize import minimize_scalar

    logits, labels = logits.double(), labels.to(logits.device)

    def loss(log_temperature: float) -> float:
        return float(F.nll_loss(log_mean_softmax(logits / math.exp(log_temperature)), labels))

    return math.exp(minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded").x)
