"""Bringing embedding spaces onto each other: two networks that agree on all similarities may differ by a rotation."""

from __future__ import annotations

import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix


def procrustes(source: Tensor, target: Tensor, *, reflections: bool = True) -> Tensor:
    """The orthogonal R (Z, Z) that brings ``source @ R`` closest to ``target`` in squared distance.

    Directions in which no row has any extent are turned arbitrarily.

    Args:
        source: (N, Z), a row for each image.
        target: (N, Z), the same images elsewhere.
        reflections: whether R may mirror; if not, its determinant is 1.

    Example:
        >>> target = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> source = torch.stack([-target[:, 1], target[:, 0]], dim=1)  # a quarter turn
        >>> bool(torch.allclose(source @ procrustes(source, target), target, atol=1e-6))
        True
    """
    check_matrix("source", source)
    check_matrix("target", target)
    if source.shape != target.shape:
        raise ValueError(
            f"source has shape {tuple(source.shape)}, target {tuple(target.shape)}: both need the same images and "
            "dimensions"
        )
    if 0 in source.shape:
        raise ValueError(f"source and target have shape {tuple(source.shape)}: there is nothing to align")
    return nearest_orthogonal(source.double().T @ target.double(), reflections=reflections).to(source)


def nearest_orthogonal(matrix: Tensor, *, reflections: bool = True) -> Tensor:
    """The orthogonal matrix closest to a square one: U V' of its singular value decomposition U S V'.

    Without reflections the direction of the smallest singular value is turned round where the determinant would be -1.
    Of the sum of the products of rows, ``source.T @ target``, it is what `procrustes` finds.

    Example:
        >>> nearest_orthogonal(torch.diag(torch.tensor([2.0, -0.5]))).tolist()
        [[1.0, 0.0], [0.0, -1.0]]
        >>> nearest_orthogonal(torch.diag(torch.tensor([2.0, -0.5])), reflections=False).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    check_matrix("matrix", matrix)
    check_finite("matrix", matrix)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix has shape {tuple(matrix.shape)}, a square one is needed")
    U, _, Vh = torch.linalg.svd(matrix)
    if not reflections and float(torch.linalg.det(U @ Vh)) < 0:
        U = torch.cat([U[:, :-1], -U[:, -1:]], dim=1)
    rotation: Tensor = U @ Vh + 0.0  # no -0.0
    return rotation
