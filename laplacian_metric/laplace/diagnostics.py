"""Is this posterior to be trusted? What was clamped, what the data determine, and whether theta* is a mode at all."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hessians.checks import CurvatureWarning
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.laplace.fit import Fitted
from laplacian_metric.laplace.head import HeadPosterior
from laplacian_metric.laplace.layer import LayerPosterior
from laplacian_metric.metrics import recall_at_k


@dataclass(frozen=True)
class Diagnostics:
    """What to look at before a posterior is used.

    Attributes:
        loss_value: L(theta*), over the pairs that the curvature is of.
        gradient_norm: |dL/dtheta| at theta*, of the loss as it is trained.
        steps_to_mode: the Newton step from theta* to the posterior's mode, in standard deviations of the posterior:
            sqrt(g^T P^-1 g). Much above ``expected_steps`` theta* is no mode of its loss.
        expected_steps: the square root of the number of effective parameters, how far a typical draw is away.
        clamped: the share of the curvature's entries (or eigenvalues) that were negative and set to 0.
        prior_to_data: the prior precision over the mean precision that the data give a weight.
        effective_parameters: how many parameters the data determine rather than the prior.
        parameters: how many there are.
        precision_error: the relative error of the posterior's diagonal precision in the l2 norm, where negative pairs
            were sampled; 0 where every pair was looked at.
    """

    loss_value: float
    gradient_norm: float
    steps_to_mode: float
    expected_steps: float
    clamped: float
    prior_to_data: float
    effective_parameters: float
    parameters: int
    precision_error: float = 0.0

    @property
    def is_mode(self) -> bool:
        """Whether theta* is as near to the mode as a draw of the posterior is."""
        return self.steps_to_mode <= max(1.0, self.expected_steps)

    def to_dict(self) -> dict[str, float]:
        """Plain numbers, for a result file."""
        return asdict(self)


def diagnose(posterior: LayerPosterior, theta: Tensor, fitted: Fitted, scale: float) -> Diagnostics:
    """The numbers of the posterior of a fit at theta (Z, H'), ``scale`` times whose curvature is in its precision."""
    slope = scale * fitted.gradient + posterior.prior * theta
    distance = math.sqrt(max(0.0, float((slope * posterior.solve(slope)).double().sum())))
    effective, error = posterior.effective_parameters(), 0.0
    data = scale * fitted.curvature.trace() / posterior.num_parameters
    if fitted.curvature_error:
        precision = scale * fitted.curvature.diagonal().double() + posterior.prior
        error = scale * fitted.curvature_error / float(precision.norm())
    return Diagnostics(
        loss_value=fitted.loss_value,
        gradient_norm=float(fitted.gradient.double().norm()),
        steps_to_mode=distance,
        expected_steps=math.sqrt(max(0.0, effective)),
        clamped=fitted.curvature.clamped,
        prior_to_data=posterior.prior / data if data > 0 else math.inf,
        effective_parameters=effective,
        parameters=posterior.num_parameters,
        precision_error=error,
    )


def warn_unless_mode(diagnostics: Diagnostics) -> None:
    """Say so where theta* is no mode: a Gaussian around it is then a Gaussian around the wrong place."""
    if not diagnostics.is_mode:
        warnings.warn(
            f"theta* is no mode of its loss: the Newton step to it is {diagnostics.steps_to_mode:.3g} "
            f"standard deviations long, where a typical draw is {diagnostics.expected_steps:.3g} away (gradient "
            f"norm {diagnostics.gradient_norm:.3g}). Train longer, with the loss that is given here, or "
            "lower n_effective",
            CurvatureWarning,
            stacklevel=3,
        )


def recall_lost(
    head: HeadPosterior, features: Tensor, labels: Tensor, samples: int, generator: torch.Generator | None
) -> float:
    """recall@1 of the trained head less the mean recall@1 of sampled ones."""
    point = unit_rows(torch.cat([F.linear(h, head.weight, head.bias) for h in head.blocks(features)]))
    sampled = [recall_at_k(z, labels) for z in head.sampled(features, samples, generator)]
    return recall_at_k(point, labels) - sum(sampled) / len(sampled)
