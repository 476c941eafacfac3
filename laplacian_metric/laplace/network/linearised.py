"""The linearised predictive: u(x) ~ N(u*(x), J diag(S) J^T), with the whole covariance (Z, Z) of each image.

One backward pass for each dimension of the embedding carries it back to the outputs of all random layers, for all
images of a block at once. What a layer makes of that is in ``columns``.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessians.backward import Layer, LocalRule
from hessians.backward.broadcast import BroadcastRule
from hessians.backward.local import ImageGraphs
from hessians.backward.rules import Layout
from hessians.capture import Inputs, Trace, run, trace, unaltered
from hessians.checks import check_finite
from hessians.columns import back_to
from hessians.model_checks import check_embeddings
from hessians.plan import make_plan, without
from hessians.spot_check import failing_parameters
from laplacian_metric.core.gaussian import Gaussians, symmetric
from laplacian_metric.laplace.network.columns import Collected, gram
from laplacian_metric.laplace.network.layers import RawNetwork


def by_forward_derivative(
    forward: Callable[[dict[str, Tensor]], Tensor], theta: dict[str, Tensor], deviation: Mapping[str, Tensor]
) -> Tensor:
    """By one pass with forward derivatives; a NotImplementedError where an operation has none."""
    # The other kernels of attention have no forward derivative.
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        # About torch's own forward derivatives, which it compiles when they are first needed.
        warnings.filterwarnings("ignore", ".*torch.jit.script", FutureWarning)
        primal_and_tangent: Any = jvp(forward, (theta,), (dict(deviation),))
    u: Tensor = primal_and_tangent[0] + primal_and_tangent[1]
    return u.detach()


def by_two_backward_passes(
    forward: Callable[[dict[str, Tensor]], Tensor], theta: dict[str, Tensor], deviation: Mapping[str, Tensor]
) -> Tensor:
    """J deviation is the derivative of (J^T v) . deviation, which is linear in v, with respect to v."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        leaves = {name: values.detach().requires_grad_() for name, values in theta.items()}
        u = forward(leaves)
        v = torch.zeros_like(u, requires_grad=True)
        gradients = torch.autograd.grad(u, list(leaves.values()), v, create_graph=True, allow_unused=True)
        inner = [
            (gradient * deviation[name]).sum()
            for name, gradient in zip(leaves, gradients, strict=True)
            if gradient is not None
        ]
        (change,) = torch.autograd.grad(torch.stack(inner).sum(), v)
    return (u + change).detach()


LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Traced:
    """A forward pass with the layers whose rules hold, and the parameters that none holds for."""

    trace: Trace
    layers: list[Layer]
    rest: list[str]


@dataclass(frozen=True)
class Sizes:
    """Bytes of one image: its graph, and for each column the cotangents of all layers, what is kept of them, the
    largest layer's share of that, and the gradients of parameters without a rule."""

    graph: int
    cotangents: int
    kept: int
    largest: int
    gradients: int


class Tracer:
    """Forward passes of a network in which the rules of the layers are checked against autograd the first time.

    Args:
        network: in evaluation mode.
        names: of the parameters that gradients are wanted for.
    """

    def __init__(self, network: RawNetwork, names: Sequence[str]) -> None:
        self.network = network
        self.names = list(names)
        self.failing: set[str] | None = None

    def __call__(self, inputs: Inputs, first_row: int = 0) -> Traced:
        """Trace a batch; NaN and infinity are refused, with rows counted from ``first_row``."""
        plan = make_plan(self.network, self.names, True)
        traced = trace(self.network, inputs, plan.names, plan.layers)
        check_embeddings(traced.u, inputs)
        check_finite("u", traced.u.detach(), first_row)
        layers = plan.for_trace(self.network, traced)
        if self.failing is not None:
            layers = without(layers, self.failing)
        # Where the shapes leave open which rows belong to which image, only a comparison can tell.
        doubtful = [
            layer for layer in layers if self.failing is None or any(map(layer.rule.is_doubtful, layer.calls))
        ]
        if doubtful and inputs.num_images:
            failing = failing_parameters(traced, doubtful)
            self.failing = failing | (self.failing or set())
            layers = without(layers, failing)
        ruled = {name for layer in layers for name in layer.names.values()}
        rest = [name for name in traced.consumers if name not in ruled]
        return Traced(traced, layers, rest)


