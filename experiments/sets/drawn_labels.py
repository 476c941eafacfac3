"""Labels that are drawn anew in every batch, from the shares of people who gave each label."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from laplacian_metric.core.batch import Batch
from laplacian_metric.core.dataset import Dataset


@dataclass(frozen=True, eq=False, repr=False)
class DrawnLabels(Dataset):
    """A data set whose training batches have labels drawn from a distribution over classes, one for each image.

    Batches at given positions, which training takes, have fresh labels each time; from the same generator the same
    ones. Batches in order, by which images are validated and embedded, keep the labels that the data set has.

    Attributes:
        distribution: the entry of ``extras`` with the probabilities (N, C).

    Example:
        >>> people = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        >>> data = DrawnLabels.of(Dataset(torch.zeros(2, 3), [0, 1], extras={"people": people}), "people")
        >>> batches = data.batches([torch.tensor([0, 1])] * 20, torch.Generator().manual_seed(0))
        >>> sorted({tuple(batch.labels.tolist()) for batch in batches})
        [(0, 0), (0, 1)]
    """

    distribution: str = field(default="human_distribution", kw_only=True)

    @classmethod
    def of(cls, data: Dataset, distribution: str = "human_distribution") -> DrawnLabels:
        """Return the same inputs with drawn labels.

        Args:
            data: with labels, and with the probabilities among its ``extras``.
            distribution: their name, such as that of CIFAR-10H's in the test images of "cifar-10".
        """
        values = {
            entry.name: getattr(data, entry.name) for entry in dataclasses.fields(Dataset) if entry.init
        }
        return cls(**values, distribution=distribution)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distribution not in self.extras:
            names = ", ".join(map(repr, self.extras)) or "none"
            raise ValueError(
                f"{self.title} has no extras called {self.distribution!r}, its extras are {names}: pass distribution"
            )
        shares = self.probabilities
        if shares.ndim != 2 or not shares.is_floating_point():
            raise ValueError(
                f"{self.distribution} is {shares.dtype} of shape {tuple(shares.shape)}: probabilities (N, C) are needed"
            )
        valid = (shares >= 0).all(1) & ((shares.sum(1) - 1).abs() < 1e-4)
        if not bool(valid.all()):
            raise ValueError(
                f"row {int((~valid).nonzero()[0, 0])} of {self.distribution} is no distribution: entries from 0 on "
                "that sum to 1 are needed"
            )
        self.known_labels()

    @property
    def probabilities(self) -> Tensor:
        """The distribution of every input's label, (N, C)."""
        return self.extras[self.distribution]

    def batches(
        self, rows: Sequence[Tensor] | None = None, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        batches = super().batches(rows, generator)
        if rows is None:
            yield from batches
            return
        for positions, batch in zip(rows, batches, strict=True):
            labels = torch.multinomial(self.probabilities[positions], 1, generator=generator)[:, 0]
            yield replace(batch, labels=labels)
