"""Heads for models that have no linear layer at their end, and for features that were exported from anywhere."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from hessians.checks import check_finite, check_matrix, check_varied
from laplacian_metric.core.labels import Labels, as_labels
from laplacian_metric.core.progress import track
from laplacian_metric.encoder.layers import seeded
from laplacian_metric.encoder.linear_layers import trial


def identity_head(num_features: int, *, dtype: torch.dtype | None = None, device: Any = None) -> nn.Linear:
    """A head that changes nothing: W = I (H, H), b = 0.

    Example:
        >>> identity_head(2).weight.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    head = nn.Linear(num_features, num_features, dtype=dtype, device=device)
    with torch.no_grad():
        nn.init.eye_(head.weight)
        head.bias.zero_()
    return head


def random_head(
    num_features: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype | None = None
) -> nn.Linear:
    """A head (H -> Z) with the random weights that torch gives a linear layer, from ``generator``.

    Example:
        >>> head = random_head(4, 2, generator=torch.Generator().manual_seed(0))
        >>> tuple(head.weight.shape), bool(head.weight.abs().max() <= 0.5)
        ((2, 4), True)
    """
    head = nn.Linear(num_features, dim, dtype=dtype, device="meta").to_empty(device="cpu")
    bound = num_features**-0.5
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return head


def whitening_head(features: Tensor, dim: int | None = None, *, eps: float = 1e-6) -> nn.Linear:
    """A head that centres features (N, H) and gives their ``dim`` largest principal components unit variance.

    Directions whose variance is below ``eps`` times the largest are divided by that instead of by their own.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> features = torch.randn(500, 4, generator=g) @ torch.randn(4, 4, generator=g) + 5
        >>> u = whitening_head(features)(features)
        >>> torch.allclose(torch.cov(u.T), torch.eye(4), atol=1e-4)
        True
    """
    mean, variances, directions = _principal_components(features, dim)
    scale = variances.clamp(min=eps * float(variances[0])).rsqrt()
    return _centring_head(features, mean, directions * scale[:, None])


def principal_head(features: Tensor, dim: int | None = None) -> nn.Linear:
    """Return a head that centres features (N, H) and keeps their ``dim`` largest principal components as they are.

    Example:
        >>> features = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 8.0]])
        >>> principal_head(features, 1)(features).abs().flatten().tolist()
        [3.0, 1.0, 4.0]
    """
    mean, _, directions = _principal_components(features, dim)
    return _centring_head(features, mean, directions)


