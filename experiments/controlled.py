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
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common import save, show, write_text
from laplacian_metric import vmf
from laplacian_metric.methods.sampling.alignment import procrustes
from laplacian_metric.methods.spherical.vmf_contrast import log_kernel
from laplacian_metric.metrics.statistics import spearman

KAPPA_POS = 20.0
TEST_IMAGES = 4000
LEVELS = (0.5, 0.9, 0.95)
LARGEST_LOG = 13.0
TITLE = "Concentrations learned from data whose true concentrations are known"
NOTE = (
    "Pairs that are uniform by construction, see experiments/controlled.py; kappa_pos 20. 'cos': cosines of all pairs "
    "of 4,000 test images against the true ones (root mean square and mean absolute difference, rank correlation); "
    "'angle': median degrees between predicted and true means after a rotation fitted on other images; 'k': the same "
    "for concentrations; 'cover': how often the credible caps of 50, 90 and 95 % contain the true latent point."
)

Loss = Literal["positivity", "positivity-matched", "elk", "mc-infonce", "hib", "infonce"]


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        loss: what is minimised.
        seed: of the data's map, the encoder and the draws.
        dim: D.
        low: the smallest true concentration.
        high: the largest one; infinite for images without any spread, whose log k input is then noise.
        steps: of the optimizer.
        batch: pairs in each.
        start: the concentration that the encoder starts from.
        samples: draws of each image, for "mc-infonce" and "hib".
        shared: whether mean and concentration share all layers but the last.
    """

    loss: Loss
    seed: int = 0
    dim: int = 10
    low: float = 16.0
    high: float = 32.0
    steps: int = 3600
    batch: int = 192
    start: float = 20.0
    samples: int = 16
    shared: bool = False

    @property
    def name(self) -> str:
        """What its result file is called."""
        changed = {key: value for key, value in asdict(self).items() if value != getattr(Cell("elk"), key)}
        return "_".join([self.loss, *(f"{key}-{value:g}" for key, value in changed.items() if key != "loss")])


CELLS = [
    *(Cell("positivity", seed) for seed in range(3)),
    Cell("elk"),
    Cell("infonce"),
    Cell("mc-infonce", batch=96),
    Cell("hib", batch=96),
    Cell("positivity", start=4.0),
    Cell("positivity", low=64.0, high=128.0, start=60.0),
    Cell("positivity", low=math.inf, high=math.inf),
    Cell("positivity", shared=True),
    Cell("positivity-matched"),
    Cell("positivity", dim=2),
    Cell("positivity", dim=40),
]


class Images:
    """The map from means and concentrations to images, and the pairs of them.

    Example:
        >>> images = Images(Cell("elk"))
        >>> mean, kappa = images.draw(5, torch.Generator().manual_seed(0))
        >>> images.render(mean, kappa, torch.Generator()).shape
        torch.Size([5, 11])
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        generator = torch.Generator().manual_seed(cell.seed)
        size = cell.dim + 1
        self.layers = [torch.linalg.qr(torch.randn(size, size, generator=generator))[0] for _ in range(3)]

    def draw(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return uniform means (num, D) and concentrations (num,)."""
        mean = F.normalize(torch.randn(num, self.cell.dim, generator=generator), dim=1)
        return mean, self.concentrations(num, generator)

    def concentrations(self, num: int, generator: torch.Generator) -> Tensor:
        """Return concentrations (num,), log-uniform; infinite where there is no spread."""
        if math.isinf(self.cell.low):
            return torch.full((num,), math.inf)
        log = torch.rand(num, generator=generator) * math.log(self.cell.high / self.cell.low)
        return self.cell.low * log.exp()

    def around(self, mean: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
        """Return one point around each mean; the mean where there is no spread."""
        if math.isinf(self.cell.low) and bool(kappa.isinf().all()):
            return mean
        return vmf.sample(mean, kappa, 1, generator=generator)[0]

    def positives(self, mean: Tensor, kappa: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return means and concentrations of images that are positive ones of these."""
        z = self.around(mean, kappa, generator)
        z = vmf.sample(z, torch.full_like(z[:, 0], KAPPA_POS), 1, generator=generator)[0]
        other = self.concentrations(len(mean), generator)
        return self.around(z, other, generator), other

    def render(self, mean: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images (N, D + 1)."""
        if math.isinf(self.cell.low):
            level = torch.rand(len(kappa), generator=generator)
        else:
            level = (kappa / self.cell.low).log() / math.log(self.cell.high / self.cell.low)
        x = torch.cat([mean * math.sqrt(self.cell.dim), (level[:, None] - 0.5) * math.sqrt(12)], dim=1)
        for layer in self.layers[:-1]:
            x = F.leaky_relu(x @ layer, 0.2)
        image: Tensor = x @ self.layers[-1]
        return image


class Network(nn.Module):
    """Images (N, D + 1) -> means (N, D) and concentrations (N,); two networks, or one with two heads."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cell.seed)
            self.location = mlp(cell.dim + 1, 128, 128, 128, cell.dim)
            self.concentration = mlp(cell.dim + 1, 128, 128, 128, 1)
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


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with LeakyReLU between.

    Example:
        >>> len(mlp(3, 8, 2))
        3
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


def contrast(cell: Cell, network: Network, x: Tensor, other: Tensor, generator: torch.Generator) -> Tensor:
    """Return the loss of positive pairs x, other (N, D + 1), each against the other pairs of the batch."""
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


def train(cell: Cell) -> tuple[Network, Images, float]:
    """Train on fresh pairs: concentrations at half the rate, and not at all in the first 30 % of the steps."""
    images, network = Images(cell), Network(cell)
    generator = torch.Generator().manual_seed(1000 + cell.seed)
    free = [network.concentration[-1]] if cell.shared else [network.concentration]
    slow = [p for module in free for p in module.parameters()]
    fast = [*network.location.parameters(), network.matching]
    optimizer = torch.optim.Adam([{"params": fast}, {"params": slow}], lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [3e-3, 1.5e-3], total_steps=cell.steps)
    loss = torch.tensor(math.nan)
    for step in range(cell.steps):
        mean, kappa = images.draw(cell.batch, generator)
        mean2, kappa2 = images.positives(mean, kappa, generator)
        x, other = (images.render(m, k, generator) for m, k in ((mean, kappa), (mean2, kappa2)))
        for parameter in slow:
            parameter.requires_grad_(step >= 0.3 * cell.steps)
        loss = contrast(cell, network, x, other, generator)
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"the loss of {cell.name} is {float(loss.detach())} at step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network, images, float(loss.detach())


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's rank correlation of two vectors."""
    return float(spearman(a.double(), b.double(), torch.ones(1, len(a), dtype=torch.float64)))


@torch.no_grad()
def measure(network: Network, images: Images) -> dict[str, Any]:
    """Return how far means, concentrations and credible caps are from the truth, and some pairs (true k, k)."""
    cell = images.cell
    generator = torch.Generator().manual_seed(10_000 + cell.seed)
    (mean, kappa), (fit_mean, fit_kappa) = (images.draw(TEST_IMAGES, generator) for _ in range(2))
    (m, k), (fit_m, _) = (
        network(images.render(*truth, generator)) for truth in ((mean, kappa), (fit_mean, fit_kappa))
    )
    above = torch.triu_indices(TEST_IMAGES, TEST_IMAGES, 1).unbind()
    true_cosine, cosine = (mean @ mean.T)[above], (m @ m.T)[above]
    some = torch.randperm(len(cosine), generator=generator)[:200_000]
    turned = m @ procrustes(fit_m, fit_mean)
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


def run(out: Path, cells: list[Cell], until: str | None) -> Iterator[str]:
    """Train and measure the cells whose results are not in ``out`` yet; begin none after the time ``until``."""
    for cell in cells:
        path = out / "results" / "controlled" / f"{cell.name}.json"
        if path.exists():
            continue
        if until is not None and time.strftime("%H:%M") >= until:
            return
        begun = time.process_time()
        network, images, loss = train(cell)
        measured = measure(network, images) | {"last loss": loss, "cpu seconds": time.process_time() - begun}
        described = {key: str(x) if x == math.inf else x for key, x in asdict(cell).items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"cell": described, "result": measured}, indent=1))
        yield cell.name


