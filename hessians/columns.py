"""The columns of an output Hessian, carried back through a network and turned into the diagonal of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from hessians.backward.local import ImageGraphs
from hessians.backward.quadratic import Quadratic
from hessians.backward.rules import Cotangents, Layer, Layout
from hessians.capture import Inputs, Trace
from hessians.output_hessian import Columns


@dataclass(frozen=True)
class Settings:
    """How much is done at a time."""

    memory_budget: int
    columns_per_pass: int


def back_to(u: Tensor, edges: Sequence[GradientEdge], cotangents: Tensor) -> list[Tensor]:
    """Cotangents (c, N, Z) of u carried back to outputs of modules, each (c, *shape of the output)."""
    if len(cotangents) == 1:
        gradients = torch.autograd.grad(u, edges, cotangents[0], retain_graph=True)
        return [gradient[None] for gradient in gradients]
    return list(torch.autograd.grad(u, edges, cotangents, retain_graph=True, is_grads_batched=True))


class Waiting:
    """A layer's cotangents of the columns start..stop-1, collected so that the rule takes many columns at once."""

    def __init__(self, layer: Layer, form: Quadratic, memory_budget: int) -> None:
        self.layer = layer
        self.form = form
        self.memory_budget = memory_budget
        self.start = self.stop = 0
        self.blocks: list[list[Tensor]] = [[] for _ in layer.calls]
        self.bytes = 0
        self.diagonal: dict[str, Tensor] = {}

    def add(self, cotangents: Sequence[Tensor]) -> None:
        """Cotangents (c, *shape of the output) of the next columns, one tensor for each call of the module."""
        for block, mine in zip(self.blocks, cotangents, strict=True):
            block.append(mine)
            self.bytes += mine.numel() * mine.element_size()
        self.stop += len(cotangents[0])

    def flush(self) -> None:
        """Turn what has been collected into its share of the diagonal."""
        if self.start == self.stop:
            return
        split = [
            Cotangents([call.layout.split_columns(mine) for mine in block])
            for call, block in zip(self.layer.calls, self.blocks, strict=True)
        ]
        self.blocks = [[] for _ in self.layer.calls]
        self.bytes = 0
        part = self.form.select(self.start, self.stop).to(split[0].blocks[0].dtype)
        self.start = self.stop
        for name, share in self.layer.rule.diagonal(self.layer, split, part, self.memory_budget).items():
            own = self.layer.names[name]
            self.diagonal[own] = self.diagonal[own] + share if own in self.diagonal else share


def rule_diagonal(
    trace: Trace, layers: Sequence[Layer], columns: Columns, settings: Settings
) -> dict[str, Tensor]:
    """The share of a group of columns for all parameters of the layers, by their rules."""
    form = Quadratic.of(columns)
    waiting = [Waiting(layer, form, settings.memory_budget) for layer in layers]
    edges = [call.edge for layer in layers for call in layer.calls]
    for cotangents in columns.cotangents.split(settings.columns_per_pass) if edges else ():
        gradients = iter(back_to(trace.u, edges, cotangents))
        for one in waiting:
            one.add([next(gradients) for _ in one.layer.calls])
        # A part of the budget: what the rules make of the cotangents takes the rest.
        while sum(one.bytes for one in waiting) > settings.memory_budget // 4:
            max(waiting, key=lambda one: one.bytes).flush()
    result: dict[str, Tensor] = {}
    for one in waiting:
        one.flush()
        result.update(one.diagonal)
    return result


def joint_diagonal(
    trace: Trace, names: Sequence[str], cotangents: Tensor, joint: Tensor
) -> dict[str, Tensor]:
    """sum_c joint_c (sum_n j_cn)^2: the sum over the images is what autograd returns for the parameters themselves."""
    leaves = [trace.parameters[name] for name in names]
    result = {
        name: torch.zeros_like(leaf, requires_grad=False) for name, leaf in zip(names, leaves, strict=True)
    }
    for cotangent, weight in zip(cotangents, joint.tolist(), strict=True):
        gradients = torch.autograd.grad(trace.u, leaves, cotangent, retain_graph=True)
        for name, gradient in zip(names, gradients, strict=True):
            result[name].addcmul_(gradient, gradient, value=weight)
    return result


def as_joint(columns: Columns) -> Iterator[tuple[Tensor, Tensor]]:
    """Cotangents (N', N, Z) and weights (N',) of joint columns, for each column of a group in turn.

    diag(nodes_c) + edges = sum_e lambda_e q_e q_e^T, so that the column is sum_e lambda_e (sum_n q_en j_cn)^2.
    """
    num_images = columns.cotangents.shape[1]
    for at, cotangent in enumerate(columns.cotangents):
        matrix = torch.zeros(num_images, num_images, dtype=torch.float64, device=cotangent.device)
        if columns.edges is not None:
            matrix += columns.edges
        if columns.nodes is not None:
            matrix += torch.diag(columns.nodes[at])
        values, vectors = torch.linalg.eigh(matrix)
        keep = values.abs() > values.abs().max() * torch.finfo(values.dtype).eps
        chosen = vectors[:, keep].T.to(cotangent.dtype)
        yield chosen[:, :, None] * cotangent, values[keep].to(cotangent.dtype)


def fallback_diagonal(
    model: nn.Module,
    inputs: Inputs,
    trace: Trace,
    names: Sequence[str],
    columns: Columns,
    settings: Settings,
) -> dict[str, Tensor]:
    """The share of a group of columns by autograd of the whole network, for parameters that no rule holds for."""
    result: dict[str, Tensor] = {}
    fitting, large = _by_memory(trace, names, settings.memory_budget)
    form = Quadratic.of(columns).to(columns.cotangents.dtype)
    for chunk in fitting:
        graphs = ImageGraphs(model, chunk, inputs.args, inputs.kwargs, Layout(inputs.num_images))
        for at, cotangent in enumerate(columns.cotangents):
            own = form.select(at, at + 1)
            for name, j in graphs.gradients(cotangent).items():
                share = own(j[:, None])
                result[name] = result[name] + share if name in result else share
    if large:
        for cotangents, joint in as_joint(columns):
            for name, share in joint_diagonal(trace, large, cotangents, joint).items():
                result[name] = result[name] + share if name in result else share
    return result


def _by_memory(trace: Trace, names: Sequence[str], memory_budget: int) -> tuple[list[list[str]], list[str]]:
    """Parameters in chunks whose per-image gradients fit into the budget, and those that do not fit alone."""
    chunks: list[list[str]] = []
    large = []
    room = 0
    for name in names:
        leaf = trace.parameters[name]
        # The gradients, their product with the edges, and one temporary.
        needed = 3 * len(trace.u) * leaf.numel() * leaf.element_size()
        if needed > memory_budget:
            large.append(name)
            continue
        if needed > room or not chunks:
            chunks.append([])
            room = memory_budget
        chunks[-1].append(name)
        room -= needed
    return chunks, large
