"""Encoders from files of weights and into them."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from laplacian_metric.core import tensor_file

if TYPE_CHECKING:
    from laplacian_metric.encoder.encoder import Encoder
    from laplacian_metric.encoder.zoo import Architecture, Target

# Where training scripts put the state dictionary beside the optimizer's, the most telling name first.
WRAPPINGS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "net",
    "network",
    "encoder",
    "weights",
)
# What torch raises for a file that is cut off or something else.
DAMAGED = (RuntimeError, EOFError, ValueError, KeyError, IndexError, OSError)
STATE_DICT_REMEDY = "torch.save(model.state_dict(), path)"


def read_weights(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file by name, on the CPU, and what `save_encoder` wrote about the encoder, if it did.

    Files that would have to run code to be read (pickled modules, TorchScript) are refused.
    """
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder, a file of weights is needed")
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    with file.open("rb") as opened:
        start = opened.read(9)
    if start[8:] == b"{" or file.suffix == ".safetensors":
        tensors, notes = tensor_file.load(file)
        return tensors, json.loads(notes.get("encoder", "{}"))
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *DAMAGED) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise ValueError(
            f"{file.name} holds no plain weights, but code, something else, or a part of them ({lines[0][:200]}): "
            f"where you trust it, {STATE_DICT_REMEDY} in the project that it comes from, and use that file"
        ) from error
    return _state_dict(content, file.name), {}


def _state_dict(content: Any, name: str) -> dict[str, Tensor]:
    """Return the state dictionary in what a torch file holds, out of its usual wrappings."""
    for _ in range(3):
        if not isinstance(content, Mapping):
            break
        tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
        wrapped = next((key for key in WRAPPINGS if isinstance(content.get(key), Mapping)), None)
        if wrapped is None:
            if tensors:
                return tensors
            break
        content = content[wrapped]
    listed = (
        f" with the entries {', '.join(map(str, list(content)[:8]))}" if isinstance(content, Mapping) else ""
    )
    raise ValueError(
        f"{name} holds a {type(content).__name__}{listed} where a state dictionary is needed: {STATE_DICT_REMEDY}"
    )


NAMED = 2  # how many names an error lists
PARTS = ("all", "backbone")
# Batch normalisation counts its batches since a later version; older files lack it, and nothing here depends on it.
OPTIONAL = "num_batches_tracked"


def save_encoder(encoder: Encoder, path: str | os.PathLike[str]) -> None:
    """Write the weights of an encoder as a safetensors file: the whole file, or none.

    With them goes ``normalize`` and, if the encoder came from a name (and no further options), that name, so that
    ``Encoder.from_checkpoint(path)`` needs no more.

    Example:
        >>> import tempfile
        >>> from laplacian_metric.encoder import Encoder
        >>> encoder = Encoder.from_name("fashion-mnist", seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_encoder(encoder, Path(folder) / "fashion.safetensors")
        ...     again = Encoder.from_checkpoint(Path(folder) / "fashion.safetensors")
        >>> again.fingerprint() == encoder.fingerprint()
        True
    """
    tensors = encoder.state_dict()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, only tensors can be saved")
    notes = json.dumps({"normalize": encoder.normalize, "recipe": encoder.recipe})
    tensor_file.save(path, tensors, {"format": "pt", "encoder": notes})


def load_encoder(
    path: str | os.PathLike[str],
    name: str | nn.Module | Callable[[], nn.Module] | None,
    prefix: str | None,
    part: str,
    head: str | None,
    example_inputs: Any,
    normalize: bool | None,
    options: dict[str, Any],
) -> Encoder:
    """See `Encoder.from_checkpoint`."""
    if part not in PARTS:
        raise ValueError(f'part is {part!r}, "all" or "backbone" is needed')
    tensors, notes = read_weights(path)
    file = Path(path).name
    if prefix is not None:
        tensors = _below(tensors, prefix, file)
    architecture = _architecture(name, notes, head, example_inputs, options, file)
    encoder = architecture.encoder
    load_into(architecture, tensors, part, file)
    encoder.normalize = bool(notes.get("normalize", encoder.normalize) if normalize is None else normalize)
    return encoder


def _below(tensors: dict[str, Tensor], prefix: str, file: str) -> dict[str, Tensor]:
    below = {name[len(prefix) :]: x for name, x in tensors.items() if name.startswith(prefix)}
    if not below:
        raise ValueError(f"no name in {file} begins with {prefix!r}: they are {_some(list(tensors))}")
    return below


