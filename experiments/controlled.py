"""Are learned concentrations right? Losses on data whose true distributions are known.

    python -m experiments.controlled run --out figures            # cell by cell; finished cells are kept
    python -m experiments.controlled table --out figures

A mean mu is uniform on the sphere and log k uniform on a range; z ~ vMF(mu, k), z+ ~ vMF(z, kpos), k+ is drawn, and
mu+ ~ vMF(z+, k+). As mu has a uniform prior, x = F(mu, k) and x+ = F(mu+, k+) are a positive pair exactly as the model
has it, without any rejection. F is injective: three orthogonal layers with LeakyReLU between. An encoder learns mu and
k from fresh pairs, each contrasted with the other pairs of its batch; it is measured on 4,000 other images. Embeddings
are known up to a rotation, which is fitted on a further 4,000.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.arguments import kept
from experiments.controlled_process import KAPPA_POS, Cell, Images, images_of, mlp
from experiments.frozen import turned_head
from laplacian_metric import vmf
from laplacian_metric.core.files import atomic_write
from laplacian_metric.methods.sampling.ensemble import nearest_orthogonal
from laplacian_metric.methods.spherical.vmf_contrast import log_kernel
from laplacian_metric.metrics.statistics import spearman

TEST_IMAGES = 4000
LEVELS = (0.5, 0.9, 0.95)
LARGEST_LOG = 13.0
LARGEST_KAPPA = 1e9  # stands for an infinite one in the series
STEPS_BETWEEN = 300  # checkpoints
WHITENED_WITH = 2000  # images
CELLS = [
    *(Cell("positivity", seed) for seed in range(3)),
    Cell("elk"),
    Cell("infonce"),
    Cell("mc-infonce", batch=96),
    Cell("hib", batch=96),
    Cell("positivity", start=4.0),
    Cell("positivity", low=64.0, high=128.0, start=60.0),
    Cell("positivity", low=math.inf, high=math.inf),
    Cell("positivity", dim=2),
    Cell("positivity", shared=True),
    Cell("positivity", process="published"),
    Cell("positivity-matched"),
    Cell("positivity", dim=40),
    Cell("positivity", dim=40, low=64.0, high=128.0, start=60.0),
    Cell("positivity", dim=40, low=64.0, high=128.0, start=60.0, width=512),
    Cell("positivity", dim=20, low=64.0, high=128.0, start=60.0),
    Cell("positivity", whitened=True),
    Cell("positivity", start=4.0, whitened=True),
    Cell("mc-infonce", batch=96, whitened=True),
    Cell("positivity", dim=20, low=64.0, high=128.0, start=60.0, whitened=True),
    Cell("positivity", dim=40, low=64.0, high=128.0, start=60.0, width=512, whitened=True),
    Cell("positivity", dim=20, low=64.0, high=128.0, start=60.0, whitened=True, centred=True),
    Cell("positivity", dim=40, whitened=True),
    Cell("positivity", dim=20, low=64.0, high=128.0, steps=14400, start=60.0, whitened=True),
    Cell("positivity", dim=40, low=64.0, high=128.0, steps=14400, start=60.0, width=512),
    Cell("positivity", dim=40, low=64.0, high=128.0, steps=14400, start=60.0, width=512, whitened=True),
]


class Network(nn.Module):
    """Images (N, size) -> means (N, D) and concentrations (N,); two networks, or one with two heads."""

    def __init__(self, cell: Cell, size: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cell.seed)
            hidden = [size, *[cell.width] * 3]
            self.location, self.concentration = mlp(*hidden, cell.dim), mlp(*hidden, 1)
        self.shared = cell.shared
        last = self.concentration[-1]
        assert isinstance(last, nn.Linear)
        nn.init.constant_(last.bias, LARGEST_LOG * math.atanh(math.log(cell.start) / LARGEST_LOG))
        # a, b of hib's probability of a match
        self.matching = nn.Parameter(torch.tensor([math.log(16.0), -8.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.location[:-1](x)
        mean = F.normalize(self.location[-1](h), dim=1)
        log = self.concentration[-1](h) if self.shared else self.concentration(x)
        return mean, (LARGEST_LOG * torch.tanh(log[:, 0] / LARGEST_LOG)).exp()


def contrast(cell: Cell, network: Network, x: Tensor, other: Tensor, generator: torch.Generator) -> Tensor:
    """Return the loss of positive pairs x, other (N, size), each against the other pairs of the batch."""
    (mean, kappa), (mean2, kappa2) = network(x), network(other)
    target = torch.arange(len(x))
    if cell.loss in ("infonce", "positivity", "positivity-matched"):
        cosine = (mean.double() @ mean2.double().T).clamp(-1, 1)
        if cell.loss == "infonce":
            return F.cross_entropy(KAPPA_POS * cosine, target)
        log_h = vmf.log_positivity if cell.loss == "positivity" else vmf.log_positivity_matched
        return F.cross_entropy(log_h(cosine, kappa[:, None], kappa2, KAPPA_POS, cell.dim), target)
    if cell.loss == "elk":
        return F.cross_entropy(log_kernel(mean, kappa, mean2, kappa2), target)
    draws = (vmf.sample(m, k, cell.samples, generator=generator) for m, k in ((mean, kappa), (mean2, kappa2)))
    cosines = torch.einsum("kiz,ljz->ijkl", *draws)
    if cell.loss == "mc-infonce":
        return F.cross_entropy((KAPPA_POS * cosines).logsumexp((2, 3)), target)
    logits = network.matching[0].exp() * cosines + network.matching[1]
    match, differ = (
        F.logsigmoid(s).logsumexp((2, 3)) - 2 * math.log(cell.samples) for s in (logits, -logits)
    )
    others = ~torch.eye(len(x), dtype=torch.bool)
    return -match.diagonal().mean() - differ[others].mean()


def train(cell: Cell, checkpoint: Path | None = None) -> tuple[Network, Images, float]:
    """Train on fresh pairs: concentrations at half the rate, and not at all in the first 30 % of the steps.

    Args:
        cell: what is trained.
        checkpoint: a file from which a training goes on that was interrupted; it is removed at the end.
    """
    images = images_of(cell)
    network = Network(cell, images.size)
    if cell.whitened:
        x = images.draw(WHITENED_WITH, torch.Generator().manual_seed(30_000 + cell.seed))[0]
        with torch.no_grad():
            network.location[-1] = turned_head(network.location[:-1](x), cell.dim, cell.seed)
    generator = torch.Generator().manual_seed(1000 + cell.seed)
    free = [network.concentration[-1]] if cell.shared else [network.concentration]
    slow = [p for module in free for p in module.parameters()]
    fast = [*network.location.parameters(), network.matching]
    optimizer = torch.optim.Adam([{"params": fast}, {"params": slow}], lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [3e-3, 1.5e-3], total_steps=cell.steps)
    begin, losses = 0, torch.full((cell.steps,), math.nan)
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        begin, losses = state["step"], state["losses"]
        for part, name in ((network, "network"), (optimizer, "optimizer"), (schedule, "schedule")):
            part.load_state_dict(state[name])
        generator.set_state(state["generator"])
    for step in range(begin, cell.steps):
        x, other = images.pairs(cell.batch, generator)
        for parameter in slow:
            parameter.requires_grad_(step >= 0.3 * cell.steps)
        loss = contrast(cell, network, x, other, generator)
        if cell.centred:  # about 1 for means that are uniform
            pulled = loss + cell.batch * network(x)[0].mean(0).square().sum()
        else:
            pulled = loss
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"the loss of {cell.name} is {float(loss.detach())} at step {step}")
        losses[step] = loss.detach()
        optimizer.zero_grad()
        pulled.backward()
        optimizer.step()
        schedule.step()
        if checkpoint is not None and (step + 1) % STEPS_BETWEEN == 0:
            state = {"step": step + 1, "losses": losses, "generator": generator.get_state()}
            state |= {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            with atomic_write(checkpoint) as temporary:
                torch.save(state | {"schedule": schedule.state_dict()}, temporary)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return network, images, float(losses[-max(1, cell.steps // 50) :].mean())


def information_at_the_truth(cell: Cell, batches: int = 20) -> float:
    """Return log(batch) minus the loss "positivity" of the true distributions: what a batch can teach, in nats.

    Example:
        >>> information_at_the_truth(Cell("positivity", batch=32), 4) > information_at_the_truth(
        ...     Cell("positivity", batch=32, dim=40), 4)
        True
    """
    images, generator = images_of(cell), torch.Generator().manual_seed(20_000)
    losses = []
    for _ in range(batches):
        _, mean, kappa = images.draw(cell.batch, generator)
        mean2, kappa2 = images.positives(mean, kappa, generator)
        cosine = (mean.double() @ mean2.double().T).clamp(-1, 1)
        k1, k2 = (k.clamp(max=LARGEST_KAPPA).double() for k in (kappa[:, None], kappa2))
        log_h = vmf.log_positivity(cosine, k1, k2, KAPPA_POS, cell.dim)
        losses.append(float(F.cross_entropy(log_h, torch.arange(cell.batch))))
    return math.log(cell.batch) - sum(losses) / batches


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's rank correlation of two vectors."""
    return float(spearman(a.double(), b.double(), torch.ones(1, len(a), dtype=torch.float64)))


