"""The kernel that linear layers, convolutions and attention share, on random shapes: all its ways to one result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hessians.backward import bilinear
from hessians.backward.quadratic import Quadratic
from hessians.output_hessian import Columns
from tests.hessians.jacobians import Readout, check, random_input, randomise

sizes = st.integers(1, 4)


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Tensor, Tensor, Quadratic]:
    """x (N, G, L, K), d (N, G, C, O, L), and a form with nodes, edges, both or neither."""
    images, groups, positions, inputs, columns, outputs = (draw(sizes) for _ in range(6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    nodes = normal(columns, images) if draw(st.booleans()) else None
    if nodes is not None and draw(st.booleans()):
        nodes = nodes[:1].expand(columns, -1)
    edges = normal(images, images) if draw(st.booleans()) else None
    edges = None if edges is None else edges + edges.T
    form = Quadratic.of(Columns(normal(columns, images, 1), nodes, edges))
    return (
        normal(images, groups, positions, inputs),
        normal(images, groups, columns, outputs, positions),
        form,
    )


def by_definition(x: Tensor, d: Tensor, form: Quadratic) -> Tensor:
    j = torch.einsum("ngcol,nglk->ncgok", d, x)
    total = torch.zeros_like(j[0, 0])
    if form.nodes is not None:
        total = total + torch.einsum("nc,ncgok,ncgok->gok", form.nodes, j, j)
    if form.edges is not None:
        total = total + torch.einsum("nm,ncgok,mcgok->gok", form.edges, j, j)
    return total


@pytest.mark.parametrize("memory_cost", [0, 10**9], ids=["per image", "Gram"])
@pytest.mark.parametrize("memory_budget", [1, 300, 1 << 28])
@given(kernel=kernels())
def test_both_ways_are_the_definition(
    memory_cost: int, memory_budget: int, kernel: tuple[Tensor, Tensor, Quadratic]
) -> None:
    x, d, form = kernel
    with pytest.MonkeyPatch.context() as patch:
        # The weight of memory in the estimated costs decides between the ways.
        patch.setattr(bilinear, "_MEMORY_COST", memory_cost)
        diagonal = bilinear.weight_diagonal(x, list(d.split(2, dim=2)), form, memory_budget)
    torch.testing.assert_close(diagonal, by_definition(x, d, form), rtol=1e-11, atol=1e-11)


@given(kernel=kernels())
def test_selected_columns_add_up(kernel: tuple[Tensor, Tensor, Quadratic]) -> None:
    x, d, form = kernel
    parts = [
        bilinear.weight_diagonal(x, [d[:, :, c : c + 1]], form.select(c, c + 1), 1 << 20)
        for c in range(d.shape[2])
    ]
    torch.testing.assert_close(sum(parts), by_definition(x, d, form), rtol=1e-11, atol=1e-11)


@given(
    images=st.integers(1, 5),
    positions=st.integers(1, 4),
    features=st.integers(1, 6),
    outputs=st.integers(1, 4),
    distance=st.sampled_from(["arccos", "euclidean"]),
    approximation=st.sampled_from(["full", "fixed", "positive", "clipped"]),
)
@pytest.mark.filterwarnings("ignore::hessians.checks.CurvatureWarning")
def test_linear_layers_of_random_shape(
    images: int, positions: int, features: int, outputs: int, distance: str, approximation: str
) -> None:
    model = randomise(Readout(nn.Linear(features, outputs)))
    labels = [image % 2 for image in range(images)]
    inputs = random_input(images, positions, features)
    check(model, inputs, labels=labels, distance=distance, approximation=approximation)


@settings(max_examples=40)
@given(
    channels=st.integers(1, 2),
    outputs=st.integers(1, 2),
    groups=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    transposed=st.booleans(),
)
def test_convolutions_of_random_shape(
    channels: int,
    outputs: int,
    groups: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    transposed: bool,
) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    layer = kind(channels * groups, outputs * groups, kernel, **options)
    check(randomise(Readout(layer)), random_input(6, channels * groups, 5, 6))