def _architecture(
    name: str | nn.Module | Callable[[], nn.Module] | None,
    notes: dict[str, Any],
    head: str | None,
    example_inputs: Any,
    options: dict[str, Any],
    file: str,
) -> Architecture:
    from laplacian_metric.encoder.encoder import Encoder
    from laplacian_metric.encoder.from_module import cut_module
    from laplacian_metric.encoder.zoo import Architecture, Target, make

    if name is None:
        recipe = notes.get("recipe")
        if not isinstance(recipe, dict) or "name" not in recipe:
            raise ValueError(
                f"{file} does not say what its weights are of: pass a name as in Encoder.from_name, the module, or "
                "what makes it"
            )
        name = str(recipe["name"])
        options = {"dim": recipe.get("dim"), **options}
    if isinstance(name, str):
        if head is not None:
            raise TypeError(f"head is for modules: {name!r} knows its own")
        dim, seed = options.pop("dim", None), options.pop("seed", None)
        return make(name, dim=dim, pretrained=False, seed=seed, normalize=True, options=options)
    if options:
        raise TypeError(f"{', '.join(options)} are options of names, but a module was passed")
    module = name if isinstance(name, nn.Module) else name()
    if isinstance(module, Encoder):
        return Architecture(module)
    backbone, layer = cut_module(module, head, example_inputs)
    encoder = Encoder(backbone, layer)
    called = next(name for name, submodule in module.named_modules() if submodule is layer)
    return Architecture(encoder, (Target(module, called),))


@dataclass(frozen=True)
class _Fit:
    """How well the tensors of a file fit a module: what would be loaded, and what stands against it."""

    module: nn.Module
    tensors: dict[str, Tensor]
    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]

    @property
    def problems(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.mismatched)


def load_into(architecture: Architecture, tensors: dict[str, Tensor], part: str, file: str) -> None:
    """Load the tensors into the encoder or the module that they are named after: all that is asked for, or none."""
    from laplacian_metric.encoder.zoo import Target

    targets = (Target(architecture.encoder, "head"), *architecture.published)
    fits = [
        _fit(target, _without(tensors, prefix), part)
        for target in targets
        if target.complete or part == "backbone"
        for prefix in _prefixes(tensors)
    ]
    fit = next((fit for fit in fits if fit.tensors and not fit.problems), None)
    if fit is None:
        nearest = min(fits, key=lambda fit: fit.problems - len(fit.tensors))
        raise ValueError(_misfit(nearest, architecture.encoder, part, file))
    for name, tensor in fit.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"{name} in {file} has NaN or infinite entries: the training that made it diverged"
            )
    fit.module.load_state_dict(fit.tensors, strict=False)


def _prefixes(tensors: dict[str, Tensor]) -> list[str]:
    """The empty one, and whatever all names begin with up to a dot."""
    paths = [name.split(".")[:-1] for name in tensors]
    prefixes = [""]
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        prefixes.append(f"{prefixes[-1]}{parts[0]}.")
    return prefixes


def _without(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items()}


def _fit(target: Target, tensors: dict[str, Tensor], part: str) -> _Fit:
    own: dict[str, Tensor] = target.module.state_dict()
    called = {in_file: name for name, in_file in target.names.items()}
    tensors = {called.get(name, name): x for name, x in tensors.items()}
    if part == "backbone":
        start = f"{target.head}." if target.head else ""
        own = {name: x for name, x in own.items() if not name.startswith(start)}
        tensors = {name: x for name, x in tensors.items() if not name.startswith(start)}
    mismatched = [
        f"{name} ({tuple(tensors[name].shape)} in the file, {tuple(own[name].shape)} in the model)"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    return _Fit(
        module=target.module,
        tensors={name: x for name, x in tensors.items() if name in own},
        missing=[
            name
            for name in own
            if name not in tensors and name not in target.new and not name.endswith(OPTIONAL)
        ],
        unexpected=[name for name in tensors if name not in own],
        mismatched=mismatched,
    )


def _misfit(fit: _Fit, encoder: Encoder, part: str, file: str) -> str:
    said = [
        f"{len(names)} {what}: {_some(names)}"
        for what, names in (
            ("missing in the file", fit.missing),
            ("unexpected", fit.unexpected),
            ("of another shape", fit.mismatched),
        )
        if names
    ]
    kind = f"the encoder ({type(encoder.backbone).__name__} and its head)"
    model = kind if fit.module is encoder else f"{type(fit.module).__name__}"
    remedy = "pass the architecture that the weights were saved from"
    if fit.unexpected:
        remedy += ", or prefix= to pick those whose names begin with it"
    if part == "all":
        remedy += ', or part="backbone" to leave the head out'
    return f"the weights in {file} are not those of {model}, nothing was loaded. {'; '.join(said)}. Remedy: {remedy}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
