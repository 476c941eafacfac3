"""Do non-isotropic proxies improve retrieval of classes that were not trained on? Paired over seeds.

    python -m experiments.nonisotropy run --data DATA --cache WORK --out figures
    python -m experiments.nonisotropy table --out figures

Heads with 64 dimensions on features of EfficientNet-Lite0. Quick, Draw!: 138 classes of sketches to train on, 34 to
choose by, 173 to test on, 20 images each; a seed draws four fifths of the training images, the batches and a rotation
of the axes. Grocery: 14 classes of photographs of fruit, of which a seed draws 6, 3 and 5. Every metric has one number
that says how sharp the softmax is, 1/t for "cosine" and the initial concentration for the others; each seed chooses it
among the same five by mAP@R on validation classes, for every metric alike. ImageNet has classes of fruit.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import save, show, write_text
from experiments.arguments import run_or_table
from experiments.frozen import embedded, features, trained
from experiments.published_nivmf import log_densities
from experiments.trust.features import balanced, image_set_features
from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, Learner, Setup
from laplacian_metric.data import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods import make
from laplacian_metric.methods.spherical.proxies import Proxies, ProxyLearner
from laplacian_metric.methods.spherical.vmf_contrast import log_kernel
from laplacian_metric.metrics.ranking import error_auroc, rank_by
from laplacian_metric.metrics.resampling import compare_paired
from laplacian_metric.metrics.statistics import spearman
from laplacian_metric.training import TrainingOptions
from laplacian_metric.training.options import Optimizer, Schedule

DIM = 64
SEEDS = range(5)
PER_CLASS = 20
SHARPNESS = (5.0, 10.0, 20.0, 40.0, 80.0)
DATA_SETS = ("grocery", "quickdraw")
BASE = "cosine"
MEASURES = (
    "mAP@R",
    "recall@1",
    "mAP@R Euclidean",
    "mAP@R kernel",
    "AUROC of the norm",
    "AUROC of the distance",
)
OPTIONS = {
    "quickdraw": TrainingOptions(
        epochs=8, batch_size=128, optimizer=Optimizer.ADAM, learning_rate=1e-3, schedule=Schedule.COSINE
    ),
    "grocery": TrainingOptions(
        epochs=15, batch_size=64, optimizer=Optimizer.ADAM, learning_rate=1e-3, schedule=Schedule.COSINE
    ),
}
TITLE = "Distances to class proxies, measured on classes that were not trained on"
NOTE = (
    "Means over 5 seeds on test classes; in parentheses the difference to the cosine proxies, paired by seeds, with "
    "Student's interval of 95 %. 'nivmf': exactly normalised density with one concentration for each axis of a class; "
    "'per class': with one for each class; 'published': the published form of 'nivmf', which is no density; "
    "'untrained': the features themselves. mAP@R and "
    "recall@1 by the cosine, mAP@R by Euclidean distance between the unnormalised embeddings and by the expected "
    "likelihood kernel of images as vMF distributions; AUROC of 1/kappa, the inverse norm, for 'the nearest item has "
    "another class', and that of the distance to the nearest item; 'axes': rank correlation of log K with minus the "
    "log variance of the training class along the axis, mean over classes. 'sharpness': chosen by the seeds. Published "
    "(Kirchhof et al., 2022, CUB, recall@1): ProxyNCA 63.2 %, EL-nivMF 64.8 %, point nivMF over cosine +2.1 points."
)


@dataclass(frozen=True)
class PublishedProxies(Proxies):
    """Proxies with the published "density", for comparison."""

    name: ClassVar[str] = "published-nivmf"

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        learner = super().learner(encoders, setup)
        assert isinstance(learner, ProxyLearner)
        return PublishedLearner(learner.network, self)


class PublishedLearner(ProxyLearner):
    """Trains with the published form."""

    def log_similarity(self, mean: Tensor, kappa: Tensor) -> Tensor:
        return log_densities(mean, self.network.directions, self.network.log_scale)


def method_of(variant: str, sharpness: float) -> Proxies:
    """Return the method of a variant.

    Example:
        >>> method_of("cosine", 20.0).scale
        0.05
    """
    if variant == "cosine":
        return Proxies(temperature=1 / sharpness)
    if variant == "published":
        return PublishedProxies(metric="nivmf", initial_kappa=sharpness)
    isotropic = variant == "per class"
    metric = "nivmf" if isotropic else variant
    method = make("proxies", metric=metric, initial_kappa=sharpness, isotropic=isotropic)
    assert isinstance(method, Proxies)
    return method


VARIANTS = ("cosine", "nivmf", "per class", "published", "l2", "el-vmf")
UNTRAINED = "untrained"


def data_sets(root: Path, cache: Path, name: str, seed: int) -> tuple[Dataset, Dataset, Dataset]:
    """Return features for training, choosing and testing, of different classes."""
    generator = np.random.default_rng(seed)
    if name == "grocery":
        content = image_set_features(root, cache, name)
        everything = features(content["h"], content["labels"], name)
        groups = np.split(generator.permutation(len(everything.classes)), [6, 9])
        parts = [
            everything.select(torch.isin(everything.labels, torch.from_numpy(group))) for group in groups
        ]
    else:
        parts = []
        for part in ("train", "validation", "test"):
            content = image_set_features(root, cache, f"quickdraw-{part}")
            rows = balanced(content["labels"], PER_CLASS, seed=0)
            parts.append(features(content["h"][rows], content["labels"][rows], name))
        rows = generator.permutation(len(parts[0]))[: len(parts[0]) * 4 // 5]
        parts[0] = parts[0].select(torch.from_numpy(rows))
    return parts[0].relabelled(), parts[1], parts[2]


def map_at_r(e: StochasticEmbedding, labels: Tensor) -> float:
    """Return mAP@R by the cosine."""
    return metrics.map_at_r(e.mean, labels)


def measure(e: StochasticEmbedding, test: Dataset) -> dict[str, float | None]:
    """Return what embeddings of test classes are like; AUROCs are None where every nearest item is right."""
    u = e.mean * e.kappa[:, None]
    ranking = metrics.rank(e.mean, test.labels, at_r=True)

    def euclidean(rows: Tensor) -> Tensor:
        return -torch.cdist(u[rows], u)

    def kernel(rows: Tensor) -> Tensor:
        return log_kernel(e.mean[rows], e.kappa[rows], e.mean, e.kappa)

    def deep(scores: Any) -> float:
        precision = rank_by(scores, test.labels).precision_at_r
        assert precision is not None
        return float(precision.mean())

    def auroc_of(uncertainty: Tensor) -> float | None:
        value = error_auroc(ranking, uncertainty)
        return None if math.isnan(value) else value

    assert ranking.precision_at_r is not None
    return {
        "mAP@R": float(ranking.precision_at_r.mean()),
        "recall@1": float(ranking.recall(1).mean()),
        "mAP@R Euclidean": deep(euclidean),
        "mAP@R kernel": deep(kernel),
        "AUROC of the norm": auroc_of(e.uncertainty),
        "AUROC of the distance": auroc_of(ranking.distance),
    }


def axes_correlation(embedder: Embedder, training: Dataset) -> float | None:
    """Return the mean rank correlation of log K with -log variance over the axes of each class; None without axes."""
    network = embedder.network  # type: ignore[attr-defined]
    if network.offsets is None:
        return None
    z = F.normalize(embedded(embedder, training).mean)
    log_scale = network.log_scale.detach().double()
    ones = torch.ones(1, z.shape[1], dtype=torch.float64)
    correlations = []
    for label in training.classes:
        own = z[training.labels == label]
        if len(own) > 2:
            variance = own.double().var(0)
            correlations.append(float(spearman(log_scale[label], -variance.log(), ones)))
    return float(np.mean(correlations))


def run_one(root: Path, cache: Path, name: str, variant: str, seed: int) -> dict[str, Any]:
    """Return the sharpness that validation classes choose, and what the trained head is like on test classes."""
    training, validation, test = data_sets(root, cache, name, seed)
    if variant == UNTRAINED:
        norm = torch.linalg.vector_norm(test.inputs, dim=1)
        h = test.inputs / norm[:, None]
        return measure(StochasticEmbedding(point=h, mean=h, kappa=norm, uncertainty=1 / norm), test)
    begun = time.process_time()
    tried: list[tuple[float, float]] = []
    best: Embedder | None = None
    for sharpness in SHARPNESS:
        embedder = trained(
            method_of(variant, sharpness), training, validation, dim=DIM, options=OPTIONS[name], seed=seed
        )
        value = map_at_r(embedded(embedder, validation), validation.labels)
        if not tried or value > max(v for _, v in tried):
            best = embedder
        tried.append((sharpness, value))
    assert best is not None
    chosen = max(tried, key=lambda pair: pair[1])[0]
    chosen_by = {"sharpness": chosen, "tried": tried, "axes": axes_correlation(best, training)}
    return measure(embedded(best, test), test) | chosen_by | {"cpu seconds": time.process_time() - begun}


def run(root: Path, cache: Path, out: Path) -> Iterator[str]:
    """Run what the result file does not have yet."""
    path = out / "results" / "nonisotropy.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for name in DATA_SETS:
        for seed in SEEDS:
            for variant in (*VARIANTS, UNTRAINED):
                key = f"{name}/{variant}/{seed}"
                if key not in results:
                    results[key] = run_one(root, cache, name, variant, seed)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_text(path, json.dumps(results, indent=1) + "\n")
                    yield key


def beside(own: list[dict[str, Any]], base: list[dict[str, Any]], key: str) -> str:
    """Return the mean over seeds, and the paired difference to the base with its interval; "-" where undefined."""
    values, others = ([one[key] for one in each] for each in (own, base))
    if None in values or None in others:
        return "-"
    mean = f"{np.mean(values):.3f}"
    if own is base or values == others:
        return mean
    paired = compare_paired(values, others)
    return f"{mean} ({paired.difference:+.3f}, {paired.low:+.3f} to {paired.high:+.3f})"


def table(out: Path) -> list[Path]:
    """Write the table of the seeds that all variants have."""
    results = json.loads((out / "results" / "nonisotropy.json").read_text())
    rows = []
    for name in DATA_SETS:
        seeds = [s for s in SEEDS if all(f"{name}/{v}/{s}" in results for v in (*VARIANTS, UNTRAINED))]
        if len(seeds) < 2:
            continue
        base = [results[f"{name}/{BASE}/{s}"] for s in seeds]
        for variant in (UNTRAINED, *VARIANTS):
            own = [results[f"{name}/{variant}/{s}"] for s in seeds]
            row: dict[str, Any] = {"data": name, "variant": variant, "seeds": len(seeds)}
            row |= {key: beside(own, base, key) for key in base[0] if key in MEASURES}
            axes = [one["axes"] for one in own if one.get("axes") is not None]
            row["axes"] = f"{np.mean(axes):.3f}" if axes else None
            row["sharpness"] = " ".join(f"{one['sharpness']:g}" for one in own if "sharpness" in one) or None
            rows.append(row)
    show(TITLE, rows)
    return save(out, "nonisotropy", TITLE, rows, NOTE)


def main() -> None:
    """Run what is missing, or make the table of what has finished."""
    run_or_table(__doc__, run, table)


if __name__ == "__main__":
    main()
