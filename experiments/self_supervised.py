"""What embeddings that were learned without labels are worth, and what their uncertainties are.

    python -m experiments.self_supervised --data DATA --work WORK --out figures      # of all cells trained in WORK

The networks are those of the cells below experiments/cells/self_supervised, trained by `experiments.run`; labels are
used here alone. Each network's numbers are kept in figures/self_supervised; a repeated call computes what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import write_text
from experiments.run import CELLS
from hessians import ContrastiveLoss, InfoNCELoss
from laplacian_metric import LAM, Encoder, Trust, metrics
from laplacian_metric.core.batch import map_batches
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.files import atomic_write
from laplacian_metric.data.corruptions import corrupt
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.views import ImageViews
from laplacian_metric.methods.self_supervised.two_views import ViewLoader
from laplacian_metric.metrics.evaluation import Evaluation, Uncertainties
from laplacian_metric.runs.cell_fitting import Fitted, fitted
from laplacian_metric.runs.image_sets import OUT, TEST, TRAIN, VALIDATION
from laplacian_metric.runs.reading import Cells
from laplacian_metric.runs.work import Work

QUERIES, GALLERY, OOD_IMAGES, CALIBRATION = 4000, 5000, 1000, 300
TEMPERATURE, BATCH = 0.1, 256
DARKNESS = 0.3
CORRUPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "blur": lambda x: corrupt(x, "blur", 0.5),
    "occluded": lambda x: corrupt(x, "occlusion", 0.5),
    "dark": lambda x: DARKNESS * x,
    "noise": lambda x: corrupt(x, "noise", 0.5),
}
OUTSIDE = ("grocery", "fashion-mnist", "mnist", "quickdraw")
UNSEEN = ("recall@1", "recall@2", "recall@4", "nmi", "trace")
QUALITY = ("knn@200", "linear probe", "recall@1", "nmi", "trace")
TITLE = "Embeddings of CIFAR-10 learned without labels"
NOTE = """\
Cells of experiments/cells/self_supervised. *knn@200* is the accuracy of the weighted vote of 200 training images
(weights exp(cosine/0.1)) on 10,000 test images, *linear probe* that of a logistic regression on the features,
*recall@1* that of the nearest training image, *nmi* the agreement of k-means clusters of the test images with their
classes, *trace* the median of tr Sigma. Labels are used in this evaluation alone; nothing was chosen by it. One seed
has a standard error of about 0.005 from its test images. Each seed's numbers are in figures/self_supervised."""
UNSEEN_NOTE = """\
Trained on the images of other classes, without their labels. *recall@k* is among the test images themselves, *nmi* of
as many clusters as there are classes."""
SCORE_NOTE = f"""\
R-AUROC: how well a score tells that the nearest of {GALLERY:,} training images is of another class, on {QUERIES:,} test
images (standard error about .009; .5 is chance). The other columns: AUROC of detecting {OOD_IMAGES:,} corrupted test
images, or {OOD_IMAGES:,} images of another data set, against the test images; below .5 a score is inverted. *LAM* is
fitted to two views of the {GALLERY:,} images without labels, diagonal, marginal prior, n_effective the number of
images; the curvature is that of InfoNCE (constant keys, 256 views in a batch, temperature 0.1) or of the contrastive
loss with image numbers as classes. *Trust* alone knows labels: those of the {GALLERY:,} training images and of
{CALIBRATION} validation images."""


def evaluate(run: Fitted, data_views: ImageViews) -> dict[str, Any]:
    """Return the numbers of one trained network."""
    encoder = run.encoder
    if encoder is None:
        raise ValueError("a network of several encoders has no features of its own")
    train, test = run.sets[TRAIN], run.sets[TEST]
    if set(train.classes).isdisjoint(test.classes):
        e = run.embedder.embed(test)
        unseen = metrics.evaluate(e.point, test.labels, ks=(1, 2, 4), clusters=0, resamples=0)
        numbers = {name: unseen[name] for name in UNSEEN if name != "trace"}
        return {"unseen": {**numbers, "trace": None if certain(e) else float(e.uncertainty.median())}}
    h_train, h_test = (features(encoder, images) for images in (train, test))
    z_train, z_test = (unit_rows(encoder.head(h)).detach() for h in (h_train, h_test))
    whole = metrics.evaluate(
        z_test,
        test.labels,
        database=z_train,
        database_labels=train.labels,
        neighbours=200,
        features=h_test,
        database_features=h_train,
        clusters=0,
        ks=(1,),
        resamples=0,
    )
    scores, ranked = uncertainties(run, encoder, data_views, h_train)
    trace = scores["own"].queries.median().item() if "own" in scores else None
    quality = {name: whole[name] for name in QUALITY if name != "trace"}
    return {"quality": {**quality, "trace": trace}, "scores": plain(ranked)}


