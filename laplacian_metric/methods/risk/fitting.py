"""Training a risk head on features that are computed once: in memory, or mapped from a file."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from laplacian_metric.core.arguments import Count, NotNegative, Positive
from laplacian_metric.core.progress import track
from laplacian_metric.methods.risk.head import RiskHead, check_start
from laplacian_metric.methods.risk.targets import RiskLoss, risk_loss
from laplacian_metric.metrics.out_of_distribution import ood_auroc

BLOCK = 64  # rows of a mapped file that are read one after the other
LEAST_BATCH, LEAST_STEPS = 16, 50
SHUFFLED_BLOCKS = 512  # whose rows are in random order; more would have to be in memory at a time


@checked(frozen=True)
class RiskOptions:
    """How a risk head is trained.

    Attributes:
        loss: "bce" (of shares), "l2" or "ranking".
        epochs: passes over all views; the one that ranks validation items best is kept.
        batch_size: rows of a step; fewer where there are fewer than 50 steps in an epoch, but 16 at least.
        learning_rate: of the first step; it falls to zero along a cosine.
        weight_decay: of AdamW.
        seed: of the initial weights and of the order of the rows.
    """

    loss: RiskLoss = "bce"
    epochs: Count = 6
    batch_size: Count = 256
    learning_rate: Positive = 1e-4
    weight_decay: NotNegative = 1e-4
    seed: int = 0


@dataclass(frozen=True)
class RiskHistory:
    """What a training did.

    Attributes:
        losses: the mean loss of every epoch.
        validation: after every epoch the R-AUROC on validation items; minus their loss where all or none of them are
            retrieved wrongly.
        best_epoch: the epoch, counted from 1, that was kept.
    """

    losses: list[float]
    validation: list[float]
    best_epoch: int


def fit_head(
    head: RiskHead,
    views: Sequence[Tensor],
    target: Tensor,
    validation: tuple[Tensor, Tensor, Tensor],
    options: RiskOptions | None = None,
    *,
    progress: bool | None = None,
) -> RiskHistory:
    """Train a head in place; it is left with the weights of the epoch that ranks validation items best.

    Args:
        head: with random weights.
        views: the features (N, H) of every view; they may be mapped from files.
        target: of the items, (N,), the same in every view.
        validation: features (M, H), targets (M,) and whether the nearest item is wrong (M,) of items, of
            classes that are not trained on if possible. They choose the epoch.
        options: of the training.
        progress: whether to show a bar; None asks the terminal.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(600, 4, generator=g)
        >>> wrong = torch.rand(600, generator=g) < torch.sigmoid(3 * x[:, 0])
        >>> head = RiskHead(4, hidden=16, generator=g)
        >>> options = RiskOptions(learning_rate=1e-2, batch_size=50)
        >>> validation = x[400:], wrong[400:].float(), wrong[400:]
        >>> history = fit_head(head, [x[:400]], wrong[:400].float(), validation, options)
        >>> history.validation[history.best_epoch - 1] > 0.8
        True
    """
    options = options or RiskOptions()
    _check(head, views, target)
    check_start(head)
    device = next(head.parameters()).device
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    size = min(options.batch_size, max(LEAST_BATCH, len(target) // LEAST_STEPS))
    steps = options.epochs * len(views) * -(-len(target) // size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, losses, measured = copy.deepcopy(head.state_dict()), [], []
    for _ in track(range(options.epochs), "risk head", show=progress):
        total = 0.0
        with torch.enable_grad():
            for view, rows in _batches(views, size, generator):
                optimizer.zero_grad(set_to_none=True)
                logits = head.logits(views[view][rows].to(device))
                value = risk_loss(options.loss, logits, target[rows].to(device), is_share=head.is_share)
                value.backward()
                optimizer.step()
                schedule.step()
                total += float(value.detach()) * len(rows)
        losses.append(total / (len(views) * len(target)))
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(
                f"the loss of the risk head is {losses[-1]}: lower the learning_rate, or look for NaN in the features"
            )
        measured.append(_worth(head, validation, options))
        if measured[-1] == max(measured):
            best = copy.deepcopy(head.state_dict())
    head.load_state_dict(best)
    head.eval().zero_grad(set_to_none=True)
    return RiskHistory(losses, measured, measured.index(max(measured)) + 1)


def _check(head: RiskHead, views: Sequence[Tensor], target: Tensor) -> None:
    if not views:
        raise ValueError("views has no features: one tensor (N, H) at least is needed")
    for number, view in enumerate(views):
        if view.shape != (len(target), head.width):
            raise ValueError(
                f"view {number} has shape {tuple(view.shape)}, ({len(target)}, {head.width}) is needed: a row for each "
                "target"
            )
    if not bool(target.isfinite().all()) or bool((target < 0).any()):
        raise ValueError("target has NaN, infinite or negative entries: risks are finite and from 0 on")
    if float(target.min()) == float(target.max()):
        raise ValueError(
            f"the target is {float(target.min()):.4g} for every item, so that there is nothing to learn: take items "
            "that are harder, or easier, to retrieve"
        )


def _batches(views: Sequence[Tensor], size: int, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """Yield the view and the rows of every batch of an epoch, in random order.

    Blocks of neighbouring rows are dealt at random into groups, whose rows are then shuffled: so much of a mapped file
    is used at a time.
    """
    for view in torch.randperm(len(views), generator=generator).tolist():
        blocks = torch.arange(len(views[view])).split(BLOCK)
        order = torch.randperm(len(blocks), generator=generator)
        rest = torch.empty(0, dtype=torch.int64)
        for group in order.split(SHUFFLED_BLOCKS):
            rows = torch.cat([rest, *(blocks[block] for block in group.tolist())])
            rows = rows[torch.randperm(len(rows), generator=generator)]
            whole = len(rows) - len(rows) % size
            yield from ((view, batch) for batch in rows[:whole].split(size) if len(batch))
            rest = rows[whole:]
        if len(rest):
            yield view, rest


def _worth(head: RiskHead, validation: tuple[Tensor, Tensor, Tensor], options: RiskOptions) -> float:
    """Return the R-AUROC on validation items, or minus their loss where that has no meaning."""
    features, target, wrong = validation
    head.eval()
    with torch.no_grad():
        logits = torch.cat([head.logits(block) for block in features.split(1 << 14)])
        if 0 < int(wrong.sum()) < len(wrong):
            return ood_auroc(logits[~wrong], logits[wrong])
        warnings.warn(
            f"{int(wrong.sum())} of {len(wrong)} validation items are retrieved wrongly, so that the epoch is chosen "
            "by the loss on them: pass validation items some of which are retrieved wrongly",
            stacklevel=3,
        )
        if options.loss == "ranking":
            logits, target = logits[:1024], target[:1024]
        return -float(risk_loss(options.loss, logits, target.to(logits), is_share=head.is_share))
