"""Small problems for the tests of online LAM, and what it does written out as a plain loop."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM

float64 = torch.float64
LOSS = ContrastiveLoss(margin=0.7)
IMAGES = 500


def a_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def an_encoder(seed: int = 0, bias: bool = True, normalize: bool = True) -> Encoder:
    """(N, 6) -> h (N, 5) -> u (N, 3), in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = nn.Sequential(nn.Linear(6, 5, dtype=float64), nn.Tanh())
        return Encoder(backbone, nn.Linear(5, 3, bias=bias, dtype=float64), normalize=normalize)


def a_batch(size: int = 12, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = a_generator(1000 + seed)
    return (
        torch.randn(size, 6, generator=generator, dtype=float64),
        torch.randint(classes, (size,), generator=generator),
    )


def an_online(
    rate: float = 0.05, encoder: Encoder | None = None, kind: type[OnlineLAM] = OnlineLAM, **options: Any
) -> OnlineLAM:
    """With plain gradient descent, so that a step tells the gradient."""
    encoder = an_encoder() if encoder is None else encoder
    optimizer = torch.optim.SGD(encoder.parameters(), lr=rate, weight_decay=options.pop("weight_decay", 0.0))
    options = {"num_images": IMAGES, "warmup": 0, "memory": 0.2, "prior_precision": 30.0, **options}
    return kind(encoder, optimizer, options.pop("loss", LOSS), **options)


def running(online: OnlineLAM) -> Tensor:
    """The running curvature as it is stored: neither corrected nor clamped."""
    return online.state_dict()["running"]["curvature"]


def with_head(encoder: Encoder, weight: Tensor, bias: Tensor | None) -> Encoder:
    """A copy with other weights of the head."""
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        other.head.weight.copy_(weight)
        if bias is not None:
            other.head.bias.copy_(bias)
    return other


def curvature_of(
    encoder: Encoder, images: Tensor, pairs: Pairs, approximation: str = "fixed", loss: ContrastiveLoss = LOSS
) -> Tensor:
    """diag(G) in [W | b], (Z, H + 1), unclamped."""
    h = encoder.features(images).detach()
    w, b = last_layer_ggn_diagonal(
        h, encoder.head.weight.detach(), encoder.head.bias.detach(), pairs, loss, approximation
    )
    return torch.cat([w, b[:, None]], dim=1)


def head_gradient(encoder: Encoder, images: Tensor, pairs: Pairs, loss: ContrastiveLoss = LOSS) -> Tensor:
    """dL/d[W | b], by autograd."""
    w, b = torch.autograd.grad(loss(encoder.raw(images), pairs), [encoder.head.weight, encoder.head.bias])
    return torch.cat([w, b[:, None]], dim=1)


def a_draw(encoder: Encoder, precision: Tensor, generator: torch.Generator) -> Encoder:
    """A copy whose [W | b] is drawn from N(theta, 1/precision)."""
    noise = torch.randn(1, *precision.shape, generator=generator, dtype=precision.dtype)[0]
    deviation = noise / precision.sqrt()
    head = encoder.head
    return with_head(encoder, head.weight + deviation[:, :-1], head.bias + deviation[:, -1])
