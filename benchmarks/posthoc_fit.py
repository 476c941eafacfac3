"""What an uncertainty costs a ResNet-50 that is there: the pass of the backbone, and the posterior on top of it.

    python -m benchmarks.posthoc_fit --data-dir DATA --cache features --out figures

DATA holds cifar-10-batches-bin and weights/resnet50_imagenet_v1.safetensors. With --cache the pass of the backbone goes
on where it was interrupted, and its time counts all parts; with --images 200 it takes seconds.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from benchmarks.common import mebibytes, peak_extra_memory, report, write_text
from experiments.sets.lookup import VARIABLE
from hessians import ContrastiveLoss
from hessians.checks import CurvatureWarning
from laplacian_metric import LAM, Encoder
from laplacian_metric.core.batch import Batch
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.data import load
from laplacian_metric.encoder import whitening_head
from laplacian_metric.laplace.features import collect_features

WEIGHTS = Path("weights") / "resnet50_imagenet_v1.safetensors"
LOSS = ContrastiveLoss(margin=0.7, negatives="active")
BATCH, DIM = 100, 64
CASES = (("whitening", "diag"), ("whitening", "lowrank"), ("identity", "diag"))
STAGES = ("fit", "prior", "embedding")
TITLE = "A posterior for a ResNet-50 that is there"
NOTE = (
    "Photographs of CIFAR-10's training images, scaled to {size} pixels, through the frozen network with "
    "generalised-mean pooling. 'backbone' is this pass with the reading and scaling of images, done once. On its "
    "features: 'fit' the curvature over all pairs ('fixed'; rank 50 for lowrank) and the check whether the weights are "
    "a mode, 'prior' its precision by the marginal likelihood, 'embedding' mean directions and concentrations of all "
    "images. The backbone's share is that of these four together; where the machine does other things too, that of "
    "processor time is the one to trust. Heads come from a closed form ({head:.3g} s for the whitening), since a model "
    "brings its own. Median of {repeats} for what comes after the backbone; memory is the peak beyond what was there "
    "before, in MiB."
)


@dataclass(frozen=True)
class Cost:
    """Seconds, seconds of all processors together, and the bytes by which memory rose."""

    seconds: float
    processor: float
    memory: int | None


class TimedBatches:
    """Batches of a data set, with the time that passes until the next one is asked for, in a file."""

    def __init__(self, batches: Dataset, path: Path) -> None:
        self.batches, self.path = batches, path
        seconds = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.times: dict[int, tuple[float, float]] = {
            int(number): tuple(pair) for number, pair in seconds.items()
        }

    def __iter__(self) -> Iterator[Batch]:
        begun = clocks()
        for number, batch in enumerate(self.batches.batches()):
            yield batch
            taken = since(begun)
            # What an earlier pass has computed is only skipped now.
            if taken[1] > self.times.get(number, (0.0, 0.0))[1]:
                self.times[number] = taken
                write_text(self.path, json.dumps(self.times))
            begun = clocks()

    def cost(self, memory: int | None) -> Cost:
        """Of all batches, no matter when they were computed."""
        return Cost(*(sum(pair[which] for pair in self.times.values()) for which in (0, 1)), memory)


def clocks() -> tuple[float, float]:
    """The clock on the wall, and that of this process on all processors."""
    return time.perf_counter(), time.process_time()


def since(begun: tuple[float, float]) -> tuple[float, float]:
    """How far both went on."""
    now = clocks()
    return now[0] - begun[0], now[1] - begun[1]


def measured(run: Callable[[], Any]) -> tuple[Any, Cost]:
    """What a run returns, and what it costs."""
    results: list[Any] = []

    def timed() -> None:
        begun = clocks()
        result = run()
        results.extend((result, since(begun)))

    memory = peak_extra_memory(timed)
    if not results:  # memory cannot be measured here
        timed()
    return results[0], Cost(*results[1], memory)


def backbone_pass(
    data_dir: Path | None, weights: Path, images: int, size: int, folder: Path
) -> tuple[Encoder, Dataset, Cost]:
    """The encoder, the features of all images, and what they cost."""
    # A seed for the head that the file lacks, or features that were kept would be those of another encoder.
    encoder = Encoder.from_checkpoint(weights, "resnet50-gem-v1", part="backbone", seed=0).eval()
    data = load("cifar-10", "train", data_dir=data_dir, image_size=size, preprocessing="unit")
    chosen = data.select(torch.arange(min(images, len(data))))
    place = folder / f"resnet50-gem-{size}px-{len(chosen)}"
    place.mkdir(parents=True, exist_ok=True)
    batches = TimedBatches(replace(chosen, batch_size=BATCH), place / "seconds.json")
    features, cost = measured(lambda: collect_features(encoder, batches, folder=place))
    return encoder, features, batches.cost(cost.memory)


def laplace(head: nn.Linear, structure: str, features: Dataset) -> dict[str, Cost]:
    """What every stage after the backbone costs."""
    lam = LAM(Encoder(nn.Identity(), head), LOSS, structure=structure)
    runs: dict[str, Callable[[], Any]] = {
        "fit": lambda: lam.fit_features(features, progress=False),
        "prior": lam.optimize_prior_precision,
        "embedding": lambda: [lam.embed_features(rows) for rows in features.features.split(1000)],
    }
    return {name: measured(runs[name])[1] for name in STAGES}


def row_of(head: nn.Linear, structure: str, costs: list[dict[str, Cost]], backbone: Cost) -> dict[str, Any]:
    """Medians over the repeats, beside the backbone's."""
    seconds = {name: statistics.median(one[name].seconds for one in costs) for name in STAGES}
    processor = {name: statistics.median(one[name].processor for one in costs) for name in STAGES}
    memory = {name: max((one[name].memory for one in costs), key=lambda size: size or 0) for name in STAGES}
    return {
        "H, Z": f"{head.in_features}, {head.out_features}",
        "structure": structure,
        "backbone s": backbone.seconds,
        **{f"{name} s": seconds[name] for name in STAGES},
        "backbone's share %": _share(backbone.seconds, sum(seconds.values())),
        "of processor time %": _share(backbone.processor, sum(processor.values())),
        "backbone MiB": mebibytes(backbone.memory),
        **{f"{name} MiB": mebibytes(memory[name]) for name in STAGES},
    }


