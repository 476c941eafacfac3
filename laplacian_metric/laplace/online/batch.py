"""What online LAM does with one batch: which pairs it has, its embeddings at the draws, its curvature there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessians import Pairs, last_layer_ggn_diagonal
from hessians.approximations import Approximation
from hessians.checks import CurvatureOverflowError, CurvatureWarning, compute_dtype, without_autocast
from hessians.contrastive import Distance
from hessians.pair_loss import PairLoss
from laplacian_metric.core.labels import as_labels
from laplacian_metric.laplace.fit import sum_of_squares
from laplacian_metric.laplace.layer import LayerPosterior

Labels = Tensor | Sequence[int] | Pairs
Miner = Callable[[Tensor, Tensor], Sequence[Tensor] | Pairs]


def all_pairs(labels: Labels, h: Tensor) -> tuple[Pairs, Tensor | None]:
    """The pairs of a batch of features h (N, H), and its labels (N,) where there are any."""
    if not len(h):
        raise ValueError("the batch is empty: leave it out")
    if isinstance(labels, Pairs):
        pairs, class_labels, what = labels, None, f"the pairs are over {labels.num_images} images"
    else:
        class_labels = as_labels("labels", labels).to(h.device)
        pairs, what = Pairs.from_labels(class_labels), f"labels has {len(class_labels)} entries"
    if pairs.num_images != len(h):
        raise ValueError(f"{what} for a batch of {len(h)} images: one for each is needed")
    return pairs, class_labels


def mined_pairs(u: Tensor, labels: Tensor | None, miner: Miner, normalize: bool) -> Pairs:
    """Return the pairs of raw embeddings u (N, Z) that a miner chooses; it is shown unit ones if ``normalize``."""
    if labels is None:
        raise TypeError("labels are pairs, but a miner chooses pairs by labels: pass the labels (N,)")
    mined = miner(F.normalize(u.detach(), dim=1) if normalize else u.detach(), labels)
    chosen = mined if isinstance(mined, Pairs) else Pairs.from_indices(tuple(mined), len(u))
    if chosen.num_images != len(u):
        raise ValueError(f"the miner's pairs are over {chosen.num_images} images for a batch of {len(u)}")
    return chosen


def embeddings_at_draws(
    head: nn.Linear,
    h: Tensor,
    posterior: LayerPosterior | None,
    samples: int,
    generator: torch.Generator | None,
    bias_is_random: bool,
) -> list[Tensor]:
    """Raw embeddings (N, Z) of features h (N, H) at each draw of the head; at its own weights without a posterior.

    The weights are moved by a constant, so that the gradient in them, and the one that the backbone gets, is the
    gradient at the draw.
    """
    if posterior is None:
        return [F.linear(h, head.weight, head.bias)]
    drawn = []
    for deviation in posterior.sample(samples, generator).to(head.weight.dtype):
        bias = head.bias + deviation[:, -1] if bias_is_random else head.bias
        drawn.append(F.linear(h, head.weight + deviation[:, : head.in_features], bias))
    return drawn


def mean_loss(loss: PairLoss, embeddings: Sequence[Tensor], pairs: Pairs) -> Tensor:
    """Of the draws, a differentiable scalar."""
    values = [loss(u, pairs) for u in embeddings]
    return values[0] if len(values) == 1 else torch.stack(values).mean()


def mean_square(embeddings: Sequence[Tensor]) -> float:
    """The mean of |u|^2 over the images and the draws.

    Example:
        >>> mean_square([torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2, 2)])
        6.25
    """
    images = sum(len(u) for u in embeddings)
    return sum(sum_of_squares(u.detach()) for u in embeddings) / images


@without_autocast
def head_gradient(loss: Tensor, embeddings: Sequence[Tensor], h: Tensor, bias_is_random: bool) -> Tensor:
    """dL/d[W | b], (Z, H'), at the draws; the graph stays for the backward pass."""
    parts = torch.autograd.grad(loss, embeddings, retain_graph=True)
    gradient = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
    gradient = gradient.to(compute_dtype(h))
    weight_gradient = gradient.T @ h.detach().to(gradient.dtype)
    return (
        torch.cat([weight_gradient, gradient.sum(0)[:, None]], dim=1) if bias_is_random else weight_gradient
    )


@torch.no_grad()
def batch_curvature(
    head: nn.Linear,
    h: Tensor,
    embeddings: Sequence[Tensor],
    pairs: Pairs,
    loss: PairLoss,
    approximation: Approximation,
    bias_is_random: bool,
) -> Tensor:
    """Return diag(G) of a batch, (Z, H'), unclamped: the mean over the draws that the embeddings are of.

    It is infinite where it overflows: the step is refused once all processes know of it.
    """
    features = h.detach().to(compute_dtype(h))
    # Of the layer's weights only shape and dtype matter where the embeddings are given.
    weight = head.weight.detach().to(features.dtype)
    bias = head.bias.detach().to(features.dtype) if bias_is_random else None
    parts = []
    for u in embeddings:
        try:
            w, b = last_layer_ggn_diagonal(features, weight, bias, pairs, loss, approximation, embeddings=u)
        except CurvatureOverflowError:
            w = torch.full_like(weight, torch.inf)
            b = None if bias is None else torch.full_like(bias, torch.inf)
        parts.append(w if b is None else torch.cat([w, b[:, None]], dim=1))
    return parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)


def check_finite_step(step: int, **tensors: Tensor) -> None:
    """Refuse what is not finite before anything is changed by it, naming the step."""
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        # The sum of finite numbers is finite unless it overflows: look closer only if it is not.
        if bool(tensor.sum().isfinite()):
            continue
        rows = tensor.reshape(len(tensor) if tensor.ndim else 1, -1)
        bad = int((~rows.isfinite()).any(1).sum())
        if not bad:
            continue
        what = (
            f"the {name} is {float(tensor)}" if not tensor.ndim else f"the {name} has NaN or infinite entries"
        )
        if name == "embeddings":
            what = f"{bad} of {len(tensor)} embeddings have NaN or infinite entries"
        raise ValueError(
            f"step {step}: {what}. Weights and curvature are as they were before it: lower the learning rate, or look "
            "for such entries in the images of this batch"
        )


@contextmanager
def said_once(said: set[str], loss: PairLoss) -> Iterator[None]:
    """Inside, a warning about the curvature is given the first time only.

    Whenever the filters change, Python forgets which warnings it has shown, those of others too. So they are
    left alone for Arccos, which has no warning of a batch.
    """
    if getattr(loss, "distance", None) is Distance.ARCCOS:
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        about_curvature = issubclass(warning.category, CurvatureWarning)
        if not about_curvature or str(warning.message) not in said:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if about_curvature:
            said.add(str(warning.message))
