r"""The whole GGN of a last linear layer as an operator, summed over batches.

With u = W h + b, x = [h, 1] and the output Hessians M^b of the batches,

    G = sum_b sum_{n,m in b} M^b_nm kron x_n x_m^T

over the weights [W | b] in row-major order. G is never built unless it is asked for: products with G need two passes
over the features, and the nearest Kronecker product of the whole sum needs two matrix products with H' x H' matrices
in each iteration. A sum over processes is one over batches too, with ``reduce`` adding up what each has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessians.checks import without_autocast
from hessians.features import FeatureReader
from hessians.kronecker import KroneckerFactors
from hessians.output_blocks import output_blocks
from hessians.output_hessian import OutputHessian

DEFAULT_MEMORY = 64 << 20

Reduce = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LayerBatch:
    """A batch's features (N, H), which may be mapped from a file, and how to get its output Hessian."""

    features: Tensor
    hessian: Callable[[], OutputHessian]


def _same(tensor: Tensor) -> Tensor:
    return tensor


class LayerGGN:
    """G of the module's equation.

    Args:
        batches: whose contributions are summed; population counts in their pairs make the sum a data set's.
        num_outputs: Z.
        bias: whether x ends with a 1, H' = H + 1, or H' = H.
        reduce: adds up a tensor over processes, in place or not; None where there is one process.

    Example:
        >>> from hessians import ContrastiveLoss, Pairs
        >>> features, loss = torch.eye(3), ContrastiveLoss(distance="euclidean", normalize=False)
        >>> pairs = Pairs.from_labels([0, 0, 1])
        >>> batch = LayerBatch(features, lambda: loss.output_hessian(features[:, :2], pairs, "positive"))
        >>> LayerGGN([batch], num_outputs=2, bias=False).dense()[:3, :3]
        tensor([[ 1., -1.,  0.],
                [-1.,  1.,  0.],
                [ 0.,  0.,  0.]])
    """

    def __init__(
        self,
        batches: Sequence[LayerBatch],
        num_outputs: int,
        bias: bool,
        *,
        reduce: Reduce | None = None,
        memory_budget: int = DEFAULT_MEMORY,
    ) -> None:
        if not batches:
            raise ValueError("there is no batch: at least one is needed")
        self.batches = list(batches)
        self.readers = [FeatureReader(batch.features, memory_budget) for batch in batches]
        self.bias = bias
        self.shape = (num_outputs, self.readers[0].width + int(bias))
        self.dtype = self.readers[0].dtype
        self.device = batches[0].features.device
        self._reduce = reduce or _same

    def _inputs(self, reader: FeatureReader, start: int, stop: int) -> Tensor:
        """x, (stop - start, H')."""
        rows = reader.read(start, stop)
        return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1) if self.bias else rows

    @without_autocast
    def matmul(self, vectors: Tensor) -> Tensor:
        """G v for v of shape (C, Z, H')."""
        count, flat = len(vectors), vectors.to(self.dtype).flatten(0, 1)
        total = torch.zeros_like(flat)
        for batch, reader in zip(self.batches, self.readers, strict=True):
            images = reader.num_images
            outputs = flat.new_empty(images, len(flat))
            for start, stop in reader.blocks:
                torch.mm(self._inputs(reader, start, stop), flat.T, out=outputs[start:stop])
            by_vector = outputs.view(images, count, -1).transpose(0, 1)
            product = batch.hessian().matmul(by_vector).transpose(0, 1).reshape(images, -1)
            for start, stop in reader.blocks:
                total.addmm_(product[start:stop].T, self._inputs(reader, start, stop))
        return self._reduce(total).view_as(vectors)

    def dense(self, columns_at_once: int = 256) -> Tensor:
        """G, (Z H', Z H'), by products with unit vectors."""
        size = self.shape[0] * self.shape[1]
        matrix = torch.empty(size, size, dtype=self.dtype, device=self.device)
        for start in range(0, size, columns_at_once):
            rows = torch.arange(start, min(start + columns_at_once, size), device=self.device)
            unit = torch.zeros(len(rows), size, dtype=self.dtype, device=self.device)
            unit[torch.arange(len(rows), device=self.device), rows] = 1
            matrix[rows] = self.matmul(unit.view(-1, *self.shape)).flatten(1)
        return (matrix + matrix.T) / 2

    @without_autocast
    def kronecker(self, *, tolerance: float = 1e-4, max_iterations: int = 20) -> KroneckerFactors:
        """The Kronecker product nearest to G in Frobenius norm, by alternating least squares from A = I.

        Stops when the norm of A kron B grows by less than ``tolerance`` in an iteration. Where G is indefinite, so
        may the factors be, and the product is a stationary point of the distance, not surely the nearest.
        """
        outputs = self.shape[0]
        output = identity = torch.eye(outputs, dtype=torch.float64, device=self.device)
        factor = self._input_factor(output) / outputs
        norm = output.norm() * factor.norm()
        for _ in range(max_iterations):
            square = factor.double().square().sum()
            output_factor = self._output_factor(factor)
            if not (square > 0 and output_factor.abs().amax() > 0):
                return KroneckerFactors(identity.to(self.dtype), torch.zeros_like(factor), exact=True)
            output = output_factor / square
            factor = self._input_factor(output) / output.square().sum()
            previous, norm = norm, output.norm() * factor.norm()
            if norm - previous <= tolerance * norm:
                break
        scale = output.trace() / outputs
        return KroneckerFactors((output / scale).to(self.dtype), (factor * scale).to(self.dtype), exact=False)

    def _input_factor(self, output: Tensor) -> Tensor:
        """sum_nm <A, M_nm> x_n x_m^T, (H', H')."""
        total = torch.zeros(self.shape[1], self.shape[1], dtype=self.dtype, device=self.device)
        for batch, reader in zip(self.batches, self.readers, strict=True):
            weights = output_blocks(batch.hessian()).inner_products(output).to(self.dtype)
            if weights.ndim == 2:
                inputs = self._inputs(reader, 0, reader.num_images)
                total.addmm_(inputs.T, weights @ inputs)
                continue
            for start, stop in reader.blocks:
                inputs = self._inputs(reader, start, stop)
                total.addmm_(inputs.T, inputs * weights[start:stop, None])
        total = self._reduce(total)
        return (total + total.T) / 2

    def _output_factor(self, factor: Tensor) -> Tensor:
        """sum_nm (x_n^T B x_m) M_nm, (Z, Z), in float64."""
        total = torch.zeros(self.shape[0], self.shape[0], dtype=torch.float64, device=self.device)
        for batch, reader in zip(self.batches, self.readers, strict=True):
            blocks = output_blocks(batch.hessian())
            if blocks.coupled:
                inputs = self._inputs(reader, 0, reader.num_images)
                inner = (inputs @ factor) @ inputs.T
            else:
                inner = factor.new_empty(reader.num_images)
                for start, stop in reader.blocks:
                    inputs = self._inputs(reader, start, stop)
                    inner[start:stop] = ((inputs @ factor) * inputs).sum(1)
            total += blocks.sum_over_images(inner.double())
        total = self._reduce(total)
        return (total + total.T) / 2
