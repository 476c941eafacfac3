"""What is on the axes is what was given; what is not there is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from scipy import stats

from laplacian_metric import methods
from laplacian_metric.metrics.out_of_distribution import Roc
from experiments.harness.tables.curves import (
    calibration_curves,
    draw_calibration,
    draw_roc,
    draw_sparsification,
    draw_training,
    on_one_grid,
    pooled_bins,
    roc_curves,
    sparsification_curves,
    training_curves,
)
from experiments.harness.tables.descriptions import PublishedNumber
from experiments.harness.tables.latent import (
    angular_deviation,
    arcs,
    draw_circle,
    draw_sphere,
    hammer,
    latent_maps,
    outlines,
    tangential,
)
from experiments.harness.tables.pictures import PictureRow, as_pixels, draw_extremes, extreme_pictures
from experiments.harness.tables.seeds import Cell
from experiments.harness.tables.styles import styles
from experiments.harness.tables.summary import draw_summary, summary_figure
from experiments.harness.tables.table_columns import find
from experiments.harness.results import Cloud, Latent, Result, read_result
from tests.experiments.tables.synthetic import result, write

PNG = b"\x89PNG\r\n\x1a\n"
FAILED = Cell("f", (), failed=(Result(cell="f", seed=0, error="boom"),))
MISSING = Cell("g", (), missing=(0,))


def cell(folder: Path, name: str, seeds: int = 3, level: float = 0.8) -> tuple[Cell, list[dict[str, Any]]]:
    contents = [result(name, seed, level) for seed in range(seeds)]
    return Cell(name, tuple(read_result(write(folder, content)) for content in contents)), contents


def axes() -> Axes:
    return Figure().add_subplot()


def line(drawn: Axes, label: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    labelled_line = next(one for one in drawn.lines if str(one.get_label()).startswith(label))
    return np.asarray(labelled_line.get_xdata()), np.asarray(labelled_line.get_ydata())


def legend(drawn: Axes) -> list[str]:
    return drawn.get_legend_handles_labels()[1]


def test_calibration_pools_the_seeds(tmp_path: Path) -> None:
    mine, contents = cell(tmp_path, "a")
    drawn = axes()
    draw_calibration(drawn, {"A": mine, "F": FAILED, "G": MISSING})
    rows = list(zip(*(content["calibration"]["table"] for content in contents), strict=True))[1:]
    x, y = line(drawn, "A")
    np.testing.assert_allclose(
        x, [np.average([b["confidence"] for b in r], weights=[b["count"] for b in r]) for r in rows]
    )
    np.testing.assert_allclose(
        y, [np.average([b["accuracy"] for b in r], weights=[b["count"] for b in r]) for r in rows]
    )
    assert legend(drawn) == ["perfect", "A", "F: failed", "G: missing"]
    shares = next(one for one in drawn.collections if isinstance(one, PathCollection)).get_sizes()
    np.testing.assert_allclose(shares / shares.sum(), np.arange(1, 10) / 45)


def test_empty_bins_stay_empty_when_pooled(tmp_path: Path) -> None:
    mine, _ = cell(tmp_path, "a", seeds=2)
    pooled = pooled_bins([one.calibration.bins for one in mine.done if one.calibration])
    assert pooled[0].count == 0
    assert math.isnan(pooled[0].accuracy)


def test_roc_is_the_mean_with_its_band(tmp_path: Path) -> None:
    mine, contents = cell(tmp_path, "a")
    drawn = axes()
    draw_roc(drawn, {"A": mine, "F": FAILED}, "svhn")
    x, y = line(drawn, "A")
    curves = np.array([content["curves"]["roc"]["svhn"]["true_positive_rate"] for content in contents])
    np.testing.assert_array_equal(x, contents[0]["curves"]["roc"]["svhn"]["false_positive_rate"])
    np.testing.assert_allclose(y, curves.mean(0))
    outline = drawn.collections[0].get_paths()[0].vertices
    high = np.clip(curves.mean(0) + curves.std(0, ddof=1), 0, 1)
    middle = len(x) // 2
    at = outline[outline[:, 0] == x[middle], 1]  # type: ignore[index, call-overload]
    assert at.max() == pytest.approx(high[middle])
    area = np.mean([content["scores"]["own"]["out"]["svhn"]["auroc"] for content in contents])
    assert legend(drawn) == ["chance, 0.5", f"A, {area:.2f}", "F: failed"]


def test_one_seed_is_drawn_as_it_is_without_a_band(tmp_path: Path) -> None:
    mine, contents = cell(tmp_path, "a", seeds=1)
    drawn = axes()
    draw_roc(drawn, {"A": mine}, "mnist")
    np.testing.assert_array_equal(
        line(drawn, "A")[1], contents[0]["curves"]["roc"]["mnist"]["true_positive_rate"]
    )
    assert len(drawn.collections) == 0


def test_curves_over_different_rates_meet_on_one_grid() -> None:
    two = [
        Roc(np.array([0.0, 1.0]), np.array([0.0, 1.0])),
        Roc(np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0, 1.0])),
    ]
    x, (first, second) = on_one_grid(two, points=5)
    np.testing.assert_allclose(x, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(first, x)
    np.testing.assert_allclose(second, [0, 0.5, 1, 1, 1])


def test_sparsification_has_oracle_and_random_and_the_others(tmp_path: Path) -> None:
    mine, contents = cell(tmp_path, "a")
    other, others = cell(tmp_path, "b", level=0.6)
    drawn = axes()
    draw_sparsification(drawn, {"A": mine, "B": other, "F": FAILED}, "A")
    for label, name in (("by uncertainty", "own"), ("oracle", "oracle"), ("random", "random")):
        x, y = line(drawn, label)
        np.testing.assert_allclose(x, np.arange(100) / 100)
        np.testing.assert_allclose(
            y, np.mean([c["curves"]["sparsification"][name] for c in contents], axis=0)
        )
    np.testing.assert_allclose(line(drawn, "other methods")[1], others[0]["curves"]["sparsification"]["own"])
    empty = axes()
    draw_sparsification(empty, {"A": mine, "F": FAILED}, "F")
    assert [text.get_text() for text in empty.texts] == ["failed"]


def test_training_is_the_mean_over_seeds_with_the_epoch_that_was_kept(tmp_path: Path) -> None:
    mine, contents = cell(tmp_path, "a", seeds=2)
    drawn = axes()
    draw_training(drawn, {"A": mine, "G": MISSING}, "map@1")
    histories = [[epoch["map@1"] for epoch in content["training"]["history"]] for content in contents]
    x, y = line(drawn, "A")
    np.testing.assert_array_equal(x, range(1, 9))
    np.testing.assert_allclose(y, np.mean(histories, axis=0))
    stars = [one for one in drawn.lines if one.get_marker() == "*"]
    assert [(one.get_xdata()[0], one.get_ydata()[0]) for one in stars] == [(7, h[6]) for h in histories]  # type: ignore[index]
    assert legend(drawn) == ["A", "G: missing"]
    losses = axes()
    draw_training(losses, {"A": mine}, None)
    np.testing.assert_allclose(
        line(losses, "A")[1],
        np.mean([[e["loss"] for e in c["training"]["history"]] for c in contents], axis=0),
    )


def test_summary_has_means_bars_and_published_numbers(tmp_path: Path) -> None:
    mine, contents = cell(tmp_path, "a")
    column = find("AUROC", out="mnist")
    drawn = axes()
    published = {("M", "AUROC", "A"): PublishedNumber.parse("0.5 ± 0.1")}
    draw_summary(drawn, {"M": ({"A": mine, "F": FAILED}, column)}, published=published)
    values = [content["scores"]["own"]["out"]["mnist"]["auroc"] for content in contents]
    ours, theirs = drawn.containers
    (point,) = ours[0].get_ydata()
    assert point == pytest.approx(np.mean(values))
    (bar,) = ours[2][0].get_segments()
    assert bar[:, 1] == pytest.approx(np.mean(values) + np.array([-1, 1]) * np.std(values, ddof=1))
    (bar,) = theirs[2][0].get_segments()
    assert bar[:, 1] == pytest.approx([0.4, 0.6])
    assert [text.get_text() for text in drawn.texts] == ["F: failed"]
    assert [text.get_text() for text in drawn.get_xticklabels()] == ["M"]


# --- maps ---


def test_hammer_keeps_areas() -> None:
    """The determinant of the map's derivative, by differences, is that of the sphere: cos(latitude)."""
    step = 1e-5

    def place(longitude: float, latitude: float) -> npt.NDArray[np.float64]:
        flat = math.cos(latitude)
        return hammer(np.array([flat * math.cos(longitude), flat * math.sin(longitude), math.sin(latitude)]))

    for longitude, latitude in ((0.0, 0.0), (2.5, 1.0), (-3.0, -1.2), (1.0, 0.3)):
        along = (place(longitude + step, latitude) - place(longitude - step, latitude)) / (2 * step)
        upward = (place(longitude, latitude + step) - place(longitude, latitude - step)) / (2 * step)
        assert along[0] * upward[1] - along[1] * upward[0] == pytest.approx(math.cos(latitude), abs=1e-6)


