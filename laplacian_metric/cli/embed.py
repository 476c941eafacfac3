"""`lam embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laplacian_metric.cli import common, options


def embed(
    model: options.Model,
    images: Annotated[
        str,
        typer.Argument(
            help="A folder, of which every image is taken; a data set's name; a file of features."
        ),
    ],
    out: Annotated[Path, typer.Option(help="A new file: .npz, .safetensors or .parquet.")],
    data_dir: options.DataDir = None,
    skip_broken: options.SkipBroken = False,
    batch_size: options.BatchSize = 100,
    workers: options.Workers = 0,
    device: options.Device = "cpu",
    force: options.Force = False,
    as_json: options.AsJson = False,
    config: options.Config = None,
) -> None:
    """Embed images as distributions: ids, mean, kappa, uncertainty, point, and which posterior made them.

    Example: lam embed model photos --out photos.npz
    """
    common.check_new(out, force)
    from laplacian_metric.cli.steps.embedding_files import check_suffix

    check_suffix(out)
    from laplacian_metric.cli.steps import devices
    from laplacian_metric.cli.steps.indexing import embed as embed_all
    from laplacian_metric.cli.steps.sources import Opening, open_source
    from laplacian_metric.laplace.model_folder import ModelFolder

    loaded = ModelFolder.load(model, device=devices.device(device))
    how = Opening.of(
        loaded, data_dir=data_dir, skip_broken=skip_broken, batch_size=batch_size, workers=workers
    )
    source = open_source(images, how, every_image=True)
    found = embed_all(loaded, source)
    found.write(out)
    order = found.items.uncertainty.argsort()[::-1]
    least = [(found.ids[row], float(found.items.uncertainty[row])) for row in order[:5].tolist()]
    if as_json:
        content = {
            "out": str(out),
            "images": len(source),
            "dim": found.items.dim,
            "source": found.items.source,
        }
        common.print_json(
            {**content, "least_certain": [{"id": name, "uncertainty": value} for name, value in least]}
        )
        return
    rows = [(name, common.number(value)) for name, value in least]
    title = f"{out}: {len(source)} images. The least certain of them:"
    common.show(title, common.table(("image", "uncertainty"), rows))
