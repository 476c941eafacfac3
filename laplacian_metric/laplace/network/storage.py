"""A fitted NetworkLAM as tensors and plain numbers, and in a safetensors file that holds no code."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from laplacian_metric.core.files import atomic_write
from laplacian_metric.laplace.layer import DiagonalCurvature
from laplacian_metric.laplace.network.posterior import NetworkFitted

if TYPE_CHECKING:
    from laplacian_metric.laplace.network.posthoc import NetworkLAM

FORMAT = "laplacian-metric network posterior 1"
COUNTS = ("loss_value", "num_images", "num_positives", "num_negatives", "num_batches")


def state_dict(lam: NetworkLAM) -> dict[str, Any]:
    """What `load_state_dict` takes."""
    fitted = lam._fit()
    return {
        "format": FORMAT,
        "fingerprint": fitted.fingerprint,
        "loss": describe(lam.loss),
        "settings": {
            "approximation": lam.approximation.value,
            "layers": lam.chosen,
            "predictive": lam.predictive.value,
            "samples": lam.samples,
            "n_effective": lam._n_effective,
            "temperature": lam.temperature,
            "prior_precision": lam._prior_precision,
            "weight_decay": lam.weight_decay,
        },
        "groups": {layer: list(names) for layer, names in fitted.groups.items()},
        "clamped": {layer: one.clamped for layer, one in fitted.curvature.items()},
        **{name: getattr(fitted, name) for name in COUNTS},
        "curvature": {layer: one.diagonal() for layer, one in fitted.curvature.items()},
        "gradient": dict(fitted.gradient),
    }


def load_state_dict(lam: NetworkLAM, state: Mapping[str, Any]) -> None:
    """Take over what `state_dict` gave."""
    if state.get("format") != FORMAT:
        raise ValueError(
            f"the state's format is {state.get('format')!r}, {FORMAT!r} is needed: it is no state of a NetworkLAM, or "
            "one of another version"
        )
    settings = state["settings"]
    for what, given, own in (
        ("encoder", state["fingerprint"], lam.encoder.fingerprint()),
        ("loss", state["loss"], describe(lam.loss, known=state["loss"])),
        ("approximation", settings["approximation"], lam.approximation.value),
        ("choice of layers", settings["layers"], lam.chosen),
    ):
        if given != own:
            raise ValueError(
                f"the posterior was fitted with another {what}, {given} and not {own}: pass the one that it was fitted "
                "with, or fit again"
            )
    device = lam.encoder.head.weight.device
    lam.fitted = NetworkFitted(
        groups={layer: list(names) for layer, names in state["groups"].items()},
        curvature={
            layer: DiagonalCurvature(values.to(device), state["clamped"][layer])
            for layer, values in state["curvature"].items()
        },
        gradient={name: values.to(device) for name, values in state["gradient"].items()},
        fingerprint=state["fingerprint"],
        **{name: state[name] for name in COUNTS},
    )
    lam.n_effective, lam.temperature = settings["n_effective"], settings["temperature"]
    lam.prior_precision, lam.weight_decay = settings["prior_precision"], settings["weight_decay"]
    lam.predictive, lam.samples = settings["predictive"], settings["samples"]


def save(lam: NetworkLAM, path: str | os.PathLike[str]) -> None:
    """Write the state into one file, whole or not at all."""
    from safetensors.torch import save_file

    state = state_dict(lam)
    tensors = {
        f"{what}/{name}": values.cpu().contiguous().clone()
        for what in ("curvature", "gradient")
        for name, values in state.pop(what).items()
    }
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, {"state": json.dumps(state)})


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state in a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as opened:
            state: dict[str, Any] = json.loads((opened.metadata() or {}).get("state", "{}"))
            state["curvature"], state["gradient"] = {}, {}
            for key in opened.keys():  # noqa: SIM118 - it is no dictionary
                what, _, name = key.partition("/")
                state.setdefault(what, {})[name] = opened.get_tensor(key)
    except SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is no safetensors file, or not a whole one: {error}") from error
    if state.get("format") != FORMAT:
        raise ValueError(
            f"{os.fspath(path)} is no posterior of a NetworkLAM, or one of another version: it says "
            f"{state.get('format')!r}, {FORMAT!r} is needed"
        )
    # The order in which the layers run; the file has its tensors in an order of its own.
    state["curvature"] = {layer: state["curvature"][layer] for layer in state["groups"]}
    return state


def describe(loss: object, known: str | None = None) -> str:
    """A loss by its class and settings.

    Args:
        loss: a data class, or any other object, of which the class alone is named.
        known: a description that an earlier version may have made: settings that it does not have are left out where
            they are at their defaults, which is what was before they came.
    """
    if not dataclasses.is_dataclass(loss):
        return type(loss).__qualname__
    shown = [
        f"{field.name}={getattr(loss, field.name)!r}"
        for field in dataclasses.fields(loss)
        if known is None or f"{field.name}=" in known or getattr(loss, field.name) != field.default
    ]
    return f"{type(loss).__qualname__}({', '.join(shown)})"
