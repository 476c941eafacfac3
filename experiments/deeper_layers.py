"""Whether a posterior over deeper layers pays: the head beside the last two layers and all layers.

    python -m experiments.deeper_layers --out figures [--seeds 0 1 2]

On the embedded sample alone: a FashionMNIST encoder is trained, each posterior is fitted to it, and its uncertainty is
judged by wrong neighbours among FashionMNIST test images and by MNIST images among them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from torch import Tensor

from benchmarks.common import save, show, write_text
from experiments.harness.tables.seeds import spread
from hessians import ContrastiveLoss, Pairs
from laplacian_metric import LAM, Encoder, NetworkLAM, metrics
from laplacian_metric.data import load
from laplacian_metric.laplace.batching import class_balanced_batches

DIM = 8
MARGIN = 0.7
N_EFFECTIVE = 3000
DRAWS = 20  # networks that "sampled" draws
JOINT = 5  # joint samples for the recall that is lost
PRIORS = (None, 1000.0, 10000.0)  # None: by the marginal likelihood
# Columns and their digits.
METRICS = {
    "AUROC": 3,
    "less head's": 3,
    "R-AUROC": 3,
    "less head's R": 3,
    "recall lost": 3,
    "kappa": 1,
    "seconds": 1,
}
TITLE = "Posteriors over the head, the last two layers and all layers"
NOTE = """\
The `fashion-mnist` encoder with Z = {dim}, trained for {epochs} epochs on the {train} training images of the embedded
sample (contrastive loss over active negatives). Curvature "fixed" of {fitted} of them, all at once for the head and in
batches of 250 for the others, n_effective {n_effective}; {test} test images, and {ood} of MNIST.

- *AUROC* tells MNIST from FashionMNIST by the uncertainty, *R-AUROC* wrong nearest neighbours from right ones;
  *less head's* is what is left of either after that of the head with the same network and prior is taken away.
- *recall lost* is recall@1 of the trained network less the mean of {joint} networks sampled jointly, linearised or not.
- *kappa* is the median concentration of the test images, *seconds* the time to embed both kinds of images.
- "sampled" draws {draws} networks. Nothing was chosen by test images.
- Mean ± standard deviation where there are several seeds (networks); each seed's values are in the JSON file."""


class Sample(NamedTuple):
    """Images (N, 1, 28, 28) and labels."""

    images: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    ood: Tensor


def read(most_test: int) -> Sample:
    """The embedded sample, of the test images ``most_test`` of each kind."""
    train, test = (load("sample-fashion-mnist", split) for split in ("train+validation", "test"))
    ood = load("sample-mnist", "test").floats()[:most_test]
    return Sample(train.floats(), train.labels, test.floats()[:most_test], test.labels[:most_test], ood)


