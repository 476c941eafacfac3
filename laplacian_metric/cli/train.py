"""`lam train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from laplacian_metric.cli import common, options


def train(
    out: Annotated[Path, typer.Option(help="The folder that is made; checkpoints are beside it until then.")],
    data: Annotated[str | None, typer.Option(help="A data set's name, or a folder of images.")] = None,
    method: Annotated[
        str | None, typer.Option(help="online-laplace, laplace, deterministic, pfe, hib, ensemble, ...")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="The network: fashion-mnist, cifar-10, timm:NAME, ...")
    ] = None,
    dim: Annotated[int | None, typer.Option(min=2, help="Dimensions of the embedding.")] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Begin with published weights.")] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="How often every image is seen.")] = None,
    images_per_batch: Annotated[
        int | None, typer.Option("--batch-size", min=2, help="Images in a batch.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="At the start.")] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Of the optimizer; the prior follows from it.")
    ] = None,
    margin: Annotated[float | None, typer.Option(help="Of the contrastive loss.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting of a cell, such as training.schedule=cosine."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML in the form of a cell: data, network, loss, training, method.")
    ] = None,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    skip_broken: options.SkipBroken = False,
    device: options.Device = "cpu",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew what was begun with other settings.")
    ] = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a network with any method. Interrupted, the same command goes on where it was.

    The best epoch is chosen on validation images; test images are not read.

    Example: lam train --data fashion-mnist --encoder fashion-mnist --method online-laplace --out model

    Example: lam train --config cell.yaml --epochs 5 --out model
    """
    from laplacian_metric.cli.steps import cells, devices, training

    found: dict[str, Any] = {}
    if config is not None:
        from laplacian_metric.report.read_yaml import read_yaml

        if not config.is_file():
            raise FileNotFoundError(f"there is no file {config}")
        found = read_yaml(config)
        if isinstance(found.get("method"), str):
            found["method"] = {"name": found["method"]}
    if method is not None:
        before = found.get("method")
        same = isinstance(before, dict) and before.get("name") == method
        found["method"] = before if same else {"name": method}
    if skip_broken:
        found = cells.merged(found, {"data": {"options": {"skip_unreadable": True}}})
    flags = {
        "data": None if data is None else cells.settings_of_data(data),
        "network": {"name": encoder, "dim": dim, "pretrained": pretrained or None},
        "training": {
            "epochs": epochs,
            "batch_size": images_per_batch,
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
        },
        "loss": {"margin": margin},
    }
    found = cells.merged(cells.merged(found, _given(flags)), cells.assigned(settings or []))
    try:
        kept = training.train(
            found,
            out,
            seed=seed,
            data_dir=data_dir,
            device=str(devices.device(device)),
            force=force,
            fresh=fresh,
        )
    except KeyboardInterrupt:
        begun = training.work_of(out).exists()
        common.error("interrupted" + ("; the same command goes on where it was" if begun else ""))
        raise typer.Exit(common.INTERRUPTED) from None
    content: dict[str, Any] = {"kind": kept.kind, "out": str(kept.folder)}
    if kept.model is not None:
        content |= kept.model.about
    if as_json:
        common.print_json(content)
    else:
        common.show(f"{kept.folder}: {kept.words}")


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """What was passed."""
    found: dict[str, Any] = {}
    for key, value in flags.items():
        inner = (
            {name: one for name, one in value.items() if one is not None}
            if isinstance(value, dict)
            else value
        )
        if inner:
            found[key] = inner
    return found