def certain(e: StochasticEmbedding) -> bool:
    """Return whether a method's embeddings have no uncertainty."""
    return bool((e.uncertainty == 0).all())


def plain(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return R-AUROC and the AUROC of every set, of every score by name."""
    return {
        name: {
            "R-AUROC": score.values["r_auroc"],
            **{label: numbers["auroc"] for label, numbers in score.ood.items()},
        }
        for name, score in evaluation.scores.items()
    }


def uncertainties(
    run: Fitted, encoder: Encoder, views: ImageViews, h_train: Tensor
) -> tuple[dict[str, Uncertainties], Evaluation]:
    """Return every score of test, corrupted and OOD images, and what they are worth."""
    train, test = spread(run.sets[TRAIN], GALLERY), spread(run.sets[TEST], QUERIES)
    few = spread(run.sets[TEST], OOD_IMAGES)
    pixels = torch.cat([batch.inputs for batch in few.batches()])
    sets: dict[str, Dataset] = {TEST: test}
    sets |= {name: Dataset(change(pixels), few.labels) for name, change in CORRUPTIONS.items()}
    sets |= {label: spread(run.sets[OUT + label], OOD_IMAGES) for label in OUTSIDE}
    h = {name: features(encoder, images) for name, images in sets.items()}
    gallery_h = features(encoder, train)
    values = by_score(run, encoder, views, train, gallery_h, sets, h)
    scores = {
        name: Uncertainties(of_sets[TEST], {label: of_sets[label] for label in of_sets if label != TEST})
        for name, of_sets in values.items()
    }
    embedded = (unit_rows(encoder.head(rows)).detach() for rows in (h[TEST], gallery_h))
    evaluation = metrics.evaluate(
        next(embedded),
        test.labels,
        database=next(embedded),
        database_labels=train.labels,
        scores=scores,
        ks=(1,),
        resamples=0,
    )
    return scores, evaluation


def by_score(
    run: Fitted,
    encoder: Encoder,
    views: ImageViews,
    train: Dataset,
    gallery_h: Tensor,
    sets: Mapping[str, Dataset],
    h: Mapping[str, Tensor],
) -> dict[str, dict[str, Tensor]]:
    """Return by score and set one number for each image, the greater the less certain."""
    values: dict[str, dict[str, Tensor]] = {}
    posteriors = {
        "LAM, InfoNCE": InfoNCELoss(TEMPERATURE),
        "LAM, contrastive": ContrastiveLoss(margin=0.7),
    }
    lams = {}
    for name, loss in posteriors.items():
        lam = LAM(encoder, loss, n_effective=len(train))
        lam.fit(
            ViewLoader(train, views),
            batch_size=BATCH,
            generator=torch.Generator().manual_seed(0),
            check_mode=False,
            progress=False,
        )
        lam.optimize_prior_precision()
        lams[name] = lam
    validation = spread(run.sets[VALIDATION], CALIBRATION)
    trust = Trust.fit(
        (gallery_h, train.labels), (features(encoder, validation), validation.labels), encoder=encoder
    )
    for label, images in sets.items():
        e = run.embedder.embed(images)
        of_set = {} if certain(e) else {"own": e.uncertainty}
        trivial = metrics.trivial_scores((gallery_h, train.labels), h[label], encoder=encoder)
        of_set |= {
            name: trivial[name] for name in ("embedding norm", "gallery distance", "kNN feature distance")
        }
        for name, lam in lams.items():
            embedded = lam.embed_features(h[label])
            of_set[f"{name}: 1/kappa"] = embedded.uncertainty
            of_set[f"{name}: variance"] = embedded.variance.sum(1)
        of_set["Trust, 300 labels"] = 1 - torch.as_tensor(trust(h[label]).probability)
        for name, scored in of_set.items():
            values.setdefault(name, {})[label] = scored.detach().double()
    return values


def features(encoder: Encoder, images: Dataset) -> Tensor:
    """Return the features (N, H) of all images."""
    return torch.cat(
        map_batches(lambda batch: encoder.features(batch.inputs), images, encoder, progress=False)
    )


def spread(images: Dataset, number: int) -> Dataset:
    """Return so many images at even steps, or all where there are fewer."""
    number = min(number, len(images))
    return images.select(torch.arange(number) * len(images) // number)


# --- tables ---


def tables(results: Mapping[str, Sequence[dict[str, Any]]], titles: Mapping[str, str]) -> str:
    """Return the tables of results by cell as Markdown."""
    seen = {name: runs for name, runs in results.items() if "quality" in runs[0]}
    unseen = {name: runs for name, runs in results.items() if "unseen" in runs[0]}
    lines = [f"# {TITLE}", "", NOTE, "", *rows(seen, titles, "quality", QUALITY)]
    if unseen:
        lines += ["", "## Classes that no image was seen of", "", UNSEEN_NOTE, ""]
        lines += rows(unseen, titles, "unseen", UNSEEN)
    lines += ["", "## Their uncertainties", "", SCORE_NOTE]
    columns = ["R-AUROC", *CORRUPTIONS, *OUTSIDE]
    for name, runs in seen.items():
        lines += ["", f"### {titles[name]}", "", *header(["score", *columns])]
        for score in runs[0]["scores"]:
            cells = [shown([run["scores"][score][column] for run in runs]) for column in columns]
            lines.append("| " + " | ".join(["own uncertainty" if score == "own" else score, *cells]) + " |")
    return "\n".join(lines) + "\n"


def header(columns: Sequence[str]) -> list[str]:
    """Return the first two lines of a table."""
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]


def rows(
    results: Mapping[str, Sequence[dict[str, Any]]],
    titles: Mapping[str, str],
    part: str,
    columns: Sequence[str],
) -> list[str]:
    """Return a table with one line for each cell."""
    lines = header(["method", "seeds", *columns])
    for name, runs in results.items():
        cells = [shown([run[part][column] for run in runs]) for column in columns]
        lines.append("| " + " | ".join([titles[name], str(len(runs)), *cells]) + " |")
    return lines


def shown(values: Sequence[float | None]) -> str:
    """Return the mean, with the standard deviation where there are several seeds.

    Example:
        >>> shown([0.5]), shown([0.4, 0.6]), shown([None])
        ('.500', '.500 ± .141', '')
    """
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    if not numbers:
        return ""
    text = f"{statistics.mean(numbers):.3f}"
    if len(numbers) > 1:
        text += f" ± {statistics.stdev(numbers):.3f}"
    return text.replace("0.", ".")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Evaluate embeddings that were learned without labels.")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder of the trained networks")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--cells", nargs="+", default=["self_supervised/*"])
    options = parser.parse_args(arguments)
    cells, work = Cells(CELLS), Work(options.work)
    results: dict[str, list[dict[str, Any]]] = {}
    titles: dict[str, str] = {}
    for name in cells.matching(options.cells):
        for seed in cells[name].seeds:
            path = options.out / f"{name}-{seed}.json"
            if not path.exists():
                if work.trained(name, seed) is None:
                    continue
                run = fitted(
                    name, seed, cells_dir=CELLS, work=options.work, data_dir=options.data, progress=False
                )
                views = getattr(cells[name].method.make(), "views", ImageViews())
                record = evaluate(run, views)
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as temporary:
                    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            results.setdefault(name, []).append(json.loads(path.read_text(encoding="utf-8")))
            titles[name] = cells[name].title
    write_text(options.out / "self_supervised.md", tables(results, titles))
    print(tables(results, titles))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