class Linearised:
    """The network's linearisation around theta*, with independent Gaussians over its parameters.

    Args:
        network: in evaluation mode whenever this is used.
        variance: of the random parameters, by name.
        memory_budget: bytes that graphs, cotangents and per-image gradients may take together; at least one image is
            taken at a time.

    Example:
        >>> from torch import nn
        >>> from laplacian_metric.encoder import Encoder
        >>> network = RawNetwork(Encoder(nn.Identity(), nn.Linear(2, 2)))
        >>> gaussians = Linearised(network, {"head.bias": torch.tensor([1.0, 3.0])}).gaussians(torch.ones(1, 2))
        >>> gaussians.covariance
        tensor([[[1., 0.],
                 [0., 3.]]])
    """

    def __init__(
        self, network: RawNetwork, variance: Mapping[str, Tensor], memory_budget: int = 256 << 20
    ) -> None:
        self.network = network
        self.variance = variance
        self.memory_budget = memory_budget
        self.tracer = Tracer(network, list(variance))
        self._said: set[str] = set()
        self._has_forward_derivatives = True

    def gaussians(self, images: Any) -> Gaussians:
        """The Gaussians of u for a batch of inputs."""
        inputs = Inputs.of(images)
        with unaltered(self.network):
            if inputs.num_images:
                size, limit = self._plan(inputs)
                parts = [self._block(part, at * size, limit) for at, part in enumerate(blocks(inputs, size))]
            else:
                u = run(self.network, inputs, {})
                parts = [(u.detach(), u.new_zeros(0, u.shape[1], u.shape[1]))]
        return Gaussians(torch.cat([u for u, _ in parts]), torch.cat([covariance for _, covariance in parts]))

    def _plan(self, inputs: Inputs) -> tuple[int, int]:
        """How many images are taken at a time, and the bytes of cotangents that a group of layers may have."""
        sizes, dim = self._probe(inputs.first())
        fixed = sizes.graph + sizes.cotangents + dim * (sizes.largest + 2 * sizes.gradients)
        # The other half is for what is made of the cotangents.
        room = self.memory_budget // 2
        size = max(1, min(inputs.num_images, room // max(1, fixed + dim * sizes.kept)))
        limit = max(1, room - size * fixed, room // 4)
        groups = max(1, math.ceil(size * dim * sizes.kept / limit))
        most = size * (fixed + dim * sizes.kept / groups) + room
        message = (
            f"covariances of {size} images at a time, {dim} backward passes to {groups} or so groups of layers each: "
            f"about {most / 2**30:.2f} GiB"
        )
        if message not in self._said:
            self._said.add(message)
            LOGGER.info("%s", message)
        return size, limit

    def _probe(self, one: Inputs) -> tuple[Sizes, int]:
        """What one image takes."""
        parameters = {
            tensor.untyped_storage().data_ptr()
            for tensor in (*self.network.parameters(), *self.network.buffers())
        }
        stored: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                stored[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            traced = self.tracer(one)
        every = [
            Collected(layer, self.variance, size)
            for layer, size in zip(traced.layers, output_sizes(traced), strict=True)
        ]
        bytes_each = traced.trace.u.element_size()
        # Layers are taken one by one, so that only the largest of them counts; those without a rule at once.
        by_layer = [
            sum(self._bytes(name) for name in layer.names.values())
            for layer in traced.layers
            if isinstance(layer.rule, LocalRule | BroadcastRule)
        ]
        gradients = max([sum(map(self._bytes, traced.rest)), *by_layer])
        size = Sizes(
            graph=sum(stored.values()),
            cotangents=bytes_each * sum(one.outputs for one in every),
            kept=bytes_each * sum(one.kept for one in every),
            largest=bytes_each * max([0, *(one.kept for one in every)]),
            gradients=gradients,
        )
        return size, traced.trace.u.shape[1]

    def _bytes(self, name: str) -> int:
        return nbytes(self.variance[name])

    def _block(self, inputs: Inputs, first_row: int, limit: int) -> tuple[Tensor, Tensor]:
        """u (n, Z) and the covariances (n, Z, Z) of a block of images."""
        traced = self.tracer(inputs, first_row)
        u = traced.trace.u
        num_images, dim = u.shape
        covariance = u.detach().new_zeros(num_images, dim, dim)
        for group in self._groups(traced, limit):
            edges = [call.edge for one in group for call in one.layer.calls]
            for unit in unit_columns(u):
                cotangents = iter(back_to(u, edges, unit[None]) if edges else ())
                for one in group:
                    one.add([next(cotangents) for _ in one.layer.calls])
                while sum(one.waiting for one in group) > self.memory_budget // 8:
                    max(group, key=lambda one: one.waiting).flush()
            while group:
                covariance += group.pop().covariance(self.memory_budget // 4)
        if traced.rest:
            covariance += self._of_rest(inputs, u, traced.rest)
        return u.detach(), symmetric(covariance)

    def _groups(self, traced: Traced, limit: int) -> list[list[Collected]]:
        """Layers of which everything is kept at the same time, at most ``limit`` bytes.

        The last layers come first, which are reached the fastest.
        """
        u = traced.trace.u
        every = [
            Collected(layer, self.variance, size)
            for layer, size in zip(traced.layers, output_sizes(traced), strict=True)
        ]
        each = [u.shape[0] * u.shape[1] * one.kept * u.element_size() for one in every]
        if sum(each) <= limit:
            return [every]
        groups: list[list[Collected]] = []
        taken = limit
        for one, size in zip(reversed(every), reversed(each), strict=True):
            if taken + size > limit:
                groups.append([])
                taken = 0
            groups[-1].append(one)
            taken += size
        return groups

    def _of_rest(self, inputs: Inputs, u: Tensor, names: list[str]) -> Tensor:
        """By autograd through the whole network, for each image by itself."""
        graphs = ImageGraphs(self.network, names, inputs.args, inputs.kwargs, Layout(inputs.num_images))
        columns = [graphs.gradients(column) for column in unit_columns(u)]
        shares = [
            gram(torch.stack([one[name] for one in columns], dim=1), self.variance[name]) for name in names
        ]
        return torch.stack(shares).sum(0)

    def sample(self, images: Any, deviation: Mapping[str, Tensor]) -> Tensor:
        """u* + J deviation, (N, Z), for one draw of the deviations from theta*."""
        inputs = Inputs.of(images)
        every = dict(self.network.named_parameters())
        theta = {name: every[name].detach() for name in deviation}

        def forward(parameters: dict[str, Tensor]) -> Tensor:
            return run(self.network, inputs, parameters)

        with unaltered(self.network):
            if self._has_forward_derivatives:
                try:
                    return by_forward_derivative(forward, theta, deviation)
                except NotImplementedError as error:
                    LOGGER.info("two backward passes take the place of a forward derivative: %s", error)
                    self._has_forward_derivatives = False
            return by_two_backward_passes(forward, theta, deviation)


def output_sizes(traced: Traced) -> list[int]:
    """How many numbers a column of the cotangents of each layer has for each image."""
    num_images = max(1, len(traced.trace.u))
    return [
        sum(math.prod(call.edge.node._input_metadata[call.edge.output_nr].shape) for call in layer.calls)
        // num_images
        for layer in traced.layers
    ]


def unit_columns(u: Tensor) -> Iterator[Tensor]:
    """For each dimension the cotangent (N, Z) that is 1 there, for all images."""
    for k in range(u.shape[1]):
        column = torch.zeros_like(u, requires_grad=False)
        column[:, k] = 1
        yield column


def blocks(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """Some images at a time."""
    for start in range(0, inputs.num_images, size):
        stop = min(inputs.num_images, start + size)

        def cut(x: Any, start: int = start, stop: int = stop) -> Any:
            return x[start:stop] if isinstance(x, Tensor) else x

        args = tuple(cut(x) for x in inputs.args)
        yield Inputs(args, {name: cut(x) for name, x in inputs.kwargs.items()}, stop - start)


def nbytes(tensor: Tensor) -> int:
    """The size of a tensor's entries in bytes."""
    return tensor.numel() * tensor.element_size()
