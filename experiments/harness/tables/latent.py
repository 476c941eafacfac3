"""Maps of spaces with two or three dimensions, with how far every image may be from where it is.

In three dimensions the whole sphere is drawn with Hammer's projection, whose areas are true. What is drawn around a
point is one standard deviation: as wide as kappa says, and of the shape of the tangential covariance where there is
one. In two dimensions it is an arc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from experiments.harness.results import Cloud, Latent
from experiments.harness.tables.styles import SMALL, panels, shared_legend
from laplacian_metric.report.plots import CLASSES, MARKERS, as_png

Array = npt.NDArray[np.float64]

ONE_SIGMA = 1 - np.exp(-0.5)  # of a Gaussian in the plane: the share within one standard deviation
STEPS = 48
OOD_COLOUR = "#222222"
WIDE = np.pi / 3  # an outline with a half axis beyond this says no more than that it is wide
OUTLINED = 20  # images of a class that get an outline, so that the others can still be seen
RING = 0.09  # how far apart the classes are drawn on a circle


def hammer(directions: Array) -> Array:
    """Unit vectors (..., 3) on the map (..., 2), an ellipse with half axes 2 sqrt(2) and sqrt(2); areas are true.

    Example:
        >>> hammer(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])).round(4) + 0.0
        array([[0.    , 0.    ],
               [0.    , 1.4142]])
    """
    longitude = np.arctan2(directions[..., 1], directions[..., 0])
    sine = np.clip(directions[..., 2], -1, 1)
    cosine = np.sqrt(1 - sine**2)
    scale = np.sqrt(2 / (1 + cosine * np.cos(longitude / 2)))
    return np.stack([2 * scale * cosine * np.sin(longitude / 2), scale * sine], axis=-1)


def angular_deviation(kappa: Array, dim: int) -> Array:
    """The angle (n,) that stands for one standard deviation of a von Mises-Fisher distribution; NaN for NaN.

    In three dimensions the cap of that angle holds 1 - exp(-1/2) of it, as one standard deviation of a Gaussian in the
    plane does; in two it is 1/sqrt(kappa). Both are pi at the most.

    Example:
        >>> angular_deviation(np.array([0.0, 10000.0]), 3).round(4)
        array([1.3561, 0.01  ])
    """
    kappa = np.asarray(kappa, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        if dim == 2:
            return np.asarray(np.minimum(1 / np.sqrt(kappa), np.pi))
        # P(cos > 1 - s) = (1 - exp(-kappa s))/(1 - exp(-2 kappa)), solved for s; its limit at 0 is s = 2 P.
        s = -np.log1p(ONE_SIGMA * np.expm1(-2 * kappa)) / kappa
    s = np.where(kappa < 1e-8, 2 * ONE_SIGMA, s)
    return np.asarray(2 * np.arcsin(np.sqrt(np.clip(s / 2, 0, 1))))


def tangential(directions: Array, covariances: Array) -> tuple[Array, Array]:
    """An orthonormal basis (n, Z, Z - 1) of every tangent space, and the covariances there (n, Z - 1, Z - 1)."""
    # The last rows of the right factor of a row's decomposition span what is orthogonal to the row.
    basis = np.linalg.svd(directions[:, None, :])[2][:, 1:].transpose(0, 2, 1)
    return basis, np.einsum("nia,nij,njb->nab", basis, covariances, basis)


def outlines(cloud: Cloud, steps: int = STEPS) -> Array:
    """The line (n, steps + 1, 3) on the sphere that is one standard deviation around every point; NaN where unknown."""
    directions = _directions(cloud)
    if cloud.covariances is None and cloud.kappa is None:
        return np.full((len(directions), steps + 1, 3), np.nan)
    shapes = cloud.covariances
    if shapes is None:
        shapes = np.broadcast_to(np.eye(3), (len(directions), 3, 3))
    basis, spread = tangential(directions, shapes)
    values, vectors = np.linalg.eigh((spread + spread.transpose(0, 2, 1)) / 2)
    half = np.sqrt(np.maximum(values, 0))
    mean = np.sqrt((half**2).mean(1))
    if cloud.kappa is None:
        # To first order a direction varies as the vector does, divided by its length.
        size = mean / np.linalg.norm(cloud.points, axis=1)
    else:
        size = angular_deviation(cloud.kappa, 3)
    half = half * (size / np.where(mean > 0, mean, 1))[:, None]
    turn = np.linspace(0, 2 * np.pi, steps + 1)
    plane = half[:, None, :] * np.stack([np.cos(turn), np.sin(turn)], axis=-1)
    tangent = np.einsum("nia,nab,nsb->nsi", basis, vectors, plane)
    length = np.linalg.norm(tangent, axis=2, keepdims=True)
    # Along the great circle: the length of the tangent vector is the angle.
    angle = np.minimum(length, np.pi)
    along = tangent / np.where(length > 0, length, 1)
    return np.asarray(np.cos(angle) * directions[:, None, :] + np.sin(angle) * along)


def _directions(cloud: Cloud) -> Array:
    length = np.linalg.norm(cloud.points, axis=1, keepdims=True)
    if not (length > 0).all():
        raise ValueError("points has a row of zeros or NaN, which has no direction: leave it out")
    return np.asarray(cloud.points / length)


def draw_sphere(axes: Axes, cloud: Cloud, names: Sequence[str] | None = None, plain: bool = False) -> None:
    """Points on the map, some with their outlines; `plain` draws all alike, in grey, without outlines.

    Of each class up to 20 points, at even steps, get an outline. Where it would reach beyond 60 degrees the point is
    hollow instead.
    """
    points = hammer(_directions(cloud))
    lines = outlines(cloud)
    for label, name, chosen, colour, marker in _classes(cloud, names):
        if plain:
            axes.scatter(points[chosen, 0], points[chosen, 1], s=3, color="#cccccc", linewidths=0, zorder=1)
            continue
        mine, around = points[chosen], lines[chosen]
        with np.errstate(invalid="ignore"):
            cosines = (around * _directions(cloud)[chosen][:, None]).sum(2)
            wide = (cosines < np.cos(WIDE)).any(1)
        some = np.zeros(len(mine), dtype=bool)
        some[np.arange(min(OUTLINED, len(mine))) * len(mine) // min(OUTLINED, len(mine))] = True
        drawn = around[some & ~wide & np.isfinite(cosines).all(1)]
        whole, cut = _split(drawn)
        axes.add_collection(PolyCollection(whole, facecolors=colour, alpha=0.08, linewidths=0, zorder=2))
        axes.add_collection(
            LineCollection([*whole, *cut], colors=colour, alpha=0.45, linewidths=0.5, zorder=2)
        )
        faces = ["none" if hollow else colour for hollow in wide]
        axes.scatter(
            mine[:, 0], mine[:, 1], s=7, facecolors=faces, edgecolors=colour, marker=marker, linewidths=0.5,
            label=name, zorder=3, gid=str(label),
        )  # fmt: skip


def _split(lines: Array) -> tuple[list[Array], list[Array]]:
    """Lines (n, S, 3) on the map: those in one piece, and the pieces of those that the map's edge cuts."""
    whole, pieces = [], []
    for line in lines:
        places = hammer(line)
        jumps = np.flatnonzero(np.linalg.norm(np.diff(places, axis=0), axis=1) > 1.0) + 1
        if len(jumps):
            pieces += [piece for piece in np.split(places, jumps) if len(piece) > 1]
        else:
            whole.append(places)
    return whole, pieces