@torch.no_grad()
def measure(network: Network, images: Images) -> dict[str, Any]:
    """Return how far means, concentrations and credible caps are from the truth, and some pairs (true k, k)."""
    cell = images.cell
    generator = torch.Generator().manual_seed(10_000 + cell.seed)
    (x, mean, kappa), (fit_x, fit_mean, _) = (images.draw(TEST_IMAGES, generator) for _ in range(2))
    (m, k), (fit_m, _) = network(x), network(fit_x)
    above = torch.triu_indices(TEST_IMAGES, TEST_IMAGES, 1).unbind()
    true_cosine, cosine = (mean @ mean.T)[above], (m @ m.T)[above]
    some = torch.randperm(len(cosine), generator=generator)[:200_000]
    turned = m @ nearest_orthogonal(fit_m.double().T @ fit_mean.double()).to(m)
    latent = images.around(mean, kappa, generator)
    angle = (turned * latent).sum(1).clamp(-1, 1).acos()
    result: dict[str, Any] = {
        "cos rmse": float((cosine - true_cosine).square().mean().sqrt()),
        "cos mae": float((cosine - true_cosine).abs().mean()),
        "cos rank": rank_correlation(cosine[some], true_cosine[some]),
        "angle": float((turned * mean).sum(1).clamp(-1, 1).acos().rad2deg().median()),
        "k median": float(k.median()),
        "coverage": [
            float((angle <= vmf.cap_quantile(k.double(), cell.dim, p)).double().mean()) for p in LEVELS
        ],
    }
    if math.isfinite(cell.low):
        result |= {
            "k rmse": float((k - kappa).square().mean().sqrt()),
            "k mae": float((k - kappa).abs().mean()),
            "k rank": rank_correlation(k, kappa),
            "k pairs": torch.stack([kappa, k], dim=1)[:300].tolist(),
        }
    return result


