"""A fitted LAM in one safetensors file: what was measured and how it was set, but not the encoder.

The file is numbers and a header in JSON. Reading it runs nothing that is in it: a loss is made from a table of known
classes, or passed by whoever loads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hessians.checks import exact_device
from hessians.pair_loss import PairLoss
from laplacian_metric.core import tensor_file
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.laplace.confidence import MatchConfidence
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError
from laplacian_metric.laplace.fit import Fitted
from laplacian_metric.laplace.layer import CURVATURES, LayerCurvature, Structure
from laplacian_metric.laplace.stored_header import (
    Header,
    check_encoder,
    header_from,
    header_of,
    loss_of,
    naming,
)

if TYPE_CHECKING:
    from laplacian_metric.encoder import Encoder
    from laplacian_metric.laplace.posthoc import LAM

KEY = "laplacian_metric.LAM"
CONFIDENCE = "confidence."


def save(lam: LAM, path: str | os.PathLike[str]) -> None:
    """Write a fitted LAM: the whole file, or none; what was there before stays until then.

    Example:
        >>> import tempfile, torch
        >>> from hessians import ContrastiveLoss
        >>> from laplacian_metric.encoder import Encoder
        >>> from laplacian_metric.laplace.posthoc import LAM
        >>> encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3))
        >>> features, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> lam = LAM(encoder, ContrastiveLoss()).fit_features(features, labels, check_mode=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(lam, Path(folder) / "lam.safetensors")
        ...     again = load(Path(folder) / "lam.safetensors", encoder)
        >>> torch.equal(again.embed(features).kappa, lam.embed(features).kappa)
        True
    """
    fitted = lam._fit()
    if lam.encoder.fingerprint() != fitted.fingerprint:
        raise EncoderChangedError(
            "the encoder is not the one any more that this LAM was fitted to (its weights, running statistics or "
            "dtype have changed): fit again before saving"
        )
    stored_tensors = {f"curvature.{name}": tensor for name, tensor in fitted.curvature.tensors().items()}
    stored_tensors["gradient"] = fitted.gradient
    if lam.confidence is not None:
        lam.check_confidence()
        stored_tensors |= {f"{CONFIDENCE}{name}": tensor for name, tensor in lam.confidence.tensors().items()}
    tensors, orders = {}, {}
    for name, tensor in stored_tensors.items():
        _check_numbers(name, tensor, "fit again: it cannot be saved")
        tensors[name], order = _packed(tensor)
        if order is not None:
            orders[name] = order
    header = header_of(lam, fitted, orders).model_dump_json(by_alias=True)
    tensor_file.save(path, tensors, {KEY: header})


def load(path: str | os.PathLike[str], encoder: Encoder, loss: PairLoss | None = None) -> LAM:
    """Read a LAM for the encoder that it was fitted to, onto that encoder's device; any other encoder is refused.

    Args:
        path: what `save` wrote.
        encoder: with the weights that it had when the LAM was fitted.
        loss: needed where it is of a class that is not this library's; of any other it must agree with the file.
    """
    from laplacian_metric.laplace.posthoc import LAM

    file = Path(path).name
    tensors, notes = tensor_file.load(path)
    header = _header(notes, file)
    _check_orders(header.orders, {name: tensor.ndim for name, tensor in tensors.items()}, file)
    for name, order in header.orders.items():
        tensors[name] = _unpacked(tensors[name], order)
    for name, tensor in tensors.items():
        _check_numbers(name, tensor, f"{file} is damaged, or was not written by LAM.save")
    check_encoder(header.encoder, encoder, file)
    fit, shape = header.fit, (header.encoder.outputs, header.encoder.features + header.fit.bias_is_random)
    gradient = tensors.pop("gradient")
    judged = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(CONFIDENCE)}
    with naming(file):
        lam = LAM(encoder, loss_of(header.loss, loss, file), **header.settings.model_dump())
        confidence = _confidence(judged, shape[0]) if judged else None
        curvature = _curvature(tensors, lam.structure, shape, fit.clamped)
        _check_shape("gradient", gradient, shape)
    device = exact_device(encoder.head.weight.device)
    lam.fitted = Fitted(
        curvature=curvature.to(device),
        gradient=gradient.to(device),
        fingerprint=header.encoder.fingerprint,
        **fit.model_dump(exclude={"clamped"}),
    )
    if confidence is not None:
        lam.set_confidence(confidence.to(device))
    return lam


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says about its LAM, without reading a tensor.

    Returns:
        "format", "versions", "loss", "settings", "fit" and "encoder" as they were stored, and "tensors": the shape
        and dtype of each.
    """
    file = Path(path).name
    with tensor_file.opened(path) as opened:
        header = _header(opened.metadata() or {}, file)
        slices = {name: opened.get_slice(name) for name in sorted(opened.keys())}
        shapes = {name: part.get_shape() for name, part in slices.items()}
        _check_orders(header.orders, {name: len(shape) for name, shape in shapes.items()}, file)
        tensors = {}
        for name, shape in shapes.items():
            order = header.orders.get(name, range(len(shape)))
            in_order = [shape[place] for place in np.argsort(order)]
            tensors[name] = {"shape": in_order, "dtype": slices[name].get_dtype()}
    return {**header.model_dump(by_alias=True, exclude={"orders"}), "tensors": tensors}


# --- the tensors ---


def _packed(tensor: Tensor) -> tuple[Tensor, list[int] | None]:
    """In memory order on the CPU, and which dimension each of its dimensions is, where that is another order.

    The format knows one order only, and a matrix product rounds differently where its factors lie differently.
    """
    order = sorted(range(tensor.ndim), key=lambda i: -tensor.stride()[i])
    packed = tensor.detach().permute(order).to("cpu").contiguous().clone()
    return packed, None if order == list(range(tensor.ndim)) else order


def _unpacked(tensor: Tensor, order: list[int]) -> Tensor:
    return tensor.permute([order.index(i) for i in range(tensor.ndim)])


def _check_numbers(name: str, tensor: Tensor, remedy: str) -> None:
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        count = int((~tensor.isfinite()).sum())
        raise ValueError(f"{name} has {count} NaN or infinite entries: {remedy}")


def _check_shape(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Refuse another shape; None stands for any size."""
    fits = tensor.ndim == len(shape) and all(
        size in (None, have) for size, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        needed = ", ".join("r" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, ({needed}) is needed")


def _shapes(structure: Structure, shape: tuple[int, int]) -> dict[str, tuple[int | None, ...]]:
    """What the tensors of a curvature over (Z, H') weights are called, and how large they are."""
    outputs, inputs = shape
    shapes: dict[Structure, dict[str, tuple[int | None, ...]]] = {
        Structure.DIAGONAL: {"diagonal": shape},
        Structure.KRONECKER: {
            "output_values": (outputs,),
            "output_vectors": (outputs, outputs),
            "input_values": (inputs,),
            "input_vectors": (inputs, inputs),
        },
        Structure.LOW_RANK: {"rest": shape, "factor": (None, *shape)},
        Structure.FULL: {
            "values": (outputs * inputs,),
            "vectors": (outputs * inputs, outputs * inputs),
            "num_outputs": (),
        },
    }
    return shapes[structure]


def _confidence(tensors: dict[str, Tensor], dim: int) -> MatchConfidence:
    parts = {name.removeprefix(CONFIDENCE): tensor for name, tensor in tensors.items()}
    needed: dict[str, tuple[int | None, ...]] = {
        "reference": (None, dim),
        "classes": (len(parts["reference"]) if "reference" in parts else None,),
        "location": (3,),
        "scale": (3,),
        "precision": (3, 3),
        **dict.fromkeys(("kernel", "spread", "threshold", "tail"), ()),
    }
    if set(parts) != set(needed):
        raise ValueError(
            f"its confidence has {', '.join(sorted(parts))}, {', '.join(sorted(needed))} are needed"
        )
    for name, tensor in parts.items():
        _check_shape(f"{CONFIDENCE}{name}", tensor, needed[name])
        if tensor.is_floating_point() != (name != "classes"):
            raise ValueError(f"{CONFIDENCE}{name} has dtype {tensor.dtype}")
    return MatchConfidence.from_tensors(parts)


def _curvature(
    tensors: dict[str, Tensor], structure: Structure, shape: tuple[int, int], clamped: float
) -> LayerCurvature:
    parts = {name.removeprefix("curvature."): tensor for name, tensor in tensors.items()}
    needed = _shapes(structure, shape)
    if set(parts) != set(needed):
        raise ValueError(
            f"its tensors are {', '.join(sorted(parts))}, {', '.join(sorted(needed))} are needed"
        )
    for name, tensor in parts.items():
        _check_shape(name, tensor, needed[name])
        if tensor.is_floating_point() != (name != "num_outputs"):
            raise ValueError(f"{name} has dtype {tensor.dtype}")
    outputs = parts.get("num_outputs")
    if outputs is not None and int(outputs) != shape[0]:
        raise ValueError(f"num_outputs is {int(outputs)}, {shape[0]} is needed")
    return CURVATURES[structure].from_tensors(parts, clamped)


# --- the header ---


def _header(notes: Mapping[str, str], file: str) -> Header:
    if KEY not in notes:
        remedy = "; it holds an encoder: Encoder.from_checkpoint reads it" if "encoder" in notes else ""
        raise ArtifactError(f"{file} was not written by LAM.save{remedy}")
    return header_from(notes[KEY], file)


def _check_orders(orders: Mapping[str, list[int]], dimensions: Mapping[str, int], file: str) -> None:
    """Refuse a header that does not know the tensors beside it."""
    if "gradient" not in dimensions or not set(orders) <= set(dimensions):
        raise ArtifactError(f"{file} lacks tensors that a LAM has: the file is damaged")
    for name, order in orders.items():
        if sorted(order) != list(range(dimensions[name])):
            raise ArtifactError(f"orders.{name} in the header of {file} is {order!r}: the file is damaged")
