"""Answer sets that grow with doubt: caps around a query that hold an item of its class as often as promised."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Concentrations of the table, evenly spaced in their logarithm: from 0.01 sqrt(D), as good as uniform, to 1e6 D, as
# good as a point. They must not depend on the calibration queries, or these would not be like later ones any more.
NODES = 128


@dataclass(frozen=True)
class CredibleCaps:
    """Caps of angle `radius(kappa)` around the mean direction of a query; its answer are all items inside.

    The radius is that of the cap which holds ``level`` of a von Mises-Fisher distribution of this kappa, times one
    number for all queries, ``stretch``, with which the caps of calibration queries hold an item of their class as often
    as promised (split conformal prediction). The promise holds whatever kappa is worth; the better it is, the smaller
    are the caps of queries that are certain. A stretch far above 1 says that they are surer than they should be.

    The radius comes from a table, interpolated with an error of about 1 % (0.3 % up to a level of 0.9). The promise
    does not depend on that: calibration reads the same table, and any error of it is part of the stretch.

    The promise is for queries that are exchangeable with those of the calibration, and for the same items. Those whose
    class has no item are never covered, and the promise counts them as such.

    Attributes:
        dim: D, the dimension of the space around the sphere.
        level: the share of queries whose cap holds an item of their class.
        delta: None where that share is an expectation over calibration sets; else the probability of a calibration
            set with a smaller share.
        stretch: what the nominal radius is multiplied by.
        queries: how many were calibrated on.
        nominal: the radii (128,) of the table.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> kappa = generator.uniform(10, 1000, 500)
        >>> angle = np.abs(generator.normal(size=500)) / np.sqrt(kappa)
        >>> caps = CredibleCaps.calibrate(angle, kappa, dim=3, level=0.9)
        >>> caps.radius([0.0, 10.0, 1000.0]).round(2)
        array([1.82, 0.5 , 0.05])
        >>> caps.contains([0.4, 0.4], [10.0, 1000.0])
        array([ True, False])
    """

    dim: int
    level: float
    delta: float | None
    stretch: float
    queries: int
    nominal: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_promise(self.level, self.delta)
        if not 0 <= self.stretch < math.inf:
            raise ValueError(f"stretch is {self.stretch}: it is a number from 0 up")
        if len(self.nominal) < 2 or not all(0 < radius <= math.pi for radius in self.nominal):
            raise ValueError("nominal has to hold at least two angles above 0, in radians up to pi")

    @staticmethod
    def calibrate(
        angle_to_right: ArrayLike,
        kappa: ArrayLike,
        dim: int,
        *,
        level: float = 0.9,
        delta: float | None = None,
    ) -> CredibleCaps:
        """The caps that hold an item of the query's class with probability ``level``.

        Without ``delta`` that is the probability over a calibration set and one query after it. With it, the share
        of covered queries is at least ``level`` for all calibration sets but a share of delta; that needs queries
        that are drawn independently, and caps that are a little larger.

        Args:
            angle_to_right: (n,), the angle in radians from each calibration query's mean to the nearest item of its
                class; infinity where no item has its class.
            kappa: (n,), the concentration of each query, from 0 to infinity.
            dim: D.
            level: strictly between 0 and 1.
            delta: strictly between 0 and 1, or None.
        """
        _check_promise(level, delta)
        angles = _angles("angle_to_right", angle_to_right)
        concentrations = _concentrations(kappa)
        if angles.ndim != 1 or concentrations.shape != angles.shape:
            raise ValueError(
                f"angle_to_right has shape {angles.shape} and kappa {concentrations.shape}: one number for each "
                "calibration query is needed of both"
            )
        count, least = len(angles), needed(level, delta)
        if count < least:
            surely = "" if delta is None else f" with probability {1 - delta:g}"
            raise ValueError(
                f"{count} calibration queries are too few to promise {level:g}{surely}: at least {least} are needed"
            )
        nominal = _nominal_radii(dim, level)
        scores = np.sort(angles / _interpolate(concentrations, dim, nominal))
        stretch = float(scores[_rank(count, level, delta) - 1])
        if stretch == math.inf:
            missing = int(np.isinf(angles).sum())
            raise ValueError(
                f"{missing} of {count} calibration queries ({missing / count:.1%}) have no item of their class, so "
                f"that no cap holds one for {level:g} of the queries: lower the level, or add items of their classes"
            )
        return CredibleCaps(int(dim), float(level), delta, stretch, count, nominal)

    def radius(self, kappa: ArrayLike) -> NDArray[np.float64]:
        """The angles in radians of caps of queries with these concentrations, of any shape; pi is everything.

        They shrink as kappa grows.
        """
        nominal = _interpolate(_concentrations(kappa), self.dim, self.nominal)
        # The calibration divided by the nominal radius; rounding must not put a query with the same angle outside.
        stretched: NDArray[np.float64] = np.minimum(self.stretch * nominal * (1 + 1e-15), math.pi)
        return stretched

    def contains(self, angles: ArrayLike, kappa: ArrayLike) -> NDArray[np.bool_]:
        """Whether items at these angles, in radians, are in the caps; the shapes broadcast."""
        return np.asarray(_angles("angles", angles) <= self.radius(kappa))

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON, about three kilobytes."""
        return asdict(self) | {"nominal": list(self.nominal)}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> CredibleCaps:
        """What `to_dict` gave."""
        return CredibleCaps(**{**stored, "nominal": tuple(stored["nominal"])})


