"""What people disagree about: heads on frozen features, trained on labels drawn from people's (CIFAR-10H).

    python -m experiments.cifar10h run --data DATA --cache WORK --out figures
    python -m experiments.cifar10h table --data DATA --cache WORK --out figures

About fifty people labelled each of CIFAR-10's 10,000 test images. Features of these images and of a random crop of each
are EfficientNet-Lite0's, which has seen CIFAR-10's classes in ImageNet. In five folds 6,000 images train a head with 8
dimensions, 2,000 choose the epoch, and 2,000 are measured. Labels of a batch are drawn from people's shares. Where
"majority" is named, the label that most people gave is used. A "small network" of three convolutions learns from the
same images without any features. Scores are kept in WORK, the table is made of all of them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.common import save, show
from experiments.frozen import embedded, features, trained
from experiments.sets.drawn_labels import DrawnLabels
from experiments.trust.features import Arrays, cached, image_features, lite0, scaled
from experiments.trust.settings import pooled_network
from laplacian_metric import data
from laplacian_metric.core.method import Embedder, Method
from laplacian_metric.data import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods import make
from laplacian_metric.metrics.out_of_distribution import label_entropy
from laplacian_metric.metrics.resampling import bootstrap_all
from laplacian_metric.metrics.statistics import auroc, spearman
from laplacian_metric.metrics.trivial import trivial_scores
from laplacian_metric.training import TrainingOptions
from laplacian_metric.training.options import Optimizer, Sampling, Schedule
from laplacian_metric.trust import Trust

FOLDS = 5
DIM = 8
SIDE = 96
IMAGES_AT_ONCE = 1000  # after each, features are kept
PEOPLE = range(45, 65)  # how many labels an image of CIFAR-10H may have
DRAWN, MAJORITY = "drawn", "majority"
OPTIONS = TrainingOptions(
    epochs=5,
    batch_size=64,
    optimizer=Optimizer.ADAM,
    learning_rate=1e-3,
    schedule=Schedule.COSINE,
    sampling=Sampling.SHUFFLED,
)
CELLS: dict[str, tuple[str, Callable[[], Method]]] = {
    "positivity": (DRAWN, partial(make, "vmf", loss="positivity")),
    "positivity, majority": (MAJORITY, partial(make, "vmf", loss="positivity")),
    "mc-infonce": (DRAWN, partial(make, "vmf", loss="mc-infonce")),
    "elk": (DRAWN, partial(make, "vmf", loss="elk")),
    "hib": (DRAWN, partial(make, "vmf", loss="hib")),
    "proxies": (DRAWN, partial(make, "proxies", metric="cosine")),
    "nivmf": (DRAWN, partial(make, "proxies", metric="nivmf")),
    "small network, positivity": (DRAWN, partial(make, "vmf", loss="positivity")),
    "small network, proxies": (DRAWN, partial(make, "proxies", metric="cosine")),
}
BASE = "proxies"  # the network whose free scores and Trust stand beside
REFERENCE = "positivity"
SMALL = "small network, "
SMALL_OPTIONS = replace(OPTIONS, epochs=15)
TITLE = "Uncertainty and people's disagreement on CIFAR-10H"


# --- images ---


def crops(x: Tensor, seed: int, pixels: int = SIDE) -> tuple[Tensor, Tensor]:
    """Return a random square of each image (N, C, S, S), scaled to ``pixels``, and the squares' sides (N,) over S.

    Example:
        >>> crops(torch.rand(2, 3, 32, 32), seed=0)[0].shape
        torch.Size([2, 3, 96, 96])
    """
    generator = torch.Generator().manual_seed(seed)
    size = x.shape[-1]
    side = (size * (0.25 + 0.75 * torch.rand(len(x), generator=generator))).round().long()
    corner = (torch.rand(len(x), 2, generator=generator) * (size - side + 1)[:, None]).long()
    squares = [
        scaled(image[None, :, top : top + s, left : left + s], pixels)
        for image, (top, left), s in zip(x, corner.tolist(), side.tolist(), strict=True)
    ]
    return torch.cat(squares), side / size


def image_set(root: Path) -> Dataset:
    """Return CIFAR-10's test images with the distributions of people's labels."""
    return data.load("cifar-10", "test", data_dir=root, preprocessing="unit", human_labels=True)


def all_features(images: Dataset, root: Path, cache: Path) -> Arrays:
    """Return "h" and "crop h" of all images and the "side" of the crops."""

    folder = cache / "cifar10h"

    def compute() -> Arrays:
        network, x = lite0(root), images.floats()
        blocks = []
        for number, block in enumerate(x.split(IMAGES_AT_ONCE)):
            blocks.append(
                cached(folder / f"features-{number}.npz", partial(one_block, network, block, number))
            )
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}

    return cached(folder / "features.npz", compute)


def one_block(network: nn.Module, x: Tensor, number: int) -> Arrays:
    """Return the features of some images, those of their crops, and the crops' sides."""
    crop, side = crops(x, seed=number)
    return {
        "h": image_features(network, x, f"images {number}"),
        "crop h": image_features(network, crop, f"crops {number}"),
        "side": side.numpy(),
    }


