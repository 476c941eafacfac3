"""Models that the curvature of a batch would be wrong for, refused with the module's name and the remedy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hessians.capture import Inputs, run
from hessians.checks import COMPUTE_DTYPES


def check_modules(model: nn.Module) -> None:
    """Refuse modules that are random or mix the images of a batch in their present mode."""
    for name, module in model.named_modules():
        label = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, _BatchNorm):
            if module.running_mean is None:
                raise ValueError(
                    f"{label} has no running statistics, so that it mixes the images of a batch: set "
                    "track_running_stats=True, or take another normalisation"
                )
            if module.training:
                raise ValueError(
                    f"{label} is in train mode and mixes the images of a batch: call model.eval()"
                )
        if module.training and _randomness(module) > 0:
            raise ValueError(f"{label} is in train mode and random: call model.eval()")


def _randomness(module: nn.Module) -> float:
    """The dropout probability of a module, 0 for modules that are not random in train mode."""
    if isinstance(module, nn.RReLU):
        return float(module.upper - module.lower)
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return float(module.dropout)
    kind = type(module).__name__.lower()
    if "drop" not in kind and "stochasticdepth" not in kind:
        return 0.0
    for attribute in ("p", "drop_prob", "drop_rate", "rate"):
        value = getattr(module, attribute, None)
        if isinstance(value, float | int):
            return float(value)
    return 0.0


def check_embeddings(u: Tensor, inputs: Inputs) -> None:
    """Refuse what is not one row of floats for each image; :meth:`PairLoss.check` looks at the rest."""
    if u.ndim != 2:
        raise ValueError(
            f"the model returns shape {tuple(u.shape)}, embeddings of shape (N, Z) are needed: one row for each image"
        )
    if len(u) != inputs.num_images:
        raise ValueError(f"the model returns {len(u)} embeddings for {inputs.num_images} images")
    if u.dtype not in COMPUTE_DTYPES:
        raise TypeError(
            f"the model's embeddings have dtype {u.dtype}, whose digits would not do for a curvature: "
            "use float32 or float64 (model.float())"
        )


def check_independence(model: nn.Module, inputs: Inputs, parameters: dict[str, Tensor], u: Tensor) -> None:
    """Refuse a model that gives the first image another embedding when it is alone."""
    if inputs.num_images < 2:
        return
    with torch.no_grad():
        alone = run(model, inputs.first(), parameters)
    # Generous, as the kernels for one image and for many differ, and some round to 10 bits (TF32).
    tolerance = (1e-8 if u.dtype == torch.float64 else 5e-3) * float(u.detach().abs().max())
    if alone.shape != u[:1].shape or not bool(((alone - u[:1]).abs() <= tolerance).all()):
        raise ValueError(
            "the first image has another embedding alone than in the batch: the model mixes the images of a batch, "
            "or is not deterministic; call model.eval(), and replace layers that look at more than one image"
        )
