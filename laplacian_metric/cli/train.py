"""`lam train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from laplacian_metric.cli import common, options

REQUIRED = "Required unless --config has it."
REMEDIES = {"data": "--data NAME or FOLDER", "method": "--method NAME", "network": "--encoder NAME"}
# The options that are settings of a section, and their names there.
SECTIONS = {
    "data": {"data": "train"},
    "network": {"encoder": "name", "dim": "dim", "pretrained": "pretrained"},
    "loss": {"margin": "margin", "power": "power"},
    "training": {
        "epochs": "epochs",
        "images_per_batch": "batch_size",
        "learning_rate": "learning_rate",
        "weight_decay": "weight_decay",
    },
}


@dataclass(frozen=True)
class Settings:
    """The settings that have options of their own, and how all settings are read with them."""

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
        typer.Option("--set", help="Any other setting, such as training.schedule=cosine."),
    ] = None
    config: Annotated[
        Path | None, typer.Option(help="YAML with the sections data, network, loss, training, method.")
    ] = None
    skip_broken: options.SkipBroken = False

    def content(self) -> dict[str, Any]:
        """Return the settings of the file, with the options of the command line on top."""
        from laplacian_metric.core.checked import read_yaml

        content = {} if self.config is None else read_yaml(self.config)
        if isinstance(content.get("method"), str):
            content["method"] = {"name": content["method"]}
        passed: dict[str, Any] = {
            section: {name: value for flag, name in names.items() if (value := getattr(self, flag))}
            for section, names in SECTIONS.items()
        }
        if self.method is not None:
            passed["method"] = {"name": self.method}
            if content.get("method", {}).get("name") != self.method:
                content.pop("method", None)  # the options of another method
        if self.skip_broken:
            passed["data"]["skip_unreadable"] = True
        passed = merged(passed, options.assignments(self.settings))
        content = merged(content, {section: values for section, values in passed.items() if values})
        for key, remedy in REMEDIES.items():
            if key not in content:
                raise ValueError(f"{key} is missing: pass {remedy}, or a configuration that has it")
        return content


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both, key by key; the second wins.

    Example:
        >>> merged({"training": {"epochs": 3, "batch_size": 9}}, {"training": {"epochs": 5}})
        {'training': {'epochs': 5, 'batch_size': 9}}
    """
    whole = dict(below)
    for key, value in above.items():
        before = whole.get(key)
        whole[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


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

    Example: lam train --data sample-fashion-mnist --encoder fashion-mnist --method online-laplace --out model

    Example: lam train --config settings.yaml --epochs 5 --out model
    """
    content = settings.content()
    from laplacian_metric.training import OtherRunError, single

    try:
        kept = single.train_single(
            single.Settings.of(content),
            out,
            seed=seed,
            force=force,
            fresh=fresh,
            data_dir=data_dir,
            device=str(options.checked_device(device)),
        )
    except OtherRunError as error:
        raise ValueError(f"{error}, or discard the training with --fresh") from error
    except KeyboardInterrupt:
        resume = "; run the same command again to resume" if single.work_of(out).exists() else ""
        common.error(f"interrupted{resume}")
        raise typer.Exit(common.INTERRUPTED) from None
    if as_json:
        about = {} if kept.model is None else kept.model.about
        validation = {"validation": kept.validation} if kept.validation else {}
        common.print_json({"kind": kept.kind, "out": str(kept.folder), **about, **validation})
        return
    use = {
        "model": "a model folder, for embed, index, evaluate and report",
        "encoder": f"an encoder without a posterior: `lam fit --encoder {content['network']['name']} --weights "
        f"{out / 'encoder.safetensors'}` with the same --data fits one",
        "training": f"{content['method']['name']} has no posterior over a last layer, so that a model folder cannot "
        "hold it; in Python, laplacian_metric.training.single.fitted embeds with the training in this folder",
    }
    common.show(f"{kept.folder}: {use[kept.kind]}")
    if kept.validation:
        numbers = (f"{name} {value:.3f}" for name, value in kept.validation.items())
        common.show(f"on validation images, after the best epoch: {', '.join(numbers)}")
