"""The header of a stored LAM: how it was made, what it is of, and whether an encoder and a loss agree with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field, model_validator

from hessians import ContrastiveLoss, InfoNCELoss
from hessians.pair_loss import PairLoss
from laplacian_metric import __version__
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.core.checked import Strict, parsed, validated
from laplacian_metric.core.tensor_file import digest
from laplacian_metric.laplace.fit import Fitted

if TYPE_CHECKING:
    from laplacian_metric.encoder import Encoder
    from laplacian_metric.laplace.posthoc import LAM

FORMAT = 1
LOSSES: dict[str, type[PairLoss]] = {
    "hessians.ContrastiveLoss": ContrastiveLoss,
    "hessians.InfoNCELoss": InfoNCELoss,
}


class LossEntry(Strict):
    """The class of a loss, and its settings where these are plain values."""

    name: str = Field(alias="class")
    fields: dict[str, bool | int | float | str | None] | None


class SettingsEntry(Strict):
    """The settings of a LAM; None stands for "not set"."""

    approximation: str
    structure: str
    rank: int
    n_effective: float | None
    temperature: float
    prior_precision: float | None
    weight_decay: float | None
    pairs: str = "auto"  # files of earlier versions do not have it


class FitEntry(Strict):
    """What was measured beside the tensors."""

    num_images: int
    num_positives: float
    num_negatives: float
    num_batches: int
    loss_value: float
    bias_is_random: bool
    clamped: float
    length: float | None = None  # files of earlier versions do not have it
    curvature_error: float = 0.0


class EncoderEntry(Strict):
    """The encoder that it was fitted to, by digests and by the form of its head."""

    fingerprint: str
    backbone: str
    head: str
    outputs: int
    features: int
    bias: bool
    dtype: str
    normalize: bool


class Header(Strict):
    """The header of a file."""

    format: int
    versions: dict[str, str]
    loss: LossEntry
    settings: SettingsEntry
    fit: FitEntry
    encoder: EncoderEntry
    orders: dict[str, list[int]]

    @model_validator(mode="after")
    def _bias(self) -> Header:
        if self.fit.bias_is_random and not self.encoder.bias:
            raise ValueError("the bias is random, and the head has none")
        return self


def header_of(lam: LAM, fitted: Fitted, orders: Mapping[str, list[int]] | None = None) -> Header:
    """Return the header of a fitted LAM; numbers that JSON does not have are refused by their place in it."""
    encoder = lam.encoder
    values = {
        "format": FORMAT,
        "versions": {"laplacian_metric": __version__, "torch": str(torch.__version__)},
        "loss": {"class": _class_name(lam.loss), "fields": _fields(lam.loss)},
        "settings": {
            "approximation": lam.approximation.value,
            "structure": lam.structure.value,
            "rank": lam.rank,
            "n_effective": lam._n_effective,
            "temperature": lam.temperature,
            "prior_precision": lam._prior_precision,
            "weight_decay": lam.weight_decay,
            "pairs": lam.pairs.value,
        },
        "fit": {
            "num_images": fitted.num_images,
            "num_positives": fitted.num_positives,
            "num_negatives": fitted.num_negatives,
            "num_batches": fitted.num_batches,
            "loss_value": fitted.loss_value,
            "bias_is_random": fitted.bias_is_random,
            "clamped": fitted.curvature.clamped,
            "length": fitted.length,
            "curvature_error": fitted.curvature_error,
        },
        "encoder": {
            "fingerprint": fitted.fingerprint,
            "backbone": digest(encoder.backbone, {}),
            "head": digest(encoder.head, {}),
            **_head_form(encoder),
        },
        "orders": dict(orders or {}),
    }
    return validated(
        Header,
        values,
        "the LAM",
        "fit with finite settings and data, only these are stored",
        ArtifactError,
    )


def _head_form(encoder: Encoder) -> dict[str, Any]:
    head = encoder.head
    return {
        "outputs": head.out_features,
        "features": head.in_features,
        "bias": head.bias is not None,
        "dtype": str(head.weight.dtype),
        "normalize": encoder.normalize,
    }


def header_from(text: str, file: str) -> Header:
    """Return the header of a file from its JSON."""
    values = parsed(text, f"the header of {file}", "copy it again, or save it again", ArtifactError)
    if type(values.get("format")) is not int:
        raise ArtifactError(f"the header of {file} has no format number: it was not written by LAM.save")
    if values["format"] > FORMAT:
        raise ArtifactError(
            f"{file} has format {values['format']}, this version reads up to format {FORMAT}: update laplacian_metric"
        )
    return validated(
        Header, values, f"the header of {file}", "copy it again, or save it again", ArtifactError
    )


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error


# --- the loss ---


def _class_name(loss: PairLoss) -> str:
    """The name in the table, exact classes only; that of any other class has no dot of ours before it."""
    known = (name for name, kind in LOSSES.items() if type(loss) is kind)
    return next(known, type(loss).__qualname__)


def _fields(loss: object) -> dict[str, Any] | None:
    """The settings of a loss, where it is a data class of numbers and names."""
    if not is_dataclass(loss) or isinstance(loss, type):
        return None
    values = {field.name: getattr(loss, field.name) for field in fields(loss)}
    values = {name: _plain(value) for name, value in values.items()}
    plain = all(isinstance(value, (bool, int, float, str, type(None))) for value in values.values())
    return values if plain else None


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def loss_of(entry: LossEntry, loss: PairLoss | None, file: str) -> PairLoss:
    name, settings = entry.name, entry.fields
    if loss is not None:
        if _class_name(loss) != name:
            raise ValueError(f"it was fitted with the loss {name}, but loss is a {_class_name(loss)}")
        own = _fields(loss)
        if settings is not None and own is not None:
            # Settings that came later have their defaults, which is what was before.
            settings = {**{field.name: _plain(field.default) for field in fields(loss)}, **settings}  # type: ignore[arg-type]
        if settings is not None and own is not None and own != settings:
            differing = sorted(key for key in {*own, *settings} if own.get(key) != settings.get(key))
            listed = ", ".join(f"{key} {settings.get(key)!r}, not {own.get(key)!r}" for key in differing)
            raise ValueError(f"it was fitted with another {name}: {listed}")
        return loss
    if name not in LOSSES:
        raise ValueError(
            f"it was fitted with the loss {name}, which is not this library's: pass it, "
            f'LAM.load("{file}", encoder, loss=...)'
        )
    return LOSSES[name](**(settings or {}))


# --- the encoder ---


def check_encoder(entry: EncoderEntry, encoder: Encoder, file: str) -> None:
    """Refuse another encoder, and say what about it is another."""
    if any(tensor.is_meta for tensor in (*encoder.parameters(), *encoder.buffers())):
        raise ValueError(
            f"{file} cannot be checked against an encoder on the meta device, which has no weights: load them first"
        )
    if encoder.fingerprint() == entry.fingerprint:
        return
    form, stored = _head_form(encoder), entry.model_dump()
    same_backbone = digest(encoder.backbone, {}) == entry.backbone
    same_head = digest(encoder.head, {}) == entry.head
    reasons = []
    if not same_backbone:
        reasons.append("the backbone differs")
    shapes = [_form_text(each) for each in (stored, form)]
    if shapes[0] != shapes[1]:
        reasons.append(f"the head has another shape: {shapes[0]} in the file, {shapes[1]} here")
    elif form["dtype"] != entry.dtype:
        reasons.append(f"the dtype differs: {entry.dtype} in the file, {form['dtype']} here")
    elif not same_head:
        reasons.append("only the head's weights differ" if same_backbone else "the head's weights differ")
    if form["normalize"] != entry.normalize:
        reasons.append(f"normalize is {entry.normalize} in the file, {form['normalize']} here")
    raise ValueError(
        f"{file} is the posterior of another encoder: {'; '.join(reasons) or 'its fingerprint differs'}. Load it "
        "with the encoder that it was fitted to, or fit this one"
    )


def _form_text(form: dict[str, Any]) -> str:
    return f"({form['outputs']}, {form['features']}) {'with' if form['bias'] else 'without'} bias"