def needed(level: float, delta: float | None = None) -> int:
    """The least number of calibration queries with which a level can be promised.

    Example:
        >>> needed(0.9), needed(0.9, delta=0.1)
        (9, 22)
    """
    _check_promise(level, delta)
    if delta is None:
        exact = _decimal(level)
        return math.ceil(exact / (1 - exact))
    count = max(1, math.floor(math.log(delta) / math.log(level)) - 1)
    while level**count > delta:
        count += 1
    return count


def _rank(count: int, level: float, delta: float | None) -> int:
    """Which of the ascending scores is the stretch, from 1 to count; there are as many as `needed`."""
    if delta is None:
        return math.ceil((count + 1) * _decimal(level))
    from scipy.special import betainc

    # The coverage of the k-th smallest of continuous scores is Beta(k, n + 1 - k), with ties it is larger. It falls
    # short of the level with probability I_level(k, n + 1 - k).
    ranks = np.arange(1, count + 1)
    enough = betainc(ranks, count + 1 - ranks, level) <= delta
    # The last is enough because so many are needed, whichever way the sum above was rounded.
    return int(np.argmax(enough)) + 1 if enough.any() else count


def _decimal(level: float) -> Fraction:
    """The level as it is written: ten times 0.9 is nine, not a little more."""
    return Fraction(repr(float(level)))


@functools.lru_cache(maxsize=16)
def _nominal_radii(dim: int, level: float) -> tuple[float, ...]:
    import torch

    from laplacian_metric import vmf

    kappa = torch.from_numpy(np.exp(_log_nodes(dim, NODES)))
    return tuple(vmf.cap_quantile(kappa, dim, level).tolist())


def _log_nodes(dim: int, count: int) -> NDArray[np.float64]:
    if dim < 2:
        raise ValueError(f"dim is {dim}, at least 2 is needed: in one dimension the sphere is two points")
    return np.linspace(math.log(0.01 * math.sqrt(dim)), math.log(1e6 * dim), count)


def _interpolate(kappa: NDArray[np.float64], dim: int, nominal: tuple[float, ...]) -> NDArray[np.float64]:
    """The nominal radius, its logarithm linear in that of kappa between the nodes and constant beyond them."""
    at = np.log(np.maximum(kappa, np.finfo(np.float64).tiny))
    interpolated: NDArray[np.float64] = np.exp(np.interp(at, _log_nodes(dim, len(nominal)), np.log(nominal)))
    return interpolated


def _check_promise(level: float, delta: float | None) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}: it is a share strictly between 0 and 1")
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"delta is {delta}: it is None or a probability strictly between 0 and 1")


def _angles(name: str, values: ArrayLike) -> NDArray[np.float64]:
    angles = np.asarray(values, dtype=np.float64)
    # float32's pi is larger than pi.
    wrong = ~((angles >= 0) & ((angles <= math.pi + 1e-6) | np.isposinf(angles)))
    if wrong.any():
        raise ValueError(
            f"{name} has the value {angles[wrong].flat[0]:g}: angles are in radians, from 0 to pi, or infinite where "
            "there is none"
        )
    return np.where(np.isinf(angles), angles, np.minimum(angles, math.pi))


def _concentrations(kappa: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(kappa, dtype=np.float64)
    wrong = ~(array >= 0)
    if wrong.any():
        raise ValueError(
            f"kappa has the value {array[wrong].flat[0]:g}: concentrations are from 0 (uniform) to infinity"
        )
    return array
