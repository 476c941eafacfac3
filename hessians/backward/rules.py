"""What a layer rule is, how it is found, and what it is given.

Notation of this package: N images, C columns, k rows of a layer's tensor that belong to one image (1 but for folded
batches and sequences), per-image gradients j_cn = J_n^T cotangent_cn of a layer's parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from hessians.backward.quadratic import Quadratic


@dataclass(frozen=True)
class Layout:
    """Which rows of a layer's tensors belong to which image.

    ``axis`` 0: the first axis holds the images, or k rows of each image in turn. ``axis`` 1: a sequence comes first.
    """

    num_images: int
    axis: int = 0

    @classmethod
    def candidates(cls, shape: Sequence[int], num_images: int, sequence_first: bool) -> list[Layout]:
        """The layouts that a tensor of this shape may have, the likeliest first."""
        layouts = []
        if num_images and shape and shape[0] and shape[0] % num_images == 0:
            layouts.append(cls(num_images))
        if sequence_first and num_images > 1 and len(shape) > 1 and shape[1] == num_images:
            # One row for each image is likelier than a sequence, and that is likelier than several rows for each
            # image.
            layouts.insert(len(layouts) if shape[0] == num_images else 0, cls(num_images, axis=1))
        return layouts

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor has rows for every image."""
        if tensor.ndim <= self.axis:
            return False
        size = tensor.shape[self.axis]
        return size == self.num_images or (self.axis == 0 and size > 0 and size % self.num_images == 0)

    def split(self, tensor: Tensor) -> Tensor:
        """A tensor with its images first, (N, k, ...)."""
        if self.axis == 1:
            return tensor.movedim(1, 0)
        return tensor.reshape(self.num_images, -1, *tensor.shape[1:])

    def split_columns(self, cotangents: Tensor) -> Tensor:
        """Cotangents of all columns (C, ...) with their images first, (N, C, k, ...)."""
        if self.axis == 1:
            return cotangents.movedim(2, 0)
        rows = cotangents.shape[1] // self.num_images
        split = cotangents.reshape(len(cotangents), self.num_images, rows, *cotangents.shape[2:])
        return split.movedim(1, 0)


@dataclass
class Call:
    """One call of a module in the forward pass: what went in, and where its output sits in autograd's graph."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: int  # which of the module's output tensors the embeddings depend on
    edge: GradientEdge
    # More than one where the shape leaves it open; the first is taken unless found to be wrong.
    layouts: list[Layout]

    @property
    def layout(self) -> Layout:
        """Which rows belong to which image."""
        return self.layouts[0]

    @property
    def input(self) -> Tensor:
        """The first tensor that went in."""
        tensor = self.args[0] if self.args else self.kwargs["input"]
        assert isinstance(tensor, Tensor)
        return tensor.detach()

    @property
    def split_input(self) -> Tensor:
        """The first tensor that went in, images first, (N, k, ...)."""
        return self.layout.split(self.input)


@dataclass
class Layer:
    """A module, the rule for its parameters, and its calls; ``names`` maps the module's names to those of the model."""

    module: nn.Module
    rule: Rule
    names: dict[str, str]
    calls: list[Call] = field(default_factory=list)


@dataclass
class Cotangents:
    """The cotangents of one call's output, in the blocks that they came in: each (N, c, k, ...) for some columns."""

    blocks: list[Tensor]

    def joined(self) -> Tensor:
        """Those of all columns, (N, C, k, ...)."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks, dim=1)


class Rule(ABC):
    """How one kind of layer turns the cotangents of its output into the diagonal of its parameters.

    A module that is called several times has its calls added up in j before anything is squared.
    """

    parameter_names: tuple[str, ...] = ("weight", "bias")
    # A subclass of the registered class that overrides one of these computes something else.
    decisive_methods: tuple[str, ...] = ("forward",)
    # Whether the images may be on the second axis of input and output (sequences first).
    sequence_first: bool = False

    def claims(self, module: nn.Module) -> tuple[str, ...]:
        """The module's names of the parameters that the rule is for."""
        return self.parameter_names

    def supports(self, module: nn.Module) -> bool:
        """Whether the rule is for a module with these settings."""
        return True

    def fits(self, module: nn.Module, call: Call, layout: Layout) -> bool:
        """Whether the rule is for what went into this call, if that has this layout."""
        layer_input = call.args[0] if call.args else call.kwargs.get("input")
        return isinstance(layer_input, Tensor) and layout.fits(layer_input)

    def is_doubtful(self, call: Call) -> bool:
        """Whether the shapes leave open which rows belong to which image."""
        return len(call.layouts) > 1

    @abstractmethod
    def diagonal(
        self, layer: Layer, cotangents: Sequence[Cotangents], form: Quadratic, memory_budget: int
    ) -> dict[str, Tensor]:
        """The columns' share of the diagonal for each of ``layer.names``.

        Args:
            layer: the module and its calls.
            cotangents: for each call those of its output.
            form: what weighs the per-image gradients.
            memory_budget: bytes that per-image gradients may take at a time.
        """

    @abstractmethod
    def gradient(self, layer: Layer, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        """sum_n j_n of a single column (C = 1) for each of ``layer.names``, by the code that makes the diagonal."""


class DirectRule(Rule):
    """A rule of layers with few parameters, whose per-image gradients all fit into memory at once."""

    @abstractmethod
    def image_gradients(self, layer: Layer, name: str, call: Call, cotangents: Tensor) -> Tensor:
        """The gradients (N, C, *shape of the parameter) of one call."""

    def _summed(self, layer: Layer, name: str, cotangents: Sequence[Tensor]) -> Tensor:
        calls = zip(layer.calls, cotangents, strict=True)
        return torch.stack([self.image_gradients(layer, name, call, mine) for call, mine in calls]).sum(0)

    def diagonal(
        self, layer: Layer, cotangents: Sequence[Cotangents], form: Quadratic, memory_budget: int
    ) -> dict[str, Tensor]:
        joined = [mine.joined() for mine in cotangents]
        return {name: form(self._summed(layer, name, joined)) for name in layer.names}

    def gradient(self, layer: Layer, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        return {name: self._summed(layer, name, cotangents).sum((0, 1)) for name in layer.names}


_REGISTRY: dict[type[nn.Module], Rule] = {}
_RuleClass = TypeVar("_RuleClass", bound=type[Rule])


def register_rule(*module_classes: type[nn.Module]) -> Callable[[_RuleClass], _RuleClass]:
    """Make a rule the one for these module classes and their subclasses that do not override ``forward``.

    Example:
        >>> class Scale(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.ones(()))
        ...
        ...     def forward(self, x):
        ...         return self.weight * x
        >>> @register_rule(Scale)
        ... class ScaleRule(DirectRule):
        ...     parameter_names = ("weight",)
        ...
        ...     def image_gradients(self, layer, name, call, cotangents):
        ...         return (cotangents * call.split_input[:, None]).flatten(2).sum(2)
        >>> type(find_rule(Scale())).__name__
        'ScaleRule'
    """

    def register(rule: _RuleClass) -> _RuleClass:
        instance = rule()
        for module_class in module_classes:
            _REGISTRY[module_class] = instance
        return rule

    return register


def find_rule(module: nn.Module) -> Rule | None:
    """The rule of the nearest class in the module's MRO that has one; None where it would not hold for this module."""
    overridden: set[str] = set(vars(module))
    for module_class in type(module).__mro__:
        rule = _REGISTRY.get(module_class)
        if rule is not None:
            known = overridden.isdisjoint(rule.decisive_methods) and rule.supports(module)
            return rule if known else None
        overridden |= set(vars(module_class))
    return None
