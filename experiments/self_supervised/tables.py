"""The tables of all networks that were trained without labels, beside what the UMM paper prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from experiments.self_supervised.measure import (
    CALIBRATION,
    CORRUPTIONS,
    GALLERY,
    OOD_IMAGES,
    OUTSIDE,
    OWN,
    QUALITY,
    QUERIES,
    RIVALS,
    UNSEEN,
    unpacked,
)
from experiments.self_supervised.outliers import OUTLIERS
from laplacian_metric.metrics.resampling import bootstrap, compare_paired
from laplacian_metric.metrics.statistics import mean

Records = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""By cell and seed."""

BASELINE = "self_supervised/isif"
REFERENCE = ("self_supervised/nt_xent", 0)  # whose mistakes the outliers are
# kNN accuracy in the paper, Tables 3 and 5, with which of our cells is to be compared with it.
PUBLISHED = {
    "ISIF (Tables 3 and 5)": (0.837, "isif"),
    "L_S": (0.849, "umm_samples"),
    "L_S + L_N": (0.858, "umm_consistency"),
    "L_S + L_R": (0.852, "umm_ranking"),
    "L_S + L_N + L_R (Tables 3 and 5), D = 128, k = 5": (0.863, "umm"),
    "D = 512": (0.873, "umm_512"),
    "k = 1": (0.853, "umm_one_sample"),
}
NOT_MEASURED = "D = 256 (.867), D = 1024 (.869), k = 3 (.861) and k = 10 (.852) have no cell here."
# By the family that names of cells begin with.
NETWORKS = {"": "small network", "resnet_": "half-width ResNet-18"}
TITLE = "Embeddings of images learned without labels"
NOTE = """\
Cells of experiments/cells/self_supervised. *knn@200* is the accuracy of the weighted vote of 200 training images
(weights exp(cosine/0.1)) on 10,000 test images, *linear probe* that of a logistic regression on the features,
*recall@1* that of the nearest training image, *nmi* the agreement of k-means clusters of the test images with their
classes, *trace* the median of tr Sigma. Labels are used in this evaluation alone; nothing was chosen by it. ± is the
standard deviation over seeds; one seed has a standard error of about 0.005 from its test images. *from ISIF* is the
difference in knn@200 (for unseen classes in recall@1), paired by seed and image, with a 95 % interval: Student's over
seeds where there are three, and otherwise by bootstrap over images, which does not know how training varies. Bold
intervals leave 0 out."""
PAPER_NOTE = """\
The paper trains ResNet-18 for 200 epochs on all 50,000 images with a GPU (batch 128, learning rate 0.06 in steps,
weights of L_N and L_R 10, L_N not over D, L_R as it is printed); ours are cells of the table above: a small
network of 0.15 million parameters for twelve epochs of 15,000 images, and a ResNet-18 of half the width for 20 epochs
of 45,000. Levels are not comparable; *gain* is the difference from ISIF with the same network."""
UNSEEN_NOTE = """\
Trained on the images of other classes, without their labels, in place of the paper's CUB-200, Cars-196 and Products
(Table 4: UMM above ISIF by 1.1, .4 and .5 points of R@1), which could not be had. *recall@k* is among the test images
themselves, *nmi* of as many clusters as there are classes."""
RAUROC_NOTE = f"""\
How well a score detects that the nearest of {GALLERY:,} training images is of another class, on {QUERIES:,} test
images; .5 is chance. Beside each score its paired difference from three rivals that cost nothing, with a 95 %
interval by bootstrap over the test images, averaged over seeds; bold where it leaves 0 out in every seed. The kernel
vote, the margin and the vote know the labels of the gallery, *Trust* those and the labels of {CALIBRATION} validation
images; all other scores know none."""
SCORE_NOTE = f"""\
AUROC of detecting {OOD_IMAGES:,} corrupted test images, or {OOD_IMAGES:,} images of another data set, against the
test images; below .5 a score is inverted. *LAM* is fitted to two views of the {GALLERY:,} images without labels,
diagonal, marginal prior, n_effective the number of images; the curvature is that of InfoNCE (constant keys, 256 views
in a batch, temperature 0.1) or of the contrastive loss with image numbers as classes."""
OUTLIER_NOTE = f"""\
The {OUTLIERS:,} training images whose nearest other training image, in NT-Xent with seed 0, is of another class and
nearest of all: what other networks make of the same pairs. *right*: the nearest image is of the right class; *same*:
it is still the same wrong one; *place*: the median place of that one among the 15,000. Pairs that one network was
chosen by are better in every other: networks have to be compared with each other, *from ISIF* paired by seed and
image with a 95 % interval by bootstrap. *AUROC*: whether a network's own uncertainty detects these images among all."""


