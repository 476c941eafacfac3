"""The installed risk heads: trained, judged on their own and on other data, and written into the package.

    python -m experiments.risk_heads --data DATA --work WORK --out figures            # judges, and writes a table
    python -m experiments.risk_heads --data DATA --work WORK --out figures --install  # writes the heads of seed 0, too

Features of frozen EfficientNet-Lite0 (64 pixels) and MiniLM are the embeddings, compared by their cosine. Heads are
trained as `LossPrediction` does by default, with 256 hidden units; the epoch is chosen on classes that are neither
trained on nor tested on (on other images of the same classes for CIFAR-10, which has only ten). Standard errors
resample the test classes; ± is the standard deviation over three seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common import save, show
from experiments.arguments import folders
from experiments.methods.softmax.probabilities import fit_temperature, scores
from experiments.risk_features import features, thinned
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.search import search
from laplacian_metric.methods.risk import RiskHead, RiskOptions, fit_head
from laplacian_metric.methods.risk.shipped import FOLDER
from laplacian_metric.methods.risk.targets import nearest_is_wrong, retrieval_risk, train_classifier
from laplacian_metric.metrics.statistics import auroc

SEEDS = (0, 1, 2)
HIDDEN = 256
RESAMPLES = 300
PER_CLASS = 100
TITLE = "What pretrained risk heads say about wrong neighbours, on their own and on other data"
NOTE = (
    "R-AUROC: how well a score says that the nearest other item is of another class. Each set is searched by itself, "
    "with at most 100 items of a class (400 of WordNet's). The head and 'entropy' (of a linear classifier of the "
    "training classes, its temperature by a held-out fifth of the training items) need the item alone, 'distance' and "
    "'margin' (d10 - d1) the gallery too. 'head - entropy' is of seed 0, with the standard error of the paired "
    "difference, test classes resampled, as is 's.e.'. 'within': R-AUROC of the head's score less its class mean. "
    "'seen': AUROC of the head for telling the test items from training items; about .5 on unseen classes of the same "
    "data, of which it says nothing. Below .5 a score is worse than chance."
)


@dataclass(frozen=True)
class Task:
    """A head: features it is trained on, those that choose its epoch, and those it is judged on, its own kind first."""

    name: str
    trained_on: str
    encoder: str
    train: Dataset
    validation: Dataset
    tests: Mapping[str, Dataset]


def dataset(arrays: Mapping[str, Any], rows: Any = slice(None)) -> Dataset:
    """Return features and labels as a data set."""
    return Dataset(arrays["h"][rows].astype(np.float32), arrays["labels"][rows])


def tasks(root: Path, cache: Path) -> Iterator[Task]:
    """Yield every head's task; features that are missing are computed first."""

    def stored(name: str, per_class: int | None = PER_CLASS) -> Dataset:
        arrays = features(root, cache, name)
        return dataset(arrays if per_class is None else thinned(arrays, per_class))

    lite0 = (
        "EfficientNet-Lite0 with ImageNet's weights, images of 64 pixels, mean of the last feature map (1280)"
    )
    images = {
        "Quick, Draw!, unseen classes": stored("quickdraw-test"),
        "CIFAR-10 test": stored("cifar-test"),
        "Grocery": stored("grocery"),
        "FashionMNIST test": stored("fashion-test"),
    }
    yield Task(
        "lite0-quickdraw",
        "Quick, Draw! (CC BY 4.0), 138 classes of 100 sketches",
        lite0,
        stored("quickdraw-train"),
        stored("quickdraw-validation"),
        images,
    )
    yield Task(
        "lite0-cifar10",
        "CIFAR-10, 20,000 training images",
        lite0,
        stored("cifar-train", 2000),
        stored("cifar-validation", None),
        {name: images[name] for name in sorted(images, key=lambda name: name != "CIFAR-10 test")},
    )
    glosses = features(root, cache, "wordnet")
    part = parts_of(glosses["labels"])
    yield Task(
        "minilm-wordnet",
        "WordNet glosses (WordNet licence), 20,000 of 31 of its 45 lexicographer classes",
        "all-MiniLM-L6-v2, at most 64 tokens (384)",
        dataset(glosses, np.flatnonzero(part == 0)[:20_000]),
        dataset(thinned({name: values[part == 1] for name, values in glosses.items()}, 4 * PER_CLASS)),
        {
            "WordNet, unseen classes": dataset(
                thinned({name: values[part == 2] for name, values in glosses.items()}, 4 * PER_CLASS)
            ),
            "Reuters": stored("reuters"),
        },
    )


def parts_of(labels: Any) -> Any:
    """Return 0 for training, 1 for validation and 2 for test classes, (N,): 31, 7 and 7 of 45, drawn at random."""
    classes, codes = np.unique(labels, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(classes))
    share = len(classes) * 7 // 45
    part = np.zeros(len(classes), dtype=np.int64)
    part[order[:share]], part[order[share : 2 * share]] = 1, 2
    return part[codes]


def classified(task: Task) -> tuple[nn.Linear, float]:
    """Return a linear classifier of the training classes, fitted on four fifths, and its temperature by the rest."""
    labels = torch.unique(task.train.known_labels(), return_inverse=True)[1]
    held_out = torch.arange(len(labels)) % 5 == 4
    x = task.train.inputs
    classifier = train_classifier(x[~held_out], labels[~held_out], int(labels.max()) + 1)
    return classifier, fit_temperature(classifier(x[held_out])[None], labels[held_out])