@pytest.mark.parametrize("kappa", [0.01, 0.5, 3.0, 40.0, 1e5])
def test_the_cap_holds_its_share(kappa: float) -> None:
    angle = float(angular_deviation(np.array([kappa]), 3)[0])
    # On the sphere 1 - cos is distributed exponentially, cut off at 2.
    share = stats.truncexpon(b=2 * kappa, scale=1 / kappa).cdf(1 - math.cos(angle))
    assert share == pytest.approx(1 - math.exp(-0.5), rel=1e-6)


def test_no_concentration_and_unknown_concentration() -> None:
    degrees = angular_deviation(np.array([0.0, np.inf, np.nan]), 3)
    assert degrees[0] == pytest.approx(angular_deviation(np.array([1e-7]), 3)[0], abs=1e-5)
    assert degrees[1] == 0
    assert math.isnan(degrees[2])
    np.testing.assert_allclose(angular_deviation(np.array([4.0, 0.0]), 2), [0.5, np.pi])


def some_cloud(kappa: bool, covariances: bool, length: float = 1.0) -> Cloud:
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(5, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    factors = generator.normal(size=(5, 3, 3)) * 0.01
    return Cloud(
        directions * length,
        factors @ factors.transpose(0, 2, 1) * length**2 if covariances else None,
        np.array([5.0, 50.0, 500.0, 2000.0, 1e4]) if kappa else None,
        np.array([0, 0, 1, 1, 2]),
    )


def test_without_a_covariance_the_outline_is_a_circle_of_kappa() -> None:
    cloud = some_cloud(kappa=True, covariances=False)
    lines = outlines(cloud)
    assert cloud.kappa is not None
    np.testing.assert_allclose(np.linalg.norm(lines, axis=2), 1.0)
    angles = np.arccos((lines * cloud.points[:, None]).sum(2))
    np.testing.assert_allclose(
        angles, np.broadcast_to(angular_deviation(cloud.kappa, 3)[:, None], angles.shape)
    )


@pytest.mark.parametrize("length", [1.0, 3.0])
def test_the_outline_has_the_shape_of_the_tangential_covariance(length: float) -> None:
    cloud = some_cloud(kappa=False, covariances=True, length=length)
    assert cloud.covariances is not None
    directions = cloud.points / length
    for direction, covariance, around in zip(directions, cloud.covariances, outlines(cloud), strict=True):
        # In the tangent space every place t of the outline has t' S^+ t = 1, with S the projected covariance.
        project = np.eye(3) - np.outer(direction, direction)
        tangent = around @ project
        angle = np.linalg.norm(tangent, axis=1, keepdims=True)
        tangent *= np.arcsin(angle) / angle
        inverse = np.linalg.pinv(project @ covariance @ project / length**2, rcond=1e-9)
        np.testing.assert_allclose(np.einsum("si,ij,sj->s", tangent, inverse, tangent), 1.0, rtol=1e-6)


def test_with_both_kappa_says_how_wide_and_the_length_of_the_points_does_not_matter() -> None:
    both, longer = some_cloud(True, True), some_cloud(True, True, length=7.0)
    np.testing.assert_allclose(outlines(both), outlines(longer), atol=1e-12)
    assert both.kappa is not None
    angles = np.arccos(np.clip((outlines(both) * both.points[:, None]).sum(2), -1, 1))
    # The mean square over one round is the mean of the two half axes squared.
    mean = np.sqrt((angles[:, :-1] ** 2).mean(1))
    np.testing.assert_allclose(mean, angular_deviation(both.kappa, 3), rtol=1e-6)


def test_the_tangent_basis_is_orthonormal() -> None:
    cloud = some_cloud(False, True)
    assert cloud.covariances is not None
    basis, spread = tangential(cloud.points, cloud.covariances)
    np.testing.assert_allclose(
        np.einsum("nia,nib->nab", basis, basis), np.tile(np.eye(2), (5, 1, 1)), atol=1e-12
    )
    np.testing.assert_allclose(np.einsum("ni,nia->na", cloud.points, basis), 0, atol=1e-12)
    assert spread.shape == (5, 2, 2)


def scatter(drawn: Axes, gid: str) -> npt.NDArray[np.float64]:
    return np.asarray(next(one for one in drawn.collections if one.get_gid() == gid).get_offsets())


def test_points_are_on_the_map_by_class() -> None:
    cloud = some_cloud(True, True)
    drawn = axes()
    draw_sphere(drawn, cloud, ["a", "b", "c"])
    np.testing.assert_allclose(scatter(drawn, "1"), hammer(cloud.points[2:4]))
    assert legend(drawn) == ["a", "b", "c"]


def test_an_outline_over_the_edge_of_the_map_is_cut() -> None:
    far = Cloud(np.array([[-1.0, 0.0, 0.0]]), None, np.array([50.0]), None)
    drawn = axes()
    draw_sphere(drawn, far)
    segments = [path.vertices for path in drawn.collections[1].get_paths()]
    assert len(segments) >= 2
    assert all(np.abs(np.diff(np.asarray(piece)[:, 0])).max() < 1 for piece in segments)


def test_what_is_too_wide_for_an_outline_is_hollow() -> None:
    kappa = np.array([0.1, 400.0, np.nan])
    cloud = Cloud(np.eye(3), None, kappa, np.zeros(3, dtype=np.int64))
    drawn = axes()
    draw_sphere(drawn, cloud)
    assert len(drawn.collections[0].get_paths()) == 1
    points = next(one for one in drawn.collections if one.get_gid() == "0")
    assert [face[3] > 0 for face in points.get_facecolor()] == [False, True, True]  # type: ignore[index]


def test_only_some_of_many_get_an_outline() -> None:
    angle = np.linspace(-1, 1, 90)
    points = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    drawn = axes()
    draw_sphere(drawn, Cloud(points, None, np.full(90, 1e3), None))
    assert len(drawn.collections[0].get_paths()) == 20
    assert len(scatter(drawn, "-1")) == 90


def test_a_circle_has_rings_of_classes_with_arcs() -> None:
    angle = np.array([0.1, 1.0, 2.0])
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1) * 2
    covariances = np.tile(np.eye(2) * 0.04, (3, 1, 1))
    cloud = Cloud(points, covariances, None, np.array([0, 1, 1]))
    arc_angles, deviation = arcs(cloud)
    np.testing.assert_allclose(arc_angles, angle)
    np.testing.assert_allclose(deviation, 0.1)  # 0.2/2
    drawn = axes()
    draw_circle(drawn, cloud)
    places = scatter(drawn, "1")
    np.testing.assert_allclose(np.arctan2(places[:, 1], places[:, 0]), angle[1:])