def page(records: Records, titles: Mapping[str, str], outliers: Records) -> str:
    """Return all tables as Markdown; ``outliers`` has by cell and seed what `outliers.measured` returned."""
    seen = {name: runs for name, runs in records.items() if "quality" in first(runs)}
    unseen = {name: runs for name, runs in records.items() if "unseen" in first(runs)}
    lines = [f"# {TITLE}", "", NOTE, "", *table(seen, titles, "quality", QUALITY)]
    lines += ["", "## Beside the paper", "", PAPER_NOTE, "", *published(seen), "", NOT_MEASURED]
    if unseen:
        lines += ["", "## Unseen classes", "", UNSEEN_NOTE, "", *table(unseen, titles, "unseen", UNSEEN)]
    if outliers:
        lines += ["", "## Outliers", "", OUTLIER_NOTE, "", *outlier_rows(outliers, titles)]
    lines += ["", "## Which retrievals are wrong: R-AUROC", "", RAUROC_NOTE]
    for name, runs in seen.items():
        lines += ["", f"### {titles[name]}: R-AUROC", "", *errors(runs)]
    lines += ["", "## Corrupted and out-of-distribution images", "", SCORE_NOTE]
    for name, runs in seen.items():
        lines += ["", f"### {titles[name]}", "", *detection(runs)]
    return "\n".join(lines) + "\n"