def rivals(task: Task, test: Dataset, classifier: nn.Linear, temperature: float) -> dict[str, Tensor]:
    """Return whether the nearest is wrong, and the scores that need no head, (N,) each."""
    z = F.normalize(test.inputs, dim=1)
    neighbours = search(z, 10)
    labels = test.known_labels()
    distances = 1 - neighbours.similarities
    entropy = scores(classifier(test.inputs)[None] / temperature)["entropy"]
    return {
        "wrong": (labels[neighbours.indices[:, 0]] != labels).double(),
        "entropy": entropy,
        "distance": distances[:, 0],
        "margin": -(distances[:, 9] - distances[:, 0]),
    }


def r_auroc(score: Tensor, wrong: Tensor, weights: Tensor | None = None) -> float:
    """Return the R-AUROC of a score, items counted so often."""
    weights = torch.ones_like(wrong) if weights is None else weights
    return float(auroc(score.double(), wrong, weights))


def resampled(values: Mapping[str, Tensor], labels: Tensor) -> dict[str, tuple[float, float]]:
    """Return the standard errors of "head" and of "head" - "entropy" over resampled test classes, with their means."""
    codes = torch.unique(labels, return_inverse=True)[1]
    generator = np.random.default_rng(0)
    number, draws = int(codes.max()) + 1, []
    for _ in range(RESAMPLES):
        counts = torch.as_tensor(
            np.bincount(generator.integers(0, number, number), minlength=number)
        ).double()
        weights = counts[codes]
        head, entropy = (r_auroc(values[name], values["wrong"], weights) for name in ("head", "entropy"))
        draws.append((head, head - entropy))
    mean, deviation = np.mean(draws, axis=0), np.std(draws, axis=0)
    return {name: (float(mean[i]), float(deviation[i])) for i, name in enumerate(("head", "difference"))}


def judged(task: Task, heads: list[RiskHead]) -> list[dict[str, Any]]:
    """Return a row of the table for every test set."""
    classifier, temperature = classified(task)
    seen = heads[0].predict(task.train.inputs)
    rows = []
    for name, test in task.tests.items():
        values, labels = rivals(task, test, classifier, temperature), test.known_labels()
        predicted = [head.predict(test.inputs) for head in heads]
        every = [r_auroc(score, values["wrong"]) for score in predicted]
        errors = resampled({**values, "head": predicted[0]}, labels)
        codes = torch.unique(labels, return_inverse=True)[1]
        mean = torch.zeros(int(codes.max()) + 1).scatter_reduce(
            0, codes, predicted[0], "mean", include_self=False
        )
        both = torch.cat([predicted[0], seen]).double()
        is_new = torch.cat([torch.ones(len(labels)), torch.zeros(len(seen))]).double()
        rows.append(
            {
                "head": task.name,
                "data": name,
                "R@1": round(1 - float(values["wrong"].mean()), 3),
                "R-AUROC": f"{np.mean(every):.3f} ± {np.std(every, ddof=1):.3f}",
                "s.e.": round(errors["head"][1], 3),
                "entropy": round(r_auroc(values["entropy"], values["wrong"]), 3),
                "head - entropy": f"{every[0] - r_auroc(values['entropy'], values['wrong']):+.3f} ± "
                f"{errors['difference'][1]:.3f}",
                "distance": round(r_auroc(values["distance"], values["wrong"]), 3),
                "margin": round(r_auroc(values["margin"], values["wrong"]), 3),
                "within": round(r_auroc(predicted[0] - mean[codes], values["wrong"]), 3),
                "seen": round(r_auroc(both, is_new), 3),
                "seed 0": round(every[0], 4),
            }
        )
    return rows


def trained(task: Task) -> list[RiskHead]:
    """Return the head of every seed, as `pretrain` trains them; the targets are computed once for all."""
    target = retrieval_risk(F.normalize(task.train.inputs, dim=1), task.train.known_labels())
    z, labels = F.normalize(task.validation.inputs, dim=1), task.validation.known_labels()
    validation = task.validation.inputs, retrieval_risk(z, labels), nearest_is_wrong(z, labels)
    heads = []
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        heads.append(RiskHead(task.train.inputs.shape[1], hidden=HIDDEN, generator=generator))
        fit_head(heads[-1], [task.train.inputs], target, validation, RiskOptions(seed=seed))
    return heads


def install(task: Task, head: RiskHead, rows: list[dict[str, Any]], folder: Path = FOLDER) -> Path:
    """Write a head with its card into the package."""
    head.card = {
        "name": task.name,
        "encoder": task.encoder,
        "embedding": "the features, compared by their cosine",
        "trained on": task.trained_on,
        "says": "the expected share of other classes among the 10 nearest items",
        "does not": "cross domains: on data unlike its training data it can be below chance, see the table",
        "made by": "python -m experiments.risk_heads --install",
        "measured": [
            {
                "data": row["data"],
                "R@1": row["R@1"],
                "R-AUROC": row["seed 0"],
                "s.e.": row["s.e."],
                "distance": row["distance"],
            }
            for row in rows
        ],
    }
    return head.save(folder / task.name, overwrite=True)


def main() -> None:
    """Train and judge every head."""
    command = folders(__doc__, ("--data", "--work"))
    command.add_argument("--out", type=Path, default=Path("figures"), help="folder of the table")
    command.add_argument("--install", action="store_true", help="write the heads into the package")
    options = command.parse_args()
    torch.set_num_threads(1)
    table: list[dict[str, Any]] = []
    for task in tasks(options.data, options.work):
        heads = trained(task)
        rows = judged(task, heads)
        show(task.name, rows)
        if options.install:
            print(f"written: {install(task, heads[0], rows).name}")
        table += rows
    for path in save(
        options.out,
        "risk_heads",
        TITLE,
        [{name: value for name, value in row.items() if name != "seed 0"} for row in table],
        NOTE,
    ):
        print(f"written: {path}")


if __name__ == "__main__":
    main()