def _principal_components(features: Tensor, dim: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean (H,) of features (N, H), the largest variances (Z,) and their directions (Z, H), in float64."""
    check_matrix("features", features)
    check_finite("features", features)
    count, width = features.shape
    dim = width if dim is None else dim
    if not 1 <= dim <= width:
        raise ValueError(f"dim is {dim}, features have 1 to {width} principal components")
    if count < 2:
        raise ValueError(f"features has {count} rows, at least 2 are needed for a covariance")
    check_varied("features", features)
    x = features.detach().double()
    variances, directions = torch.linalg.eigh(torch.cov(x.T).reshape(width, width))  # in ascending order
    return x.mean(0), variances.flip(0)[:dim], directions.T.flip(0)[:dim]


def _centring_head(features: Tensor, mean: Tensor, weight: Tensor) -> nn.Linear:
    head = nn.Linear(features.shape[1], len(weight), dtype=features.dtype, device=features.device)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(-weight @ mean)
    return head


def head_for(
    backbone: nn.Module, features: Any, *, dim: int | None, init: str, seed: int | None
) -> nn.Linear:
    """The new head of `Encoder.with_head`, with the dtype and on the device of what the backbone gives."""
    if isinstance(features, int) and not isinstance(features, bool):
        width = features
        like: Tensor | None = next((p for p in backbone.parameters() if p.is_floating_point()), None)
    else:
        outputs = trial(backbone, features)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or not outputs.is_floating_point():
            shown = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(
                f"backbone ({type(backbone).__name__}) returns {shown}, floats of shape (N, H) are needed: pool, "
                "flatten or pick what a head can be put on"
            )
        width, like = outputs.shape[1], outputs
    if width < 1:
        raise ValueError(f"features is {width}, at least one feature is needed")
    dim = width if dim is None else dim
    dtype = like.dtype if like is not None else torch.get_default_dtype()
    if init == "random":
        with seeded(seed):
            head = nn.Linear(width, dim, dtype=dtype)
    elif init != "identity":
        raise ValueError(f'init is {init!r}, "identity" or "random" is needed')
    elif dim != width:
        raise ValueError(
            f'an identity head keeps all {width} features, but dim is {dim}: leave dim out, use init="random" and '
            "train it, or make a head with whitening_head(features, dim) or train_head(features, labels, loss, dim)"
        )
    else:
        head = identity_head(width, dtype=dtype)
    return head if like is None else head.to(like.device)


def train_head(
    features: Tensor | NDArray[Any],
    labels: Labels,
    loss: ContrastiveLoss,
    dim: int,
    *,
    init: nn.Linear | None = None,
    steps: int = 1000,
    batch_size: int = 256,
    images_per_class: int = 16,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-5,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> nn.Linear:
    """Train a linear head (H -> Z) on features (N, H) with a loss over pairs; the features stay as they are.

    Each step takes all pairs of a class-balanced batch: ``batch_size // images_per_class`` classes, or all there are,
    and as many images of each. Adam, with a learning rate that falls to zero along a cosine. There is no validation
    and no early stopping.

    Args:
        features: H floats for each image, on the device to train on.
        labels: (N,) whole numbers or text; two classes at least, and one of them with two images.
        loss: what is minimised.
        dim: Z.
        init: where training starts, a random head without it; it is left as it is.
        steps: how many batches.
        batch_size: how many images in a batch.
        images_per_class: how many of each of its classes; with repeats where a class is smaller.
        learning_rate: of the first step.
        weight_decay: the pull of the weights towards zero, apart from the gradient.
        generator: where the random head and the batches come from; a generator of the CPU.
        progress: whether to show a bar; None asks the terminal.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(60) % 3
        >>> features = torch.eye(3).repeat(20, 2) + 0.1 * torch.randn(60, 6, generator=g)
        >>> head = train_head(features, labels, ContrastiveLoss(), 2, steps=50, generator=g)
        >>> tuple(head(features).shape)
        (60, 2)
    """
    features, labels = torch.as_tensor(features), as_labels("labels", labels)
    rows = _rows_by_class(features, labels)
    check_varied("features", features)
    head = random_head(features.shape[1], dim, generator=generator, dtype=features.dtype)
    if init is not None:
        if init.weight.shape != head.weight.shape:
            raise ValueError(
                f"init has shape {tuple(init.weight.shape)}, ({dim}, {features.shape[1]}) is needed"
            )
        with torch.no_grad():
            head.weight.copy_(init.weight)
            head.bias.copy_(torch.zeros_like(head.bias) if init.bias is None else init.bias)
    head = head.to(features.device)
    if steps < 1 or images_per_class < 2 or batch_size < 2 * images_per_class:
        raise ValueError(
            f"steps is {steps}, images_per_class {images_per_class} and batch_size {batch_size}: at least one step, "
            "two images of a class and two classes in a batch are needed"
        )
    optimizer = torch.optim.AdamW(head.parameters(), lr=learning_rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for _ in track(range(steps), "head", show=progress, unit="training steps"):
            batch = _batch(rows, batch_size // images_per_class, images_per_class, generator).to(
                features.device
            )
            value = loss(head(features[batch].detach()), Pairs.from_labels(labels[batch.to(labels.device)]))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
    head.weight.grad = head.bias.grad = None
    return head


def _rows_by_class(features: Tensor, labels: Tensor) -> list[Tensor]:
    """The rows (on the CPU) of every class."""
    check_matrix("features", features)
    check_finite("features", features)
    if len(labels) != len(features):
        raise ValueError(f"labels has {len(labels)} entries for {len(features)} features")
    classes, which = labels.cpu().unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"labels has {len(classes)} class: at least 2 are needed")
    counts = torch.bincount(which)
    if int(counts.max()) < 2:
        raise ValueError("no class in labels has two images, so that there are no positive pairs")
    return list(which.argsort(stable=True).split(counts.tolist()))


def _batch(rows: list[Tensor], classes: int, each: int, generator: torch.Generator | None) -> Tensor:
    """The rows of a batch: some classes, and of each as many images, different ones where there are enough."""
    chosen = torch.randperm(len(rows), generator=generator)[:classes].tolist()
    picked = []
    for one in chosen:
        members = rows[one]
        order = torch.cat(
            [torch.randperm(len(members), generator=generator) for _ in range(-(-each // len(members)))]
        )
        picked.append(members[order[:each]])
    return torch.cat(picked)
