"""Small runs to make reports of: clusters of directions, with images that are noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from laplacian_metric import StochasticEmbedding, metrics
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.metrics import Uncertainties
from laplacian_metric.report.evaluated import Evaluated, Images

NAMES = ("coat", "boot", "bag")
DIAGNOSTICS = Diagnostics(0.12, 0.03, 2.0, 3.0, 0.25, 0.5, 9.0, 64)


def images(number: int, side: int = 10, channels: int = 0, seed: int = 0) -> Any:
    """Noise (N, side, side[, channels])."""
    shape = (number, side, side) + ((channels,) if channels else ())
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def embedding(labels: torch.Tensor, dim: int, noise: float = 0.5, seed: int = 0) -> StochasticEmbedding:
    """Directions around one centre for each class, the wider the greater their variance."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(max(1, int(labels.max()) + 1), dim, generator=generator)
    scale = noise * (0.3 + torch.rand(len(labels), 1, generator=generator))
    mean = centres[labels] + scale * torch.randn(len(labels), dim, generator=generator)
    return StochasticEmbedding.from_gaussians(Gaussians(mean, scale.square().expand(-1, dim).contiguous()))


def evaluated(
    number: int = 60, classes: int = 3, dim: int = 4, outside: int = 20, noise: float = 1.6, **changes: Any
) -> Evaluated:
    """A run with everything in it but a probability."""
    labels = torch.arange(number) % classes
    generator = torch.Generator().manual_seed(1)
    inside = embedding(labels, dim, noise)
    others = embedding(torch.zeros(outside, dtype=torch.int64), dim, 3.0, seed=9)
    samples = F.normalize(inside.point + 0.3 * torch.randn(8, number, dim, generator=generator), dim=2)
    names = [f"/pictures/somebody/{row}.png" for row in range(number)]
    fields: dict[str, Any] = {
        "title": "A run",
        "queries": Images(inside, labels, images(number), names),
        "class_names": [NAMES[k] if k < len(NAMES) else f"kind {k}" for k in range(classes)],
        "ood": {"digits": Images(others, thumbnails=images(outside, 12, 3, seed=1))},
        "consensus": metrics.consensus(samples, labels),
        "diagnostics": DIAGNOSTICS,
        "scores": {
            "norm": Uncertainties(torch.rand(number, generator=generator), {"digits": torch.rand(outside)})
        },
        "provenance": [("Command", "lam report --data /pictures/somebody/set")],
    }
    return Evaluated(**{**fields, **changes})


def bare(number: int, dim: int = 3, labels: Any = None, **changes: Any) -> Evaluated:
    """A run with nothing in it but embeddings and labels."""
    labels = torch.arange(number) % 3 if labels is None else torch.as_tensor(labels)
    return Evaluated("A run", Images(embedding(labels, dim, 1.6), labels), **changes)