def test_maps_of_what_cannot_be_drawn() -> None:
    four = Cloud(np.eye(4), None, None, np.zeros(4, dtype=np.int64))
    with pytest.raises(ValueError, match="x has 4 dimensions"):
        latent_maps({"x": Latent(test=four)})
    with pytest.raises(ValueError, match="there is no space to draw"):
        latent_maps({})
    zero = Cloud(np.zeros((1, 3)), None, None, None)
    with pytest.raises(ValueError, match="row of zeros or NaN"):
        latent_maps({"x": Latent(test=zero)})


# --- pictures ---


def test_pictures_are_where_they_belong() -> None:
    images = [torch.full((1, 4, 4), value) for value in (0.1, 0.2, 0.3, 0.4)]
    figure = Figure()
    draw_extremes(
        figure,
        [PictureRow("in", images[:2], images[2:], "A"), PictureRow("out", images[2:], images[:2], "A")],
    )
    shown = [
        (axes.get_ylabel(), float(np.asarray(axes.images[0].get_array()).max()))
        for axes in figure.axes
        if axes.images and isinstance(axes.images[0], AxesImage)
    ]
    assert [value for _, value in shown] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.3, 0.4, 0.1, 0.2])
    assert [label for label, _ in shown] == ["in", "", "", "", "out", "", "", ""]
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert texts == ["A"]


