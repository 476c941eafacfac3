"""Directions of many dimensions as points in the plane."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

FEWEST = 5  # of fewer images there is no neighbourhood to keep
PERPLEXITY = 30.0


def principal_plane(directions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The first two principal components (N, 2) of directions (N, Z), each with the sign that makes its largest
    entry positive; zero where there are fewer.

    Example:
        >>> principal_plane(np.array([[0.0, 3.0], [0.0, 0.0], [0.0, 0.0]])).round(6).tolist()
        [[2.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]
    """
    centred = directions - directions.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(directions), 2))
    for column, value in enumerate(values[:2]):
        if value > 1e-12:
            component = left[:, column] * value
            plane[:, column] = component * np.sign(component[np.abs(component).argmax()])
    return plane


def angles(directions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The angles (N, N) between unit vectors (N, Z), to about 1e-8.

    Example:
        >>> np.rad2deg(angles(np.eye(2))).round(6).tolist()
        [[0.0, 90.0], [90.0, 0.0]]
    """
    squared = np.clip(2 - 2 * directions @ directions.T, 0, 4)
    np.fill_diagonal(squared, 0)
    return np.asarray(2 * np.arcsin(np.sqrt(squared) / 2))


def tsne_plane(directions: torch.Tensor, seed: int = 0) -> npt.NDArray[np.float64]:
    """t-SNE by the angles between directions (N, Z): points (N, 2), the same for the same seed.

    Few images, and images that all lie in one place, are drawn by their principal components instead.

    Example:
        >>> tsne_plane(torch.eye(3)).shape
        (3, 2)
    """
    from sklearn.manifold import TSNE

    points = torch.nn.functional.normalize(directions.detach().cpu().double(), dim=1).numpy()
    start = principal_plane(points)
    spread = float(start[:, 0].std())
    if len(points) < FEWEST or spread < 1e-9:
        return start
    # Angles, since chords make of opposite directions nearer ones than they are.
    method = TSNE(
        metric="precomputed",
        init=(start / spread * 1e-4).astype(np.float32),
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        random_state=seed,
        n_jobs=1,
    )
    return np.asarray(method.fit_transform(angles(points).astype(np.float32)), dtype=np.float64)
