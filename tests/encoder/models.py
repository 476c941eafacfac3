"""Models of the kinds that people bring, none of them made for being cut."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AbstractJacobian:
    """Stand-in for nnj's base class, which comes before torch's in the order of resolution."""

    def jvp(self, x: Tensor, vector: Tensor) -> Tensor:
        return torch.func.jvp(self, (x,), (vector,))[1]  # type: ignore[arg-type, no-any-return]


class JacobianLinear(AbstractJacobian, nn.Linear):
    pass


class JacobianSequential(AbstractJacobian, nn.Sequential):
    """As nnj's: a sequence with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            assert layer is not None
            x = layer(x)
        return x


class L2Norm(AbstractJacobian, nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).sum(dim=-1, keepdim=True))


class Scaled(nn.Module):
    """What some losses want: the norm, and a factor."""

    def forward(self, x: Tensor) -> Tensor:
        return 20 * F.normalize(x, dim=1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.norm(self.convolution(x)))


class Residual(nn.Module):
    """As torchvision's residual networks: a head that is called fc, and what is before it in the forward pass only."""

    def __init__(self, dim: int = 4, normalize: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(8, dim)  # registered first, run last
        self.stem = nn.Conv2d(3, 8, 3)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.gate = nn.Linear(8, 8)
        self.normalize = normalize

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.stem(images)).mean((2, 3))
        x = x * torch.sigmoid(self.gate(x))
        u = self.fc(x)
        return F.normalize(u, dim=1) if self.normalize else u


class HeadLast(nn.Module):
    """The head is registered last and lies deeper; its dtype is asked for, as some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh())
        self.top = nn.ModuleDict({"drop": nn.Dropout(0.5), "head": nn.Linear(8, 3)})

    def forward(self, images: Tensor) -> Tensor:
        head: Any = self.top["head"]
        return head(self.top["drop"](self.body(images)).to(head.weight.dtype))  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One linear layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))  # type: ignore[no-any-return]


class MoreAfter(nn.Module):
    """Something happens to the head's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(self.first(x)))


class ByFunction(nn.Module):
    """The head's weight is used, but the layer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.last.weight, self.last.bias)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.head(self.attention(tokens, tokens, tokens)[0].mean(1))
        return x


class Tokens(nn.Module):
    """A text model, called with named arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        words = self.words(ids)
        if mask is None:
            return self.head(words.mean(1))  # type: ignore[no-any-return]
        weight = mask[..., None].to(words.dtype)
        return self.head((words * weight).sum(1) / weight.sum(1))  # type: ignore[no-any-return]


class Shared(Tokens):
    """The head's weight is that of the words."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 20, bias=False)
        self.head.weight = self.words.weight


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(x), x


def small_chain(*after: nn.Module) -> nn.Sequential:
    """(N, 12) -> (N, 3), followed by what is given."""
    body = nn.Sequential(nn.Linear(12, 8), nn.ReLU())
    return nn.Sequential(body, nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 3)), *after)