def fold_rows(fold: int, num: int) -> dict[str, Tensor]:
    """Return the rows of the images for "training", "validation" and "test".

    Example:
        >>> {name: len(rows) for name, rows in fold_rows(0, 50).items()}
        {'training': 30, 'validation': 10, 'test': 10}
    """
    parts = torch.randperm(num, generator=torch.Generator().manual_seed(0)).chunk(FOLDS)
    rest = [parts[(fold + step) % FOLDS] for step in range(2, FOLDS)]
    return {"training": torch.cat(rest), "validation": parts[(fold + 1) % FOLDS], "test": parts[fold]}


# --- cells ---


def fold_sets(images: Dataset, arrays: Arrays, fold: int) -> dict[str, Dataset]:
    """Return the features of "training", "validation" and "test" images, labelled by the majority, and "crops"."""
    people = images.extras["human_distribution"]
    everything = features(arrays["h"], people.argmax(1), "CIFAR-10H", human_distribution=people)
    sets = {name: everything.select(rows) for name, rows in fold_rows(fold, len(images)).items()}
    test_rows = fold_rows(fold, len(images))["test"]
    h = torch.from_numpy(arrays["crop h"])[test_rows]
    return sets | {"crops": features(h, sets["test"].labels, "crops of CIFAR-10H")}


def pixel_sets(images: Dataset, fold: int) -> dict[str, Dataset]:
    """Return the images themselves, in the parts of `fold_sets`; the crops are those that have features."""
    people = images.extras["human_distribution"]
    x = images.floats()
    everything = Dataset(
        x, people.argmax(1), name="CIFAR-10H", extras={"human_distribution": people}, batch_size=500
    )
    rows = fold_rows(fold, len(images))
    sets = {name: everything.select(some) for name, some in rows.items()}
    blocks = [crops(block, number, x.shape[-1])[0] for number, block in enumerate(x.split(IMAGES_AT_ONCE))]
    crop = torch.cat(blocks)[rows["test"]]
    return sets | {"crops": Dataset(crop, sets["test"].labels, name="crops of CIFAR-10H", batch_size=500)}


def train_cell(cell: str, sets: Mapping[str, Dataset], fold: int) -> Embedder:
    """Return the trained embedder of a cell and fold."""
    labels, method = CELLS[cell]
    training = DrawnLabels.of(sets["training"]) if labels == DRAWN else sets["training"]
    if not cell.startswith(SMALL):
        return trained(method(), training, sets["validation"], dim=DIM, options=OPTIONS, seed=fold)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold)
        backbone = pooled_network(training.inputs.shape[1])
        width = backbone(training.inputs[:1].float()).shape[1]
        encoder = Encoder(backbone, nn.Linear(width, DIM))
    return trained(
        method(), training, sets["validation"], dim=DIM, options=SMALL_OPTIONS, seed=fold, encoder=encoder
    )


@torch.inference_mode()
def features_in(encoder: Encoder, data: Dataset) -> Tensor:
    """Return the features (N, H) of a data set, which are its inputs where the encoder takes features."""
    return torch.cat([encoder.features(block) for block in data.inputs.split(500)])


