"""What embedders of the triplet methods have in common: a score that looks at the nearest training image too."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch import Tensor, nn

from laplacian_metric.core.batch import Loader
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, FitData, scores_of
from laplacian_metric.methods.pairs.triplet_distance import difference_covariance

COVARIANCE = "difference covariance"


class NeighbourEmbedder(Embedder):
    """An embedder whose scores tell how unsure the difference from the nearest training image is.

    Args:
        module: everything that has weights.
        data: the training images are embedded when scores are asked for first, and kept.
        expected: whether the nearest is that by the expected distance.
    """

    def __init__(self, module: nn.Module, data: FitData, *, expected: bool = False) -> None:
        super().__init__(module)
        self.expected = expected
        self._train: Loader | None = data.train
        self._gallery: StochasticEmbedding | None = None

    def scores(self, inputs: Any) -> dict[str, Tensor]:
        """As of every method, and "difference covariance": the trace of cov(x - y) with the nearest training image y.

        It is left out where there were no training images.
        """
        e = self.embed(inputs)
        gallery = self.gallery()
        if gallery is None:
            return scores_of(e)
        covariance = difference_covariance(e, gallery, expected=self.expected)
        return {**scores_of(e), COVARIANCE: covariance}

    def gallery(self) -> StochasticEmbedding | None:
        """The training images; None where there were none."""
        if self._train is not None:
            empty = isinstance(self._train, Sized) and not len(self._train)
            self._gallery = None if empty else self.embed(self._train, progress=False)
            self._train = None
        return self._gallery
