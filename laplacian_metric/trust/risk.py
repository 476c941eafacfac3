"""A risk head in numpy: how likely an item is to be retrieved wrongly, by its features alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.vector_search import Floats

SLOPE = 0.01  # of the leaky ReLU
PREFIX = "risk."


@dataclass(frozen=True, eq=False)
class FeatureRisk:
    """Linear layers with leaky ReLUs between, on features of length sqrt(H); ``layers``: weight and bias of each."""

    layers: tuple[tuple[NDArray[Any], NDArray[Any]], ...]

    @staticmethod
    def of(head: Any) -> FeatureRisk | None:
        """Return that of a risk head, which says its layers as arrays; None for None."""
        if head is None or isinstance(head, FeatureRisk):
            return head
        if not callable(arrays := getattr(head, "layers_as_arrays", None)):
            raise TypeError(
                f"risk is a {type(head).__name__}: pass a RiskHead, as laplacian_metric.methods.risk.load returns one"
            )
        return FeatureRisk._of_arrays(arrays())

    @staticmethod
    def _of_arrays(arrays: Mapping[str, NDArray[Any]]) -> FeatureRisk:
        count = sum(name.startswith("weight") for name in arrays)
        return FeatureRisk(tuple((arrays[f"weight{i}"], arrays[f"bias{i}"]) for i in range(count)))

    @staticmethod
    def of_stored(arrays: Mapping[str, NDArray[Any]]) -> FeatureRisk | None:
        """Return what `stored` gave; None where there is none among the arrays."""
        own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        return FeatureRisk._of_arrays(own) if own else None

    def stored(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by the names that they have in files."""
        return {
            f"{PREFIX}{name}{number}": array
            for number, layer in enumerate(self.layers)
            for name, array in zip(("weight", "bias"), layer, strict=True)
        }

    def check_width(self, width: int) -> None:
        """Refuse features of another width."""
        if self.layers[0][0].shape[1] != width:
            raise ValueError(
                f"the gallery has {width} columns, the risk head takes {self.layers[0][0].shape[1]}: it is for another "
                "encoder"
            )

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Return the risks of features (Q, H) before their link, (Q,).

        Example:
            >>> risk = FeatureRisk(((np.ones((1, 4)), np.zeros(1)),))
            >>> risk(np.array([[3.0, 0.0, 0.0, 4.0]])).round(4).tolist()
            [2.8]
        """
        x = np.asarray(rows, dtype=np.float32)
        x = x * (np.sqrt(x.shape[1]) / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))
        for number, (weight, bias) in enumerate(self.layers):
            x = x @ weight.T + bias
            if number + 1 < len(self.layers):
                x = np.where(x > 0, x, SLOPE * x)
        logits: Floats = x[:, 0].astype(np.float64)
        return logits
