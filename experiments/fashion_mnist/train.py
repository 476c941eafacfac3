"""Train the deterministic FashionMNIST network with the contrastive loss.

    python -m experiments.fashion_mnist.train --data DATA --out OUT --seed 0 [--epochs 10]

DATA holds FashionMNIST/raw as torchvision lays it out. After every epoch OUT gets, whole or not at all,

- NAME.safetensors, the weights of the epoch whose mAP on the validation images (mean of mAP@1, 5, 10) is best so far,
- NAME_last.safetensors, those of the last epoch, with what it takes to go on from there,
- NAME.json, the settings, and the loss and the validation mAP of every epoch.

The same command again goes on where it stopped, with the same result. Test images are never read.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import data, metrics
from laplacian_metric.files import atomic_write
from laplacian_metric.networks import fashion_network

KS = (1, 5, 10)
EVALUATED_AT_ONCE = 500


@dataclass(frozen=True)
class Settings:
    """Everything that the trained weights depend on, besides the images."""

    seed: int = 0
    epochs: int = 10
    dimensions: int = 3
    batch_size: int = 256
    learning_rate: float = 1e-3
    decay: float = 0.1  # the learning rate is multiplied by exp(-decay) after every epoch
    weight_decay: float = 1e-5
    margin: float = 0.7
    negatives: str = "active"
    negative_weight: float = 0.5

    @property
    def name(self) -> str:
        """What its files are called; settings that differ from the defaults are told apart by --name."""
        return f"{self.negatives}_seed{self.seed}"

    def comparable(self) -> dict[str, Any]:
        """The settings that must not change when a run is continued: it may be made longer."""
        return {name: value for name, value in asdict(self).items() if name != "epochs"}


class Run:
    """A network in training: its weights, the optimiser, where the shuffling stands and what was measured."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        backbone, head = fashion_network(settings.dimensions, settings.seed)
        self.network = nn.ModuleDict({"backbone": backbone, "head": head})
        self.optimizer = torch.optim.RMSprop(
            self.network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.history: list[dict[str, float]] = []

    def embed(self, images: Tensor) -> Tensor:
        """Raw embeddings, (N, Z)."""
        embeddings: Tensor = self.network["head"](self.network["backbone"](images))
        return embeddings

    def train_epoch(self, images: Tensor, labels: Tensor) -> float:
        """One pass over the images in a new random order; the loss, averaged over the images."""
        settings = self.settings
        loss = ContrastiveLoss(
            margin=settings.margin, negatives=settings.negatives, negative_weight=settings.negative_weight
        )
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * math.exp(-settings.decay * len(self.history))
        self.network.train()
        total = 0.0
        for chosen in torch.randperm(len(images), generator=self.generator).split(settings.batch_size):
            value = loss(self.embed(images[chosen]), Pairs.from_labels(labels[chosen]))
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()
            total += float(value.detach()) * len(chosen)
        if not math.isfinite(total):
            raise FloatingPointError(
                f"the loss of epoch {len(self.history) + 1} is not finite; lower the learning rate"
            )
        return total / len(images)

    @torch.no_grad()
    def validate(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        """mAP@k among the validation images, each with all others as its gallery."""
        self.network.eval()
        u = torch.cat([self.embed(part) for part in images.split(EVALUATED_AT_ONCE)])
        found = metrics.rank(nn.functional.normalize(u), labels, k=max(KS))
        return {f"map_at_{k}": float(found.average_precision(k).mean()) for k in KS}

    def best_epoch(self) -> int:
        """The epoch, counted from 1, whose validation mAP is best; the first of equal ones."""
        scores = [sum(entry[f"map_at_{k}"] for k in KS) for entry in self.history]
        return scores.index(max(scores)) + 1

    # --- files ---

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.contiguous() for name, tensor in self.network.state_dict().items()}

    def state(self) -> dict[str, Tensor]:
        """The weights, the optimiser's averages by the name of the weight, and the state of the shuffling."""
        tensors = {**self.weights(), "shuffling": self.generator.get_state()}
        for name, parameter in self.network.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer/{key}/{name}"] = torch.as_tensor(value).contiguous()
        return tensors

    def restore(self, tensors: dict[str, Tensor], history: list[dict[str, float]]) -> None:
        """The inverse of `state`."""
        tensors = dict(tensors)
        self.generator.set_state(tensors.pop("shuffling"))
        for name, parameter in self.network.named_parameters():
            for key in [key for key in tensors if key.startswith("optimizer/") and key.endswith(f"/{name}")]:
                self.optimizer.state[parameter][key.split("/")[1]] = tensors.pop(key)
        self.network.load_state_dict(tensors)
        self.history = history


def load_network(path: Path | str) -> tuple[nn.Module, nn.Linear]:
    """Backbone and head of a checkpoint, in evaluation mode."""
    from safetensors.torch import load_file

    tensors = {
        name: tensor for name, tensor in load_file(path).items() if name.startswith(("backbone.", "head."))
    }
    if "head.weight" not in tensors:
        raise ValueError(f"{path} holds no weights called head.weight; it is no checkpoint of this script")
    backbone, head = fashion_network(dimensions=len(tensors["head.weight"]), seed=0)
    nn.ModuleDict({"backbone": backbone, "head": head}).load_state_dict(tensors)
    return backbone.eval(), head.eval()


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all."""
    from safetensors.torch import save_file

    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def save_json(path: Path, content: object) -> None:
    """Write JSON, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def resume(run: Run, last: Path) -> None:
    """Bring a run to where the checkpoint of its last epoch left it; does nothing where there is none."""
    from safetensors import safe_open

    if not last.exists():
        return
    with safe_open(last, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    found, wanted = json.loads(metadata["settings"]), run.settings.comparable()
    if found != wanted:
        differing = ", ".join(sorted(name for name in found | wanted if found.get(name) != wanted.get(name)))
        raise ValueError(
            f"{last} was trained with other settings ({differing}); choose another --name, or remove it"
        )
    run.restore(tensors, json.loads(metadata["history"]))


def save(run: Run, out: Path, name: str) -> None:
    """Write the checkpoints and the log. The last epoch's comes last: a run goes on from what is all there."""
    metadata = {
        "settings": json.dumps(run.settings.comparable()),
        "history": json.dumps(run.history),
        "epoch": str(len(run.history)),
    }
    if run.best_epoch() == len(run.history):
        save_tensors(out / f"{name}.safetensors", run.weights(), metadata)
    log = {"settings": asdict(run.settings), "best_epoch": run.best_epoch(), "epochs": run.history}
    save_json(out / f"{name}.json", log)
    save_tensors(out / f"{name}_last.safetensors", run.state(), metadata)


def train(settings: Settings, data_dir: Path, out: Path, name: str) -> Run:
    """Train, or go on training, until all epochs are done."""
    out.mkdir(parents=True, exist_ok=True)
    run = Run(settings)
    resume(run, out / f"{name}_last.safetensors")
    train_set = data.load("fashion-mnist", "train", data_dir=data_dir)
    validation = data.load("fashion-mnist", "validation", data_dir=data_dir)
    data.require_selectable(validation, "choose the epoch that is kept")
    images, held_out = train_set.floats(), validation.floats()
    while len(run.history) < settings.epochs:
        started = time.perf_counter()
        loss = run.train_epoch(images, train_set.labels)
        measured = run.validate(held_out, validation.labels)
        seconds = time.perf_counter() - started
        run.history.append({"epoch": len(run.history) + 1, "loss": loss, **measured, "seconds": seconds})
        save(run, out, name)
        print(json.dumps({"name": name, **run.history[-1]}), flush=True)
    return run


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the deterministic FashionMNIST network.")
    parser.add_argument("--data", type=Path, required=True, help="folder with FashionMNIST/raw")
    parser.add_argument("--out", type=Path, required=True, help="where checkpoints and the log go")
    parser.add_argument("--name", help="what the files are called; by default NEGATIVES_seedSEED")
    parser.add_argument("--threads", type=int, help="processor threads; by default torch's choice")
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    settings = Settings(**{name: getattr(options, name) for name in asdict(Settings())})
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        train(settings, options.data, options.out, options.name or settings.name)
    except (OSError, ValueError, FloatingPointError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
