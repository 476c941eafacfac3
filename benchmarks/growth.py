"""How the cost of a posterior, an index, a query and a trusted answer grows, from 10,000 to 1,000,000 images.

    python -m benchmarks.growth --data-dir DATA --cache features --out figures

DATA holds FashionMNIST/raw, MNIST/raw and quickdraw. The rows are 174,500 images of 365 classes, each in six views that
are shifted by up to two pixels to either side, in random order: the first n rows are mostly different images. Their
features are 512 random projections of the pixels, rectified; the head is trained on the first 20,000 rows. With --cache
the features and every row of the tables are kept, so that the same command resumes.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import faiss
import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common import Row, mebibytes, peak_extra_memory, report, write_text
from experiments.sets.lookup import VARIABLE
from hessians import ContrastiveLoss
from hessians.checks import CurvatureWarning
from laplacian_metric import LAM, Encoder, Trust
from laplacian_metric.core.progress import track
from laplacian_metric.data import load
from laplacian_metric.encoder import train_head
from laplacian_metric.laplace.fit import fit_layer, layer_data
from laplacian_metric.laplace.options import FitSettings
from laplacian_metric.retrieval import Index, Items
from laplacian_metric.trust.trust import SAME

SOURCES = ("fashion-mnist", "mnist", "quickdraw")
VIEWS, SHIFT, WIDTH, DIM = 6, 2, 512, 64
HEAD_ROWS, QUERIES, JUDGED = 20_000, 300, 5000
SIZES = "10000,20000,80000,320000,1000000"
FITTED = 10_000  # images of the posterior whose embeddings are measured
COLUMNS = (
    *("images", "fit s", "fit wall s", "fit MiB", "precision error %", "by rows s", "embed s", "index MiB"),
    *("query ms", "trust fit s", "trust MiB", "trusted answer ms"),
)
PROJECTED = (
    ("fit s", "fit h", 3600),
    ("fit MiB", "fit GiB", 1024),
    ("embed s", "embed h", 3600),
    ("index MiB", "index GiB", 1024),
    ("query ms", "query s", 1000),
    ("trust fit s", "trust fit h", 3600),
    ("trusted answer ms", "trusted answer s", 1000),
)
LINEAR = 80_000  # images from which on a fit is an estimate
ITEMS = (10**6, 10**8, 10**10)
PROJECTED_TITLE = "Growth beyond what was measured"
PROJECTED_NOTE = (
    "From the growth table: times by the exponent between the smallest and the largest size from 80,000 images on at "
    "which each was measured, memory by the bytes for each image between them. Hours and seconds of one processor. "
    "The first row was measured, the others were not run."
)
BY_ROWS = 20_000  # images up to which a fit row by row is measured too
LOSS = ContrastiveLoss(margin=0.7, negatives="active")
TITLE = "Growth from 10,000 to 1,000,000 images"
NOTE = (
    f"Features of {WIDTH} numbers, embeddings of {DIM}; 174,500 images of FashionMNIST, MNIST and Quick, Draw! (365 "
    "classes) in six views each, shifted at random, in random order. Rows are kept from call to call. Seconds are "
    "those of the processor, one thread, unless they are 'wall', while other programs ran. 'fit' is a posterior with "
    "'fixed' and pairs='auto': all pairs of up to 65,536 images, and beyond an estimate, whose reported error is "
    "beside it; 'by rows' is the same fit over all pairs row by row. 'embed' is mean and kappa of all images, 'index' "
    "what they and the exact index take. 'query' and 'trusted answer' are for one of {queries} queries, asked "
    f"together: {QUERIES} held-out views without those that equal a view among the images. MiB are the peak beyond "
    "what was there before, the features in the map included there."
)
DRAW_TITLE = "An estimate over pairs beside all pairs"
DRAW_NOTE = (
    "The images of the growth table, 'fixed', Arccos. 'precision error' is the relative error of the diagonal "
    "precision in the l2 norm, 'reported' what the diagnostics say of it, 'kappa error' what 99 of 100 images' "
    f"relative error of kappa is below, of {JUDGED:,} images. Each draw has a seed of its own. Processor seconds, "
    "one thread."
)


def images_and_labels(data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """All images (n, 28, 28) as bytes, and labels (n,) that differ between the data sets."""
    images, labels, first = [], [], 0
    for name in SOURCES:
        top = first
        for split in ("train", "validation", "test"):
            part = load(name, split, data_dir=data_dir)
            images.append((part.floats()[:, 0] * 255).round().byte())
            labels.append(part.known_labels() + first)
            top = max(top, int(labels[-1].max()) + 1)
        first = top
    return torch.cat(images), torch.cat(labels)


def rows_of(data_dir: Path | None, folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """Features (count, 512), mapped from a file, and labels; computed where the folder does not have as many."""
    kept_counts = [int(path.stem.split("-")[1]) for path in folder.glob("labels-*.pt")]
    count = max([count, *kept_counts])
    path, labels_path = folder / f"features-{count}.bin", folder / f"labels-{count}.pt"
    shape = (count, WIDTH)
    if not labels_path.is_file():
        images, labels = images_and_labels(data_dir)
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(images) * VIEWS, generator=generator)[:count]
        weight = torch.randn(WIDTH, 28 * 28, generator=generator) / 28
        moves = torch.randint(2 * SHIFT + 1, (len(images) * VIEWS, 2), generator=generator)
        path.unlink(missing_ok=True)
        mapped = torch.from_file(str(path), shared=True, size=math.prod(shape)).view(shape)
        for start in track(range(0, count, 5000), "features"):
            chosen = order[start : start + 5000]
            padded = F.pad(images[chosen // VIEWS].float() / 255, (SHIFT,) * 4)
            view = torch.stack(
                [
                    one[y : y + 28, x : x + 28]
                    for one, (y, x) in zip(padded, moves[chosen].tolist(), strict=True)
                ]
            )
            mapped[start : start + 5000] = F.relu((view.flatten(1) - 0.3) @ weight.T)
        torch.save(labels[order // VIEWS], labels_path)
    labels = torch.load(labels_path, weights_only=True)
    return torch.from_file(str(path), size=math.prod(shape)).view(shape), labels


def head_of(features: Tensor, labels: Tensor, folder: Path) -> nn.Linear:
    """The head, trained once."""
    path, head = folder / "head.pt", nn.Linear(WIDTH, DIM)
    if not path.is_file():
        rows = min(HEAD_ROWS, len(features))
        generator = torch.Generator().manual_seed(0)
        trained = train_head(features[:rows].clone(), labels[:rows], LOSS, DIM, generator=generator)
        torch.save(trained.state_dict(), path)
    head.load_state_dict(torch.load(path, weights_only=True))
    return head


def held_out(features: Tensor, labels: Tensor, folder: Path) -> tuple[Tensor, Tensor]:
    """The last 300 rows and their labels, without those that are among the other rows: Trust refuses such queries."""
    queries, query_labels = features[-QUERIES:].clone(), labels[-QUERIES:]
    path = folder / f"queries-{len(features)}.pt"
    if not path.is_file():
        directions = F.normalize(queries)
        nearest = torch.full((QUERIES,), -1.0)
        for rows in track(features[:-QUERIES].split(20_000), "duplicates of queries"):
            nearest = torch.maximum(nearest, (directions @ F.normalize(rows).T).amax(1))
        torch.save(1 - nearest >= SAME, path)
    new = torch.load(path, weights_only=True)
    return queries[new], query_labels[new]


@dataclass(frozen=True)
class Cost:
    """What a stage costs: seconds of all processors together, seconds, and the bytes by which memory rose."""

    processor: float
    seconds: float
    memory: int | None


def cost_of(run: Callable[[], Any]) -> tuple[Any, Cost]:
    """What a call returns, and what it costs."""
    results: list[Any] = []

    def call() -> None:
        processor, seconds = time.process_time(), time.perf_counter()
        result = run()
        results.extend((result, time.process_time() - processor, time.perf_counter() - seconds))

    memory = peak_extra_memory(call)
    if not results:  # memory cannot be measured here
        call()
    return results[0], Cost(results[1], results[2], memory)


def fit_by_rows(encoder: Encoder, features: Tensor, labels: Tensor) -> None:
    """A fit that goes over all pairs row by row, as every fit did before there was a search."""
    lam = LAM(encoder, LOSS)
    data = layer_data(encoder.head, LOSS, features, labels, lam.approximation)
    fit_layer(data, FitSettings(lam.options, search=False), None, encoder, encoder.fingerprint())


def embedded(lam: LAM, features: Tensor) -> Items:
    """All items, without the variances."""
    return Items.cat([Items.of(lam.embed_features(h), variance=False) for h in features.split(20_000)])


def fit_row(features: Tensor, labels: Tensor, head: nn.Linear) -> Row:
    """What a posterior costs."""
    encoder = Encoder(nn.Identity(), head)
    float(features.sum())  # the map is in memory from now on, and does not count
    lam = LAM(encoder, LOSS)
    _, fit = cost_of(lambda: lam.fit_features(features, labels, check_mode=False, progress=False))
    by_rows = None
    if len(features) <= BY_ROWS:
        by_rows = cost_of(lambda: fit_by_rows(encoder, features, labels))[1].processor
    return {
        "images": len(features),
        "fit s": fit.processor,
        "fit wall s": fit.seconds,
        "fit MiB": mebibytes(fit.memory),
        "precision error %": 100 * lam.diagnostics().precision_error,
        "by rows s": by_rows,
    }


def serving_row(
    features: Tensor, labels: Tensor, queries: Tensor, query_labels: Tensor, head: nn.Linear
) -> Row:
    """What embeddings, an index, a query and a trusted answer cost; the posterior is of the first 10,000 images."""
    lam = LAM(Encoder(nn.Identity(), head), LOSS)
    lam.fit_features(features[:FITTED], labels[:FITTED], check_mode=False, progress=False)
    lam.optimize_prior_precision()
    float(features.sum())
    items, embed = cost_of(lambda: embedded(lam, features))
    index, build = cost_of(lambda: Index(items))
    query_items = Items.of(lam.embed_features(queries), variance=False)
    _, search = cost_of(lambda: index.query(query_items, k=10))
    gallery, h = (features.numpy(), labels.numpy()), queries.numpy()
    trust, fit = cost_of(lambda: Trust.fit(gallery, (h, query_labels.numpy()), lam=lam))
    _, answer = cost_of(lambda: trust(h))
    return {
        "embed s": embed.processor,
        "index MiB": mebibytes((embed.memory or 0) + (build.memory or 0)),
        "query ms": 1000 * search.processor / len(queries),
        "trust fit s": fit.processor,
        "trust MiB": mebibytes(fit.memory),
        "trusted answer ms": 1000 * answer.processor / len(queries),
    }


def draw_of(features: Tensor, labels: Tensor, head: nn.Linear, seed: int | None) -> dict[str, Any]:
    """The diagonal precision and kappa of 5,000 images by an estimate with a seed, or by all pairs for None."""
    lam = LAM(Encoder(nn.Identity(), head), LOSS, pairs="exact" if seed is None else "estimate")
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    _, fit = cost_of(
        lambda: lam.fit_features(features, labels, check_mode=False, progress=False, generator=generator)
    )
    error = lam.diagnostics().precision_error
    assert lam.fitted is not None
    precision = lam.scale * lam.fitted.curvature.diagonal() + lam.prior_precision
    kappa = lam.embed_features(features[:JUDGED]).kappa
    return {"seconds": fit.processor, "error": error, "precision": precision, "kappa": kappa}


def deviations(estimate: dict[str, Any], exact: dict[str, Any]) -> Row:
    """A draw beside all pairs."""
    precision, kappa = (exact[name].double() for name in ("precision", "kappa"))
    difference = (estimate["kappa"].double() - kappa).abs() / kappa
    return {
        "precision error %": 100
        * float((estimate["precision"].double() - precision).norm() / precision.norm()),
        "reported %": 100 * estimate["error"],
        "kappa error, 99 of 100 below, %": 100 * float(difference.quantile(0.99)),
        "fit s": estimate["seconds"],
        "all pairs s": exact["seconds"],
    }


def exponent(rows: list[Row], name: str, low: int, high: int) -> float:
    """The slope of a cost in the number of images, both in logarithms, between two sizes."""
    cost = {row["images"]: row[name] for row in rows}
    return math.log(cost[high] / cost[low]) / math.log(high / low)


def extrapolated(rows: list[Row], count: int) -> dict[str, Any]:
    """The costs of so many images, from the two largest sizes at which each was measured from 80,000 on.

    Times grow as a power of the number of images, whose exponent is that between the two sizes; memory by as many bytes
    for each image as between them.
    """
    result: dict[str, Any] = {"images": f"{count:.0e}"}
    for name, title, unit in PROJECTED:
        measurements = [
            (row["images"], row[name]) for row in rows if row[name] is not None and row["images"] >= LINEAR
        ]
        if len(measurements) < 2:
            continue
        (low, first), (high, last) = measurements[0], measurements[-1]
        slope = math.log(last / first) / math.log(high / low)
        grown = last * (count / high) ** slope
        if name.endswith("MiB"):
            grown = last + (last - first) / (high - low) * (count - high)
        else:
            result[f"{title.rsplit(' ', 1)[0]} exponent"] = slope
        result[title] = grown / unit
    return result


def kept(folder: Path, name: str, run: Callable[[], Row]) -> dict[str, Any]:
    """A row that was measured already, or is measured now."""
    path = folder / f"{name}.json"
    if not path.is_file():
        write_text(path, json.dumps(dict(run())))
    row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return row


def main(
    data_dir: Annotated[Path, typer.Option(envvar=VARIABLE, help="Folder of the data sets.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the tables.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Keep features and rows here.")] = None,
    sizes: Annotated[str, typer.Option(help="Numbers of images.")] = SIZES,
    draws: Annotated[int, typer.Option(min=0, help="Estimates beside all pairs.")] = 20,
    draw_images: Annotated[int, typer.Option(min=1000, help="Of how many images.")] = 80_000,
    served: Annotated[
        int, typer.Option(help="Up to how many images the index and Trust are measured.")
    ] = 1_000_000,
    threads: Annotated[int, typer.Option(min=1, help="Of torch and FAISS.")] = 1,
) -> None:
    """Measure, print, and write where asked to."""
    warnings.simplefilter("ignore", CurvatureWarning)
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    counts = [int(size) for size in sizes.split(",") if size]
    with tempfile.TemporaryDirectory() if cache is None else nullcontext(str(cache)) as place:
        folder = Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        features, labels = rows_of(data_dir, folder, max([draw_images, *counts]) + QUERIES)
        head, queries = head_of(features, labels, folder), held_out(features, labels, folder)
        rows: list[Row] = []
        for count in counts:
            part = features[:count], labels[:count]
            fit = kept(folder, f"fit-{count}", lambda part=part: fit_row(*part, head))  # type: ignore[misc]
            if count <= served:
                fit |= kept(folder, f"serving-{count}", lambda part=part: serving_row(*part, *queries, head))  # type: ignore[misc]
            rows.append({name: fit.get(name) for name in COLUMNS})
        images = features[:draw_images], labels[:draw_images]
        missing = any(not (folder / f"draw-{draw_images}-{seed}.json").is_file() for seed in range(draws))
        exact = draw_of(*images, head, None) if missing else {}
        estimates = [
            kept(
                folder,
                f"draw-{draw_images}-{seed}",
                lambda s=seed: deviations(draw_of(*images, head, s), exact),
            )  # type: ignore[misc]
            for seed in range(draws)
        ]
    tables: list[tuple[str, str, list[Row], str]] = []
    if rows:
        slope = ""
        if {20_000, 1_000_000} <= set(counts):
            between = exponent(rows, "fit s", 20_000, 1_000_000)
            slope = f" Exponent of the fit between 20,000 and 1,000,000 images: {between:.2f}."
        tables.append(("benchmark_growth", TITLE, rows, NOTE.format(queries=len(queries[0])) + slope))
        if sum(row["images"] >= LINEAR for row in rows) > 1:
            projected: list[Row] = [extrapolated(rows, count) for count in ITEMS]
            tables.append(("benchmark_growth_projected", PROJECTED_TITLE, projected, PROJECTED_NOTE))
    if estimates:
        draws_table: list[Row] = [{"draw": seed, **row} for seed, row in enumerate(estimates)]
        tables.append(
            ("benchmark_pair_estimate", f"{DRAW_TITLE}: {draw_images:,} images", draws_table, DRAW_NOTE)
        )
    for name, title, table, note in tables:
        report(title, table, out, name, note)


if __name__ == "__main__":
    typer.run(main)
