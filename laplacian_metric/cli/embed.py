"""`lam embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laplacian_metric.cli import common, options


def embed(
    model: options.Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="A folder, of which every image is embedded; an image; a data set's name; a file of features.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="A new file: .npz, .safetensors or .parquet.")],
    images: options.Images,
    output: options.Output,
) -> None:
    """Embed images as distributions and write ids, mean, kappa, uncertainty and point to a file.

    If the model was calibrated with fit --calibrate, the features are written too.

    Example: lam embed model photos --out photos.npz

    Example: lam embed model new.jpg --out new.npz
    """
    common.check_new(out, output.force)
    from laplacian_metric.retrieval.embedding_files import Embedded, check_suffix

    check_suffix(out)
    from laplacian_metric.laplace.frozen_features import features_of
    from laplacian_metric.retrieval import Items

    loaded = images.model(model)
    source = images.open(data, loaded, every_image=True)
    features = features_of(loaded.encoder, source)
    embedding = loaded.lam.embed_features(features).to("cpu")
    items = Items.of(embedding, variance=False)
    of_images = None if loaded.trust is None else features.features.float().cpu().numpy()
    Embedded(items, embedding.point.float().numpy(), source.ids, of_images).write(out)
    order = items.uncertainty.argsort()[::-1][:5].tolist()
    least = [(source.ids[row], float(items.uncertainty[row])) for row in order]
    if output.as_json:
        content = {"out": str(out), "images": len(items), "dim": items.dim, "source": items.source}
        content["least_certain"] = [{"id": name, "uncertainty": value} for name, value in least]
        common.print_json(content)
    else:
        rows = [(name, common.number(value)) for name, value in least]
        count = "1 image" if len(items) == 1 else f"{len(items)} images"
        title = f"{out}: {count}. The least certain of them:"
        common.show(title, common.table(("image", "uncertainty"), rows))
