"""Time and memory of the last layer's GGN diagonal, beside the matrix product that it needs at least and brute force.

    python -m benchmarks.last_layer --out figures

All pairs of clustered embeddings, with the margin at the distance below which a fifth of the negatives lie.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
import torch
import typer
from backpack.core.derivatives.linear import LinearDerivatives
from rich.console import Console
from torch import Tensor, nn

from benchmarks.common import mebibytes, median_seconds, peak_extra_memory, save, show
from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from hessians.checks import CurvatureWarning
from hessians.graph import PairGraph

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SIZES = ((64, 9216, 3), (256, 1024, 16), (64, 2048, 2048), (256, 2048, 2048), (1024, 2048, 128))
VARIANTS = (
    ("arccos", "fixed"),
    ("arccos", "positive"),
    ("arccos", "full"),
    ("euclidean", "fixed"),
    ("euclidean", "positive"),
    ("euclidean", "full"),
    ("euclidean", "clipped"),
)
BRUTE_FORCE_BYTES = 2 << 30
FLOOR = 1.5e-3  # seconds below which a ratio to the matrix product says nothing
NOTE = (
    "All pairs of a batch, clustered features, 16 images a class, a fifth of the negatives active. 'limit' is the "
    "matrix product that the variant cannot do without: (N x Z)^T (N x H) for the node term of 'fixed', "
    "(pairs x Z)^T (pairs x H) for the others. 'brute force' is J^T M J by torch.func, 'backpack' the per-sample "
    "Jacobians alone; '-' where they would need more than 2 GiB. Times are medians in ms of interleaved runs in one "
    "process, memory is the peak beyond what was there before, in MiB, the result included."
)


@dataclass
class Problem:
    """A last layer and a batch."""

    features: Tensor
    layer: nn.Linear
    pairs: Pairs
    margin: float

    def loss(self, distance: str) -> ContrastiveLoss:
        return ContrastiveLoss(margin=self.margin, distance=distance)

    @property
    def embeddings(self) -> Tensor:
        return self.layer(self.features).detach()

    def run(self, distance: str, approximation: str) -> Callable[[], object]:
        loss = self.loss(distance)
        weight, bias = self.layer.weight.detach(), self.layer.bias.detach()
        return lambda: last_layer_ggn_diagonal(self.features, weight, bias, self.pairs, loss, approximation)


def make_problem(num: int, width: int, dim: int, seed: int = 0) -> Problem:
    """Features around class centres, non-negative as after a ReLU, and a layer that keeps the clusters."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % max(4, num // 16)
    centres = torch.randn(int(labels.max()) + 1, width, generator=generator)
    features = (centres[labels] + 0.7 * torch.randn(num, width, generator=generator)).relu()
    layer = nn.Linear(width, dim)
    with torch.no_grad():
        layer.weight.normal_(std=width**-0.5, generator=generator)
        layer.bias.zero_()
    pairs = Pairs.from_labels(labels)
    points = torch.nn.functional.normalize(layer(features).detach(), dim=1)
    distances = torch.cdist(points, points)[pairs.block(0, num)[1]]
    margin = float(distances.sort().values[len(distances) // 5])
    return Problem(features, layer, pairs, margin)


def count_edges(graph: PairGraph) -> int:
    return sum(len(edges.first) for edges in graph.edges())


def brute_force(problem: Problem, distance: str) -> Callable[[], object] | None:
    """diag(J^T M J) with J from torch.func and a dense M; None where that does not fit."""
    num, width = problem.features.shape
    dim = problem.layer.out_features
    if 4 * num * dim * dim * (width + 1) > BRUTE_FORCE_BYTES:
        return None
    loss = problem.loss(distance)

    def run() -> Tensor:
        parameters = {name: p.detach() for name, p in problem.layer.named_parameters()}
        jacobian = torch.func.jacrev(
            lambda p: torch.func.functional_call(problem.layer, p, (problem.features,))
        )(parameters)
        matrix = loss.output_hessian(problem.embeddings, problem.pairs, "full").dense()
        flat = jacobian["weight"].flatten(2)
        product = matrix.flatten(0, 1).flatten(1) @ flat.flatten(0, 1)
        return (flat.flatten(0, 1) * product).sum(0)

    return run


def backpack_jacobians(problem: Problem) -> Callable[[], object] | None:
    """The Jacobian of every image in the weights, from BackPACK; None where it does not fit."""
    num, width = problem.features.shape
    dim = problem.layer.out_features
    if 4 * num * dim * dim * width > BRUTE_FORCE_BYTES:
        return None
    problem.layer.input0, problem.layer.output = problem.features, problem.embeddings
    derivatives = LinearDerivatives()
    columns = torch.eye(dim)[:, None, :].expand(dim, num, dim).contiguous()
    return lambda: derivatives.param_mjp("weight", problem.layer, None, None, columns, sum_batch=False)


def measure(size: tuple[int, int, int], repeats: int) -> list[dict[str, Any]]:
    """All variants of one size, interleaved with their limits."""
    num, width, dim = size
    problem = make_problem(*size)
    points = torch.nn.functional.normalize(problem.embeddings, dim=1)
    active = count_edges(problem.loss("arccos").graph(points, problem.pairs))
    runs: dict[str, Callable[[], object]] = {}
    rows_of = {
        "fixed": num,
        "positive": int(problem.pairs.num_positives),
        "full": active,
        "clipped": num * (num - 1) // 2,
    }
    for name, rows in rows_of.items():
        left, right = torch.randn(rows, dim), torch.randn(rows, width)
        runs[f"limit {name}"] = lambda left=left, right=right: left.T @ right
    for distance, approximation in VARIANTS:
        runs[f"{distance} {approximation}"] = problem.run(distance, approximation)
    others = {"brute force": brute_force(problem, "arccos"), "backpack": backpack_jacobians(problem)}
    for name, run in others.items():
        if run is not None:
            runs[name] = run
    seconds = median_seconds(runs, repeats=repeats, budget=120)
    rows = []
    for distance, approximation in VARIANTS:
        name = f"{distance} {approximation}"
        limit, own = seconds[f"limit {approximation}"], seconds[name]
        rows.append(
            {
                "N, H, Z": f"{num}, {width}, {dim}",
                "variant": name,
                "pairs": rows_of[approximation] if approximation != "fixed" else active,
                "limit": limit * 1e3,
                "ours": own * 1e3,
                "ours / limit": own / limit,
                "ours / max(limit, 1.5 ms)": own / max(limit, FLOOR),
                "memory": mebibytes(peak_extra_memory(runs[name])),
                "brute force": _milliseconds(seconds, "brute force"),
                "backpack": _milliseconds(seconds, "backpack"),
            }
        )
    return rows


def _milliseconds(seconds: dict[str, float], name: str) -> float | None:
    return seconds[name] * 1e3 if name in seconds else None


def measure_data_set(num: int, width: int, dim: int, folder: Path) -> list[dict[str, Any]]:
    """ "fixed" and "positive" over all pairs of a data set whose features are mapped from a file."""
    path = folder / "features.bin"
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num) % 10
    centres = torch.randn(10, width, generator=generator)
    features = np.memmap(path, dtype=np.float32, mode="w+", shape=(num, width))
    for rows in torch.arange(num).split(2000):
        block = (centres[labels[rows]] + 2 * torch.randn(len(rows), width, generator=generator)).relu()
        features[int(rows[0]) : int(rows[-1]) + 1] = block.numpy()
    features.flush()
    mapped = torch.from_numpy(np.memmap(path, dtype=np.float32, mode="c", shape=(num, width)))
    weight = torch.randn(dim, width, generator=generator) / math.sqrt(width)
    bias, pairs = torch.zeros(dim), Pairs.from_labels(labels)
    rows = []
    for distance in ("arccos", "euclidean"):
        for approximation in ("fixed", "positive"):
            loss = ContrastiveLoss(margin=0.7, distance=distance)
            anonymous = peak_anonymous_memory(
                lambda loss=loss, approximation=approximation: last_layer_ggn_diagonal(
                    mapped, weight, bias, pairs, loss, approximation
                )
            )
            rows.append(
                {
                    "N, H, Z": f"{num}, {width}, {dim}",
                    "variant": f"{distance} {approximation}",
                    "pairs": num * (num - 1) // 2 if approximation == "fixed" else int(pairs.num_positives),
                    "seconds": anonymous[1],
                    "memory beyond the mapped file": mebibytes(anonymous[0]),
                }
            )
    return rows


def peak_anonymous_memory(run: Callable[[], object]) -> tuple[int, float]:
    """Peak growth of memory that is not a mapped file, sampled every 10 ms, and the duration of the run."""

    def anonymous() -> int:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("/proc/self/status has no field RssAnon")

    before = peak = anonymous()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        run()
    finally:
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
    return peak - before, seconds


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Our time over that of the limit, a group of bars for each size."""
    sizes = list(dict.fromkeys(row["N, H, Z"] for row in rows))
    names = list(dict.fromkeys(row["variant"] for row in rows))
    figure, axes = plt.subplots(figsize=(10, 4.5), layout="constrained")
    for position, name in enumerate(names):
        heights = [
            next(r["ours / max(limit, 1.5 ms)"] for r in rows if r["N, H, Z"] == s and r["variant"] == name)
            for s in sizes
        ]
        axes.bar(np.arange(len(sizes)) + (position - len(names) / 2) * 0.11, heights, 0.1, label=name)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xticks(np.arange(len(sizes)), sizes)
    axes.set_xlabel("images, features, dimensions")
    axes.set_ylabel("time / time of the matrix product (at least 1.5 ms)")
    axes.legend(ncols=3, fontsize="small")
    temporary = path.with_name(path.stem + ".part" + path.suffix)
    figure.savefig(temporary, dpi=150)
    temporary.replace(path)
    plt.close(figure)


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the tables and the plot.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved runs.")] = 9,
    images: Annotated[
        int, typer.Option(help="Images of the data set whose features are mapped; 0 leaves it out.")
    ] = 60000,
) -> None:
    """Measure all sizes and variants."""
    warnings.simplefilter("ignore", CurvatureWarning)
    rows = [row for size in SIZES for row in measure(size, repeats)]
    show("Last layer: the GGN diagonal of a batch", rows)
    data_set: list[dict[str, Any]] = []
    if images:
        with tempfile.TemporaryDirectory() as folder:
            data_set = measure_data_set(images, 9216, 3, Path(folder))
        show("Last layer: all pairs of a data set", data_set)
    if out is None:
        return
    written = save(out, "benchmark_last_layer", "Last layer: the GGN diagonal of a batch", rows, NOTE)
    if data_set:
        note = (
            "Features are mapped from a file and read twice: once for the embeddings, once for the curvature."
        )
        written += save(out, "benchmark_data_set", "Last layer: all pairs of a data set", data_set, note)
    plot(rows, out / "benchmark_last_layer.png")
    for path in [*written, out / "benchmark_last_layer.png"]:
        Console().print(f"written: {path}")


if __name__ == "__main__":
    typer.run(main)
