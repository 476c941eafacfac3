"""What result files say of pairs: read, put into columns, and drawn."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.figure import Figure
from PIL import Image

from experiments.harness.results import Result, ResultFileError, Space, read_result
from experiments.harness.tables.table_columns import find
from experiments.n_digit import draw_plane, plane_maps
from tests.experiments.tables.synthetic import result, write


def a_result(folder: Path, **change: Any) -> Result:
    content = result("n_digit/x", 0)
    content["verification"]["test"].update(change)
    return read_result(write(folder, content))


def test_columns_find_what_was_measured(tmp_path: Path) -> None:
    content = result("n_digit/x", 0)
    record = read_result(write(tmp_path, content))
    test = content["verification"]["test"]
    corrupt = content["verification"]["unseen corrupt"]
    assert find("AP of pairs, clean").value(record) == test["average_precision"]
    assert find("5-NN in the clean, unseen corrupt").value(record) == corrupt["knn_in_gallery"]
    own = find("tau of 5-NN, unseen corrupt")
    assert own.value(record) == corrupt["correlations"]["own"]["knn"]
    assert own.value(record, "nearest distance") == corrupt["correlations"]["nearest distance"]["knn"]
    assert math.isnan(own.value(record, "no such score"))
    assert own.about_uncertainty
    assert not find("AP of pairs, clean").about_uncertainty


def test_results_without_it_have_no_number(tmp_path: Path) -> None:
    content = result("n_digit/x", 0)
    del content["verification"]
    record = read_result(write(tmp_path, content))
    assert record.verification == {}
    assert math.isnan(find("AP of pairs, clean").value(record))
    assert math.isnan(find("tau of AP, corrupt").value(record))
    nothing = a_result(tmp_path, knn_in_gallery=None, space=None)
    assert math.isnan(find("5-NN in the clean, clean").value(nothing))
    assert nothing.verification["test"].space is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"knn": "high"}, "verification.test.knn is 'high'"),
        ({"bins": {"own": {"knn": [[1.0]]}}}, "verification.test.bins.own.knn has 2 dimensions, not 1"),
        ({"space": {"means": [[[0.0, 0.0]]]}}, "verification.test.space.variances is missing"),
        ({"correlations": []}, None),
    ],
)
def test_a_damaged_part_is_named(change: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    if said is None:  # an empty list is nothing, as null is
        assert a_result(tmp_path, **change).verification["test"].correlations == {}
        return
    with pytest.raises(ResultFileError, match=said):
        a_result(tmp_path, **change)


# --- pictures ---


def size(picture: bytes) -> tuple[int, int]:
    image = Image.open(io.BytesIO(picture))
    image.verify()
    return image.size


def space(components: int = 2, dim: int = 2, variance: float = 0.04) -> Space:
    means = np.arange(6 * components * dim, dtype=float).reshape(6, components, dim)
    labels = np.array([0, 9, 10, 17, 71, 99])
    return Space(means, np.full_like(means, variance), labels, means[:3].mean(1), labels[:3])


def test_ellipses_are_three_deviations_wide_and_components_are_joined() -> None:
    one = space()
    one.variances[0, 0] = [0.01, 0.25]
    axes = Figure().add_subplot()
    draw_plane(axes, one, digits=2)
    ellipses = [entry for entry in axes.collections if isinstance(entry, EllipseCollection)]
    assert len(ellipses) == 2  # what fills them and what is around them
    for entry in ellipses:
        np.testing.assert_allclose(entry.get_widths()[0], 6 * 0.1)
        np.testing.assert_allclose(entry.get_heights()[0], 6 * 0.5)
        np.testing.assert_allclose(entry.get_offsets(), one.means.reshape(-1, 2))
    (lines,) = (entry for entry in axes.collections if isinstance(entry, LineCollection))
    np.testing.assert_allclose(lines.get_segments()[3], one.means[3])
    assert [text.get_text() for text in axes.texts] == ["00", "09", "10"]
    colours = ellipses[1].get_edgecolors()
    # Two components of an image, and images with the same first digit, are of one colour.
    assert (colours[0] == colours[3]).all()
    assert (colours[3] != colours[4]).any()


def test_points_are_dots() -> None:
    axes = Figure().add_subplot()
    draw_plane(axes, space(components=1, variance=0.0), digits=2)
    assert not any(isinstance(entry, (EllipseCollection, LineCollection)) for entry in axes.collections)


def test_maps_are_drawn(tmp_path: Path) -> None:
    verification = a_result(tmp_path).verification
    sets = {name: verification[name].space for name in ("test", "corrupt")}
    rows = {"A": sets, "B": {"test": sets["test"]}}
    wide, high = size(plane_maps(rows, 2, "T"))  # type: ignore[arg-type]
    assert wide == pytest.approx(high, rel=0.01)
    many = space()
    crowd = Space(
        many.means,
        many.variances,
        many.labels,
        np.random.default_rng(0).normal(size=(200, 2)),
        np.arange(200),
    )
    assert size(plane_maps({"A": {"test": crowd}}, 3))[0] > 100
    with pytest.raises(ValueError, match="A has 3 dimensions: only planes"):
        plane_maps({"A": {"test": space(dim=3)}})
    with pytest.raises(ValueError, match="no plane to draw"):
        plane_maps({})
