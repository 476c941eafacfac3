"""Inside of ``torch.autocast`` a fit, its prior and its embeddings are those of outside, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hessians import ContrastiveLoss
from laplacian_metric import LAM, NetworkLAM
from tests.generators import seeded
from tests.laplace.fit_reference import STRUCTURES, Layer, images_of, network

LAYER = Layer.random(24, 5, 3, classes=4, seed=5)
H, IMAGES = LAYER.features.float(), images_of(LAYER, network(LAYER)).float()


def of_layer(structure: str) -> list[Tensor]:
    lam = LAM(network(LAYER).float(), ContrastiveLoss(0.9), structure=structure, rank=3)
    lam.fit_features(H, LAYER.labels, generator=seeded(), check_mode=False)
    lam.optimize_prior_precision()
    e = lam.embed_features(H, samples=2, generator=seeded())
    *_, last = lam.sample_embeddings(H, 2, generator=seeded())
    numbers = [*lam.diagnostics().to_dict().values(), lam.recall_lost(H, LAYER.labels, generator=seeded())]
    weight, _ = lam.sample_weights(1, generator=seeded())
    return [*vars_of(e), last, torch.tensor(numbers), weight]


def of_network(predictive: str) -> list[Tensor]:
    lam = NetworkLAM(
        network(LAYER).float(), ContrastiveLoss(0.9), layers="all", predictive=predictive, samples=3
    )
    lam.fit([(IMAGES, LAYER.labels)], check_mode=False)
    return vars_of(lam.embed(IMAGES, samples=2, generator=seeded()))


def vars_of(e: Any) -> list[Tensor]:
    return [e.point, e.mean, e.kappa, e.samples]


@pytest.mark.filterwarnings("ignore::hessians.checks.CurvatureWarning")
@pytest.mark.parametrize(
    ("run", "kind"),
    [
        *((of_layer, structure) for structure in STRUCTURES),
        (of_network, "linearised"),
        (of_network, "sampled"),
    ],
)
def test_autocast_changes_nothing(run: Any, kind: str) -> None:
    expected = run(kind)
    with torch.autocast("cpu", torch.bfloat16):
        for one, other in zip(run(kind), expected, strict=True):
            assert torch.equal(one, other)
        assert (H @ H.T).dtype == torch.bfloat16  # autocast is as it was
