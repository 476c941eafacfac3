"""Generalised-mean pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GeM(nn.Module):
    """Generalised mean over all positions: (N, C, *positions) -> (N, C), (mean max(x, eps)^p)^(1/p).

    p = 1 is the mean and p -> infinity the maximum. p is learned unless ``learned`` is False.

    Example:
        >>> x = torch.tensor([[[[1.0, 2.0], [2.0, 3.0]]]])
        >>> round(GeM(p=1.0)(x).item(), 4), round(GeM(p=50.0)(x).item(), 4)
        (2.0, 2.918)
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6, *, learned: bool = True) -> None:
        super().__init__()
        if not p > 0:
            raise ValueError(f"p is {p}, a positive exponent is needed: 1 is the mean")
        if not eps > 0:
            raise ValueError(f"eps is {eps}, a positive number is needed: 0 has no derivative")
        self.p = nn.Parameter(torch.tensor([float(p)]), requires_grad=learned)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3:
            raise ValueError(
                f"GeM pools positions, (N, C, *positions), but x has shape {tuple(x.shape)}: leave the flattening and "
                "pooling before it out"
            )
        values = x.flatten(2).clamp(min=self.eps)
        # Divided by the largest first, so that no power of it overflows; the mean is homogeneous.
        largest = values.detach().amax(dim=2, keepdim=True)
        return (values / largest).pow(self.p).mean(dim=2).pow(1 / self.p) * largest[:, :, 0]

    def extra_repr(self) -> str:
        return f"eps={self.eps:g}"