def _share(backbone: float, others: float) -> float:
    return round(100 * backbone / (backbone + others), 2)


def main(
    data_dir: Annotated[Path, typer.Option(envvar=VARIABLE, help="Folder of the data sets and weights.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help=f"Of the network; by default {WEIGHTS} in the data folder.")
    ] = None,
    images: Annotated[int, typer.Option(min=20, help="How many.")] = 10_000,
    size: Annotated[int, typer.Option(min=32, help="Images are scaled to this.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Of everything after the backbone.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch.")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Keep the features here, so that an interrupted pass goes on.")
    ] = None,
) -> None:
    """Measure, print, and write where asked to."""
    warnings.simplefilter("ignore", CurvatureWarning)  # the heads were not trained with the loss
    if threads is not None:
        torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() if cache is None else nullcontext(str(cache)) as folder:
        encoder, features, backbone = backbone_pass(
            data_dir, weights or data_dir / WEIGHTS, images, size, Path(folder)
        )
        width = encoder.num_features
        dim = min(DIM, len(features) - 1)
        whitening, head_cost = measured(lambda: whitening_head(features.features, dim, eps=1e-3))
        heads = {"whitening": whitening, "identity": Encoder.with_head(nn.Identity(), width).head}
        rows = []
        for name, structure in CASES:
            costs = [laplace(heads[name], structure, features) for _ in range(repeats)]
            rows.append(row_of(heads[name], structure, costs, backbone))
    title = f"{TITLE}: {len(features):,} images of {size} pixels"
    note = NOTE.format(size=size, head=head_cost.seconds, repeats=repeats)
    report(title, rows, out, "benchmark_posthoc_fit", note)


if __name__ == "__main__":
    typer.run(main)
