"""The header of a stored LAM: how it was made, what it is of, and whether an encoder and a loss agree with it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from hessians import ContrastiveLoss
from hessians.pair_loss import PairLoss
from laplacian_metric.encoder.fingerprint import digest
from laplacian_metric.laplace.state import Fitted

if TYPE_CHECKING:
    from laplacian_metric.encoder import Encoder
    from laplacian_metric.laplace.posthoc import LAM

FORMAT = 1
LOSSES: dict[str, type[PairLoss]] = {"hessians.ContrastiveLoss": ContrastiveLoss}
NUMBER = (int, float)

# What a header must have, and of which types; ``None`` stands for "not set".
SECTIONS: dict[str, dict[str, tuple[type, ...]]] = {
    "versions": {"laplacian_metric": (str,), "torch": (str,)},
    "loss": {"class": (str,), "fields": (dict, type(None))},
    "settings": {
        "approximation": (str,),
        "structure": (str,),
        "rank": (int,),
        "n_effective": (*NUMBER, type(None)),
        "temperature": NUMBER,
        "prior_precision": (*NUMBER, type(None)),
        "weight_decay": (*NUMBER, type(None)),
    },
    "fit": {
        "num_images": (int,),
        "num_positives": NUMBER,
        "num_negatives": NUMBER,
        "num_batches": (int,),
        "loss_value": NUMBER,
        "bias_is_random": (bool,),
        "clamped": NUMBER,
    },
    "encoder": {
        "fingerprint": (str,),
        "backbone": (str,),
        "head": (str,),
        "outputs": (int,),
        "features": (int,),
        "bias": (bool,),
        "dtype": (str,),
        "normalize": (bool,),
    },
    "orders": {},
}
# Entries that files of earlier versions do not have.
OPTIONAL: dict[str, dict[str, tuple[type, ...]]] = {"fit": {"length": (*NUMBER, type(None))}}


def header_of(lam: LAM, fitted: Fitted) -> dict[str, dict[str, Any]]:
    from laplacian_metric import __version__

    encoder = lam.encoder
    return {
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
        },
        "encoder": {
            "fingerprint": fitted.fingerprint,
            "backbone": digest(encoder.backbone, {}),
            "head": digest(encoder.head, {}),
            **_head_form(encoder),
        },
    }


def _head_form(encoder: Encoder) -> dict[str, Any]:
    head = encoder.head
    return {
        "outputs": head.out_features,
        "features": head.in_features,
        "bias": head.bias is not None,
        "dtype": str(head.weight.dtype),
        "normalize": encoder.normalize,
    }


def check_real(value: Any, name: str) -> None:
    """Refuse numbers that JSON does not have, by their place in the header."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_real(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"{name} is {value}: only finite numbers are stored, fit with finite settings and data"
        )


def parsed(told: str, file: str) -> dict[str, Any]:
    """The header, checked entry by entry."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        header = json.loads(told, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header of {file} cannot be read: {error}") from error
    if not isinstance(header, dict) or type(header.get("format")) is not int:
        raise ValueError(f"the header of {file} has no format number: it was not written by LAM.save")
    if header["format"] > FORMAT:
        versions = header.get("versions")
        version = versions.get("laplacian_metric") if isinstance(versions, dict) else None
        raise ValueError(
            f"{file} has format {header['format']}, written by laplacian_metric {version or 'of a later version'}; "
            f"this one reads up to format {FORMAT}: update laplacian_metric"
        )
    for section, entries in SECTIONS.items():
        found = header.get(section)
        if not isinstance(found, dict):
            raise ValueError(f"the header of {file} has no section {section!r}: the file is damaged")
        later = {name: kinds for name, kinds in OPTIONAL.get(section, {}).items() if name in found}
        for name, kinds in {**entries, **later}.items():
            if name not in found or type(found[name]) not in kinds:
                raise ValueError(
                    f"{section}.{name} in the header of {file} is {found.get(name)!r}: the file is damaged"
                )
    with naming(file):
        check_real(header, "")
    if header["fit"]["bias_is_random"] and not header["encoder"]["bias"]:
        raise ValueError(f"the header of {file} has a random bias of a head without one: the file is damaged")
    unknown = set(header["settings"]) - set(SECTIONS["settings"])
    if unknown:
        raise ValueError(f"the header of {file} has unknown settings: {', '.join(sorted(unknown))}")
    return header


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


def loss_of(told: dict[str, Any], given: PairLoss | None, file: str) -> PairLoss:
    name, settings = told["class"], told["fields"]
    if given is not None:
        if _class_name(given) != name:
            raise ValueError(f"it was fitted with the loss {name}, but loss is a {_class_name(given)}")
        own = _fields(given)
        if settings is not None and own is not None and is_dataclass(given):
            # Settings that came later have their defaults, which is what was before.
            settings = {**{field.name: _plain(field.default) for field in fields(given)}, **settings}
        if settings is not None and own is not None and own != settings:
            differing = sorted(key for key in {*own, *settings} if own.get(key) != settings.get(key))
            listed = ", ".join(f"{key} {settings.get(key)!r}, not {own.get(key)!r}" for key in differing)
            raise ValueError(f"it was fitted with another {name}: {listed}")
        return given
    if name not in LOSSES:
        raise ValueError(
            f"it was fitted with the loss {name}, which is not this library's: pass it, "
            f'LAM.load("{file}", encoder, loss=...)'
        )
    return LOSSES[name](**(settings or {}))


# --- the encoder ---


def check_encoder(told: dict[str, Any], encoder: Encoder, file: str) -> None:
    """Refuse another encoder, and say what about it is another."""
    if any(tensor.is_meta for tensor in (*encoder.parameters(), *encoder.buffers())):
        raise ValueError(
            f"{file} cannot be checked against an encoder on the meta device, which has no weights: load them first"
        )
    if encoder.fingerprint() == told["fingerprint"]:
        return
    form = _head_form(encoder)
    same_backbone = digest(encoder.backbone, {}) == told["backbone"]
    same_head = digest(encoder.head, {}) == told["head"]
    reasons = []
    if not same_backbone:
        reasons.append("the backbone differs")
    shapes = [_form_text(each) for each in (told, form)]
    if shapes[0] != shapes[1]:
        reasons.append(f"the head has another shape: {shapes[0]} in the file, {shapes[1]} here")
    elif form["dtype"] != told["dtype"]:
        reasons.append(f"the dtype differs: {told['dtype']} in the file, {form['dtype']} here")
    elif not same_head:
        reasons.append("only the head's weights differ" if same_backbone else "the head's weights differ")
    if form["normalize"] != told["normalize"]:
        reasons.append(f"normalize is {told['normalize']} in the file, {form['normalize']} here")
    raise ValueError(
        f"{file} is the posterior of another encoder: {'; '.join(reasons) or 'its fingerprint differs'}. Load it "
        "with the encoder that it was fitted to, or fit this one"
    )


def _form_text(form: dict[str, Any]) -> str:
    return f"({form['outputs']}, {form['features']}) {'with' if form['bias'] else 'without'} bias"
