"""FashionMNIST against MNIST: posteriors of trained networks, and what each of their scores can tell.

    python -m experiments.fashion_mnist.evaluate --data DATA --nets NETS --out figures/fashion_mnist

DATA holds FashionMNIST/raw and MNIST/raw, NETS what `experiments.fashion_mnist.train` and `train_online` left. Every
cell, a posterior of one network, becomes one file below OUT; cells that are there are not computed again, so that the
command may be interrupted and repeated. Features are cached below NETS.

Everything that is chosen is chosen on validation images: the prior precision by the marginal likelihood or by the
likelihood of validation pairs, the confidence's constants by `MatchConfidence.fit`. Test images and MNIST are only
measured. Beside the test figures each score has two of validation images, by which one would choose among scores: how
well it tells wrong nearest neighbours, and how well it tells corrupted validation images from clean ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import origin
from experiments.fashion_mnist.train import load_network, save_json
from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, data, metrics
from laplacian_metric.data.corruptions import corrupt
from laplacian_metric.embedding import StochasticEmbedding
from laplacian_metric.laplace.confidence import MatchConfidence
from laplacian_metric.laplace.features import Features
from laplacian_metric.metrics.ranking import Ranking

LOSS = ContrastiveLoss(margin=0.7, distance="arccos", negatives="active")
# Without the norm all images weigh alike in "fixed", long embeddings and short ones.
WITHOUT_NORM = ContrastiveLoss(margin=0.7, distance="euclidean", normalize=False)
WEIGHT_DECAY = 1e-5
CORRUPTIONS = ("crop", "blur", "occlusion", "noise")
STRENGTH = 1.0
EVERY = 5  # of the validation images, so many are corrupted
SAMPLES = 100
BATCH = 500
BINS = 10


@dataclass(frozen=True)
class Posterior:
    """A cell: which posterior is made of a network."""

    structure: str = "diag"
    approximation: str = "fixed"
    prior: str = "marginal"
    rank: int = 300
    temperature: float = 1.0
    norm: bool = True  # whether the l2 norm has a part in the curvature

    @property
    def name(self) -> str:
        rank = f"{self.rank}" if self.structure == "lowrank" else ""
        cooled = "" if self.temperature == 1.0 else f"_{self.temperature:g}"
        norm = "" if self.norm else "_nonorm"
        return f"{self.structure}{rank}_{self.approximation}{norm}_{self.prior}{cooled}"


# For every network; the further ones for the first seed only.
# 0.01 is the temperature that online training was given by its validation images.
MAIN = (
    Posterior(),
    Posterior(prior="decay", temperature=0.01),
    Posterior("lowrank"),
    Posterior("lowrank", prior="decay", temperature=0.01),
    Posterior("lowrank", norm=False),
    Posterior("kron"),
)
FURTHER = (
    Posterior(prior="validation"),
    Posterior(prior="decay"),
    Posterior(approximation="positive"),
    Posterior(approximation="full"),
    Posterior(approximation="clipped"),
    Posterior("lowrank", rank=50),
    Posterior("lowrank", prior="validation"),
    Posterior("kron", prior="validation"),
)


@dataclass(frozen=True, eq=False)
class Sets:
    """The features of one network: of training, validation and test images, of strangers and of corrupted images."""

    train: Features
    validation: Features
    test: Features
    out: Features
    corrupted: Features
    ranking: Ranking
    validation_ranking: Ranking


def loader(images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches in order."""
    yield from zip(images.split(BATCH), labels.split(BATCH), strict=True)


def read(encoder: Encoder, data_dir: Path, cache: Path) -> Sets:
    """All features of a network, computed once."""
    lam = LAM(encoder, LOSS)
    found: dict[str, Features] = {}
    for name, (source, split) in {
        "train": ("fashion-mnist", "train"),
        "validation": ("fashion-mnist", "validation"),
        "test": ("fashion-mnist", "test"),
        "out": ("mnist", "test"),
    }.items():
        images = data.load(source, split, data_dir=data_dir)
        found[name] = lam.features(loader(images.floats(), images.labels), folder=cache / name)
    held_out = data.load("fashion-mnist", "validation", data_dir=data_dir)
    chosen = held_out.floats()[::EVERY]
    images = torch.cat([corrupt(chosen, kind, STRENGTH) for kind in CORRUPTIONS])
    labels = held_out.labels[::EVERY].repeat(len(CORRUPTIONS))
    found["corrupted"] = lam.features(loader(images, labels), folder=cache / "corrupted")
    return Sets(
        **found,
        ranking=ranked(encoder, found["test"]),
        validation_ranking=ranked(encoder, found["validation"]),
    )


