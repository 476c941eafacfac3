"""Features that any program exported (.npy, .npz or .safetensors) get an uncertainty; no model is needed.

In a shell: lam fit --features known.npz --dim 8 --steps 500 --out model; lam embed model new.npy
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder
from laplacian_metric.encoder import train_head


def read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        return {"features": np.load(path), "labels": np.load(path.parent / "labels.npy")}
    return dict(np.load(path)) if path.suffix == ".npz" else safetensors.numpy.load_file(path)


def main(exported: str, new: str, dim: int = 8, steps: int = 500) -> dict[str, np.ndarray]:
    """Args: exported: arrays "features" (N, H) and "labels" (N,). new: an .npy file of others to be judged."""
    known, generator = read(Path(exported)), torch.Generator().manual_seed(0)
    features, labels = (torch.from_numpy(known[name]) for name in ("features", "labels"))
    loss = ContrastiveLoss(margin=0.7, negatives="active")
    head = train_head(features, labels, loss, dim, steps=steps, generator=generator)
    lam = LAM(Encoder(nn.Identity(), head), loss).fit_features(features, labels)
    lam.optimize_prior_precision()
    e = lam.embed_features(torch.from_numpy(np.load(new)))
    return {"point": e.point.numpy(), "kappa": e.kappa.numpy(), "uncertainty": e.uncertainty.numpy()}


if __name__ == "__main__":
    print(main(*sys.argv[1:]))  # noqa: T201
