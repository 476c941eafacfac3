"""A model trained by pytorch-metric-learning's trainer gets a posterior afterwards, and is tested by its tester."""

from __future__ import annotations

import torch
from pytorch_metric_learning import samplers, trainers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hessians import ContrastiveLoss
from laplacian_metric import LAM
from laplacian_metric.data import load
from laplacian_metric.integrations.pytorch_metric_learning import LAMTester, TrainingLoss, encoder_of


def main(epochs: int = 10) -> dict[str, float]:
    train, test = (load("sample-fashion-mnist", split) for split in ("train+validation", "test"))
    sets = {name: TensorDataset(s.floats(), s.labels) for name, s in (("train", train), ("test", test))}
    torch.manual_seed(0)
    trunk, embedder = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU()), nn.Linear(64, 3)
    models, loss = {"trunk": trunk, "embedder": embedder}, ContrastiveLoss(margin=0.7, negatives="active")
    trainers.MetricLossOnly(
        models,
        {f"{name}_optimizer": torch.optim.Adam(models[name].parameters(), lr=1e-3) for name in models},
        batch_size=100,
        loss_funcs={"metric_loss": TrainingLoss(loss)},
        dataset=sets["train"],
        sampler=samplers.MPerClassSampler(train.labels, 10, 100, len(train.labels)),
        dataloader_num_workers=0,
    ).train(num_epochs=epochs)
    lam = LAM(encoder_of(models), loss).fit(DataLoader(sets["train"], batch_size=100))
    tester = LAMTester(lam, samples=20, dataloader_num_workers=0)
    return dict(tester.test({"test": sets["test"]}, epochs)["test"])


if __name__ == "__main__":
    print(main())  # noqa: T201
