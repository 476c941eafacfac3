"""Online: a posterior over the last layer is maintained during a plain PyTorch training."""

from __future__ import annotations

import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import Encoder, OnlineLAM, metrics
from laplacian_metric.data import load


def main(epochs: int = 10) -> dict[str, float]:
    train, test = (load("sample-fashion-mnist", split) for split in ("train+validation", "test"))
    images, labels = train.floats(), train.labels
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 3))
    encoder = Encoder.from_module(network)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3, weight_decay=1e-5)
    loss = ContrastiveLoss(margin=0.7, negatives="active")
    online = OnlineLAM(encoder, optimizer, loss, num_images=len(images), memory=0.02)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(100):
            online.step(images[batch], labels[batch])

    lam = online.posterior()  # no further pass over the data
    known, strangers = (
        lam.embed(test.floats()),
        lam.embed(load("sample-mnist", "test").floats()),
    )
    return {
        "recall@1": metrics.recall_at_k(known.point, test.labels),
        "R-AUROC": metrics.r_auroc(known.point, test.labels, known.uncertainty),
        "AUROC against MNIST": metrics.ood_auroc(known.uncertainty, strangers.uncertainty),
    }


if __name__ == "__main__":
    print(main())  # noqa: T201