def trained(sample: Sample, epochs: int, seed: int) -> Encoder:
    """An encoder of this seed."""
    encoder = Encoder.from_name("fashion-mnist", dim=DIM, seed=seed)
    loss = ContrastiveLoss(margin=MARGIN, negatives="active")
    optimizer = torch.optim.AdamW(encoder.parameters(), 1e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(seed)
    for _ in track(range(epochs), description=f"training, seed {seed}"):
        for rows in class_balanced_batches(sample.labels, 128, generator=generator):
            optimizer.zero_grad()
            loss(encoder.raw(sample.images[rows]), Pairs.from_labels(sample.labels[rows])).backward()
            optimizer.step()
    return encoder.eval()


def posteriors(encoder: Encoder, images: Tensor, labels: Tensor, seed: int) -> dict[str, LAM | NetworkLAM]:
    """Each posterior, fitted to the same images."""
    loss = ContrastiveLoss(margin=MARGIN)
    head = LAM(encoder, loss, n_effective=N_EFFECTIVE)
    with torch.no_grad():
        head.fit_features(encoder.features(images), labels, check_mode=False)
    by_name: dict[str, LAM | NetworkLAM] = {"head": head}
    chosen = class_balanced_batches(labels, 250, generator=torch.Generator().manual_seed(seed))
    batches = [(images[rows], labels[rows]) for rows in chosen]
    deeper = {
        "last 2 layers": NetworkLAM(encoder, loss, layers=2, samples=DRAWS, n_effective=N_EFFECTIVE),
        "all layers": NetworkLAM(encoder, loss, layers="all", samples=DRAWS, n_effective=N_EFFECTIVE),
    }
    for name, lam in deeper.items():
        by_name[name] = lam.fit(batches, check_mode=False, progress=False)
    return by_name


def judged(lam: LAM | NetworkLAM, sample: Sample, seed: int) -> dict[str, float]:
    """The metrics of one posterior, as its prior and predictive are set."""
    start = time.perf_counter()
    in_distribution, unknown = (
        lam.embed(list(images.split(100)), generator=torch.Generator().manual_seed(seed), progress=False)
        for images in (sample.test, sample.ood)
    )
    seconds = time.perf_counter() - start
    half = len(sample.test) // 2
    generator = torch.Generator().manual_seed(seed)
    joint = lam.embed(sample.test[:half], samples=JOINT, generator=generator, progress=False)
    assert joint.samples is not None
    labels = sample.test_labels[:half]
    recalls = [metrics.recall_at_k(z, labels) for z in joint.samples]
    return {
        "AUROC": float(metrics.ood_auroc(in_distribution.uncertainty, unknown.uncertainty)),
        "R-AUROC": float(
            metrics.r_auroc(in_distribution.point, sample.test_labels, in_distribution.uncertainty)
        ),
        "recall lost": float(metrics.recall_at_k(joint.point, labels)) - statistics.mean(recalls),
        "kappa": float(in_distribution.kappa.median()),
        "seconds": seconds,
    }


def cells(sample: Sample, epochs: int, num_fitted: int, seed: int) -> list[dict[str, Any]]:
    """Every posterior with every prior and predictive, for one encoder."""
    encoder = trained(sample, epochs, seed)
    images, labels = sample.images[:num_fitted], sample.labels[:num_fitted]
    rows: list[dict[str, Any]] = []
    for random, lam in track(
        posteriors(encoder, images, labels, seed).items(), description=f"posteriors, seed {seed}"
    ):
        for prior in PRIORS:
            if prior is None:
                lam.optimize_prior_precision()
            else:
                lam.prior_precision = prior
            for predictive in ("linearised", "sampled") if isinstance(lam, NetworkLAM) else ("closed form",):
                if isinstance(lam, NetworkLAM):
                    lam.predictive = predictive
                cell: dict[str, Any] = {
                    "random": random,
                    "predictive": predictive,
                    "prior": "marginal likelihood" if prior is None else f"{prior:.0f}",
                }
                cell["prior precision"] = lam.prior_precision
                rows.append({"seed": seed, **cell, **judged(lam, sample, seed)})
    for one in rows:
        head = next(other for other in rows if (other["random"], other["prior"]) == ("head", one["prior"]))
        one["less head's"] = one["AUROC"] - head["AUROC"]
        one["less head's R"] = one["R-AUROC"] - head["R-AUROC"]
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of means (and standard deviations) over the seeds."""
    names = ("random", "predictive", "prior")
    grouped: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in rows:
        grouped.setdefault(tuple(cell[name] for name in names), []).append(cell)
    return [
        dict(zip(names, key, strict=True))
        | {name: spread(cell[name] for cell in mine).text(digits) for name, digits in METRICS.items()}
        for key, mine in grouped.items()
    ]


def main() -> None:
    """Train, fit, judge and write."""
    parser = argparse.ArgumentParser(description="Compare posteriors over the head and over deeper layers.")
    parser.add_argument("--out", type=Path, help="folder for deeper_layers.json and deeper_layers.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--fitted", type=int, default=1000, help="images that the curvature is of")
    parser.add_argument("--test", type=int, default=500, help="test images of each kind")
    options = parser.parse_args()
    sample = read(options.test)
    measured_cells = [
        cell for seed in options.seeds for cell in cells(sample, options.epochs, options.fitted, seed)
    ]
    rows = summary(measured_cells)
    show(TITLE, rows)
    if options.out is None:
        return
    note = NOTE.format(
        dim=DIM,
        epochs=options.epochs,
        train=len(sample.images),
        fitted=options.fitted,
        n_effective=N_EFFECTIVE,
        test=len(sample.test),
        ood=len(sample.ood),
        joint=JOINT,
        draws=DRAWS,
    )
    written, _ = save(options.out, "deeper_layers", TITLE, rows, note)
    record = json.loads(written.read_text(encoding="utf-8"))
    write_text(written, json.dumps(record | {"cells": measured_cells}, indent=2) + "\n")


if __name__ == "__main__":
    main()
