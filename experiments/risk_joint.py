"""Do an encoder and a risk head compete? Both trained together on sketches, with and without a stop-gradient.

    python -m experiments.risk_joint --data DATA --work WORK --out figures --seeds 0 1 2   # finished runs are kept

Three convolutions and 128 dimensions, cross-entropy over 138 classes of Quick, Draw!, 9 epochs; the head predicts the
cross-entropy of an image (squared error, weight 1). With the stop-gradient the encoder is trained as it is without any
head. The epoch is the one that retrieves 34 validation classes best; 173 other classes are tested.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import experiments.sets  # noqa: F401 (makes published data sets known)
from benchmarks.common import report, write_text
from experiments.arguments import folders
from experiments.methods.softmax.probabilities import scores
from experiments.trust.settings import pooled_network
from hessians import ContrastiveLoss
from laplacian_metric import data, metrics
from laplacian_metric.core.batch import map_batches
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.risk.joint import JointLearner, JointLossPrediction
from laplacian_metric.training import TrainingOptions, load_best, train

DIM, EPOCHS = 128, 9
TITLE = "A risk head and an encoder that are trained together"
NOTE = (
    "Quick, Draw!, unseen classes: recall, and R-AUROC of the head, of the classifier's entropy and of the distance to "
    "the nearest item. A higher R-AUROC in a space with lower recall is no improvement: compare both columns. Mean ± "
    "standard deviation over seeds."
)


def learner(stop_gradient: bool, seed: int, num_classes: int) -> JointLearner:
    """Return the network of one run with its initial weights, the same with and without the stop-gradient."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = pooled_network(1)
        encoder = Encoder(backbone, nn.Linear(backbone(torch.zeros(1, 1, 28, 28)).shape[1], DIM))
    method = JointLossPrediction(target="cross-entropy", loss="l2", stop_gradient=stop_gradient)
    setup = Setup(ContrastiveLoss(), num_images=1, seed=seed, num_classes=num_classes)
    built = method.learner([encoder], setup)
    assert isinstance(built, JointLearner)
    return built


def measured(network: JointLearner, test: Dataset) -> dict[str, float]:
    """Return the numbers of a trained network on test images."""
    e = network.embedder(FitData([], [])).embed(test)
    classifier = network.network.classifier
    assert classifier is not None
    parts = map_batches(
        lambda batch: scores(classifier(network.points(batch.inputs))[None])["entropy"], test, network.module
    )
    labels = test.known_labels()
    return {
        "R@1": metrics.recall_at_k(e.point, labels),
        "head": metrics.r_auroc(e.point, labels, e.uncertainty),
        "entropy": metrics.r_auroc(e.point, labels, torch.cat(parts)),
        "distance": metrics.r_auroc(e.point, labels, metrics.nearest_distance(e.point)),
    }


def run(
    stop_gradient: bool, seed: int, sets: dict[str, Dataset], work: Path, epochs: int = EPOCHS
) -> dict[str, float]:
    """Train and measure one network, or read what an earlier call left."""
    folder = work / f"{'stopped' if stop_gradient else 'joint'}-{seed}"
    done = folder / "measured.json"
    if not done.is_file():
        network = learner(stop_gradient, seed, int(sets["train"].labels.max()) + 1)
        options = TrainingOptions(epochs=epochs, learning_rate=1e-3, batch_size=128)
        train(network, sets["train"], sets["validation"], options, folder, seed=seed)
        load_best(network, folder)
        write_text(done, json.dumps(measured(network, sets["test"])))
    numbers: dict[str, float] = json.loads(done.read_text(encoding="utf-8"))
    return numbers


def table(results: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return a row for each way of training."""
    rows = []
    for name, runs in results.items():
        columns = {key: np.array([one[key] for one in runs]) for key in runs[0]}
        cells = {
            key: f"{values.mean():.3f}" + (f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else "")
            for key, values in columns.items()
        }
        rows.append({"training": name, "seeds": len(runs), **cells})
    return rows


def main() -> None:
    """Run all seeds and write the table."""
    command = folders(__doc__, ("--data", "--work"))
    command.add_argument("--out", type=Path, default=Path("figures"), help="folder of the table")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = command.parse_args()
    torch.set_num_threads(1)
    sets = {
        name: data.load("quickdraw", name, data_dir=options.data).in_memory()
        for name in ("train", "validation", "test")
    }
    sets["train"] = sets["train"].relabelled()
    results: dict[str, list[dict[str, float]]] = {"stop-gradient": [], "joint": []}
    for seed in options.seeds:
        for name, runs in results.items():
            runs.append(run(name == "stop-gradient", seed, sets, options.work))
            print(name, seed, runs[-1], flush=True)
    rows = table(results)
    report(TITLE, rows, options.out, "risk_joint", NOTE)


if __name__ == "__main__":
    main()