def cell_scores(cell: str, sets: Mapping[str, Dataset], fold: int) -> Arrays:
    """Return every score of test images and crops, by "part:name", and which nearest items are "right"."""
    embedder = train_cell(cell, sets, fold)
    gallery = embedded(embedder, sets["training"])
    arrays: Arrays = {}
    for part in ("test", "crops"):
        queries = embedded(embedder, sets[part])
        cosine = queries.mean @ gallery.mean.T
        nearest = cosine.argmax(1)
        arrays[f"{part}:1/kappa"] = queries.uncertainty.numpy()
        arrays[f"{part}:nearest distance"] = (1 - cosine.amax(1)).numpy()
        if part == "test":
            arrays["right"] = (sets["training"].labels[nearest] == sets["test"].labels).numpy()
            arrays["mean"], arrays["kappa"] = queries.mean.numpy(), queries.kappa.numpy()
            arrays["gallery"] = gallery.mean.numpy()
    if cell.endswith(BASE):
        encoder = embedder.network.encoder.eval()  # type: ignore[attr-defined]
        items, calibration = (
            (features_in(encoder, sets[part]), sets[part].labels) for part in ("training", "validation")
        )
        trust = Trust.fit(items, calibration, encoder=encoder)
        for part in ("test", "crops"):
            h = features_in(encoder, sets[part])
            for name, values in trivial_scores(items, h, encoder=encoder).items():
                arrays[f"{part}:{name}"] = values.numpy()
            answer = trust(h)
            arrays[f"{part}:Trust, known"] = answer.novelty
            arrays[f"{part}:Trust, match"] = 1 - answer.match
            arrays[f"{part}:Trust, probability"] = 1 - answer.probability
    return arrays


def path_of(cache: Path, cell: str, fold: int) -> Path:
    """Return the file of a cell and fold."""
    return cache / "cifar10h" / f"{cell.replace(', ', '-')}-{fold}.npz"


def run(root: Path, cache: Path) -> Iterator[str]:
    """Train every cell of every fold that has no scores yet."""
    images = image_set(root)
    arrays = all_features(images, root, cache)
    for fold in range(FOLDS):
        sets = {"": fold_sets(images, arrays, fold), SMALL: pixel_sets(images, fold)}
        for cell in CELLS:
            path = path_of(cache, cell, fold)
            if not path.is_file():
                kind = SMALL if cell.startswith(SMALL) else ""
                cached(path, partial(cell_scores, cell, sets[kind], fold))
                yield f"{cell}, fold {fold}"


# --- the table ---


