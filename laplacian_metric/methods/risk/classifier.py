"""A linear classifier of features, for the cross-entropy that a risk head may predict."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEAST_EPOCHS, LEAST_STEPS, BATCH, RATE, DECAY = 5, 1000, 256, 3e-3, 1e-2


def train_classifier(features: Tensor, labels: Tensor, num_classes: int, *, seed: int = 0) -> nn.Linear:
    """Return a linear layer (H -> C) trained with cross-entropy on features (N, H), which may be mapped from a file.

    Args:
        features: of any scale; they are standardised inside, and the layer takes them as they are.
        labels: (N,), from 0 to C - 1.
        num_classes: C, at least 2.
        seed: of the order of the rows.

    Example:
        >>> features = torch.eye(3).repeat(40, 1) + 0.1 * torch.randn(120, 3, generator=torch.manual_seed(0))
        >>> classifier = train_classifier(features, torch.arange(120) % 3, 3)
        >>> bool((classifier(features).argmax(1) == torch.arange(120) % 3).all())
        True
    """
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}, a classifier needs at least 2 classes")
    blocks = features.split(1 << 13)
    center = sum((block.double().sum(0) for block in blocks), torch.zeros(1)) / len(features)
    spread = (
        sum(((block.double() - center).square().sum() for block in blocks), torch.zeros(()))
        / features.numel()
    )
    center, scale = center.to(features.device).float(), float(spread) ** -0.5 if float(spread) > 0 else 1.0
    layer = nn.Linear(features.shape[1], num_classes, device=features.device)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=RATE, weight_decay=DECAY)
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        for _ in range(max(LEAST_EPOCHS, LEAST_STEPS * BATCH // len(features))):
            for rows in torch.randperm(len(features), generator=generator).split(BATCH):
                logits = layer((features[rows].float() - center) * scale)
                optimizer.zero_grad()
                F.cross_entropy(logits, labels[rows].to(logits.device)).backward()
                optimizer.step()
    with torch.no_grad():
        layer.weight.mul_(scale)
        layer.bias.sub_(layer.weight @ center)
    return layer.requires_grad_(False)