def run(out: Path, cells: list[Cell]) -> Iterator[str]:
    """Train and measure the cells whose results are not in ``out`` yet."""
    for cell in cells:
        path = out / "results" / "controlled" / f"{cell.name}.json"
        if kept(path, partial(result_of, cell, path.with_suffix(".unfinished"))):
            yield cell.name


def result_of(cell: Cell, checkpoint: Path) -> dict[str, Any]:
    """Train and measure a cell; a training that was interrupted goes on from its checkpoint."""
    begun = time.process_time()
    network, images, loss = train(cell, checkpoint)
    measured = measure(network, images) | {"last loss": loss, "cpu seconds": time.process_time() - begun}
    described = {key: str(x) if x == math.inf else x for key, x in asdict(cell).items()}
    return {"cell": described, "result": measured}


def load(out: Path) -> list[tuple[Cell, dict[str, Any]]]:
    """Return the finished cells in their order."""
    finished = []
    for cell in CELLS:
        path = out / "results" / "controlled" / f"{cell.name}.json"
        if path.exists():
            finished.append((cell, json.loads(path.read_text())["result"]))
    return finished


def main() -> None:
    """Run cells, or make the table of the finished ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--out", type=Path, required=True, help="folder of results, tables and figures")
    parser.add_argument("--only", help="run the cells of one loss only")
    arguments = parser.parse_args()
    if arguments.action == "run":
        torch.set_num_threads(1)
        cells = [cell for cell in CELLS if arguments.only in (None, cell.loss)]
        for name in run(arguments.out, cells):
            print(f"finished: {name}", flush=True)
    else:
        from experiments.controlled_tables import table

        for path in table(arguments.out):
            print(f"written: {path}")


if __name__ == "__main__":
    main()
