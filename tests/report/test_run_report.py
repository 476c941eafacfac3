"""The report of a run: its numbers are those of the metrics, its images the right ones, and every input has a page."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.metrics import average_precision_score, roc_auc_score

from experiments.harness.tables import latent
from laplacian_metric import StochasticEmbedding, metrics
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.report import Page
from laplacian_metric.report.blocks import Gallery, RefusalSlider, Scatter, texts
from laplacian_metric.report.blocks.gallery import encode
from laplacian_metric.report.evaluated import Evaluated, Uncertainties, measure
from laplacian_metric.report.page import Picture, Table
from laplacian_metric.report.plots import as_png
from laplacian_metric.report.run_pictures import make_galleries, make_map
from laplacian_metric.report.run_report import run_report, told
from laplacian_metric.report.run_sections import BAD, FINE, diagnostics_table, drawable
from tests.experiments.tables.runs import DIAGNOSTICS, evaluated, images
from tests.report.reading import HOSTILE, Reader


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


# --- what is on the page ---


def test_a_picture_comes_before_the_first_table(page: Page) -> None:
    html = page.html()
    assert 0 < html.index("<svg") < html.index("<table")


def test_the_sphere_has_the_colours_and_the_order_of_the_map(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, str]] = []
    own = latent._classes

    def noted(*arguments: Any) -> Any:
        drawn_element = own(*arguments)
        drawn.extend((label, colour) for label, _, _, colour, _ in drawn_element if label >= 0)
        return drawn_element

    monkeypatch.setattr(latent, "_classes", noted)
    run_report(evaluated(dim=3), resamples=0)
    assert set(drawn) == {(label, texts.class_look(label)[0]) for label in range(3)}


def test_wide_pictures_are_scrolled(page: Page) -> None:
    narrow, wide = (Picture(as_png(Figure((inches, 2), dpi=100)), "a", "b").html() for inches in (7, 9))
    assert "scroll" not in narrow
    assert '<div class="scroll wide">' in wide


def test_confidence_is_no_name_for_agreement(page: Page) -> None:
    assert "confidence" not in re.sub(r"<style>.*?</style>", "", page.html(), flags=re.DOTALL).lower()


def test_the_whole_page(page: Page) -> None:
    html = page.html()
    reader = Reader(html)
    assert titles(page) == [
        "In short",
        "What refusing is worth",
        "In numbers",
        "Which images cannot be trusted",
        "The embedding",
        "Out-of-distribution images",
        "Concentration",
        "Does the uncertainty find the errors?",
        "Calibration of the sampled networks",
        "Can the posterior be trusted?",
        "About this run",
    ]
    assert len(reader.holding("script")) == 1
    assert all(image.get("alt") for image in reader.of("img"))
    assert "/pictures/somebody" not in html
    assert "lam report --data set" in reader.text
    assert "7.png" in reader.text
    order = [tag for tag, _ in reader.tags if tag in ("h1", "h2", "h3")]
    assert order[:3] == ["h1", "h2", "h2"]


def test_the_page_is_the_same_again(run: Evaluated, page: Page) -> None:
    assert run_report(run, resamples=50).html() == page.html()


def test_the_summary_has_the_numbers_and_intervals_of_the_metrics(run: Evaluated, page: Page) -> None:
    expected = metrics.evaluate(
        run.embedding.point,
        run.labels,  # type: ignore[arg-type]
        run.embedding.uncertainty,
        resamples=50,
        generator=torch.Generator().manual_seed(0),
    )
    rows = {row[0]: row for row in blocks(page, Table)[0].rows}
    for text, name in (
        ("Recall at 1: the nearest neighbour is right", "recall@1"),
        ("Mean average precision at R", "map@r"),
        ("Area under the sparsification curve (1 is best)", "ausc"),
    ):
        interval = expected.intervals[name]
        assert rows[text][1:] == (f"{expected[name]:.3f}", f"{interval.low:.3f} to {interval.high:.3f}")
    assert run.consensus is not None
    assert rows["Calibration error of retrieval (0 is best)"][1] == f"{run.consensus.error:.3f}"
    (slider,) = blocks(page, RefusalSlider)
    assert slider.rows[0].error == pytest.approx(1 - expected["recall@1"])
    said = Reader(page.sections[0].html()).text
    assert f"an error of {100 * slider.rows[0].error:.1f} %" in said
    assert f"{100 * slider.rows[20].error:.1f} % of the answers are wrong" in said


def test_strangers_are_told_as_scikit_learn_says(run: Evaluated) -> None:
    numbers = measure(run, resamples=20)
    inside, outside = run.embedding.uncertainty, run.ood["digits"][0].uncertainty
    score = torch.cat([inside, outside]).double().numpy()
    is_out = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    evaluation = numbers.evaluation
    assert evaluation["auroc digits"] == pytest.approx(roc_auc_score(is_out, score))
    assert evaluation["average precision digits"] == pytest.approx(average_precision_score(is_out, score))
    interval = evaluation.intervals["auroc digits"]
    assert interval.low <= evaluation["auroc digits"] <= interval.high
    norm = run.scores["norm"]
    score = torch.cat([norm.queries, norm.ood["digits"]]).numpy()
    beside = evaluation.scores["norm"]
    assert beside.ood["digits"]["auroc"] == pytest.approx(roc_auc_score(is_out, score))
    assert beside.values["r_auroc"] == pytest.approx(
        metrics.r_auroc(run.embedding.point, run.labels, norm.queries)
    )


def test_galleries_show_the_right_images(run: Evaluated) -> None:
    numbers = measure(run, resamples=0)
    galleries = make_galleries(run, numbers)
    z, labels = run.embedding.point.double().numpy(), np.asarray(run.labels)
    uncertainty = run.embedding.uncertainty.numpy()
    cosine = z @ z.T
    np.fill_diagonal(cosine, -2)
    nearest = (-cosine).argsort(1)[:, :5]
    wrong = labels[nearest[:, 0]] != labels
    order = np.argsort(-uncertainty)
    expected = {
        "Least certain": order[:12],
        "Surest": order[::-1][:6],
        "Wrong, and yet sure": [row for row in order[::-1] if wrong[row]][:12],
    }
    assert [gallery.title for gallery in galleries.known] == list(expected)
    names = run.class_names or ()
    for gallery in galleries.known:
        rows = list(expected[gallery.title])
        assert [card.name for card in gallery.cards] == [f"{row}.png" for row in rows]
        for card, row in zip(gallery.cards, rows, strict=True):
            assert card.label == names[labels[row]]
            assert card.right == (not wrong[row])
            assert [one.label for one in card.neighbours] == [names[labels[other]] for other in nearest[row]]
            assert [one.right for one in card.neighbours] == list(labels[nearest[row]] == labels[row])
            assert card.image == encode(run.thumbnails[row], 256)
            assert [one.image for one in card.neighbours] == [
                encode(run.thumbnails[other], 256) for other in nearest[row]
            ]
    strangers = galleries.ood["digits"]
    surest = run.ood["digits"][0].uncertainty.argsort()[:6].tolist()
    assert [card.image for card in strangers.cards] == [
        encode(run.ood["digits"][1][row], 256) for row in surest
    ]
    assert not any(one.right for card in strangers.cards for one in card.neighbours)


def test_the_map_shows_each_image_once_with_its_own_label(run: Evaluated) -> None:
    drawn = make_map(run, measure(run, resamples=0), limit=45, seed=4)
    assert len(drawn.rows) == 30
    assert {name: len(rows) for name, rows in drawn.ood.items()} == {"digits": 15}
    assert len(set(drawn.rows.tolist())) == 30
    points = drawn.plot.points[:30]
    names = run.class_names or ()
    for point, row in zip(points, drawn.rows.tolist(), strict=True):
        assert point.lines[0] == names[int(run.labels[row])]
        assert point.lines[-1] == f"{row}.png"
        assert point.image == encode(run.thumbnails[row], 256)
    for point, row in zip(drawn.plot.points[30:], drawn.ood["digits"].tolist(), strict=True):
        assert point.lines[0] == "OOD image of digits"
        assert point.image == encode(run.ood["digits"][1][row], 256)
    # Their uncertainty is their place among the known images.
    uncertainty = run.embedding.uncertainty
    below = (uncertainty[None] < uncertainty[:, None]).double().mean(1)
    for point, row in zip(points, drawn.rows.tolist(), strict=True):
        assert point.uncertainty == pytest.approx(float(below[row]) + 0.5 / len(uncertainty))


def test_without_thumbnails_there_are_no_images(run: Evaluated) -> None:
    strangers = {name: (e, None) for name, (e, _) in run.ood.items()}
    page = run_report(replace(run, thumbnails=None, ood=strangers), resamples=0)
    html = page.html()
    galleries = "".join(gallery.html() for gallery in blocks(page, Gallery))
    assert "<img" not in galleries
    assert blocks(page, Gallery)
    (plot,) = blocks(page, Scatter)
    assert "data:image" not in plot.html()
    assert "made with thumbnails=None" in html


def test_the_page_says_that_it_holds_images_and_stays_small() -> None:
    run = evaluated(90, thumbnails=images(90, 200, 3), ood={}, scores={})
    page = run_report(run, resamples=0)
    html = page.html()
    size = re.search(r"which take about ([\d.]+) MB", html)
    assert size is not None
    embedded_bytes = sum(len(uri) for uri in re.findall(r"data:image/(?:jpeg|png);base64,[\w+/=]+", html))
    plots = sum(len(picture.html()) for picture in blocks(page, Picture))
    assert float(size.group(1)) == pytest.approx((embedded_bytes - plots) / 2**20, abs=0.1)
    assert 3 < float(size.group(1)) <= 6
    assert len(html) < 8 << 20


def test_hostile_names_stay_text(run: Evaluated, page: Page) -> None:
    hostile = replace(
        run,
        title=HOSTILE,
        class_names=[f"{HOSTILE}{k}$" for k in range(3)],
        file_names=[HOSTILE.replace("/", "")] * 60,
        ood={f"_{HOSTILE}$^": run.ood["digits"]},
        scores={HOSTILE: Uncertainties(run.scores["norm"].queries)},
        provenance=[(HOSTILE, HOSTILE)],
    )
    html = run_report(hostile, resamples=50).html()
    reader, usual = Reader(html), Reader(page.html())
    assert "<img src=x" not in html
    assert len(reader.holding("script")) == 1
    for tag in ("script", "img", "button", "h3", "section", "svg"):
        assert len(reader.of(tag)) == len(usual.of(tag))
    assert f"{HOSTILE}0$" in reader.text


@pytest.mark.parametrize("name", ["_hidden", "$x^{", "a_b$c$", "größe", "\n"])
def test_names_are_no_formulas(name: str) -> None:
    assert not drawable(name).startswith("_")
    assert "$" not in drawable(name).replace(r"\$", "")


# --- whatever comes in ---


def plain_run(number: int, dim: int = 3, **changes: Any) -> Evaluated:
    fields: dict[str, Any] = {
        "class_names": ["coat", "boot", "bag", "hat"],
        "thumbnails": None,
        "file_names": None,
        "ood": {},
        "consensus": None,
        "diagnostics": None,
        "scores": {},
        "provenance": (),
    }
    classes = min(3, number)
    return evaluated(max(number, 4), classes, dim, **{**fields, **changes})


def cut(run: Evaluated, number: int, labels: list[int] | None = None) -> Evaluated:
    """The first images of a run."""
    labels_given = torch.as_tensor(run.labels)[:number] if labels is None else torch.tensor(labels)
    return replace(run, embedding=run.embedding[slice(0, number)], labels=labels_given)


def flat(run: Evaluated, kappa: float, uncertainty: float) -> Evaluated:
    """The same directions, with one kappa and one uncertainty for all."""
    e = run.embedding
    ones = torch.ones(len(e))
    return replace(run, embedding=StochasticEmbedding(e.point, e.mean, kappa * ones, uncertainty * ones))


DEGENERATE: dict[str, Evaluated] = {
    "one class": plain_run(30, labels=torch.zeros(30, dtype=torch.int64)),
    "three images": cut(plain_run(30), 3, [0, 0, 1]),
    "two images": cut(plain_run(30), 2, [0, 0]),
    "one image": cut(plain_run(30), 1),
    "no positives": cut(plain_run(30), 4, [0, 1, 2, 3]),
    "kappa infinite": flat(plain_run(30), math.inf, 0.0),
    "kappa zero": flat(plain_run(30), 0.0, math.inf),
    "no names": replace(
        plain_run(30, 2, class_names=None), embedding=plain_run(30, 2).embedding.to(dtype=torch.float64)
    ),
    "empty names": plain_run(30, 70, class_names=["", " ", "\n"], thumbnails=images(30, 8, 3)),
    "many classes": evaluated(160, 80, 3, thumbnails=None, consensus=None, ood={}, scores={}),
    "one stranger": evaluated(
        12,
        outside=1,
        scores={},
        thumbnails=torch.from_numpy(images(12, 8, 1)),
        consensus=None,
        file_names=[""] * 12,
        diagnostics=None,
    ),
    "many strangers": evaluated(
        12, scores={}, ood={f"set {k}": (plain_run(6, 4).embedding, None) for k in range(4)}
    ),
}


@cache
def degenerate_page(name: str) -> Page:
    return run_report(DEGENERATE[name], resamples=5)


@pytest.mark.parametrize("name", list(DEGENERATE))
def test_every_input_has_a_page(name: str) -> None:
    page = degenerate_page(name)
    reader = Reader(page.html())
    assert re.findall(r"\bnan\b", reader.text) == []
    assert titles(page)[:2] == ["In short", "What refusing is worth"]
    assert len(blocks(page, Scatter)) == 1
    assert len(blocks(page, Gallery)) >= 1


def test_what_cannot_be_said_is_said() -> None:
    def text(name: str) -> str:
        return Reader(degenerate_page(name).html()).text

    assert "there is only one image" in text("one image")
    assert "no image has another of its class" in text("no positives")
    assert "no other image of its class" in text("no positives")
    assert "Refusing cannot improve" in text("one class")
    assert "R-AUROC" in text("one class")
    assert "not defined" in text("one class")
    assert "No kappa is finite and above 0" in text("kappa infinite")
    assert "30 are infinite" in text("kappa infinite")
    assert "do not tell which queries to refuse" in text("kappa zero")
    assert "because no other image has their class: 1." in text("three images")
    assert "class 2" in text("no names")
    assert "Legend of 80 groups" in text("many classes")


def test_refusing_that_does_not_help_is_said() -> None:
    run = evaluated(200, ood={}, scores={}, thumbnails=None, file_names=None, noise=1.5)
    right = metrics.rank(run.embedding.point, run.labels).first_is_right()
    worst = run.embedding.with_uncertainty(right + torch.linspace(0, 0.1, 200))
    said = Reader(run_report(replace(run, embedding=worst), resamples=0).sections[0].html()).text
    assert "Refusing by this uncertainty does not help" in said


def test_what_may_be_chance_is_called_so(run: Evaluated) -> None:
    few = replace(run, ood={}, scores={}, thumbnails=None, consensus=None)
    numbers = measure(few, resamples=50)
    doubt = "This may be chance"
    for low, expected in ((0.4, True), (0.6, False)):
        interval = replace(numbers.evaluation.intervals["r_auroc"], low=low, high=0.9)
        evaluation = numbers.evaluation.model_copy(update={"intervals": {"r_auroc": interval}})
        assert (doubt in told(replace(numbers, evaluation=evaluation))) == expected


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
def test_what_is_bad_is_called_bad(changes: dict[str, float], row: str) -> None:
    verdicts = {line[0]: line[4] for line in diagnostics_table(replace(DIAGNOSTICS, **changes)).rows}  # type: ignore[arg-type]
    assert {name for name, verdict in verdicts.items() if verdict == BAD} == {row}
    assert sum(verdict == FINE for verdict in verdicts.values()) == 3


def test_every_number_of_the_diagnostics_is_on_the_page() -> None:
    diagnostics = Diagnostics(0.1234, 0.0456, 2.51, 3.02, 0.25, 0.512, 9.121, 6464)
    cells = " ".join(cell for row in diagnostics_table(diagnostics).rows for cell in row)
    for text in ("0.1234", "0.0456", "2.51", "3.02", "25.0 %", "0.512", "9.121", "6,464"):
        assert text in cells


# --- wrong input ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"title": " "}, "title is empty"),
        ({"labels": [0, 1]}, "labels has 2 entries for 60 embeddings"),
        ({"class_names": ["a"]}, "labels has the label 1, class_names has 1 names"),
        ({"thumbnails": images(3)}, "thumbnails has 3 entries for 60 embeddings"),
        ({"file_names": ["a"]}, "file_names has 1 entries for 60 embeddings"),
        ({"scores": {"s": Uncertainties(torch.ones(3))}}, r"scores\['s'\] has 3 entries for 60"),
        (
            {"scores": {"s": Uncertainties(torch.ones(60), {"x": torch.ones(2)})}},
            "given for the OOD images 'x', there are: digits",
        ),
    ],
)
def test_wrong_input_is_named(run: Evaluated, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(run, **changes)


def test_the_earlier_name_of_ood_images_is_still_taken(run: Evaluated) -> None:
    with pytest.warns(DeprecationWarning, match="ood="):
        again = Evaluated(run.title, run.embedding, run.labels, strangers=run.ood)
    assert again.ood is run.ood


def test_wrong_embeddings_are_named(run: Evaluated) -> None:
    e = run.embedding
    nan = torch.full((60,), math.nan)
    with pytest.raises(ValueError, match=r"embedding\.uncertainty has NaN in 60 of 60"):
        replace(run, embedding=e.with_uncertainty(nan))
    with pytest.raises(ValueError, match=r"embedding\.kappa has NaN, the first is entry 0"):
        replace(run, embedding=StochasticEmbedding(e.point, e.mean, nan, torch.ones(60)))
    with pytest.raises(ValueError, match=r"ood\['s'\] has 7 dimensions and the embedding 4"):
        replace(run, ood={"s": (plain_run(6, 7).embedding, None)}, scores={})
    with pytest.raises(ValueError, match="consensus is of 60 images, there are 30"):
        cut(replace(run, thumbnails=None, file_names=None, scores={}), 30)
    with pytest.raises(ValueError, match="mapped is 2"):
        run_report(run, mapped=2)
