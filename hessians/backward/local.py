"""Parameters without a rule of their own: autograd through the module that has them, for each image by itself."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from hessians.backward.quadratic import Quadratic
from hessians.backward.rules import Call, Cotangents, Layer, Layout, Rule

logger = logging.getLogger(__name__)


class ImageGraphs:
    """Autograd's graphs of a module, with parameters of which every image has its own copy.

    The copies are views of one and the same tensor; only their gradients, (N, *shape of the parameter), take
    memory. The images are taken together by ``torch.func.vmap``, or one by one where the module does something that
    vmap does not know.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[str],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        layout: Layout,
        output: int = 0,
    ) -> None:
        self.module = module
        self.layout = layout
        self.output = output
        parameters = dict(module.named_parameters())
        self.constants = {name: x.detach() for name, x in parameters.items() if name not in names}
        self.constants.update((name, buffer.clone()) for name, buffer in module.named_buffers())
        self.copies = {
            name: parameters[name]
            .detach()
            .expand(layout.num_images, *parameters[name].shape)
            .requires_grad_()
            for name in names
        }
        with torch.enable_grad(), _quiet_vmap():
            try:
                # (N, k, ...), or (N, L, 1, ...) for sequences first
                self.outputs = self._together(args, kwargs)
            except Exception as error:
                # vmap has no common class for what it does not support, and the loop raises whatever is truly wrong.
                logger.debug("%s is taken image by image: %s", type(module).__name__, error)
                self.outputs = self._one_by_one(args, kwargs)

    def _call(self, parameters: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        outputs = functional_call(self.module, {**self.constants, **parameters}, args, kwargs)
        return flat_tensors(outputs)[self.output]

    def _together(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        axis = self.layout.axis
        flat = [*args, *kwargs.values()]
        batched = [isinstance(x, Tensor) and self.layout.fits(x) for x in flat]
        split = [self.layout.split(x.detach()) for x, mine in zip(flat, batched, strict=True) if mine]

        def of_one_image(parameters: dict[str, Tensor], *own: Tensor) -> Tensor:
            rest = iter(own)
            image_arguments = [
                (next(rest).unsqueeze(1) if axis else next(rest)) if mine else x
                for x, mine in zip(flat, batched, strict=True)
            ]
            named = dict(zip(kwargs, image_arguments[len(args) :], strict=True))
            return self._call(parameters, tuple(image_arguments[: len(args)]), named)

        together: Callable[..., Tensor] = torch.vmap(of_one_image)
        return together(self.copies, *split)

    def _one_by_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        def own(x: Any, image: int) -> Any:
            if not isinstance(x, Tensor) or not self.layout.fits(x):
                return x
            rows = x.shape[self.layout.axis] // self.layout.num_images
            return x.detach().narrow(self.layout.axis, image * rows, rows)

        # unbind, because the backward pass of an index makes a tensor of all copies for each of them.
        unbound = zip(*(copy.unbind() for copy in self.copies.values()), strict=True)
        outputs = [
            self._call(
                dict(zip(self.copies, copies, strict=True)),
                tuple(own(x, image) for x in args),
                {name: own(x, image) for name, x in kwargs.items()},
            )
            for image, copies in enumerate(unbound)
        ]
        return torch.stack(outputs)

    def gradients(self, cotangents: Tensor) -> dict[str, Tensor]:
        """j_n of one column for every image, (N, *shape of the parameter), from cotangents (N, k, ...)."""
        with _quiet_vmap():
            by_leaf = torch.autograd.grad(
                self.outputs,
                list(self.copies.values()),
                cotangents.reshape(self.outputs.shape),
                retain_graph=True,
                allow_unused=True,
            )
        return {
            name: torch.zeros_like(copy) if gradient is None else gradient
            for (name, copy), gradient in zip(self.copies.items(), by_leaf, strict=True)
        }


@contextmanager
def _quiet_vmap() -> Iterator[None]:
    """Without the advice to report operators that ``vmap`` takes one by one: the user can do nothing about them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


class LocalRule(Rule):
    """Any module whose own parameters have no rule: scales, poolings, layers with a ``forward`` of their own."""

    sequence_first = True

    def claims(self, module: nn.Module) -> tuple[str, ...]:
        own = [name for name, parameter in module.named_parameters(recurse=False) if parameter is not None]
        if parametrize.is_parametrized(module):
            own += [name for name, _ in module.named_parameters() if name.startswith("parametrizations.")]
        return tuple(own)

    def diagonal(
        self, layer: Layer, cotangents: Sequence[Cotangents], form: Quadratic, memory_budget: int
    ) -> dict[str, Tensor]:
        graphs = [_graphs(layer, call) for call in layer.calls]
        result: dict[str, Tensor] = {}
        joined = [mine.joined() for mine in cotangents]
        for column in range(joined[0].shape[1]):
            own = form.select(column, column + 1)
            for name, j in _summed(graphs, [mine[:, column] for mine in joined]).items():
                share = own(j[:, None])
                result[name] = result[name] + share if name in result else share
        return result

    def gradient(self, layer: Layer, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        graphs = [_graphs(layer, call) for call in layer.calls]
        summed = _summed(graphs, [mine[:, 0] for mine in cotangents])
        return {name: j.sum(0) for name, j in summed.items()}


def _graphs(layer: Layer, call: Call) -> ImageGraphs:
    return ImageGraphs(layer.module, list(layer.names), call.args, call.kwargs, call.layout, call.output)


def _summed(graphs: Sequence[ImageGraphs], cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
    """j_n of one column, the calls added up."""
    each = [graph.gradients(mine) for graph, mine in zip(graphs, cotangents, strict=True)]
    return {name: torch.stack([one_gradient[name] for one_gradient in each]).sum(0) for name in each[0]}


def flat_tensors(output: Any) -> list[Tensor]:
    """The tensors in what a module returned, tuples, lists and dictionaries opened."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, tuple | list):
        return [tensor for part in output for tensor in flat_tensors(part)]
    return []
