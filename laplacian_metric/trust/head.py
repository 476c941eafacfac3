"""A linear head of an encoder as arrays, so that features become embeddings without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from laplacian_metric.core.check import Floats, check, norms_of

BLOCK = 8192


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head u = W h + b: weight (Z, H), bias (Z,)."""

    weight: Floats
    bias: Floats

    @staticmethod
    def of(encoder: Any) -> Head | None:
        """Return the head of an `Encoder`, of a `LAM`, of a linear layer, or of a pair (weight, bias); None for None.

        Example:
            >>> Head.of((np.eye(2), None)).embed(np.array([[3.0, 4.0]])).tolist()
            [[0.6, 0.8]]
        """
        if encoder is None or isinstance(encoder, Head):
            return encoder
        if isinstance(encoder, (tuple, list)):
            weight, bias = encoder
        else:
            layer = getattr(encoder, "encoder", encoder)
            layer = getattr(layer, "head", layer)
            weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if getattr(weight, "ndim", None) != 2:
            raise TypeError(
                f"encoder is a {type(encoder).__name__} without a linear head: pass an Encoder, a LAM, a linear layer, "
                "a pair (weight, bias), or None where the rows are the embeddings"
            )
        matrix = np.array(check("the head's weight", weight, "Z H"), dtype=np.float64)
        if bias is None:
            return Head(matrix, np.zeros(len(matrix)))
        return Head(matrix, np.array(check("the head's bias", bias, "Z", Z=len(matrix)), dtype=np.float64))

    @property
    def width(self) -> int:
        """The number H of features that it takes."""
        return int(self.weight.shape[1])

    def embed(self, features: Any) -> Floats:
        """Return the embeddings (N, Z) of features (N, H), of unit length."""
        embeddings = np.empty((len(features), len(self.weight)))
        for start in range(0, len(features), BLOCK):
            rows = np.asarray(features[start : start + BLOCK], dtype=np.float64)
            # Scaled first, so that products of large and small numbers stay within float64.
            scale = np.maximum(1.0, np.abs(rows).max(axis=1, keepdims=True))
            embeddings[start : start + len(rows)] = (rows / scale) @ self.weight.T + self.bias / scale
        unit: Floats = embeddings / norms_of("the embeddings of h", embeddings)[:, None]
        return unit
