"""A fitted `NetworkLAM` as an artifact; the encoder is not in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

import torch

from hessians.pair_loss import PairLoss
from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactError, Manifest
from laplacian_metric.laplace.layer import DiagonalCurvature
from laplacian_metric.laplace.network.posterior import NetworkFitted
from laplacian_metric.laplace.options import NetworkOptions
from laplacian_metric.laplace.storage import LossEntry, Plain, check_numbers, numbers_of

if TYPE_CHECKING:
    from laplacian_metric.encoder import Encoder
    from laplacian_metric.laplace.network.posthoc import NetworkLAM

TENSORS = "curvature.safetensors"


class NetworkManifest(Manifest):
    """What the folder of a NetworkLAM says about it."""

    FORMAT: ClassVar[str] = "laplacian_metric network-lam"
    PAYLOADS: ClassVar[tuple[str, ...]] = (TENSORS,)

    loss: LossEntry
    options: NetworkOptions
    fit: dict[str, Plain]
    groups: dict[str, list[str]]
    clamped: dict[str, float]


def save(lam: NetworkLAM, path: str | os.PathLike[str]) -> None:
    """Write a fitted NetworkLAM into a folder, in place of one that is there."""
    fitted = lam._fit()
    manifest = NetworkManifest(
        made_with={"torch": str(torch.__version__)},
        loss=LossEntry.of(lam.loss),
        options=lam.options,
        fit=numbers_of(fitted),
        groups=fitted.groups,
        clamped={layer: curvature.clamped for layer, curvature in fitted.curvature.items()},
    )
    tensors = {f"curvature/{layer}": curvature.diagonal() for layer, curvature in fitted.curvature.items()}
    tensors |= {f"gradient/{name}": gradient for name, gradient in fitted.gradient.items()}
    check_numbers(tensors)
    artifact.save(path, manifest, {TENSORS: tensors}, overwrite=True)


def load(path: str | os.PathLike[str], encoder: Encoder, loss: PairLoss | None = None) -> NetworkLAM:
    """Read a NetworkLAM for the encoder and the loss that it was fitted with; any others are refused."""
    from laplacian_metric.laplace.network.posthoc import NetworkLAM

    with artifact.load(path, NetworkManifest) as opened:
        manifest, tensors = opened.manifest, opened.tensors(TENSORS)
    if manifest.fit.get("fingerprint") != encoder.fingerprint():
        raise ValueError(
            f"{path} holds the posterior of another encoder: pass the one that it was fitted to, or fit again"
        )
    lam = NetworkLAM(encoder, manifest.loss.made(loss), **vars(manifest.options))
    device, groups = encoder.head.weight.device, manifest.groups
    try:
        lam.fitted = NetworkFitted(
            groups=groups,
            curvature={
                layer: DiagonalCurvature(tensors[f"curvature/{layer}"].to(device), manifest.clamped[layer])
                for layer in groups
            },
            gradient={
                name: tensors[f"gradient/{name}"].to(device) for names in groups.values() for name in names
            },
            **manifest.fit,  # type: ignore[arg-type]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} holds other tensors than its manifest describes: {error}") from error
    return lam
