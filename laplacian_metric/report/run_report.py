"""The page of one run: how many errors refusing avoids, whether the probability is right, and which images to doubt."""

from __future__ import annotations

import torch

from laplacian_metric import __version__
from laplacian_metric.metrics.evaluation import ood_name
from laplacian_metric.report.cards import known_galleries
from laplacian_metric.report.evaluated import Evaluated, Measured, measure
from laplacian_metric.report.page import Page, Paragraph, Section, Table, plain, share, without_folders
from laplacian_metric.report.sections import (
    REFUSED,
    diagnostics_table,
    embedding_section,
    error_section,
    ood_section,
    reliability_section,
    scores_section,
    with_interval,
)

MAPPED = 1500  # points of the map
NUMBERS = {
    "recall@1": "The nearest item is right",
    "map@5": "Mean average precision of the first 5",
    "map@r": "Mean average precision at R",
    "r_auroc": "Wrong answers are less certain than right ones (AUROC, 0.5 is chance)",
    "ausc": "Right answers while the least certain are refused (area, 1 is best)",
    "retrieval_ece": "Calibration error of networks sampled from the posterior",
    "probability_ece": "Calibration error of the probability",
    "brier": "Mean squared error of the probability (Brier score)",
}


def run_report(run: Evaluated, *, resamples: int = 1000, mapped: int = MAPPED, seed: int = 0) -> Page:
    """Return the whole page.

    Args:
        run: what was evaluated.
        resamples: draws of the bootstrap behind the intervals; 0 leaves them out.
        mapped: how many images, OOD images included, the map shows at most.
        seed: of the choice of these, of t-SNE and of the bootstrap.

    Example:
        >>> from laplacian_metric import StochasticEmbedding
        >>> from laplacian_metric.report.evaluated import Images
        >>> z = torch.nn.functional.normalize(torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0], [0.2, 1.0]]), dim=1)
        >>> e = StochasticEmbedding(z, z, torch.full((4,), 50.0), torch.full((4,), 0.02))
        >>> page = run_report(Evaluated("Pets", Images(e, [0, 0, 1, 1]), ["cat", "dog"]), resamples=10)
        >>> page.title, [section.title for section in page.sections][:2]
        ('Pets', ['In short', 'Error against share answered'])
    """
    if mapped < 3:
        raise ValueError(f"mapped is {mapped}, at least 3 images are needed for a map")
    measured = measure(run, resamples=resamples, seed=seed)
    evaluation = measured.evaluation
    sections = [
        _summary(run, measured),
        error_section(evaluation.refusals),
        reliability_section(run, measured),
        _numbers(run, measured),
        Section("Images to doubt", known_galleries(run, measured)),
        ood_section(run, measured),
        scores_section(evaluation, list(run.ood)),
        embedding_section(run, mapped, seed),
        Section("The posterior", [] if run.diagnostics is None else [diagnostics_table(run.diagnostics)]),
        _about(run, resamples, seed),
    ]
    return Page(run.title, [section for section in sections if section.blocks])


def _summary(run: Evaluated, measured: Measured) -> Section:
    count = len(run.labels)
    among = "" if run.gallery is None else f" They are searched for among {len(run.items.points):,} items."
    text = (
        f"{count:,} image{'s' if count > 1 else ''}, {len(run.labels.unique()):,} class"
        f"{'es' if len(run.labels.unique()) > 1 else ''}, {run.queries.embedding.dim:,} dimensions.{among} "
    )
    shown = (run.queries, *run.ood.values())
    images = (
        "images of the data" if any(one.thumbnails is not None for one in shown) else "no images of the data"
    )
    held = f"This page holds {images}; lam report --no-images leaves them out."
    return Section("In short", [Paragraph(text + summary(measured)), Paragraph(held)])


def summary(measured: Measured) -> str:
    """Return two or three sentences about the errors, and how many of them refusing avoids."""
    refusals = measured.evaluation.refusals
    if not refusals:
        return f"Retrieval cannot be judged: {measured.reason}."
    whole, some = refusals[0], refusals[REFUSED]
    text = f"{share(whole.error)} of {whole.total:,} answers are wrong. "
    if whole.wrong == 0:
        text += "Refusing cannot improve on that."
    elif some.answered == whole.answered:
        text += "The uncertainties are nearly equal, so they do not tell which queries to refuse."
    elif some.error < whole.error:
        text += (
            f"Without the least certain {share(some.share)}, {share(some.error)} are wrong.{_doubt(measured)}"
        )
    else:
        text += f"Refusing does not help: without the least certain {share(some.share)}, {share(some.error)} are wrong."
    for name, refused in some.ood.items():
        text += f" The same threshold refuses {share(refused)} of the OOD images of {name}."
    return text


def _doubt(measured: Measured) -> str:
    """Return a warning where the improvement by refusing may be chance."""
    bounds = measured.evaluation.intervals.get("r_auroc")
    if bounds is None or not bounds.low <= 0.5 <= bounds.high:
        return ""
    return " This may be chance: the interval of the AUROC of wrong answers includes 0.5."


def _numbers(run: Evaluated, measured: Measured) -> Section:
    evaluation = measured.evaluation
    rows = [
        (text, *with_interval(evaluation, name))
        for name, text in NUMBERS.items()
        if name in evaluation.values
    ]
    rows += [
        (
            f"OOD images of {name} are less certain than known ones (AUROC)",
            *with_interval(evaluation, ood_name("auroc", name)),
        )
        for name in run.ood
    ]
    left_out = evaluation.counts.unanswerable
    caption = (
        f"Left out, because no item has their class: {left_out:,} queries" if left_out else "All queries"
    )
    table = Table(caption, ("What", "Value", "95 % interval"), rows, numeric=frozenset({1, 2}))
    return Section("In numbers", [table] if rows else [])


def _about(run: Evaluated, resamples: int, seed: int) -> Section:
    rows = [(plain(name), without_folders(value)) for name, value in run.provenance]
    rows += [
        ("laplacian_metric", __version__),
        ("PyTorch", str(torch.__version__)),
        ("Draws of the bootstrap", f"{resamples:,}"),
        ("Seed of the report", str(seed)),
    ]
    return Section("About this run", [Table("Versions and settings", ("What", "Value"), rows)])
