"""Features read in blocks of rows, so that they may be a tensor that is mapped from a file."""

from __future__ import annotations

import torch
from torch import Tensor

from hessians.checks import check_finite, check_no_overflow, compute_dtype

CACHED_ELEMENTS = 1 << 18


class FeatureReader:
    """Reads features (N, H) in blocks of rows that fit the memory budget, in the dtype that is computed in."""

    def __init__(self, features: Tensor, memory_budget: int) -> None:
        self.features = features.detach()
        self.dtype = compute_dtype(features)
        self.num_images, self.width = features.shape
        # A block and its square are held at once.
        row = max(1, self.width) * 2 * torch.finfo(self.dtype).bits // 8
        self.rows = max(1, min(max(1, self.num_images), memory_budget // row))
        # Ranges of rows.
        self.blocks = [(i, min(i + self.rows, self.num_images)) for i in range(0, self.num_images, self.rows)]
        column = max(1, self.num_images) * 4 * torch.finfo(self.dtype).bits // 8
        self.columns = max(1, memory_budget // column)

    def column_blocks(self, copies: int = 1) -> list[slice]:
        """Ranges of columns for what needs all rows at once; ``copies`` of a block stay in the cache."""
        size = max(1, min(self.columns, CACHED_ELEMENTS // max(1, self.num_images)) // copies)
        return [slice(i, min(i + size, self.width)) for i in range(0, self.width, size)]

    def read_columns(self, columns: slice) -> Tensor:
        """All rows of these columns, (N, number of columns)."""
        return self.features[:, columns].to(self.dtype)

    def read(self, start: int, stop: int) -> Tensor:
        """Rows start..stop-1, (stop - start, H)."""
        return self.features[start:stop].to(self.dtype)

    def gather(self, index: Tensor) -> Tensor:
        """The rows with these indices, (len(index), H)."""
        return self.features.index_select(0, index).to(self.dtype)

    def embed(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """u = W h + b, (N, Z), in one pass; refuses features that are not finite."""
        weight = weight.detach().to(self.dtype)
        shift = weight.new_zeros(len(weight)) if bias is None else bias.detach().to(self.dtype)
        u = weight.new_empty(self.num_images, len(weight))
        for start, stop in self.blocks:
            block = self.read(start, stop)
            check_finite("features", block, first_row=start)
            check_no_overflow(block, self.num_images)
            torch.addmm(shift, block, weight.T, out=u[start:stop])
        return u