def _classes(
    cloud: Cloud, names: Sequence[str] | None
) -> list[tuple[int, str, npt.NDArray[np.bool_], str, str]]:
    """For every label that occurs: it, its name, which points have it, colour and marker."""
    if cloud.labels is None:
        return [(-1, "OOD images", np.ones(len(cloud.points), dtype=bool), OOD_COLOUR, "o")]
    return [
        (
            int(label),
            str(label) if names is None else names[int(label)],
            cloud.labels == label,
            CLASSES[int(label) % len(CLASSES)],
            MARKERS[int(label) % len(MARKERS)],
        )
        for label in np.unique(cloud.labels)
    ]


def _frame(axes: Axes) -> None:
    """The edge of the map with parallels and meridians."""
    around = np.linspace(-np.pi, np.pi, 181)[1:-1]
    upward = np.linspace(-np.pi / 2, np.pi / 2, 91)
    lines = [_line(around, np.full_like(around, degrees)) for degrees in np.deg2rad([-60, -30, 0, 30, 60])]
    lines += [_line(np.full_like(upward, degrees), upward) for degrees in np.deg2rad(range(-120, 121, 60))]
    axes.add_collection(LineCollection(lines, colors="#dddddd", linewidths=0.5, zorder=0))
    turn = np.linspace(0, 2 * np.pi, 181)
    axes.plot(
        2 * np.sqrt(2) * np.cos(turn), np.sqrt(2) * np.sin(turn), color="#888888", linewidth=0.8, zorder=4
    )