def load(out: Path) -> list[tuple[Cell, dict[str, Any]]]:
    """Return the finished cells in their order."""
    finished = []
    for cell in CELLS:
        path = out / "results" / "controlled" / f"{cell.name}.json"
        if path.exists():
            finished.append((cell, json.loads(path.read_text())["result"]))
    return finished


def table(out: Path) -> list[Path]:
    """Write the table and the figure of what has finished; return their paths."""
    rows = [
        {
            "cell": cell.name,
            "D": cell.dim,
            "true k": f"{cell.low:g}-{cell.high:g}",
            "steps": cell.steps,
            "cos RMSE": result["cos rmse"],
            "cos MAE": result["cos mae"],
            "cos rank": result["cos rank"],
            "angle": result["angle"],
            "k RMSE": result.get("k rmse"),
            "k MAE": result.get("k mae"),
            "k rank": result.get("k rank"),
            "median k": result["k median"],
            **{f"cover {p:.0%}": c for p, c in zip(LEVELS, result["coverage"], strict=True)},
        }
        for cell, result in load(out)
    ]
    if not rows:
        raise SystemExit(f"{out} has no finished cells: python -m experiments.controlled run --out {out}")
    missing = [cell.name for cell in CELLS if cell.name not in {row["cell"] for row in rows}]
    note = NOTE + (f" Not run yet: {', '.join(missing)}." if missing else "")
    show(TITLE, rows)
    return [*save(out, "controlled", TITLE, rows, note, package="experiments"), draw(out)]


def draw(out: Path) -> Path:
    """Draw true against predicted concentrations, and coverage, of every finished cell at D = 10, k 16-32."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    basic = Cell("elk")
    for cell, result in load(out):
        if (cell.dim, cell.low, cell.high) != (basic.dim, basic.low, basic.high):
            continue
        true, learned = zip(*result["k pairs"], strict=True)
        left.scatter(true, learned, s=5, alpha=0.6, label=cell.name)
        right.plot(LEVELS, result["coverage"], marker="o", label=cell.name)
    left.axline((basic.low, basic.low), slope=1, color="black", linewidth=0.8)
    left.set(xlabel="true concentration", ylabel="learned concentration", yscale="log", xscale="log")
    right.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    right.set(
        xlabel="credible cap", ylabel="share of true latent points inside", xlim=(0.4, 1), ylim=(0, 1.02)
    )
    right.legend(fontsize="x-small")
    path = out / "plots" / "controlled.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def main() -> None:
    """Run cells, or make the table of the finished ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--out", type=Path, required=True, help="folder of results, tables and figures")
    parser.add_argument("--only", help="run the cells of one loss only")
    parser.add_argument("--until", help="begin no cell after this time of day, HH:MM")
    arguments = parser.parse_args()
    if arguments.action == "run":
        torch.set_num_threads(1)
        cells = [cell for cell in CELLS if arguments.only in (None, cell.loss)]
        for name in run(arguments.out, cells, arguments.until):
            print(f"finished: {name}", flush=True)
    else:
        for path in table(arguments.out):
            print(f"written: {path}")


if __name__ == "__main__":
    main()