def first(runs: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the record of the first seed."""
    return next(iter(runs.values()))


def line(cells: Sequence[str]) -> str:
    """Return one line of a table."""
    return "| " + " | ".join(cells) + " |"


def header(columns: Sequence[str]) -> list[str]:
    """Return the first two lines of a table."""
    return [line(columns), "|---" * len(columns) + "|"]


def table(records: Records, titles: Mapping[str, str], part: str, columns: Sequence[str]) -> list[str]:
    """Return a table with one line for each cell, with its difference from the baseline."""
    lines = header(["method", "seeds", *columns, "from ISIF"])
    for name, runs in records.items():
        cells = [shown([run[part][column] for run in runs.values()]) for column in columns]
        gained = difference(runs, records.get(baseline_of(name), {}))
        lines.append(line([titles[name], str(len(runs)), *cells, gained]))
    return lines


def baseline_of(name: str) -> str:
    """Return the ISIF cell with the network and the dimensions of a cell.

    Example:
        >>> baseline_of("self_supervised/umm_512"), baseline_of("self_supervised/resnet_umm")
        ('self_supervised/isif_512', 'self_supervised/resnet_isif')
    """
    short = name.split("/")[-1]
    family = next((part for part in ("resnet_", "quickdraw_") if short.startswith(part)), "")
    size = "_512" if short.endswith("_512") else ""
    return f"self_supervised/{family}isif{size}"


def difference(
    runs: Mapping[int, Mapping[str, Any]], baseline: Mapping[int, Mapping[str, Any]], by_seed: bool = True
) -> str:
    """Return the difference in how many are right, paired by seed, with its interval; nothing without shared seeds."""
    seeds = [seed for seed in runs if seed in baseline]
    if not seeds or runs is baseline:
        return ""
    ours, theirs = (
        torch.stack([unpacked(part[seed]["right"]).double() for seed in seeds]) for part in (runs, baseline)
    )
    if by_seed and len(seeds) > 2:
        interval = compare_paired(ours.mean(1).tolist(), theirs.mean(1).tolist())
        return gap(interval.difference, interval.low, interval.high, f"{len(seeds)} seeds")
    gaps = (ours - theirs).mean(0)
    drawn = bootstrap(partial(mean, gaps), len(gaps))
    return gap(float(gaps.mean()), drawn.low, drawn.high, "images")


def gap(value: float, low: float, high: float, kind: str = "", sure: bool | None = None) -> str:
    """Return a difference with its interval, bold where that leaves 0 out, or where ``sure`` says so.

    Example:
        >>> gap(-0.0123, -0.02, -0.004, "images")
        '**-.012 (-.020 to -.004)** images'
    """
    text = f"{value:+.3f} ({low:+.3f} to {high:+.3f})".replace("0.", ".")
    bold = (low > 0 or high < 0) if sure is None else sure
    return f"{f'**{text}**' if bold else text} {kind}".rstrip()


def published(records: Records) -> list[str]:
    """Return the paper's rows beside ours of both networks, each with its gain over ISIF."""
    columns = [part for network in NETWORKS.values() for part in (f"knn@200, {network}", "gain")]
    lines = header(["UMM paper, CIFAR-10", "kNN, paper", "gain", *columns])
    base = PUBLISHED["ISIF (Tables 3 and 5)"][0]
    for label, (theirs, short) in PUBLISHED.items():
        gained = "" if theirs == base else f"{theirs - base:+.3f}".replace("0.", ".")
        cells = [label, shown([theirs]), gained]
        for family in NETWORKS:
            runs = records.get(f"self_supervised/{family}{short}")
            reference = records.get(baseline_of(family + short), {})
            if runs is None:
                cells += ["not run", ""]
            else:
                numbers = [run["quality"]["knn@200"] for run in runs.values()]
                cells += [shown(numbers), difference(runs, reference)]
        lines.append(line(cells))
    return lines


def outlier_rows(records: Records, titles: Mapping[str, str]) -> list[str]:
    """Return what each network makes of the outliers."""
    lines = header(["method", "seeds", "right", "same", "place", "AUROC", "right, from ISIF"])
    for name, runs in records.items():
        each = list(runs.values())
        cells = [shown([float(unpacked(run["right"]).double().mean()) for run in each])]
        cells += [shown([run["still nearest"] for run in each])]
        cells += [
            f"{statistics.mean(run['rank'] for run in each):.0f}",
            shown([run["AUROC"] for run in each]),
        ]
        # The reference has all of them wrong because they were chosen so.
        baseline = {} if name == REFERENCE[0] else records.get(baseline_of(name), {})
        lines.append(line([titles[name], str(len(each)), *cells, difference(runs, baseline, by_seed=False)]))
    return lines


def errors(runs: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the R-AUROC of every score of a network, with its differences from the rivals."""
    each = list(runs.values())
    lines = header(["score", "R-AUROC", *(f"from {rival}" for rival in RIVALS)])
    for score in each[0]["scores"]:
        cells = [shown([run["scores"][score]["R-AUROC"] for run in each])]
        for rival in RIVALS:
            gaps = [run["paired"][score][rival] for run in each if rival in run["paired"][score]]
            if not gaps:
                cells.append("")
                continue
            value, low, high = (statistics.mean(numbers) for numbers in zip(*gaps, strict=True))
            sure = all(bottom > 0 for _, bottom, _ in gaps) or all(top < 0 for *_, top in gaps)
            cells.append(gap(value, low, high, sure=sure))
        lines.append(line([title_of(score), *cells]))
    return lines


def detection(runs: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the AUROC of every score for every set of images."""
    columns = [*CORRUPTIONS, *OUTSIDE]
    lines = header(["score", *columns])
    for score in first(runs)["scores"]:
        cells = [shown([run["scores"][score][column] for run in runs.values()]) for column in columns]
        lines.append(line([title_of(score), *cells]))
    return lines


def title_of(score: str) -> str:
    """Return what a score is called in a table."""
    return "own uncertainty" if score == OWN else score


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
