"""What a risk head predicts for each item, its share of wrong neighbours or its loss, and what it is trained with."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessians import Pairs
from hessians.pair_loss import PairLoss
from laplacian_metric.core.search import search_blocks

Target = Literal["retrieval", "pair-loss", "cross-entropy"]
RiskLoss = Literal["bce", "l2", "ranking"]
MARGIN = 0.1
LEAST_EPOCHS, LEAST_STEPS, BATCH, RATE, DECAY = 5, 1000, 256, 3e-3, 1e-2  # of the classifier
POSITIVES, NEGATIVES = 16, 64  # pairs of each item that stand for all of its pairs
PAIRS_AT_ONCE = 1 << 14


def retrieval_risk(embeddings: Tensor, labels: Tensor, neighbours: int = 10) -> Tensor:
    """Return the share of each item's nearest others that are of another class, (N,).

    Args:
        embeddings: (N, Z), unit rows.
        labels: (N,).
        neighbours: k, how many of the nearest are looked at; the item itself is none of them.

    Example:
        >>> z = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 0.1], [1, 0.2], [0, 1]]))
        >>> retrieval_risk(z, torch.tensor([0, 0, 1, 1]), neighbours=2)
        tensor([0.5000, 0.5000, 1.0000, 0.5000])
    """
    if len(embeddings) <= neighbours:
        raise ValueError(
            f"neighbours is {neighbours}, but there are {len(embeddings)} items: more are needed"
        )
    labels = labels.to(embeddings.device)
    shares = [
        (labels[block.indices] != labels[rows, None]).float().mean(1)
        for rows, block in search_blocks(embeddings, neighbours)
    ]
    return torch.cat(shares)


def nearest_is_wrong(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return whether each item's nearest other is of another class, (N,) of bool.

    Example:
        >>> nearest_is_wrong(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1]))
        tensor([False, False,  True])
    """
    return retrieval_risk(embeddings, labels, 1) > 0


def batch_retrieval_risk(points: Tensor, labels: Tensor, neighbours: int) -> Tensor:
    """Return the share of wrong items among the nearest of a batch's others, (B,); for raw points (B, Z)."""
    z = F.normalize(points.detach(), dim=1)
    similarity = (z @ z.T).fill_diagonal_(-torch.inf)
    nearest = similarity.topk(min(neighbours, len(z) - 1), dim=1).indices
    return (labels[nearest] != labels[:, None]).to(z).mean(1)


def pair_losses(u: Tensor, loss: PairLoss, pairs: Pairs) -> Tensor:
    """Return the loss of each item (N,): 2 [(1 - w) mean over its positive pairs + w mean over its negative ones].

    Where every item has as many pairs of either kind, their mean is the loss itself. An item without pairs of a
    kind has nothing for that kind.

    Args:
        u: raw embeddings (N, Z).
        loss: of the pairs.
        pairs: that are averaged.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> u = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> labels, loss = torch.tensor([0, 0, 1, 1]), ContrastiveLoss(negatives="all")
        >>> pairs = Pairs.from_labels(labels)
        >>> torch.isclose(pair_losses(u, loss, pairs).mean(), loss(u, pairs))
        tensor(True)
    """
    u = u.detach()
    total = u.new_zeros(len(u))
    for positive, weight in ((True, 2 * (1 - loss.negative_weight)), (False, 2 * loss.negative_weight)):
        values, counts = torch.zeros_like(total), torch.zeros_like(total)
        for listed in pairs.listed(positive):
            for first, second, count in zip(*(part.split(PAIRS_AT_ONCE) for part in listed), strict=True):
                value = count * loss.pair_values(u[first], u[second], positive)
                for item in (first, second):
                    values.index_add_(0, item, value)
                    counts.index_add_(0, item, count.to(counts))
        total += weight * values / counts.clamp(min=1)
    return total


def sampled_pairs(labels: Tensor, generator: torch.Generator) -> Pairs:
    """Return pairs that stand for all: for each item up to 16 of its class and 64 of others, drawn at random."""
    labels = labels.cpu()
    order = labels.argsort(stable=True)
    sizes = torch.unique_consecutive(labels[order], return_counts=True)[1]
    start = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    item = torch.arange(len(labels))
    place = item - start
    size = sizes.repeat_interleave(sizes)
    shift = 1 + (torch.rand(len(labels), POSITIVES, generator=generator) * (size - 1)[:, None]).long()
    match = order[start[:, None] + (place[:, None] + shift) % size[:, None]]
    others = len(labels) - size
    jump = size[:, None] + (torch.rand(len(labels), NEGATIVES, generator=generator) * others[:, None]).long()
    differ = order[(start[:, None] + jump) % len(labels)]
    alone = size > 1
    anchors = order[:, None]
    positive = (anchors.expand_as(match)[alone].flatten(), match[alone].flatten())
    negative = (anchors.expand_as(differ).flatten(), differ.flatten())
    return Pairs.from_indices((*positive, *negative), len(labels))


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


def link(logits: Tensor, *, is_share: bool) -> Tensor:
    """Return the risk (N,) of logits (N,): their sigmoid for shares, their softplus for losses.

    Example:
        >>> link(torch.zeros(1), is_share=True), link(torch.zeros(1), is_share=False)
        (tensor([0.5000]), tensor([0.6931]))
    """
    return torch.sigmoid(logits) if is_share else F.softplus(logits)


def risk_loss(kind: RiskLoss, logits: Tensor, target: Tensor, *, is_share: bool) -> Tensor:
    """Return the mean loss of predicted risks, a scalar; the target gets no gradient.

    Args:
        kind: "bce", "l2" or "ranking".
        logits: (B,), what the head returns before its link.
        target: (B,), from 0 on.
        is_share: whether the target is a share, whose link is the sigmoid, rather than a loss, whose link is softplus.

    Example:
        >>> round(float(risk_loss("bce", torch.zeros(2), torch.tensor([0.0, 1.0]), is_share=True)), 4)
        0.6931
    """
    target = target.detach().to(logits)
    if kind == "bce":
        if not is_share:
            raise ValueError(
                'loss is "bce", which takes shares from 0 to 1: use "l2" or "ranking" for losses'
            )
        return F.binary_cross_entropy_with_logits(logits, target)
    risk = link(logits, is_share=is_share)
    return F.mse_loss(risk, target) if kind == "l2" else ranking_loss(risk, target)


def ranking_loss(risk: Tensor, target: Tensor, margin: float = MARGIN) -> Tensor:
    """Return the mean of max(0, margin - sign(L1 - L2)(u1 - u2)) over all pairs of a batch that are no ties.

    The riskier item of a pair is pushed up, the other one down (the printed equation of the dissertation has the sign
    reversed). A tie of the targets says nothing of the order and has no gradient.

    Args:
        risk: u (B,).
        target: L (B,).
        margin: by which the riskier item is to be ahead.

    Example:
        >>> risk = torch.tensor([0.5, 0.5], requires_grad=True)
        >>> ranking_loss(risk, torch.tensor([2.0, 1.0])).backward()
        >>> risk.grad  # a step against it raises the risk of the first item, whose loss is the greater one
        tensor([-1.,  1.])
    """
    first, second = torch.triu_indices(len(risk), len(risk), offset=1, device=risk.device)
    sign = torch.sign(target[first] - target[second])
    decided = sign != 0
    hinge = (margin - sign * (risk[first] - risk[second])).clamp(min=0)[decided]
    return hinge.sum() / max(1, int(decided.sum()))
