"""Online with Lightning: training_step returns the loss at a draw from the posterior that the callback maintains."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hessians import ContrastiveLoss
from laplacian_metric import Encoder
from laplacian_metric.data import load
from laplacian_metric.integrations.lightning import OnlineLAMCallback


class Embedder(pl.LightningModule):
    def __init__(self, online: OnlineLAMCallback) -> None:
        super().__init__()
        network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 3))
        self.encoder, self.online = Encoder.from_module(network), online

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.online.loss(*batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, weight_decay=1e-5)


def main(epochs: int = 10, **trainer: object) -> dict[str, float]:
    train = load("sample-fashion-mnist", "train+validation")
    loader = DataLoader(TensorDataset(train.floats(), train.labels), batch_size=100, shuffle=True)
    online = OnlineLAMCallback(ContrastiveLoss(margin=0.7, negatives="active"), memory=0.02)
    pl.Trainer(max_epochs=epochs, callbacks=[online], **trainer).fit(Embedder(online), loader)
    lam, names = online.posterior(), ("sample-fashion-mnist", "sample-mnist")
    return {name: float(lam.embed(load(name, "test").floats()).kappa.median()) for name in names}


if __name__ == "__main__":
    print(main(accelerator="cpu", logger=False, enable_checkpointing=False))  # noqa: T201
