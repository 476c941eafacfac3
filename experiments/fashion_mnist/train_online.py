"""Train the FashionMNIST network online: the posterior over its last layer is kept up while it learns.

    python -m experiments.fashion_mnist.train_online --data DATA --out OUT --seed 0 [--epochs 12]

Network, loss, optimiser and learning rates are those of `experiments.fashion_mnist.train`. After every epoch OUT gets

- NAME.safetensors and NAME.lam.safetensors, the weights and the running posterior of the epoch whose mAP on the
  validation images is best so far,
- NAME_last.pt, all that it takes to go on from the last epoch,
- NAME.json, the settings, and the loss and the validation mAP of every epoch.

The same command again goes on where it stopped, with the same result. Test images are never read.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.fashion_mnist.train import KS, Settings, save_json, save_tensors
from hessians import ContrastiveLoss
from laplacian_metric import Encoder, OnlineLAM, data, metrics
from laplacian_metric.files import atomic_write
from laplacian_metric.modes import evaluating
from laplacian_metric.networks import fashion_network

EVALUATED_AT_ONCE = 500
PRESETS = ("default", "published")


class OnlineRun:
    """A network in online training, where its shuffling stands, and what was measured."""

    def __init__(self, settings: Settings, preset: str, temperature: float, num_images: int) -> None:
        self.settings = settings
        self.preset = preset
        self.temperature = temperature
        backbone, head = fashion_network(settings.dimensions, settings.seed)
        self.encoder = Encoder(backbone, head)
        self.optimizer = torch.optim.RMSprop(
            self.encoder.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        loss = ContrastiveLoss(
            margin=settings.margin, negatives=settings.negatives, negative_weight=settings.negative_weight
        )
        make = OnlineLAM if preset == "default" else OnlineLAM.as_published
        draws = torch.Generator().manual_seed(settings.seed)
        self.online = make(
            self.encoder, self.optimizer, loss, num_images, temperature=temperature, generator=draws
        )
        self.shuffling = torch.Generator().manual_seed(settings.seed)
        self.history: list[dict[str, float]] = []

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"online_{self.preset}_{self.temperature:g}_seed{self.settings.seed}"

    def train_epoch(self, images: Tensor, labels: Tensor) -> float:
        """One pass over the images in a new random order; the loss at the draws, averaged over the images."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * math.exp(-self.settings.decay * len(self.history))
        self.encoder.train()
        total = 0.0
        for chosen in torch.randperm(len(images), generator=self.shuffling).split(self.settings.batch_size):
            total += self.online.step(images[chosen], labels[chosen]) * len(chosen)
        return total / len(images)

    def validate(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        """mAP@k of the mean network among the validation images, each with all others as its gallery."""
        with evaluating(self.encoder):
            u = torch.cat([self.encoder.raw(part) for part in images.split(EVALUATED_AT_ONCE)])
        found = metrics.rank(nn.functional.normalize(u), labels, k=max(KS))
        return {f"map_at_{k}": float(found.average_precision(k).mean()) for k in KS}

    def best_epoch(self) -> int:
        """The epoch, counted from 1, whose validation mAP is best; the first of equal ones."""
        scores = [sum(entry[f"map_at_{k}"] for k in KS) for entry in self.history]
        return scores.index(max(scores)) + 1

    def resume(self, path: Path) -> None:
        """Go on from the last epoch that was saved; does nothing where there is none."""
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        if state["settings"] != self.comparable():
            raise ValueError(f"{path} was trained with other settings; choose another folder, or remove it")
        self.online.load_state_dict(state["online"])
        self.shuffling.set_state(state["shuffling"])
        self.history = state["history"]

    def comparable(self) -> dict[str, object]:
        """What must not change when a run is continued."""
        return {**self.settings.comparable(), "preset": self.preset, "temperature": self.temperature}

    def save(self, out: Path) -> None:
        """Write everything; the last epoch's state comes last, since a run goes on from it."""
        if self.best_epoch() == len(self.history):
            weights = {name: tensor.contiguous() for name, tensor in self.encoder.state_dict().items()}
            save_tensors(out / f"{self.name}.safetensors", weights, {"epoch": str(len(self.history))})
            self.online.posterior().save(out / f"{self.name}.lam.safetensors")
        log = {
            "settings": asdict(self.settings),
            "preset": self.preset,
            "temperature": self.temperature,
            "best_epoch": self.best_epoch(),
            "epochs": self.history,
        }
        save_json(out / f"{self.name}.json", log)
        state = {
            "settings": self.comparable(),
            "online": self.online.state_dict(),
            "shuffling": self.shuffling.get_state(),
            "history": self.history,
        }
        with atomic_write(out / f"{self.name}_last.pt") as temporary:
            torch.save(state, temporary)


def train(settings: Settings, preset: str, temperature: float, data_dir: Path, out: Path) -> None:
    """Train, or go on training, until all epochs are done."""
    out.mkdir(parents=True, exist_ok=True)
    train_set = data.load("fashion-mnist", "train", data_dir=data_dir)
    validation = data.load("fashion-mnist", "validation", data_dir=data_dir)
    data.require_selectable(validation, "choose the epoch that is kept")
    images, held_out = train_set.floats(), validation.floats()
    run = OnlineRun(settings, preset, temperature, len(images))
    run.resume(out / f"{run.name}_last.pt")
    while len(run.history) < settings.epochs:
        started = time.perf_counter()
        loss = run.train_epoch(images, train_set.labels)
        measured = run.validate(held_out, validation.labels)
        seconds = time.perf_counter() - started
        run.history.append({"epoch": len(run.history) + 1, "loss": loss, **measured, "seconds": seconds})
        run.save(out)
        print(json.dumps({"name": run.name, **run.history[-1]}), flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the FashionMNIST network online.")
    parser.add_argument("--data", type=Path, required=True, help="folder with FashionMNIST/raw")
    parser.add_argument("--out", type=Path, required=True, help="where checkpoints and the log go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument(
        "--preset", choices=PRESETS, default="default", help="the method, or the published code"
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="divides the number of images")
    parser.add_argument("--threads", type=int, help="processor threads; by default torch's choice")
    options = parser.parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        settings = Settings(seed=options.seed, epochs=options.epochs)
        train(settings, options.preset, options.temperature, options.data, options.out)
    except (OSError, ValueError) as error:
        print(f"train_online: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