def _line(longitude: Array, latitude: Array) -> Array:
    x, y = np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude)
    return hammer(np.stack([x, y, np.sin(latitude)], axis=-1))


def arcs(cloud: Cloud) -> tuple[Array, Array]:
    """Angle and angular deviation (n,) of points in the plane."""
    directions = _directions(cloud)
    angle = np.arctan2(directions[:, 1], directions[:, 0])
    if cloud.kappa is not None:
        return angle, angular_deviation(cloud.kappa, 2)
    if cloud.covariances is None:
        return angle, np.full(len(angle), np.nan)
    _, spread = tangential(directions, cloud.covariances)
    deviation = np.sqrt(np.maximum(spread[:, 0, 0], 0)) / np.linalg.norm(cloud.points, axis=1)
    return angle, np.minimum(deviation, np.pi)


def draw_circle(axes: Axes, cloud: Cloud, names: Sequence[str] | None = None, plain: bool = False) -> None:
    """Points around the circle, every class on a ring of its own, with arcs of one standard deviation."""
    angle, deviation = arcs(cloud)
    for ring, (label, name, chosen, colour, marker) in enumerate(_classes(cloud, names)):
        radius = 1.0 if plain else 1 + RING * (ring + 1)
        places = np.stack([np.cos(angle[chosen]), np.sin(angle[chosen])], axis=1) * radius
        if plain:
            axes.scatter(places[:, 0], places[:, 1], s=3, color="#cccccc", linewidths=0, zorder=1)
            continue
        lines = []
        for middle, reach in zip(angle[chosen], deviation[chosen], strict=True):
            if np.isfinite(reach):
                turn = np.linspace(middle - reach, middle + reach, STEPS)
                lines.append(radius * np.stack([np.cos(turn), np.sin(turn)], axis=1))
        axes.add_collection(LineCollection(lines, colors=colour, alpha=0.12, linewidths=2.5, zorder=2))
        axes.scatter(
            places[:, 0],
            places[:, 1],
            s=9,
            color=colour,
            marker=marker,
            linewidths=0,
            label=name,
            zorder=3,
            gid=str(label),
        )


def latent_maps(
    groups: Mapping[str, Latent],
    names: Sequence[str] | None = None,
    ood: Sequence[str] | None = None,
    title: str = "",
    columns: int | None = None,
) -> bytes:
    """For each title the known images by class, and beside them each set of OOD images over the known in grey.

    Args:
        groups: spaces of two or three dimensions.
        names: of the classes.
        ood: which sets of them; by default those of the first space.
        title: of the figure.
        columns: of the maps; by default a row for each space.
    """
    if not groups:
        raise ValueError("there is no space to draw: none of the cells has one of two or three dimensions")
    shown = list(next(iter(groups.values())).ood) if ood is None else list(ood)
    width, height = (
        (4.6, 2.75) if all(len(one.test.points[0]) == 3 for one in groups.values()) else (3.4, 3.7)
    )
    maps = 1 + len(shown)
    # Two spaces beside each other where there are many of few maps.
    columns = columns or (2 * maps if len(groups) > 3 and maps <= 2 else maps)
    figure, every = panels(len(groups) * maps, width, height, columns)
    places = iter(every)
    for space, latent in groups.items():
        dim = latent.test.points.shape[1]
        if dim not in (2, 3):
            raise ValueError(f"{space} has {dim} dimensions: only spaces of two or three can be drawn")
        draw = draw_sphere if dim == 3 else draw_circle
        axes = next(places)
        draw(axes, latent.test, names)
        axes.set_title(space, fontsize=9)
        _settle(axes, dim)
        for name in shown:
            axes = next(places)
            draw(axes, latent.test, names, plain=True)
            if name in latent.ood:
                draw(axes, latent.ood[name])
            axes.set_title(f"{space}: {name}" if name in latent.ood else f"{space}: no {name}", fontsize=9)
            _settle(axes, dim)
    if title:
        figure.suptitle(title, fontsize=10)
    shared_legend(figure, every, columns=6 if columns > 1 else 4, marker_scale=2)
    return as_png(figure)


def _settle(axes: Axes, dim: int) -> None:
    if dim == 3:
        _frame(axes)
    else:
        turn = np.linspace(0, 2 * np.pi, 181)
        axes.plot(np.cos(turn), np.sin(turn), color="#888888", linewidth=0.8, zorder=0)
    axes.set_aspect("equal")
    axes.autoscale_view()
    axes.axis("off")
    axes.title.set_fontsize(SMALL + 1)
