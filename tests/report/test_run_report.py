"""The page of a run: its numbers are those of the metrics, its images the right ones, and every input has a page."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from laplacian_metric import StochasticEmbedding, metrics
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.report import Gallery, Page, Picture, Table
from laplacian_metric.report.cards import known_galleries, ood_galleries
from laplacian_metric.report.evaluated import Evaluated, Images, Uncertainties, as_pixels, encode, measure
from laplacian_metric.report.page import number, share
from laplacian_metric.report.plots import drawable, reliability_bins
from laplacian_metric.report.run_report import run_report, summary
from laplacian_metric.report.sections import BAD, FINE, diagnostics_table
from tests.report.reading import HOSTILE, Reader
from tests.report.runs import DIAGNOSTICS, bare, embedding, evaluated, images


def blocks(page: Page, kind: type) -> list[Any]:
    return [block for section in page.sections for block in section.blocks if isinstance(block, kind)]


def titles(page: Page) -> list[str]:
    return [section.title for section in page.sections]


@pytest.fixture(scope="module")
def run() -> Evaluated:
    return evaluated()


@pytest.fixture(scope="module")
def page(run: Evaluated) -> Page:
    return run_report(run, resamples=50)


def test_the_whole_page(run: Evaluated, page: Page) -> None:
    html = page.html()
    reader = Reader(html)
    assert titles(page) == [
        "In short",
        "Error against share answered",
        "In numbers",
        "Images to doubt",
        "Out-of-distribution images",
        "Compared with other scores",
        "The embedding",
        "The posterior",
        "About this run",
    ]
    assert len(reader.of("h1")) == 1
    assert all(image.get("alt") for image in reader.of("img"))
    assert "/pictures/somebody" not in html
    assert "lam report --data set" in reader.text
    assert run_report(run, resamples=50).html() == html


def test_the_numbers_and_intervals_are_those_of_the_metrics(run: Evaluated, page: Page) -> None:
    expected = metrics.evaluate(
        run.queries.points,
        run.labels,
        run.queries.uncertainty,
        resamples=50,
        generator=torch.Generator().manual_seed(0),
    )
    refusals, numbers, *_ = blocks(page, Table)
    rows = {row[0]: row[1:] for row in numbers.rows}
    for text, name in (("The nearest item is right", "recall@1"), ("Mean average precision at R", "map@r")):
        interval = expected.intervals[name]
        assert rows[text] == (number(expected[name]), f"{number(interval.low)} to {number(interval.high)}")
    assert run.consensus is not None
    assert rows["Calibration error of networks sampled from the posterior"][0] == number(run.consensus.error)
    assert [row[:2] for row in refusals.rows[:3]] == [
        (share(row.share), share(row.error)) for row in expected.refusals[:30:10]
    ]
    said = Reader(page.html()).text
    assert f"{share(1 - expected['recall@1'])} of 60 answers are wrong" in said
    assert f"{share(expected.refusals[20].error)} are wrong" in said


def test_ood_images_are_detected_as_scikit_learn_says(run: Evaluated) -> None:
    evaluation = measure(run, resamples=20).evaluation
    score = torch.cat([run.queries.uncertainty, run.ood["digits"].uncertainty]).numpy()
    is_out = np.r_[np.zeros(60), np.ones(20)]
    assert evaluation["auroc digits"] == pytest.approx(roc_auc_score(is_out, score))
    assert evaluation["average precision digits"] == pytest.approx(average_precision_score(is_out, score))
    norm = run.scores["norm"]
    score = torch.cat([norm.queries, norm.ood["digits"]]).numpy()
    beside = evaluation.scores["norm"]
    assert beside.ood["digits"]["auroc"] == pytest.approx(roc_auc_score(is_out, score))
    assert beside.values["r_auroc"] == pytest.approx(
        metrics.r_auroc(run.queries.points, run.labels, norm.queries)
    )


def test_galleries_show_the_right_images(run: Evaluated) -> None:
    measured = measure(run, resamples=0)
    z, labels = run.queries.points.double().numpy(), run.labels.numpy()
    uncertainty = run.queries.uncertainty.numpy()
    cosine = z @ z.T
    np.fill_diagonal(cosine, -2)
    nearest = (-cosine).argsort(1)[:, :5]
    wrong = labels[nearest[:, 0]] != labels
    order = np.argsort(-uncertainty)
    expected = {"Least certain": order[:6], "Wrong, and yet sure": order[::-1][wrong[order[::-1]]][:6]}
    galleries = known_galleries(run, measured)
    assert [gallery.title for gallery in galleries] == list(expected)
    names = run.class_names or ()
    for gallery in galleries:
        for card, row in zip(gallery.cards, expected[gallery.title], strict=True):
            assert card.name == f"{row}.png"
            assert card.label == names[labels[row]]
            assert card.right == (not wrong[row])
            assert [one.label for one in card.neighbours] == [names[labels[item]] for item in nearest[row]]
            assert [one.right for one in card.neighbours] == list(labels[nearest[row]] == labels[row])
            assert card.image == encode(run.queries.thumbnails[row])
            assert [one.image for one in card.neighbours] == [
                encode(run.queries.thumbnails[item]) for item in nearest[row]
            ]
    (gallery,) = ood_galleries(run, measured)
    surest = run.ood["digits"].uncertainty.argsort()[:6].tolist()
    assert [card.image for card in gallery.cards] == [
        encode(run.ood["digits"].thumbnails[row]) for row in surest
    ]
    assert not any(one.right for card in gallery.cards for one in card.neighbours)


def test_a_gallery_is_searched_and_shown(run: Evaluated) -> None:
    """Items have classes that no query has, and images of their own."""
    labels = torch.arange(40) % 4
    items = Images(embedding(labels, 4, 1.6, seed=3), labels, images(40, seed=5))
    searched = replace(run, gallery=items, class_names=[*"abcd"], consensus=None)
    measured = measure(searched, resamples=0)
    expected = metrics.evaluate(
        run.queries.points, run.labels, database=items.points, database_labels=labels, resamples=0
    )
    assert measured.evaluation["recall@1"] == pytest.approx(expected["recall@1"])
    card = known_galleries(searched, measured)[0].cards[0]
    row = int(run.queries.uncertainty.argmax())
    near = (items.points @ run.queries.points[row]).topk(5).indices.tolist()
    assert [one.image for one in card.neighbours] == [encode(items.thumbnails[item]) for item in near]
    assert [one.label for one in card.neighbours] == ["abcd"[item % 4] for item in near]
    assert "searched for among 40 items" in Reader(run_report(searched, resamples=0).html()).text


def test_bins_hold_equal_counts_with_wilsons_intervals() -> None:
    generator = np.random.default_rng(0)
    probability = generator.random(95)
    right = generator.random(95) < probability
    bins = reliability_bins(probability, right)
    assert [one.count for one in bins] == [10] * 5 + [9] * 5
    order = np.argsort(probability)
    for one, rows in zip(bins, np.array_split(order, 10), strict=True):
        assert one.probability == pytest.approx(probability[rows].mean())
        expected = stats.binomtest(int(right[rows].sum()), len(rows)).proportion_ci(method="wilson")
        assert (one.low, one.high) == pytest.approx((expected.low, expected.high))
    assert len(reliability_bins(np.array([0.5]), np.array([True]))) == 1


def test_a_probability_has_a_section_and_novelty_is_what_detects_ood(run: Evaluated) -> None:
    uncertainty = run.queries.uncertainty
    novelty = Uncertainties(torch.arange(60.0), {"digits": torch.arange(100.0, 120.0)})
    page = run_report(
        replace(run, probability=(1 - uncertainty / uncertainty.max()), scores={"novelty": novelty}),
        resamples=20,
    )
    assert "Is the probability right?" in titles(page)
    (roc,) = [picture for picture in blocks(page, Picture) if "novelty" in picture.caption]
    assert "digits 1.0" in roc.alt
    said = Reader(page.html()).text
    assert "Better here, perhaps by chance: novelty of the query" in said


def test_without_thumbnails_there_are_no_images() -> None:
    page = run_report(bare(30), resamples=0)
    assert all(card.image is None for gallery in blocks(page, Gallery) for card in gallery.cards)
    assert "holds no images of the data" in Reader(page.html()).text


def test_hostile_names_stay_text(run: Evaluated, page: Page) -> None:
    hostile = replace(
        run,
        title=HOSTILE,
        class_names=[f"{HOSTILE}{k}$" for k in range(3)],
        queries=replace(run.queries, names=[HOSTILE.replace("/", "")] * 60),
        ood={f"_{HOSTILE}$^": run.ood["digits"]},
        scores={HOSTILE: Uncertainties(run.scores["norm"].queries)},
        provenance=[(HOSTILE, HOSTILE)],
    )
    reader, usual = Reader(run_report(hostile, resamples=50).html()), Reader(page.html())
    for tag in ("script", "img", "h3", "section", "table"):
        assert len(reader.of(tag)) == len(usual.of(tag)), tag
    assert f"{HOSTILE}0$" in reader.text


@pytest.mark.parametrize("name", ["_hidden", "$x^{", "a_b$c$", "größe", "\n"])
def test_names_are_no_formulas(name: str) -> None:
    assert not drawable(name).startswith("_")
    assert "$" not in drawable(name).replace(r"\$", "")


# --- whatever comes in ---


def flat(run: Evaluated, kappa: float, uncertainty: float) -> Evaluated:
    """The same directions, with one kappa and one uncertainty for all."""
    e, ones = run.queries.embedding, torch.ones(len(run.labels))
    flat_embedding = StochasticEmbedding(e.point, e.mean, kappa * ones, uncertainty * ones)
    return replace(run, queries=replace(run.queries, embedding=flat_embedding))


DEGENERATE = {
    "one class": (bare(30, labels=[0] * 30), "Refusing cannot improve"),
    "three images": (bare(3, labels=[0, 0, 1]), "because no item has their class: 1 queries"),
    "two images": (bare(2, labels=[0, 0]), "Refusing cannot improve"),
    "one image": (bare(1), "there is only one image"),
    "no positives": (bare(4, labels=[0, 1, 2, 3]), "no image has another of its class"),
    "kappa infinite": (flat(bare(30), math.inf, 0.0), "30 are infinite"),
    "kappa zero": (flat(bare(30), 0.0, math.inf), "do not tell which queries to refuse"),
    "empty names": (bare(30, 70, class_names=["", " ", "\n"]), "class 2"),
    "many classes": (bare(160, labels=torch.arange(160) % 80), "80 classes"),
    "one OOD image": (bare(12, 4, ood={"o": Images(embedding(torch.tensor([0]), 4))}), "images of o"),
    "many OOD sets": (
        bare(
            12, 4, ood={f"set {k}": Images(embedding(torch.zeros(6, dtype=torch.int64), 4)) for k in range(4)}
        ),
        "images of set 3",
    ),
}


@pytest.mark.parametrize("name", list(DEGENERATE))
def test_every_input_has_a_page(name: str) -> None:
    run, said = DEGENERATE[name]
    page = run_report(run, resamples=5)
    text = Reader(page.html()).text
    assert re.findall(r"\bnan\b", text) == []
    assert said in text
    assert "The embedding" in titles(page)
    assert blocks(page, Gallery)


def test_refusing_that_does_not_help_is_said() -> None:
    run = bare(200)
    right = metrics.rank(run.queries.points, run.labels).first_is_right()
    worst = run.queries.embedding.with_uncertainty(right + torch.linspace(0, 0.1, 200))
    measured = measure(replace(run, queries=replace(run.queries, embedding=worst)), resamples=0)
    assert "Refusing does not help" in summary(measured)


@pytest.mark.parametrize(("low", "doubted"), [(0.4, True), (0.6, False)])
def test_what_may_be_chance_is_called_so(low: float, doubted: bool) -> None:
    measured = measure(bare(60), resamples=50)
    interval = replace(measured.evaluation.intervals["r_auroc"], low=low, high=0.9)
    evaluation = measured.evaluation.model_copy(update={"intervals": {"r_auroc": interval}})
    assert ("This may be chance" in summary(replace(measured, evaluation=evaluation))) == doubted


# --- the posterior in words ---


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"steps_to_mode": 3.5}, "Steps to the mode"),
        ({"clamped": 0.51}, "Clamped curvature"),
        ({"prior_to_data": 101.0}, "Prior over data"),
        ({"prior_to_data": math.inf}, "Prior over data"),
        ({"effective_parameters": 0.5}, "Effective parameters"),
    ],
)
def test_what_is_bad_is_called_bad(changes: dict[str, Any], row: str) -> None:
    verdicts = {line[0]: line[4] for line in diagnostics_table(replace(DIAGNOSTICS, **changes)).rows}
    assert {name for name, verdict in verdicts.items() if verdict == BAD} == {row}
    assert sum(verdict == FINE for verdict in verdicts.values()) == 3


def test_every_number_of_the_diagnostics_is_on_the_page() -> None:
    diagnostics = Diagnostics(0.1234, 0.0456, 2.51, 3.02, 0.25, 0.512, 9.121, 6464)
    cells = " ".join(cell for row in diagnostics_table(diagnostics).rows for cell in row)
    for text in ("0.12", "0.046", "2.5", "3.0", "25 %", "0.51", "9.1", "6,464"):
        assert text in cells


# --- wrong input ---


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda run: replace(run.queries, labels=[0, 1]), "labels"),
        (lambda run: replace(run.queries, thumbnails=images(3)), "thumbnails"),
        (lambda run: replace(run.queries, names=["a"]), "names"),
        (lambda run: Images(run.queries.embedding[slice(0, 0)]), "embedding"),
        (lambda run: replace(run, class_names=["a"]), "class_names"),
        (lambda run: replace(run, queries=replace(run.queries, labels=None)), "labels"),
        (lambda run: replace(run, ood={"s": bare(6, 7).queries}), "ood"),
        (lambda run: measure(replace(run, scores={"s": Uncertainties(torch.ones(3))})), "uncertainty"),
        (lambda run: measure(flat(run, 1.0, math.nan)), "uncertainty"),
        (lambda run: run_report(run, mapped=2), "mapped"),
        (lambda _: as_pixels("thumbnails", np.zeros((2, 3, 8, 8), dtype=np.uint8), 2), "thumbnails"),
        (lambda _: as_pixels("thumbnails", np.zeros((2, 8), dtype=np.uint8), 2), "thumbnails"),
        (lambda _: as_pixels("thumbnails", np.zeros((2, 8, 8)), 2), "thumbnails"),
        (lambda _: as_pixels("thumbnails", torch.zeros(2, 8, 8, dtype=torch.uint8), 3), "thumbnails"),
    ],
)
def test_wrong_input_is_named(run: Evaluated, wrong: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        wrong(run)
