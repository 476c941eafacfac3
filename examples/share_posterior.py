"""A posterior in a folder with a model card, as on a hub; `push(folder, "owner/name")` uploads it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, metrics
from laplacian_metric.data import load
from laplacian_metric.integrations.hub import load_folder, save_folder


def main(folder: str | Path, images: int = 500) -> float:
    train, test = (load("sample-fashion-mnist", split) for split in ("train+validation", "test"))
    encoder = Encoder.from_name("fashion-mnist", seed=0).eval()  # train it first
    lam = LAM(encoder, ContrastiveLoss(margin=0.7)).fit(
        [(train.floats()[:images], train.labels[:images])], check_mode=False
    )
    e = lam.embed(test.floats()[:images])
    found = metrics.evaluate(e.point, test.labels[:images], e.uncertainty, resamples=0)
    save_folder(lam, folder, metrics=found, licence="apache-2.0", overwrite=True)

    again = load_folder(folder, encoder)  # an encoder with other weights is refused
    return float((again.embed(test.floats()[:images]).kappa - e.kappa).abs().max())


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as made:
        print(main(Path(made) / "fashion-mnist-posterior"))  # noqa: T201
