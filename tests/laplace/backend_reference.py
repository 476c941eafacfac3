"""A batch's curvature from the definition: a loop over pairs, autograd, and eigenvalues set to 0."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from hessians import ContrastiveLoss
from tests.hessians.reference import pair_value

Batch = tuple[Tensor, Tensor]


def counts(batches: list[Batch]) -> tuple[int, int]:
    """Positive and negative pairs inside of the batches, counted one by one."""
    same = [bool(a == b) for _, labels in batches for a, b in itertools.combinations(labels, 2)]
    return sum(same), len(same) - sum(same)


def value(
    points: Tensor,
    labels: Tensor,
    loss: ContrastiveLoss,
    population: tuple[int, int],
    only_positives: bool = False,
) -> Tensor:
    """The share of a batch in the loss, as a function of the points that distances are taken between."""
    total = points.sum() * 0
    for i, j in itertools.combinations(range(len(labels)), 2):
        positive = bool(labels[i] == labels[j])
        if positive:
            weight = 1 / population[0] if only_positives else 2 * (1 - loss.negative_weight) / population[0]
        else:
            weight = 0.0 if only_positives else 2 * loss.negative_weight / population[1]
        total = total + weight * pair_value(points[i], points[j], loss, positive=positive)
    return total


def normalized(u: Tensor) -> Tensor:
    return u / u.norm(dim=1, keepdim=True)


def positive_part(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * values.clamp(min=0)) @ vectors.T


def output_hessian(
    u: Tensor, labels: Tensor, loss: ContrastiveLoss, approximation: str, population: tuple[int, int]
) -> Tensor:
    """M, (N Z, N Z), positive semi-definite."""
    in_u = loss.normalize and loss.distance == "arccos"

    def of_points(points: Tensor) -> Tensor:
        points = normalized(points) if in_u else points
        return value(points, labels, loss, population, approximation == "positive")

    at = u if in_u or not loss.normalize else normalized(u)
    hessian = torch.autograd.functional.hessian(of_points, at)
    if approximation == "fixed":
        own = torch.eye(len(u), dtype=torch.bool)
        hessian = hessian * own[:, None, :, None]
    square = positive_part(hessian.reshape(u.numel(), u.numel()))
    if not in_u and loss.normalize:
        jacobian = torch.autograd.functional.jacobian(normalized, u).reshape(u.numel(), u.numel())
        square = jacobian.T @ square @ jacobian
    return square


def ggn(
    model: nn.Module,
    parameters: list[str],
    batches: list[Batch],
    loss: ContrastiveLoss,
    approximation: str,
) -> Tensor:
    """The sum over the batches of J^T M J, (P, P), the parameters flattened one after the other."""
    every = {name: x.detach() for name, x in model.named_parameters()}
    total = torch.zeros(())
    for images, labels in batches:
        u = model(images).detach()

        def embed(chosen: dict[str, Tensor], images: Tensor = images) -> Tensor:
            return functional_call(model, {**every, **chosen}, images)

        jacobians = jacrev(embed)({name: every[name] for name in parameters})
        jacobian = torch.cat([jacobians[name].reshape(u.numel(), -1) for name in parameters], dim=1)
        total = (
            total + jacobian.T @ output_hessian(u, labels, loss, approximation, counts(batches)) @ jacobian
        )
    return total
