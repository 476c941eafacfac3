"""Checkpoints of a training: tensors in safetensors, everything else as JSON in the file's header. Nothing is pickled.

``best.safetensors`` has what embeds: the module and what else the learner keeps, of the best epoch so far.
``last.safetensors`` has what it takes to go on: the same of the last step, the optimizer's averages, the states of
the random generators, and where in the epoch the training stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.core import tensor_file
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.method import Learner

FORMAT = "laplacian-metric-training-1"
BEST, LAST, LOG = "best.safetensors", "last.safetensors", "log.json"


class OtherRunError(ValueError):
    """The folder holds a training with other settings."""


@dataclass
class Progress:
    """Where a training stands.

    Attributes:
        history: what was measured after every finished epoch.
        step: how many steps of the epoch after these are done.
        total: the sum of the losses of their images.
        images: how many these are.
        seconds: how long they took.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    total: float = 0.0
    images: int = 0
    seconds: float = 0.0


def embedding_tensors(learner: Learner) -> dict[str, Tensor]:
    """What embeds: all of it copied, since the file format takes no memory that two tensors share."""
    module = {f"module/{name}": tensor for name, tensor in learner.module.state_dict().items()}
    own = {f"learner/{name}": tensor for name, tensor in learner.state().items()}
    both = {**module, **own}
    odd = [name for name, value in both.items() if not isinstance(value, Tensor)]
    if odd:
        raise TypeError(
            f"{odd[0]} is a {type(both[odd[0]]).__name__}, and checkpoints hold tensors alone: have the module's "
            "get_extra_state, or the learner's state, give tensors"
        )
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in both.items()}


def optimizer_tensors(learner: Learner, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's averages, by the name of the parameter."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in learner.module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"optimizer/{key}/{name}"] = (
                    torch.as_tensor(value).detach().cpu().contiguous().clone()
                )
    return tensors


def save(path: Path, tensors: dict[str, Tensor], identity: Mapping[str, Any], progress: Progress) -> None:
    """Write a checkpoint, whole or not at all."""
    metadata = {
        "format": FORMAT,
        "identity": json.dumps(identity, sort_keys=True),
        # The very same sum, so that the resumed loss is the same to the bit.
        "progress": json.dumps({**vars(progress), "total": progress.total.hex()}),
    }
    with _explained(path):
        tensor_file.save(path, tensors, metadata)


def save_log(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON for people to read, whole or not at all."""
    with _explained(path), atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} could not be written ({error}). The checkpoints from before are whole: free some space, and the "
            "same call goes on from there"
        ) from error


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], Progress]:
    """Return the tensors of a checkpoint, what identifies its run, and how far that is."""
    try:
        tensors, metadata = tensor_file.load(path)
        if metadata.get("format") != FORMAT:
            raise ArtifactError(f"{path.name} is no checkpoint of this training loop")
    except (OSError, ArtifactError) as error:
        raise ValueError(
            f"{path} is damaged or something else ({error}): remove it to start the training again"
        ) from error
    stored = json.loads(metadata["progress"])
    progress = Progress(**{**stored, "total": float.fromhex(stored["total"])})
    return tensors, json.loads(metadata["identity"]), progress


def check_identity(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun with other settings."""
    names = sorted(name for name in {*stored, *wanted} if stored.get(name) != wanted.get(name))
    if not names:
        return
    shown = ", ".join(
        f"{name} was {stored.get(name)!r} and is now {wanted.get(name)!r}" for name in names[:3]
    )
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise OtherRunError(
        f"{path.parent.name}/{path.name} is of a training with other settings: {shown}{more}. Choose another folder, "
        "give the settings back, or remove the folder to start again"
    )


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below a prefix, without it."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_embedding(path: Path, learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    """Give a learner's module, and the learner, what `embedding_tensors` took; ``path`` is where that was read."""
    try:
        learner.module.load_state_dict(part(tensors, "module/"))
        learner.restore(part(tensors, "learner/"))
    except (RuntimeError, ValueError, KeyError) as error:
        said = " ".join(str(error).split()).rstrip(".")  # torch's is on many lines
        raise OtherRunError(
            f"{path} is of another network or method: {said}. Make the learner that was trained there, or choose "
            "another folder"
        ) from error


def load_optimizer(learner: Learner, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer what `optimizer_tensors` took."""
    parameters = dict(learner.module.named_parameters())
    for key, value in part(tensors, "optimizer/").items():
        kind, _, name = key.partition("/")
        # Counters stay where torch keeps them, on the processor.
        device = value.device if kind == "step" else parameters[name].device
        optimizer.state[parameters[name]][kind] = value.to(device)


def load_best(learner: Learner, folder: Path) -> None:
    """Give a learner the weights, and whatever else it keeps, of the best epoch of the training in a folder."""
    path = Path(folder) / BEST
    if not path.exists():
        raise FileNotFoundError(
            f"{path.parent.name} has no {BEST}: nothing was trained there, so train first; or the file was lost, so "
            "remove the folder and train again"
        )
    load_embedding(path, learner, read(path)[0])
