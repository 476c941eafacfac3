"""The diagonal of whole networks: rules beside autograd alone, beside BackPACK, and beside the backward passes that
it is made of.

    python -m benchmarks.network --out figures

Ratios are to as many plain backward passes of the batch as the embeddings have dimensions, gradients of all weights
included. A second table compares ways to carry columns down to the layers, without what the rules do there.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from backpack import backpack, extend
from backpack.core.derivatives.conv2d import Conv2DDerivatives
from backpack.core.derivatives.flatten import FlattenDerivatives
from backpack.core.derivatives.linear import LinearDerivatives
from backpack.core.derivatives.maxpool2d import MaxPool2DDerivatives
from backpack.core.derivatives.relu import ReLUDerivatives
from backpack.extensions import BatchGrad
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from benchmarks.common import mebibytes, median_seconds, peak_extra_memory, save, show
from hessians import ContrastiveLoss, Pairs
from hessians.backward.quadratic import Quadratic
from hessians.network import ggn_diagonal

Run = Callable[[], object]


class AttentionBlock(nn.Module):
    """Pre-norm attention and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Two attention blocks over 4 x 4 patches of a 28 x 28 image, with a class token and position embeddings."""

    def __init__(self, width: int = 64, dim: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 50, width))
        self.blocks = nn.Sequential(AttentionBlock(width, 4), AttentionBlock(width, 4))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, dim))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], dim=1) + self.position
        return self.head(self.blocks(tokens)[:, 0])


def fashion() -> tuple[nn.Module, Tensor]:
    """The network for FashionMNIST, 64 images."""
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 3),
    )
    return net, torch.randn(64, 1, 28, 28)


def resnet() -> tuple[nn.Module, Tensor]:
    """torchvision's ResNet-18 with a head of 16 dimensions, 16 images of 64 pixels."""
    from torchvision.models import resnet18

    return resnet18(num_classes=16), torch.randn(16, 3, 64, 64)


def transformer() -> tuple[nn.Module, Tensor]:
    """A vision transformer of two blocks, 32 images."""
    return VisionTransformer(), torch.randn(32, 1, 28, 28)


CASES = {"fashion": fashion, "resnet18": resnet, "transformer": transformer}


def plain_passes(net: nn.Module, images: Tensor) -> Run:
    """One backward pass of the batch for each dimension, with the gradients of all weights."""

    def run() -> None:
        u = net(images)
        for cotangent in one_hot(u):
            torch.autograd.grad(u, list(net.parameters()), cotangent, retain_graph=True)

    return run


def one_hot(u: Tensor) -> Tensor:
    """The cotangents (Z, N, Z) that pick one dimension each."""
    return torch.eye(u.shape[1])[:, None, :].expand(-1, len(u), -1).contiguous()


def backpack_jacobians(net: nn.Module, images: Tensor, pairs: Pairs, loss: ContrastiveLoss) -> Run:
    """Per-image gradients of each column by BackPACK's BatchGrad, then the same quadratic form."""
    extended = extend(copy.deepcopy(net))

    def run() -> dict[str, Tensor]:
        u = extended(images)
        result = {name: torch.zeros_like(x) for name, x in extended.named_parameters()}
        for columns in loss.output_hessian(u, pairs).columns():
            form = Quadratic.of(columns)
            for at, cotangent in enumerate(columns.cotangents):
                with backpack(BatchGrad(), retain_graph=True):
                    (u * cotangent).sum().backward(retain_graph=True)
                own = form.select(at, at + 1)
                for name, x in extended.named_parameters():
                    result[name] += own(x.grad_batch.detach()[:, None])
        return result

    return run


