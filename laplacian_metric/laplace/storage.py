"""A fitted `LAM` as an artifact: the curvature and the settings, but not the encoder, which is named by digests.

Reading it runs nothing that is in it: a loss is made from a table of known classes, or passed by whoever loads.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from hessians import ContrastiveLoss, InfoNCELoss
from hessians.checks import exact_device
from hessians.pair_loss import PairLoss
from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactError, Manifest
from laplacian_metric.core.checked import Strict
from laplacian_metric.core.tensor_file import digest
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError
from laplacian_metric.laplace.fit import Fitted
from laplacian_metric.laplace.layer import CURVATURES
from laplacian_metric.laplace.options import LamOptions

if TYPE_CHECKING:
    from laplacian_metric.encoder import Encoder
    from laplacian_metric.laplace.posthoc import LAM

TENSORS = "curvature.safetensors"
LOSSES: dict[str, type[PairLoss]] = {
    "hessians.ContrastiveLoss": ContrastiveLoss,
    "hessians.InfoNCELoss": InfoNCELoss,
}
Plain = bool | int | float | str | None


class LossEntry(Strict):
    """The class of a loss, and its settings where these are plain values."""

    kind: str
    fields: dict[str, Plain] | None

    @staticmethod
    def of(loss: PairLoss) -> LossEntry:
        """Return the entry of a loss; the name of a class that is not this library's has no "hessians." before it."""
        known = (name for name, kind in LOSSES.items() if type(loss) is kind)
        return LossEntry(kind=next(known, type(loss).__qualname__), fields=plain_fields(loss))

    def made(self, loss: PairLoss | None) -> PairLoss:
        """Return the loss that is passed, which has to be this one, or a new one of a class that is known."""
        if loss is not None:
            if (passed := LossEntry.of(loss)) != self:
                raise ValueError(f"loss is {passed}, the posterior was fitted with {self}")
            return loss
        if self.kind not in LOSSES:
            raise ValueError(f"the loss {self.kind} of the posterior is not this library's: pass it as loss=")
        return LOSSES[self.kind](**(self.fields or {}))


def plain_fields(thing: object) -> dict[str, Plain] | None:
    """Return the fields of a data class of numbers and names; None for anything else.

    Example:
        >>> plain_fields(ContrastiveLoss(margin=0.5))["distance"]
        'arccos'
    """
    if not is_dataclass(thing):
        return None
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    return values if all(isinstance(value, Plain) for value in values.values()) else None


class EncoderEntry(Strict):
    """The encoder that a posterior was fitted to, by digests and by the form of its head."""

    fingerprint: str
    backbone: str
    head: str
    outputs: int
    features: int
    bias: bool
    dtype: str
    normalize: bool

    @staticmethod
    def of(encoder: Encoder) -> EncoderEntry:
        """Return the entry of an encoder."""
        head = encoder.head
        return EncoderEntry(
            fingerprint=encoder.fingerprint(),
            backbone=digest(encoder.backbone, {}),
            head=digest(head, {}),
            outputs=head.out_features,
            features=head.in_features,
            bias=head.bias is not None,
            dtype=str(head.weight.dtype),
            normalize=encoder.normalize,
        )

    def check(self, encoder: Encoder) -> None:
        """Refuse another encoder, and say what about it is another."""
        if any(tensor.is_meta for tensor in (*encoder.parameters(), *encoder.buffers())):
            raise ValueError("the encoder is on the meta device, which has no weights: load them first")
        if encoder.fingerprint() == self.fingerprint:
            return
        stored, own = self.model_dump(), EncoderEntry.of(encoder).model_dump()
        differing = [name for name in own if own[name] != stored[name] and name != "fingerprint"]
        raise ValueError(
            f"the posterior is of another encoder, whose {', '.join(differing) or 'fingerprint'} differs: load it with "
            "the encoder that it was fitted to, or fit this one"
        )


class LamManifest(Manifest):
    """What the folder of a LAM says about it."""

    FORMAT: ClassVar[str] = "laplacian_metric lam"
    PAYLOADS: ClassVar[tuple[str, ...]] = (TENSORS,)

    loss: LossEntry
    options: LamOptions
    fit: dict[str, Plain]
    clamped: float
    encoder: EncoderEntry


def manifest_of(lam: LAM) -> LamManifest:
    """Return what is stored of a fitted LAM beside its tensors."""
    fitted = lam._fit()
    if lam.encoder.fingerprint() != fitted.fingerprint:
        raise EncoderChangedError(
            "the encoder is not the one any more that this LAM was fitted to (its weights, running statistics or "
            "dtype have changed): fit again before saving"
        )
    return LamManifest(
        made_with={"torch": str(torch.__version__)},
        loss=LossEntry.of(lam.loss),
        options=lam.options,
        fit=numbers_of(fitted),
        clamped=fitted.curvature.clamped,
        encoder=EncoderEntry.of(lam.encoder),
    )


def numbers_of(fitted: object) -> dict[str, Plain]:
    """Return the fields of what was fitted that are no tensors."""
    values = {field.name: getattr(fitted, field.name) for field in fields(fitted)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if isinstance(value, Plain)}


def check_numbers(tensors: dict[str, Tensor]) -> None:
    """Refuse to save NaN and infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has NaN or infinite entries: fit again, it cannot be saved")


def save(lam: LAM, path: str | os.PathLike[str]) -> None:
    """Write a fitted LAM into a folder, in place of one that is there.

    Example:
        >>> import tempfile
        >>> from laplacian_metric.encoder import Encoder
        >>> from laplacian_metric.laplace.posthoc import LAM
        >>> encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3))
        >>> features, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> lam = LAM(encoder, ContrastiveLoss()).fit_features(features, labels, check_mode=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(lam, folder + "/lam")
        ...     again = load(folder + "/lam", encoder)
        >>> torch.equal(again.embed(features).kappa, lam.embed(features).kappa)
        True
    """
    fitted, manifest = lam._fit(), manifest_of(lam)
    tensors = {**fitted.curvature.tensors(), "gradient": fitted.gradient}
    check_numbers(tensors)
    artifact.save(path, manifest, {TENSORS: tensors}, overwrite=True)


def load(path: str | os.PathLike[str], encoder: Encoder, loss: PairLoss | None = None) -> LAM:
    """Read a LAM for the encoder that it was fitted to, onto that encoder's device; any other encoder is refused.

    Args:
        path: what `save` wrote.
        encoder: with the weights that it had when the LAM was fitted.
        loss: needed where it is of a class that is not this library's; of any other it must agree with the folder.
    """
    from laplacian_metric.laplace.posthoc import LAM

    with artifact.load(path, LamManifest) as opened:
        manifest, tensors = opened.manifest, opened.tensors(TENSORS)
    manifest.encoder.check(encoder)
    lam = LAM.of(encoder, manifest.loss.made(loss), manifest.options)
    device = exact_device(encoder.head.weight.device)
    try:
        gradient = tensors.pop("gradient").to(device)
        curvature = CURVATURES[lam.structure].from_tensors(tensors, manifest.clamped).to(device)
        lam.fitted = Fitted(curvature=curvature, gradient=gradient, **manifest.fit)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ArtifactError(f"{path} holds other tensors than its manifest describes: {error}") from error
    if not curvature.shape == gradient.shape == (manifest.encoder.outputs, _inputs(manifest)):
        raise ArtifactError(f"{path} holds tensors of other shapes than its manifest describes")
    return lam


def _inputs(manifest: LamManifest) -> int:
    return manifest.encoder.features + int(bool(manifest.fit["bias_is_random"]))