def test_pixels() -> None:
    image = torch.rand(3, 2, 5, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(as_pixels(image)[1, 3], image[:, 1, 3].double())
    with pytest.raises(ValueError, match=r"has the shape \(2, 4, 4\)"):
        as_pixels(torch.zeros(2, 4, 4))
    with pytest.raises(ValueError, match="rows has no images"):
        extreme_pictures([])


# --- whole figures ---


def test_whole_figures_are_pictures_and_the_same_every_time(tmp_path: Path) -> None:
    mine, _ = cell(tmp_path, "a")
    cells = {"A": mine, "F": FAILED, "G": MISSING}
    latent = mine.done[0].latent
    assert latent is not None
    row = PictureRow("in", [torch.rand(1, 4, 4)] * 2, [torch.rand(3, 4, 4)] * 2)
    figures = [
        lambda: calibration_curves({"X": cells, "Y": cells}),
        lambda: roc_curves({"X": (cells, "mnist")}),
        lambda: sparsification_curves(cells, title="T"),
        lambda: training_curves(cells),
        lambda: summary_figure({"ECE": {"X": (cells, find("ECE"))}}),
        lambda: latent_maps({"X": latent}),
        lambda: extreme_pictures([row]),
    ]
    for draw in figures:
        picture = draw()
        assert picture.startswith(PNG)
        assert picture == draw()


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ValueError, match="none of the cells"):
        roc_curves({})
    with pytest.raises(ValueError, match="none of the cells has a sparsification curve"):
        sparsification_curves({"F": FAILED})
    with pytest.raises(ValueError, match="none of the cells has these metrics"):
        summary_figure({"ECE": {"X": ({"F": FAILED}, find("ECE"))}})


def test_every_method_has_a_style_of_its_own() -> None:
    names = [*methods.names(), *(f"other {number}" for number in range(20))]
    chosen_styles = styles(names)
    assert len({(style.colour, str(style.dashes)) for style in chosen_styles.values()}) == len(names)
    assert len({chosen_styles[name].colour for name in methods.names()}) == len(methods.names())
    # The same alone and among others.
    assert all(styles([name])[name] == chosen_styles[name] for name in methods.names())
