"""How likely an uncertain query and an uncertain item are the same point, in numpy.

The forms are those of `laplacian_metric.vmf`; a saved index answers with them, which must not cost an import of torch.
Cosines come from a product in float32, so what is near is known to about 1e-7: the distance that is smaller than that
counts as none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laplacian_metric.vmf.bessel_expansion import expand

# Beyond it a concentration is a point for every purpose, and squares of it still fit into a float64.
LARGEST_KAPPA = 1e100


def mean_resultant_length(kappa: ArrayLike, dim: int) -> NDArray[np.float64]:
    """A_D(kappa) = |E x|, from 0 for the uniform distribution to 1 for a point; of the shape of kappa.

    Example:
        >>> mean_resultant_length([0.0, 10.0, np.inf], 3)
        array([0. , 0.9, 1. ])
    """
    return expand(np, _concentration("kappa", kappa), _dim(dim)).length


def log_expected_likelihood(
    similarity: ArrayLike, kappa: ArrayLike, other_kappa: ArrayLike, dim: int
) -> NDArray[np.float64]:
    """log int p q of two von Mises-Fisher distributions, less that of the uniform distribution with itself.

    With h(k) = log C(k) - log C(0) + k and c = |k1 m1 + k2 m2| it is h(k1) + h(k2) - h(c) - (k1 + k2 - c). It is 0
    where either knows nothing, positive where the two are rather one than two unrelated ones, and negative otherwise.

    Args:
        similarity: cosines of the mean directions.
        kappa: the concentration of one.
        other_kappa: the concentration of the other. All three broadcast.
        dim: D.

    Example:
        >>> log_expected_likelihood([1.0, -1.0, 0.3], 10.0, [10.0, 10.0, 0.0], 3).round(4) + 0
        array([  2.3026, -14.0085,   0.    ])
    """
    k, other = _concentration("kappa", kappa), _concentration("other_kappa", other_kappa)
    cosine = np.asarray(similarity, dtype=np.float64)
    if not ((cosine >= -1.001) & (cosine <= 1.001)).all():
        wrong = cosine[~((cosine >= -1.001) & (cosine <= 1.001))].flat[0]
        raise ValueError(f"similarity has the value {wrong:g}: cosines are from -1 to 1")
    cosine = cosine.clip(-1, 1)
    dim = _dim(dim)
    together = np.sqrt(np.square(k - other) + 2 * k * other * (1 + cosine))
    # k1 + k2 - c without a subtraction of what is nearly the same
    lost = 2 * k * other * (1 - cosine) / np.maximum(k + other + together, np.finfo(np.float64).tiny)
    height = expand(np, k, dim).scaled + expand(np, other, dim).scaled - expand(np, together, dim).scaled
    log_likelihood: NDArray[np.float64] = height - lost
    return log_likelihood


def _concentration(name: str, kappa: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(kappa, dtype=np.float64)
    if not (array >= 0).all():
        wrong = array[~(array >= 0)].flat[0]
        raise ValueError(f"{name} has the value {wrong:g}: concentrations are from 0 (uniform) to infinity")
    return np.minimum(array, LARGEST_KAPPA)


def _dim(dim: int) -> int:
    if dim < 2:
        raise ValueError(f"dim is {dim}, at least 2 is needed: in one dimension the sphere is two points")
    return int(dim)