def whole(case: str, repeats: int, budget: float) -> list[dict[str, Any]]:
    """One row for each way to the whole diagonal."""
    torch.manual_seed(0)
    net, images = CASES[case]()
    net.eval()
    pairs = Pairs.from_labels([image % 8 for image in range(len(images))])
    loss = ContrastiveLoss(1.0, "euclidean")
    floor = plain_passes(net, images)
    ways: dict[str, Run] = {
        "plain backward passes": floor,
        "rules": lambda: ggn_diagonal(net, images, pairs, loss),
        "rules, unchecked": lambda: ggn_diagonal(net, images, pairs, loss, check=False),
        "rules, 4 columns a pass": lambda: ggn_diagonal(net, images, pairs, loss, columns_per_pass=4),
    }
    if case == "fashion":
        ways["BackPACK's Jacobians"] = backpack_jacobians(net, images, pairs, loss)
    alone = {"autograd alone": lambda: ggn_diagonal(net, images, pairs, loss, rules=False, check=False)}
    if case != "resnet18":
        ways |= alone
    seconds = median_seconds(ways, repeats, budget=budget)
    base = seconds["plain backward passes"]
    ratios = {name: value / base for name, value in seconds.items()}
    if case == "resnet18":
        # It takes tens of seconds: a single round, in turns with a measurement of the passes of its own.
        slow = median_seconds({"plain backward passes": floor, **alone}, 1, warm_up=0, budget=budget)
        seconds["autograd alone"] = slow["autograd alone"]
        ratios["autograd alone"] = slow["autograd alone"] / slow["plain backward passes"]
    ways |= alone
    return [
        {
            "network": case,
            "way": name,
            "ms": 1e3 * seconds[name],
            "ratio to the passes": ratios[name],
            "peak extra MiB": mebibytes(peak_extra_memory(ways[name])),
        }
        for name in seconds
    ]


DERIVATIVES = {
    nn.Conv2d: Conv2DDerivatives(),
    nn.ReLU: ReLUDerivatives(),
    nn.MaxPool2d: MaxPool2DDerivatives(),
    nn.Flatten: FlattenDerivatives(),
    nn.Linear: LinearDerivatives(),
}


def walk_down(net: nn.Sequential, cotangents: Tensor) -> list[Tensor]:
    """Cotangents (C, N, Z) of all columns at the outputs of the layers with parameters, by BackPACK's derivatives."""
    modules = []
    for module in reversed(net):
        if next(module.parameters(), None) is not None:
            modules.append(cotangents)
        if module is not net[0]:
            cotangents = DERIVATIVES[type(module)].jac_t_mat_prod(module, None, None, cotangents)
    return modules


def store(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
    """What BackPACK's derivatives look for."""
    module.input0, module.output = args[0], output


def carry(repeats: int, budget: float) -> list[dict[str, Any]]:
    """One row for each way to carry the columns of the FashionMNIST network down to its layers."""
    torch.manual_seed(0)
    net, images = fashion()
    assert isinstance(net, nn.Sequential)
    stored = copy.deepcopy(net)
    for module in stored:
        module.register_forward_hook(store)

    def by_autograd(batched: bool) -> list[Any]:
        edges = []
        handles = [
            module.register_forward_hook(lambda module, args, output: edges.append(get_gradient_edge(output)))
            for module in net
            if next(module.parameters(), None) is not None
        ]
        u = net(images)
        for handle in handles:
            handle.remove()
        columns = one_hot(u)
        if batched:
            return list(torch.autograd.grad(u, edges, columns, is_grads_batched=True))
        return [torch.autograd.grad(u, edges, column, retain_graph=True) for column in columns]

    def by_walk() -> list[Tensor]:
        with torch.no_grad():
            return walk_down(stored, one_hot(stored(images)))

    runs: dict[str, Run] = {
        "autograd, one column a pass": lambda: by_autograd(False),
        "autograd, all columns batched": lambda: by_autograd(True),
        "BackPACK's derivatives": by_walk,
    }
    seconds = median_seconds(runs, repeats, budget=budget)
    base = seconds["autograd, one column a pass"]
    return [
        {
            "way": name,
            "ms": 1e3 * value,
            "ratio": value / base,
            "peak extra MiB": mebibytes(peak_extra_memory(runs[name])),
        }
        for name, value in seconds.items()
    ]


def main() -> None:
    """Measure, print, and write where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="folder for network.json, network.md, carry.json and carry.md"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each group of ways")
    parser.add_argument("--threads", type=int, help="1 gives the steadiest ratios on a busy machine")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message=".*non-full backward hook.*")
    rows = [row for case in options.cases for row in whole(case, options.repeats, options.budget)]
    title = "The diagonal of whole networks"
    show(title, rows)
    carried = carry(options.repeats, options.budget)
    show("Columns carried down to the layers", carried)
    if options.out is not None:
        note = "Exact diagonal, Euclidean distance; ratios are to Z plain backward passes, measured in turns with them."
        save(options.out, "network", title, rows, note)
        save(
            options.out,
            "carry",
            "Columns carried down to the layers",
            carried,
            "The network for FashionMNIST.",
        )


if __name__ == "__main__":
    main()
