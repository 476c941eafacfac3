"""`lam train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from laplacian_metric.cli import common, options

REQUIRED = "Required unless --config has it."


@dataclass(frozen=True)
class Settings:
    """The settings of a cell that have options of their own, and how a cell is read with them."""

    data: Annotated[
        str | None, typer.Option(help=f"A data set's name, or a folder of images. {REQUIRED}")
    ] = None
    method: Annotated[
        str | None,
        typer.Option(help=f"online-laplace, laplace, deterministic, pfe, hib, ensemble, ... {REQUIRED}"),
    ] = None
    encoder: Annotated[
        str | None, typer.Option(help=f"The network: fashion-mnist, cifar-10, timm:NAME, ... {REQUIRED}")
    ] = None
    dim: Annotated[int | None, typer.Option(min=2, help="Dimensions of the embedding.")] = None
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Start from published weights.")] = False
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training images.")] = None
    images_per_batch: Annotated[
        int | None, typer.Option("--batch-size", min=2, help="Images in a batch.")
    ] = None
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate at the start.")] = None
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay of the optimizer; it sets the prior.")
    ] = None
    margin: Annotated[float | None, typer.Option(help="Margin of the contrastive loss.")] = None
    power: Annotated[
        int | None, typer.Option(min=1, max=2, help="Power of the distance in the contrastive loss.")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting of a cell, such as training.schedule=cosine."),
    ] = None
    config: Annotated[
        Path | None, typer.Option(help="YAML in the form of a cell: data, network, loss, training, method.")
    ] = None
    skip_broken: options.SkipBroken = False

    def cell(self) -> dict[str, Any]:
        """Return the cell of the file, with what was passed on top."""
        from experiments.harness.single_cell import combined, merged, settings_of_data
        from laplacian_metric.core.checked import read_yaml

        training = {
            "epochs": self.epochs,
            "batch_size": self.images_per_batch,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
        }
        sections: dict[str, dict[str, Any]] = {
            "network": {"name": self.encoder, "dim": self.dim, "pretrained": self.pretrained or None},
            "training": training,
            "loss": {"margin": self.margin, "power": self.power},
        }
        passed: dict[str, Any] = {
            name: {key: value for key, value in section.items() if value is not None}
            for name, section in sections.items()
        }
        passed |= {"data": settings_of_data(self.data) if self.data else None, "method": self.method}
        cell = combined(
            {} if self.config is None else read_yaml(self.config),
            {name: value for name, value in passed.items() if value},
        )
        if self.skip_broken:
            cell = merged(cell, {"data": {"options": {"skip_unreadable": True}}})
        return merged(cell, options.assignments(self.settings))


def train(
    out: Annotated[
        Path, typer.Option(help="The folder to write; checkpoints are kept beside it until it is complete.")
    ],
    settings: Settings,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    device: options.Device = "cpu",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard an unfinished training with other settings.")
    ] = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a network with any method. Run the same command again to resume an interrupted training.

    The best epoch is chosen on validation images; test images are not read. --data, --encoder and --method are required
    unless --config has them.

    Example: lam train --data fashion-mnist --encoder fashion-mnist --method online-laplace --out model

    Example: lam train --config cell.yaml --epochs 5 --out model
    """
    from experiments.harness.single import train_single, work_of

    cell = settings.cell()
    try:
        kept = train_single(
            cell,
            out,
            seed=seed,
            data_dir=data_dir,
            device=str(options.checked_device(device)),
            force=force,
            fresh=fresh,
        )
    except KeyboardInterrupt:
        resume = "; run the same command again to resume" if work_of(out).exists() else ""
        common.error(f"interrupted{resume}")
        raise typer.Exit(common.INTERRUPTED) from None
    if as_json:
        about = {} if kept.model is None else kept.model.about
        validation = {"validation": kept.validation} if kept.validation else {}
        common.print_json({"kind": kept.kind, "out": str(kept.folder), **about, **validation})
    else:
        common.show(f"{kept.folder}: {kept.words}")
        numbers = (f"{name} {value:.3f}" for name, value in kept.validation.items())
        if kept.validation:
            common.show(f"on validation images, after the best epoch: {', '.join(numbers)}")
