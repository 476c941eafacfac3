"""Random numbers that depend on a seed only.

numpy promises that the raw output of its bit generators stays the same from release to release, and does not
promise it for shuffles and distributions. What data sets are made of is therefore drawn from raw output.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def uniforms(seed: tuple[int, ...], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that are uniform and independent; another seed gives unrelated ones.

    Zeros at the end of a seed do not make it another: (1,) and (1, 0) are the same.

    Example:
        >>> bool((uniforms((1, 2), (3,)) == uniforms((1, 2), (3,))).all())
        True
    """
    raw = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(int(np.prod(shape)))
    # The upper 53 bits are what a double holds.
    numbers: npt.NDArray[np.float64] = (raw >> np.uint64(11)) * 2.0**-53
    return numbers.reshape(shape)


def permutation(seed: tuple[int, ...], count: int) -> npt.NDArray[np.int64]:
    """The numbers below `count` in random order."""
    return np.argsort(uniforms(seed, (count,)), kind="stable").astype(np.int64)
