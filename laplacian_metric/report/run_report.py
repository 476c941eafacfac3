"""The report of one run: which images cannot be trusted, and how much safer retrieval gets by refusing."""

from __future__ import annotations

from laplacian_metric.metrics.evaluation import ood_name
from laplacian_metric.report.blocks.texts import plain, share
from laplacian_metric.report.evaluated import Evaluated, Measured, OtherScore, measure
from laplacian_metric.report.page import Page, Paragraph, Section, Table
from laplacian_metric.report.run_pictures import MAPPED, Galleries, Map, make_galleries, make_map
from laplacian_metric.report.run_sections import (
    about,
    calibration,
    concentration,
    embedding_map,
    errors_found,
    out_of_distribution,
    posterior,
    refusing,
    reliability,
    with_interval,
)

__all__ = ["Evaluated", "OtherScore", "run_report"]

REFUSED = 20  # the share that the summary speaks of, in percent


def run_report(evaluated: Evaluated, *, resamples: int = 1000, mapped: int = MAPPED, seed: int = 0) -> Page:
    """The whole page.

    Args:
        evaluated: the run.
        resamples: draws of the bootstrap behind the intervals; 0 leaves them out.
        mapped: how many images, OOD images included, the map shows at most.
        seed: which these are, and where t-SNE and the bootstrap begin.

    Example:
        >>> import torch
        >>> from laplacian_metric import StochasticEmbedding
        >>> z = torch.nn.functional.normalize(torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0], [0.2, 1.0]]), dim=1)
        >>> e = StochasticEmbedding(z, z, torch.full((4,), 50.0), torch.full((4,), 0.02))
        >>> page = run_report(Evaluated("Cats and dogs", e, [0, 0, 1, 1], ["cat", "dog"]), resamples=10)
        >>> "Cats and dogs" in page.html(), [section.title for section in page.sections][:2]
        (True, ['In short', 'What refusing is worth'])
    """
    if mapped < 3:
        raise ValueError(f"mapped is {mapped}, at least 3 images are needed for a map")
    if evaluated.gallery is not None:
        raise ValueError(
            "a report searches for images among each other: leave gallery= out, or take `measure` for the numbers"
        )
    measured = measure(evaluated, resamples=resamples, seed=seed)
    galleries = make_galleries(evaluated, measured)
    drawn = make_map(evaluated, measured, limit=mapped, seed=seed)
    sections = [
        _summary(evaluated, measured, galleries, drawn),
        refusing(measured),
        _numbers(measured),
        Section("Which images cannot be trusted", list(galleries.known)),
        embedding_map(evaluated, measured, drawn),
        out_of_distribution(measured, galleries),
        concentration(measured),
        errors_found(evaluated, measured),
        reliability(measured.evaluation),
        calibration(measured.evaluation),
        posterior(evaluated),
        about(evaluated, measured, resamples, seed),
    ]
    return Page(plain(evaluated.title), [section for section in sections if section.blocks])


def _summary(evaluated: Evaluated, measured: Measured, galleries: Galleries, drawn: Map) -> Section:
    classes = len(set(measured.labels.tolist()))
    text = (
        f"{len(measured.labels):,} image{'s' if len(measured.labels) > 1 else ''} of {classes:,} "
        f"class{'es' if classes > 1 else ''}, embedded in {measured.embedding.dim:,} dimensions. "
    )
    return Section(
        "In short", [Paragraph(text + told(measured)), Paragraph(_about_images(evaluated, galleries, drawn))]
    )


def _numbers(measured: Measured) -> Section:
    """Return the numbers, which come after the first picture."""
    rows = _summary_rows(measured)
    table = Table(
        f"The run in numbers, with 95 % intervals over queries.{_counted(measured)}",
        ("What", "Value", "95 % interval"),
        rows,
        numeric=frozenset({1, 2}),
    )
    return Section("In numbers", [table] if rows else [])


def told(measured: Measured) -> str:
    """What the numbers say, in two or three sentences."""
    if not measured.evaluation.refusals:
        return f"Retrieval cannot be judged: {measured.reason}."
    whole, some = measured.evaluation.refusals[0], measured.evaluation.refusals[REFUSED]
    text = (
        f"Of the {whole.total:,} images whose class has another image, {whole.wrong:,} have a nearest neighbour of "
        f"another class: an error of {share(whole.error)}. "
    )
    if whole.wrong == 0:
        text += "Refusing cannot improve on that."
    elif some.answered == whole.answered:
        text += "The uncertainties are nearly equal, so that they do not tell which queries to refuse."
    elif some.error < whole.error:
        text += (
            f"If the {share(some.share)} that are least certain are refused, {share(some.error)} of the answers are "
            f"wrong.{_doubt(measured)}"
        )
    else:
        text += (
            f"Refusing by this uncertainty does not help: without the {share(some.share)} least certain the error "
            f"is {share(some.error)}."
        )
    for name, refused in some.ood.items():
        text += f" The threshold that refuses {share(some.share)} also refuses {share(refused)} of the OOD images of "
        text += f"{plain(name)}."
    return text


def _doubt(measured: Measured) -> str:
    """Whether what refusing improves here may be chance."""
    interval = measured.evaluation.intervals.get("r_auroc")
    if interval is None or not interval.low <= 0.5 <= interval.high:
        return ""
    return " This may be chance: the interval of the R-AUROC includes 0.5."


def _summary_rows(measured: Measured) -> list[tuple[str, str, str]]:
    names = {
        "recall@1": "Recall at 1: the nearest neighbour is right",
        "map@5": "Mean average precision at 5",
        "map@r": "Mean average precision at R",
        "r_auroc": "R-AUROC: a wrong neighbour is more uncertain than a right one (0.5 is chance)",
        "ausc": "Area under the sparsification curve (1 is best)",
        "ausc_random": "… if queries are refused at random",
        "ausc_oracle": "… if it is known which answers are wrong",
        "retrieval_ece": "Calibration error of retrieval (0 is best)",
    }
    evaluation = measured.evaluation
    rows = [
        (text, *with_interval(evaluation, name)) for name, text in names.items() if name in evaluation.values
    ]
    return rows + [
        (
            f"AUROC: OOD images of {name} are more uncertain (0.5 is chance)",
            *with_interval(evaluation, ood_name("auroc", name)),
        )
        for name in measured.ood
    ]


def _counted(measured: Measured) -> str:
    left_out = measured.evaluation.counts.unanswerable
    if not left_out:
        return ""
    return f" Left out of the retrieval metrics, because no other image has their class: {left_out:,}."


def _megabytes(size: int) -> str:
    return "less than 0.1 MB" if size < 0.1 * 2**20 else f"about {size / 2**20:.1f} MB"


def _about_images(evaluated: Evaluated, galleries: Galleries, drawn: Map) -> str:
    size = galleries.pictures.size + drawn.pictures.size
    if size == 0:
        if evaluated.thumbnails is None:
            return "This page holds no images of the data: it was made with thumbnails=None."
        return "This page holds no images of the data."
    left_out = galleries.pictures.left_out + drawn.pictures.left_out
    return (
        f"This page holds images of the data, downscaled, which take {_megabytes(size)}"
        + (f" ({left_out:,} did not fit)" if left_out else "")
        + ": they go with the page. lam report --no-images leaves them out (in Python, thumbnails=None). "
        "It loads nothing from elsewhere."
    )
