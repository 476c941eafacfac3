"""`lam embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laplacian_metric.cli import common, options

LISTED = 5  # images with the smallest kappa


def embed(
    model: options.Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES", help="A folder of images, an image, a data set, or a file of features."
        ),
    ],
    out: Annotated[Path, typer.Option(help="A new file: .npz or .safetensors.")],
    images: options.Images,
    output: options.Output,
) -> None:
    """Embed images and write ids, labels, features, unit vectors and kappa to a file.

    The arrays are called ids (N,), labels (N,), features (N, H), vectors (N, Z) and kappa (N,). Index and query take
    the file.

    Example: lam embed model photos --out photos.npz
    """
    from laplacian_metric.core import array_files

    common.check_new(out, output.force)
    array_files.check_suffix(out)
    import numpy as np

    from laplacian_metric.laplace.frozen_features import features_of

    loaded = images.model(model)
    source = images.open(data, loaded, every_image=True)
    features = features_of(loaded.encoder, source)
    embedding = loaded.lam.embed_features(features).to("cpu")
    kappa = embedding.kappa.float().numpy()
    arrays = {
        "features": features.features.float().cpu().numpy(),
        "vectors": embedding.point.float().numpy(),
        "kappa": kappa,
        "ids": np.array(source.ids),
    }
    if source.labels is not None:
        arrays["labels"] = np.array(source.label_names.tolist())
    array_files.write_arrays(out, arrays)
    least = [(source.ids[row], float(kappa[row])) for row in kappa.argsort()[:LISTED].tolist()]
    if output.as_json:
        certain = [{"id": name, "kappa": value} for name, value in least]
        common.print_json({"out": str(out), "images": len(source), "least_certain": certain})
        return
    rows = [(name, common.number(value, 2)) for name, value in least]
    common.show(
        f"{out}: {len(source)} images. Those with the smallest kappa:", common.table(("image", "kappa"), rows)
    )
