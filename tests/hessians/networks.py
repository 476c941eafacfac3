"""Small networks of the kinds that embed images and texts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs


def two_convolutions(dim: int = 3) -> nn.Sequential:
    """Convolutions, an in-place ReLU, pooling and a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, dim),
    )


class Normalise(nn.Module):
    """Points on the unit sphere."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


class GeM(nn.Module):
    """Generalised-mean pooling with a learned exponent."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=1e-2).pow(self.p).mean((-2, -1)).pow(1 / self.p)


class Block(nn.Module):
    """A residual block whose one in-place ReLU is used twice."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


class Residual(nn.Module):
    """Residual blocks with batch norm, generalised-mean pooling and a linear whitening."""

    def __init__(self, dim: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(Block(3, 3, 1), Block(3, 4, 2))
        self.pool = GeM()
        self.whiten = nn.Linear(4, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.whiten(self.pool(self.blocks(self.stem(x))))


class AttentionBlock(nn.Module):
    """Pre-norm attention and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, a class token, position embeddings and two attention blocks."""

    def __init__(self, size: int = 6, width: int = 4, heads: int = 2, dim: int = 3, patch: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(AttentionBlock(width, heads), AttentionBlock(width, heads))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], dim=1) + self.position
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class TextEncoder(nn.Module):
    """Word embeddings, positions that are looked up too, torch's encoder with a padding mask, and a mean."""

    def __init__(self, batch_first: bool, length: int = 5, width: int = 4, dim: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(7, width, padding_idx=0)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 2, 6, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, dim, bias=False)
        self.batch_first = batch_first

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        padding = None if attention_mask is None else attention_mask == 0
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=padding)
        return self.head(x.mean(1 if self.batch_first else 0))


class Shared(nn.Module):
    """One module called twice, once on two halves of its input, and a weight that two modules own."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(4, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.twice(x))
        x = torch.tanh(self.twice(torch.stack([x, x.flip(1)], dim=1)).sum(1))
        return self.first(x) + self.second(torch.sin(x))


class LossOfBatch(nn.Module):
    """The loss as curvlinops calls it: a sum over u, or over points that the network has normalised."""

    reduction = "sum"

    def __init__(self, loss: ContrastiveLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        points = F.normalize(output, dim=1) if self.loss.distance == "arccos" else output
        return self.loss.value_of_points(points, Pairs.from_labels(labels))
