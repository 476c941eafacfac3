"""A fitted NetworkLAM as tensors and plain numbers, and in a safetensors file that holds no code."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from laplacian_metric.core import tensor_file
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.core.checked import Strict, parsed, validated
from laplacian_metric.laplace.layer import DiagonalCurvature
from laplacian_metric.laplace.network.posterior import NetworkFitted

if TYPE_CHECKING:
    from laplacian_metric.laplace.network.posthoc import NetworkLAM

FORMAT = "laplacian-metric network posterior 1"
PARTS = ("curvature", "gradient")
COUNTS = ("loss_value", "num_images", "num_positives", "num_negatives", "num_batches")


class SettingsEntry(Strict):
    """The settings of a NetworkLAM; None stands for "not set"."""

    approximation: str
    layers: str | int | list[str]
    predictive: str
    samples: int
    n_effective: float | None
    temperature: float
    prior_precision: float | dict[str, float] | None
    weight_decay: float | None


class NetworkState(Strict):
    """What a file holds beside its tensors."""

    format: str
    fingerprint: str
    loss: str
    settings: SettingsEntry
    groups: dict[str, list[str]]
    clamped: dict[str, float]
    loss_value: float
    num_images: int
    num_positives: float
    num_negatives: float
    num_batches: int


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
    for what, stored, own in (
        ("encoder", state["fingerprint"], lam.encoder.fingerprint()),
        ("loss", state["loss"], describe(lam.loss, known=state["loss"])),
        ("approximation", settings["approximation"], lam.approximation.value),
        ("choice of layers", settings["layers"], lam.chosen),
    ):
        if stored != own:
            raise ValueError(
                f"the posterior was fitted with another {what}, {stored} and not {own}: pass the one that it was "
                "fitted with, or fit again"
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
    state = state_dict(lam)
    tensors = {f"{part}/{name}": values for part in PARTS for name, values in state.pop(part).items()}
    tensor_file.save(path, tensors, {"state": json.dumps(state)})


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state in a file."""
    tensors, notes = tensor_file.load(path)
    file = os.fspath(path)
    values = parsed(
        notes.get("state", "{}"), f"the header of {file}", "copy it again, or save it again", ArtifactError
    )
    if values.get("format") != FORMAT:
        raise ArtifactError(
            f"{file} is no posterior of a NetworkLAM, or one of another version: it says {values.get('format')!r}, "
            f"{FORMAT!r} is needed"
        )
    state = validated(
        NetworkState, values, f"the header of {file}", "copy it again, or save it again", ArtifactError
    ).model_dump()
    # In the order in which the layers run; the file has its tensors in an order of its own.
    names = {
        "curvature": list(state["groups"]),
        "gradient": [n for group in state["groups"].values() for n in group],
    }
    needed = {f"{part}/{name}" for part in PARTS for name in names[part]}
    if set(tensors) != needed or set(state["clamped"]) != set(state["groups"]):
        raise ArtifactError(f"the tensors in {file} are not of the layers in its header: copy it again")
    return state | {part: {name: tensors[f"{part}/{name}"] for name in names[part]} for part in PARTS}


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
