"""The data of the controlled experiment: means and concentrations that are known, and pairs of images made of them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacian_metric import vmf

KAPPA_POS = 20.0
CANDIDATES = 64  # proposed at once for each image that has no positive one yet

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
        width: of the encoder's hidden layers.
        process: "uniform", or "published": see `Images` and `PublishedImages`.
        whitened: whether the encoder begins with means that are spread over the sphere evenly: its last layer whitens
            the features of 2,000 images.
        centred: whether the mean of a batch's means is pulled to zero, where it is for means that are uniform.
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
    width: int = 128
    process: Literal["uniform", "published"] = "uniform"
    whitened: bool = False
    centred: bool = False

    @property
    def name(self) -> str:
        """What its result file is called."""
        basic = asdict(Cell("elk"))
        changed = {key: value for key, value in asdict(self).items() if key != "loss" and value != basic[key]}
        shown = (
            f"{key}-{value if isinstance(value, str) else f'{value:g}'}" for key, value in changed.items()
        )
        return "_".join([self.loss, *shown])


class Images:
    """The map from means and concentrations to images (N, size), and the pairs of them.

    Example:
        >>> images = Images(Cell("elk"))
        >>> x, mean, kappa = images.draw(5, torch.Generator().manual_seed(0))
        >>> x.shape, mean.shape, kappa.shape
        (torch.Size([5, 11]), torch.Size([5, 10]), torch.Size([5]))
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        generator = torch.Generator().manual_seed(cell.seed)
        self.size = size = cell.dim + 1
        self.layers = [torch.linalg.qr(torch.randn(size, size, generator=generator))[0] for _ in range(3)]

    def draw(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return images (num, size), their means (num, D), which are uniform, and concentrations (num,)."""
        mean = F.normalize(torch.randn(num, self.cell.dim, generator=generator), dim=1)
        kappa = self.concentrations(num, generator)
        return self.render(mean, kappa, generator), mean, kappa

    def pairs(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return images (num, size) and a positive one of each."""
        x, mean, kappa = self.draw(num, generator)
        return x, self.render(*self.positives(mean, kappa, generator), generator)

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


class PublishedImages(Images):
    """Images as published (Kirchhof et al., 2023): uniform numbers, of which random networks make means and kappa.

    x is uniform on [0, 1]^D; the mean is a LeakyReLU network of width D, drawn again until two images have a cosine of
    at most 1/2; log kappa is the rank of another network's output, spread evenly over its range. A pair of images is
    accepted as positive with the probability r/(r + 1), r = exp(kpos z . z+) C(kpos)/C(0), of points drawn from both.
    That is not the vMF law which losses assume, means are not uniform, and images with several positives near them
    have an advantage. (Published networks are smoothed by further training, which is left out here.)

    Example:
        >>> x, mean, kappa = PublishedImages(Cell("elk", process="published")).draw(5, torch.Generator().manual_seed(0))
        >>> x.shape, bool(((kappa >= 16) & (kappa <= 32)).all())
        (torch.Size([5, 10]), True)
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.size = cell.dim
        reference = torch.rand(2000, self.size, generator=torch.Generator().manual_seed(cell.seed))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cell.seed)
            self.location = mlp(*[cell.dim] * 4)
            while float((self._mean(reference) @ self._mean(reference).T).min()) > 0.5:
                self.location = mlp(*[cell.dim] * 4)
            self.concentration = mlp(*[cell.dim] * 3, 1)
        with torch.no_grad():
            self.ordered = self.concentration(reference)[:, 0].sort().values

    @torch.no_grad()
    def _mean(self, x: Tensor) -> Tensor:
        return F.normalize(self.location(x) - self.location(torch.full_like(x[:1], 0.5)), dim=1)

    @torch.no_grad()
    def draw(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.rand(num, self.size, generator=generator)
        share = torch.searchsorted(self.ordered, self.concentration(x)[:, 0]) / len(self.ordered)
        return x, self._mean(x), self.cell.low * (share * math.log(self.cell.high / self.cell.low)).exp()

    def pairs(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, mean, kappa = self.draw(num, generator)
        return x, self.accepted(mean, kappa, generator)

    def accepted(self, mean: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
        """Return a positive image (N, size) of images with these distributions."""
        chosen = mean.new_empty(len(mean), self.size)
        missing = torch.arange(len(mean))
        reference = torch.tensor(KAPPA_POS, dtype=torch.float64)
        log_scale = float(vmf.relative_log_normalizer(reference, self.cell.dim))
        while len(missing):
            shape = (CANDIDATES, len(missing))
            x, *law = self.draw(math.prod(shape), generator)
            z = self.around(mean[missing].repeat(CANDIDATES, 1), kappa[missing].repeat(CANDIDATES), generator)
            log_ratio = log_scale + KAPPA_POS * (z * self.around(law[0], law[1], generator)).sum(1)
            accepts = (torch.rand(len(x), generator=generator) < torch.sigmoid(log_ratio)).view(shape)
            first, some = accepts.int().argmax(0), accepts.any(0)  # the first that is accepted, where one is
            chosen[missing[some]] = x.view(*shape, -1)[first, torch.arange(len(missing))][some]
            missing = missing[~some]
        return chosen


def images_of(cell: Cell) -> Images:
    """Return the process of a cell."""
    return Images(cell) if cell.process == "uniform" else PublishedImages(cell)


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
