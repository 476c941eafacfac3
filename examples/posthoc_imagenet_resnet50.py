"""ImageNet's ResNet-50 as it was published, with a pooling of choice, and an uncertainty for photographs.

python examples/posthoc_imagenet_resnet50.py PHOTOS WEIGHTS      (weights of the network's original form)
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch.utils.data import DataLoader

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, metrics
from laplacian_metric.data import load


def main(
    photos: str, weights: str, pooling: str = "gem", size: int = 128, cache: str = ""
) -> dict[str, float]:
    """Args: photos: folders by class, in train, val and test. cache: keeps the features, to go on from."""
    published = Encoder.from_checkpoint(weights, "resnet50-gem-v1", part="backbone", pooling=pooling)
    encoder = Encoder.with_head(published.backbone, published.num_features).eval()  # the identity
    lam = LAM(encoder, ContrastiveLoss(margin=0.7, negatives="active"))
    features = {}
    for split in ("train", "test"):
        images = load("folder", split, path=photos, image_size=size, preprocessing="unit")
        folder = Path(cache) / split if cache else None
        features[split] = lam.features(DataLoader(images, batch_size=50), folder=folder)
    lam.fit_features(features["train"], check_mode=False)  # nothing was trained with this loss
    lam.optimize_prior_precision()
    test, labels = lam.embed_features(features["test"]), features["test"].labels
    return metrics.evaluate(test.point, labels, test.uncertainty, ks=(1,), resamples=0).values


if __name__ == "__main__":
    print(main(*sys.argv[1:]))  # noqa: T201