@torch.no_grad()
def ranked(encoder: Encoder, features: Features) -> Ranking:
    """Every image's neighbours among the others."""
    u = torch.cat([encoder.head(h) for h in features.features.split(BATCH)])
    return metrics.rank(torch.nn.functional.normalize(u), features.labels, k=10, at_r=True)


def score(sets: Sets, values: dict[str, Tensor]) -> dict[str, float]:
    """What one score, given for every set, can tell."""
    found = metrics.evaluate_ranking(
        sets.ranking, values["test"], ood_uncertainty=values["out"], ks=(1,), resamples=0
    )
    validation = metrics.evaluate_ranking(sets.validation_ranking, values["validation"], ks=(1,), resamples=0)
    return {
        "auroc": found["ood_auroc"],
        "average_precision": found["ood_average_precision"],
        "r_auroc": found["r_auroc"],
        "ausc": found["ausc"],
        "validation_r_auroc": validation["r_auroc"],
        "corrupted_auroc": metrics.ood_auroc(values["validation"], values["corrupted"]),
    }


def probability_error(sets: Sets, probability: Tensor) -> float:
    """The calibration error of "my nearest neighbour is of my class" on test images, in ten bins of equal width."""
    right = sets.ranking.first_is_right()
    bins = (probability * BINS).long().clamp(max=BINS - 1)
    gaps = [
        float((probability[bins == b].mean() - right[bins == b].mean()).abs() * (bins == b).double().mean())
        for b in range(BINS)
        if bool((bins == b).any())
    ]
    return sum(gaps)


def names_of(sets: Sets) -> dict[str, Features]:
    """The sets that scores are given for."""
    return {"validation": sets.validation, "test": sets.test, "out": sets.out, "corrupted": sets.corrupted}


@torch.no_grad()
def trivial(encoder: Encoder, sets: Sets) -> dict[str, Any]:
    """Scores that need no posterior, and the retrieval that all posteriors share."""
    head = encoder.head
    u = {
        name: torch.cat([head(h) for h in part.features.split(BATCH)])
        for name, part in names_of(sets).items()
    }
    z = {name: torch.nn.functional.normalize(value) for name, value in u.items()}
    reference = torch.nn.functional.normalize(head(sets.train.features[::EVERY]))
    scores = {
        "feature norm": {name: metrics.feature_norm(part.features) for name, part in names_of(sets).items()},
        "embedding norm": {name: metrics.embedding_norm(value) for name, value in u.items()},
        "nearest distance": {
            name: metrics.nearest_distance(value, database=reference) for name, value in z.items()
        },
    }
    return {
        "retrieval": retrieval(sets.ranking),
        "validation_retrieval": retrieval(sets.validation_ranking),
        "scores": {name: score(sets, values) for name, values in scores.items()},
    }


def retrieval(ranking: Ranking) -> dict[str, float]:
    """recall@1 and mAP@k."""
    found = metrics.evaluate_ranking(ranking, ks=(1, 5, 10), resamples=0)
    return {name: found[name] for name in ("recall@1", "map@1", "map@5", "map@10", "map@r")}


def measure(lam: LAM, sets: Sets) -> dict[str, Any]:
    """Every score of a posterior, with its calibration and its diagnostics."""
    embedded: dict[str, StochasticEmbedding] = {
        name: lam.embed_features(part) for name, part in names_of(sets).items()
    }
    confidence = MatchConfidence.fit(lam.head, sets.train, sets.validation)
    trusted = {
        name: confidence(lam.head, part.features, embedded[name]) for name, part in names_of(sets).items()
    }
    scores = {
        "1/kappa": {name: e.uncertainty for name, e in embedded.items()},
        "variance": {name: e.variance.sum(1) for name, e in embedded.items()},
        "confidence": {name: 1 - value for name, value in trusted.items()},
    }
    draws = lam.sample_embeddings(sets.test, SAMPLES, generator=torch.Generator().manual_seed(0))
    return {
        "settings": {
            "n_effective": lam.n_effective,
            "temperature": lam.temperature,
            "prior_precision": lam.prior_precision,
            "kernel": confidence.kernel,
            "spread": confidence.spread,
        },
        "diagnostics": lam.diagnostics().to_dict(),
        "log_marginal_likelihood": lam.log_marginal_likelihood(),
        "retrieval_ece": metrics.retrieval_ece(draws, sets.test.labels),
        "recall_lost": lam.recall_lost(
            sets.validation.features, sets.validation.labels, generator=torch.Generator().manual_seed(0)
        ),
        "confidence_ece": probability_error(sets, trusted["test"].double()),
        "scores": {name: score(sets, values) for name, values in scores.items()},
    }