def ceiling(people: Tensor, repeats: int = 20) -> tuple[float, float]:
    """Return the reliability of the entropy of people's labels, and the correlation that a perfect score would have.

    People are split into halves at random; the rank correlation of the halves' entropies, by Spearman and Brown's
    formula, is the reliability of all of them. Its root is the ceiling.
    """
    generator = np.random.default_rng(0)
    counts = np.stack([label_counts(row) for row in people.numpy()])
    halves = []
    for _ in range(repeats):
        first = np.stack([generator.multivariate_hypergeometric(row, int(row.sum()) // 2) for row in counts])
        one, other = (label_entropy(torch.from_numpy(part).double()) for part in (first, counts - first))
        halves.append(float(spearman(one, other, torch.ones(1, len(counts), dtype=torch.float64))))
    half = float(np.mean(halves))
    reliability = 2 * half / (1 + half)
    return reliability, math.sqrt(max(reliability, 0.0))


def label_counts(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how often each label was given: the shares (C,) times the number of people that fits them best.

    Example:
        >>> label_counts(np.array([0.02, 0.98, 0.0])).tolist()
        [1, 49, 0]
    """
    number = min(PEOPLE, key=lambda n: float(np.abs(shares * n - (shares * n).round()).sum()))
    counts: NDArray[np.int64] = (shares * number).round().astype(np.int64)
    return counts


def pooled(cache: Path, cell: str, name: str) -> list[NDArray[Any]]:
    """Return the array of a name of every fold."""
    parts = []
    for fold in range(FOLDS):
        with np.load(path_of(cache, cell, fold)) as content:
            parts.append(content[name])
    return parts


def mean_over_folds(measures: list[Callable[[Tensor], Tensor]], weights: Tensor) -> Tensor:
    """Return the mean of a measure over folds, by weights (R, N) of all images."""
    blocks = weights.double().chunk(FOLDS, dim=-1)
    return torch.stack([measure(block) for measure, block in zip(measures, blocks, strict=True)]).mean(0)


def score_statistics(
    cache: Path, cell: str, name: str, entropy: Tensor, side: Tensor
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the statistics of a score: "entropy", "crop" and "R-AUROC"."""
    num = len(entropy)
    measures: dict[str, list[Callable[[Tensor], Tensor]]] = {"entropy": [], "crop": [], "R-AUROC": []}
    parts = [pooled(cache, cell, key) for key in (f"test:{name}", f"crops:{name}", "right")]
    for fold, (score, crop, right) in enumerate(zip(*parts, strict=True)):
        rows = fold_rows(fold, num)["test"]
        uncertainty = torch.from_numpy(score).double()
        measures["entropy"].append(partial(spearman, uncertainty, entropy[rows]))
        measures["crop"].append(partial(spearman, -torch.from_numpy(crop).double(), side[rows].double()))
        measures["R-AUROC"].append(partial(auroc, uncertainty, torch.from_numpy(~right).double()))
    return {key: partial(mean_over_folds, each) for key, each in measures.items()}


def difference(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Return the first statistic minus the second."""
    return first(w) - second(w)


def table(root: Path, cache: Path, out: Path, resamples: int = 300) -> list[Path]:
    """Write the table of all scores, each with intervals and beside the reference."""
    images = image_set(root)
    people = images.extras["human_distribution"]
    entropy, side = label_entropy(people), torch.from_numpy(all_features(images, root, cache)["side"])
    with np.load(path_of(cache, BASE, 0)) as content:
        free = [key.removeprefix("test:") for key in content if key.startswith("test:")]
    scores = [(cell, "1/kappa") for cell in CELLS]
    for kind in ("", SMALL):
        if kind + BASE in CELLS:
            scores += [(kind + REFERENCE, "nearest distance")]
            scores += [(kind + BASE, name) for name in free if name != "1/kappa"]
    rows = []
    for cell, name in scores:
        own = (SMALL if cell.startswith(SMALL) else "") + REFERENCE  # what is trained in the same way
        reference = score_statistics(cache, own, "1/kappa", entropy, side)
        statistics = score_statistics(cache, cell, name, entropy, side)
        beside = {
            f"{key} difference": partial(difference, reference[key], statistics[key])
            for key in ("entropy", "crop")
        }
        intervals = bootstrap_all(statistics | beside, [len(images) // FOLDS] * FOLDS, resamples=resamples)
        ones = torch.ones(1, len(images))
        values = {key: float(statistic(ones)) for key, statistic in (statistics | beside).items()}
        right = np.concatenate(pooled(cache, cell, "right"))
        is_reference = (cell, name) == (own, "1/kappa")
        rows.append(
            {"network": cell, "score": name, "recall@1": float(right.mean())}
            | {
                key: f"{values[key]:.3f} ({i.low:.3f} to {i.high:.3f})"
                if not (is_reference and "difference" in key)
                else "-"
                for key, i in intervals.items()
            }
        )
    reliability, most = ceiling(people)
    share = float((entropy == 0).double().mean())
    note = (
        f"Rank correlations with the entropy of people's labels, and with the side of a random crop (a quarter to all "
        f"of the image's), and AUROC of 'the nearest item has another label'; means over {FOLDS} folds, with bootstrap "
        f"intervals of 95 % over images. 'difference': 1/kappa of {REFERENCE}, of a small network where this one is, "
        "minus this score. 1/kappa of 'proxies' and 'nivmf' is the inverse of the embedding's norm. Heads are on "
        "features of EfficientNet-Lite0, which ImageNet has taught; a small network learns from 6,000 images alone. "
        f"People agree in {share:.0%} of the images; by halves of them the entropy has a reliability of "
        f"{reliability:.2f}, so that no score can be expected to correlate more than {most:.2f}. Published "
        "(Kirchhof et al., 2023; a ResNet-18 pretrained on CIFAR-10, all layers trained), entropy and crop: MCInfoNCE "
        ".29 and .68, HIB .28 and .69, ELK .14 and .51, MCInfoNCE on majority labels .24 and .64."
    )
    show(TITLE, rows)
    return save(out, "cifar10h", TITLE, rows, note)


def main() -> None:
    """Run the cells, or make table and figures of the finished ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["features", "run", "table", "figures"])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--cache", type=Path, required=True, help="folder for features and scores")
    parser.add_argument("--out", type=Path, required=True, help="folder of tables and figures")
    arguments = parser.parse_args()
    if arguments.action == "features":
        all_features(image_set(arguments.data), arguments.data, arguments.cache)
    elif arguments.action == "run":
        for name in run(arguments.data, arguments.cache):
            print(f"finished: {name}", flush=True)
    elif arguments.action == "table":
        for path in table(arguments.data, arguments.cache, arguments.out):
            print(f"written: {path}")
    else:
        from experiments.cifar10h_figures import draw

        for path in draw(arguments.data, arguments.cache, arguments.out):
            print(f"written: {path}")


if __name__ == "__main__":
    main()
