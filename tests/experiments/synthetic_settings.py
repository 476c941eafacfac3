"""A setting of the trust experiments, drawn from Gaussians around class means."""

from __future__ import annotations

import numpy as np

from experiments.trust.settings import Setting
from laplacian_metric.trust.head import Head


def synthetic(zero_shot: bool) -> Setting:
    """Return a setting with four classes in the gallery and OOD queries near and far."""
    generator = np.random.default_rng(0)
    centers = generator.standard_normal((8, 10))
    parts: dict[str, np.ndarray] = {}

    def add(name: str, classes: range, num: int, spread: float = 1.1) -> None:
        labels = generator.choice(list(classes), num)
        parts[f"{name}:h"] = (centers[labels] + spread * generator.standard_normal((num, 10))).astype(
            np.float32
        )
        parts[f"{name}:labels"] = labels

    add("gallery", range(4), 200)
    add("test", range(4), 150)
    add("near/held-out classes", range(6, 8), 60)
    add("far/noise", range(4), 60, 6.0)
    if zero_shot:
        add("calibration", range(4, 6), 150)
        add("training", range(4, 8), 150)
    add("validation", range(4, 6) if zero_shot else range(4), 120)
    head = Head(generator.standard_normal((4, 10)), generator.standard_normal(4))
    return Setting("synthetic", 0, head, parts)