def fitted(encoder: Encoder, sets: Sets, cell: Posterior) -> LAM:
    """The posterior of a cell."""
    lam = LAM(
        encoder,
        LOSS if cell.norm else WITHOUT_NORM,
        cell.approximation,
        cell.structure,
        rank=cell.rank,
        temperature=cell.temperature,
        weight_decay=WEIGHT_DECAY,
    )
    lam.fit_features(sets.train, generator=torch.Generator().manual_seed(0), check_mode=False)
    if cell.prior != "decay":
        lam.optimize_prior_precision(cell.prior, sets.validation, generator=torch.Generator().manual_seed(0))
    return lam


def write(path: Path, content: dict[str, Any], begun: float) -> None:
    """One cell's file, with where it comes from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_json(
        path, {**origin("experiments.fashion_mnist"), "seconds": time.perf_counter() - begun, **content}
    )
    print(path.name, flush=True)


def keep_log(network: Path, out: Path) -> None:
    """The log of a network's training, among the cells."""
    log = network.with_suffix(".json")
    if log.exists():
        out.mkdir(parents=True, exist_ok=True)
        save_json(out / f"{log.stem}__training.json", json.loads(log.read_text(encoding="utf-8")))


def run(network: Path, data_dir: Path, out: Path, cells: Sequence[Posterior]) -> None:
    """All cells of one network that are not there yet."""
    name = network.name.removesuffix(".safetensors")
    running = network.with_name(f"{name}.lam.safetensors")
    wanted: list[Posterior | str] = ["trivial", *(["running"] if running.exists() else []), *cells]
    missing = [
        cell
        for cell in wanted
        if not (out / f"{name}__{cell if isinstance(cell, str) else cell.name}.json").exists()
    ]
    if not missing:
        return
    backbone, head = load_network(network)
    encoder = Encoder(backbone, head)
    sets = read(encoder, data_dir, network.parent / f"features_{name}")
    for cell in missing:
        begun = time.perf_counter()
        if cell == "trivial":
            write(out / f"{name}__trivial.json", trivial(encoder, sets), begun)
        elif cell == "running":
            lam = LAM.load(running, encoder)
            write(out / f"{name}__running.json", measure(lam, sets), begun)
        elif isinstance(cell, Posterior):
            found = measure(fitted(encoder, sets, cell), sets)
            write(out / f"{name}__{cell.name}.json", {"cell": asdict(cell), **found}, begun)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Evaluate posteriors of the FashionMNIST networks.")
    parser.add_argument("--data", type=Path, required=True, help="folder with FashionMNIST/raw and MNIST/raw")
    parser.add_argument("--nets", type=Path, required=True, help="folder with trained networks")
    parser.add_argument("--out", type=Path, default=Path("figures/fashion_mnist"), help="folder of the cells")
    parser.add_argument("--networks", nargs="+", required=True, help="names, such as active_seed0")
    parser.add_argument(
        "--cells",
        choices=("training", "running", "main", "all"),
        default="main",
        help="the log of the training only, or with the posterior that was kept up in training, or with three made "
        "afterwards, or with all of them",
    )
    parser.add_argument("--structures", nargs="+", help="of these structures only, such as diag lowrank")
    parser.add_argument("--threads", type=int, help="processor threads; by default torch's choice")
    options = parser.parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    cells = {"training": (), "running": (), "main": MAIN, "all": MAIN + FURTHER}[options.cells]
    if options.structures is not None:
        cells = tuple(cell for cell in cells if cell.structure in options.structures)
    for name in options.networks:
        try:
            keep_log(options.nets / f"{name}.safetensors", options.out)
            if options.cells == "training":
                continue
            run(options.nets / f"{name}.safetensors", options.data, options.out, cells)
        except (OSError, ValueError) as error:
            print(f"evaluate: {name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
