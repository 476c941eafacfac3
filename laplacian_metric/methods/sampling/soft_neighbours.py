"""Whether several networks see an image beside the same others: a disagreement that no rotation of a space changes."""

from __future__ import annotations

import torch
from torch import Tensor

from hessians.checks import widest_dtype

ROWS_AT_ONCE = 256


def neighbour_disagreement(members: Tensor, references: Tensor, sharpness: float = 30.0) -> Tensor:
    """The Jensen-Shannon divergence of the members' soft nearest neighbours, from 0 to log M.

    Member m gives reference r the probability softmax_r(sharpness cosine) of being an image's neighbour; the divergence
    is the entropy of the average of these distributions less the average of their entropies. Only similarities enter.

    Args:
        members: (M, N, Z), unit rows, the embeddings of N images by M networks.
        references: (M, R, Z), those of R other images by the same networks.
        sharpness: of the softmax; the neighbours within a squared distance of about 2/sharpness count.

    Returns:
        (N,), float64 where the device has it.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> turned = z.flip(1)
        >>> neighbour_disagreement(torch.stack([z, turned]), torch.stack([z, turned])).tolist()
        [0.0, 0.0]
        >>> neighbour_disagreement(torch.stack([z, z]), torch.stack([z, turned]))  # log 2
        tensor([0.6931, 0.6931], dtype=torch.float64)
    """
    wide = widest_dtype(members.device)
    disagreements = []
    for part in members.split(ROWS_AT_ONCE, dim=1):
        shares = torch.softmax(sharpness * (part @ references.mT).to(wide), dim=2)
        apart = torch.special.entr(shares).sum(2).mean(0)
        together = torch.special.entr(shares.mean(0)).sum(1)
        disagreements.append((together - apart).clamp(min=0))  # below 0 by rounding only
    return torch.cat(disagreements)


class RandomImages:
    """``count`` images of a stream of unknown length, drawn without replacement; the same however it is cut.

    Example:
        >>> drawn = RandomImages(2, seed=0)
        >>> for batch in torch.arange(10.0).reshape(1, 10, 1).split(4, dim=1):
        ...     drawn.add(batch)
        >>> drawn.members.shape
        torch.Size([1, 2, 1])
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.members = torch.empty(0)  # (M, R, Z)
        self._keys = torch.empty(0, dtype=torch.float64)
        self._generator = torch.Generator().manual_seed(seed)

    def add(self, members: Tensor) -> None:
        """Take in what M networks make of some images, (M, n, Z)."""
        keys = torch.rand(members.shape[1], generator=self._generator, dtype=torch.float64)
        if len(self._keys):
            members, keys = torch.cat([self.members, members], dim=1), torch.cat([self._keys, keys])
        kept = keys.argsort()[: self.count]
        self.members, self._keys = members[:, kept.to(members.device)], keys[kept]
