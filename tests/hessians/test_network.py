"""The diagonal of whole networks against the definition and against curvlinops, and what becomes of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from curvlinops import GGNLinearOperator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations

from hessians import Pairs
from hessians.network import ggn_diagonal
from tests.hessians.jacobians import (
    LABELS,
    VARIANTS,
    Reference,
    assert_exact,
    brute_force,
    check,
    fallbacks,
    left_to_autograd,
    make_loss,
    random_input,
    randomise,
)
from tests.hessians.networks import (
    LossOfBatch,
    Normalise,
    Residual,
    Shared,
    TextEncoder,
    VisionTransformer,
    two_convolutions,
)

N = len(LABELS)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two convolutions": (two_convolutions, (1, 8, 8)),
    "residual": (Residual, (1, 6, 6)),
    "vision transformer": (VisionTransformer, (1, 6, 6)),
}


def words(length: int = 5) -> Tensor:
    return torch.randint(1, 7, (N, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("distance", "normalize", "approximation"), VARIANTS)
@pytest.mark.parametrize("case", NETWORKS)
def test_exact(case: str, distance: str, normalize: bool, approximation: str) -> None:
    make, shape = NETWORKS[case]
    model = randomise(make())
    options: dict[str, Any] = {"distance": distance, "normalize": normalize, "approximation": approximation}
    check(model, random_input(N, *shape), **options)


@pytest.mark.parametrize(("distance", "normalize", "approximation"), VARIANTS)
def test_the_unsquared_distance_is_exact(distance: str, normalize: bool, approximation: str) -> None:
    options: dict[str, Any] = {"distance": distance, "normalize": normalize, "approximation": approximation}
    check(randomise(two_convolutions()), random_input(N, 1, 8, 8), power=1, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"rules": False},
        {"rules": False, "memory_budget": 1},
        {"memory_budget": 1},
        {"memory_budget": 5000},
        {"columns_per_pass": 2},
        {"columns_per_pass": 100},
        {"check": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("case", NETWORKS)
def test_all_ways_are_exact(case: str, options: dict[str, Any]) -> None:
    make, shape = NETWORKS[case]
    check(randomise(make()), random_input(N, *shape), **options)


@pytest.mark.parametrize("approximation", ["full", "fixed", "positive", "clipped"])
def test_a_norm_in_the_network_is_the_norm_in_the_loss(approximation: str) -> None:
    plain = randomise(two_convolutions())
    inside = nn.Sequential(*plain, Normalise())
    images, pairs = random_input(N, 1, 8, 8), Pairs.from_labels(LABELS)
    outside = make_loss("euclidean", margin=1.3)
    without = make_loss("euclidean", normalize=False, margin=1.3)
    expected = ggn_diagonal(plain, images, pairs, outside, approximation)
    diagonal = ggn_diagonal(inside, images, pairs, without, approximation)
    reference = brute_force(plain, images, pairs, outside, approximation)
    assert_exact(diagonal, {name: Reference(expected[name], reference[name].absolute) for name in expected})


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(
    ("distance", "normalize"), [("arccos", True), ("euclidean", True), ("euclidean", False)]
)
@pytest.mark.parametrize("case", NETWORKS)
def test_full_is_the_diagonal_of_curvlinops_operator(
    case: str, distance: str, normalize: bool, power: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = NETWORKS[case]
    model, images = randomise(make()), random_input(N, *shape)
    loss = make_loss(distance, normalize, power=power)
    in_network = nn.Sequential(model, Normalise()) if normalize and distance == "euclidean" else model
    batch = [(images, torch.tensor(LABELS))]
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)  # it has no forward derivative
    with sdpa_kernel(SDPBackend.MATH):
        operator = GGNLinearOperator(in_network, LossOfBatch(loss), list(model.parameters()), batch)
        dense = operator @ torch.eye(operator.shape[1], dtype=torch.float64)
    pairs = Pairs.from_labels(LABELS)
    diagonal = ggn_diagonal(model, images, pairs, loss)
    absolute = brute_force(model, images, pairs, loss, "full")
    pieces = dense.diagonal().split([values.numel() for values in diagonal.values()])
    assert_exact(
        diagonal,
        {
            name: Reference(piece.view_as(values), absolute[name].absolute)
            for (name, values), piece in zip(diagonal.items(), pieces, strict=True)
        },
        # Un-squared, the reference differentiates the roots of small squared distances twice.
        1e-10 if power == 2 else 1e-7,
    )


@pytest.mark.parametrize("length", [5, N], ids=["another length", "as many words as texts"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
def test_texts_with_named_inputs(batch_first: bool, length: int, caplog: pytest.LogCaptureFixture) -> None:
    model = randomise(TextEncoder(batch_first, length))
    mask = torch.ones(N, length, dtype=torch.long)
    mask[0, 3:] = mask[2, 4:] = 0
    with caplog.at_level(logging.INFO, "hessians"):
        check(model, {"ids": words(length), "attention_mask": mask})
    # The positions are looked up once for all texts: no row of that belongs to one of them.
    assert len(fallbacks(caplog)) == 1 + (length == N)
    assert "positions.weight" in fallbacks(caplog)[-1]
    for name in ("words", "encoder", "head"):
        assert name not in "".join(fallbacks(caplog))


@pytest.mark.parametrize("checked", [True, False])
def test_as_many_words_as_texts_is_noticed_without_the_check(checked: bool) -> None:
    check(randomise(TextEncoder(False, N)), words(N), check=checked)


@pytest.mark.parametrize("approximation", ["full", "fixed", "clipped"])
def test_modules_used_twice_and_shared_weights(approximation: str, caplog: pytest.LogCaptureFixture) -> None:
    (message,) = left_to_autograd(
        caplog, randomise(Shared()), random_input(N, 4), approximation=approximation
    )
    assert "first.weight" in message
    assert "twice" not in message


class Detour(nn.Module):
    """A weight that is used by a call of its module, and once more behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.sin(x) @ self.layer.weight.T


def test_a_weight_used_outside_its_module_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    first, *_ = left_to_autograd(caplog, randomise(Detour()), random_input(N, 4))
    assert first.startswith("layer.weight: its layer's rule disagrees")


class ChangedAfterwards(nn.Module):
    """The input of a layer is changed in place after the layer has seen it, where autograd does not need it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        work = x.clone()
        out = self.layer(work.detach())
        work.mul_(2)
        return out


def test_an_input_changed_in_place_is_an_error_of_autograd_not_a_wrong_number() -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ggn_diagonal(
            randomise(ChangedAfterwards()),
            random_input(N, 4),
            Pairs.from_labels(LABELS),
            make_loss(),
            check=False,
        )


def test_hooks_that_replace_an_output_are_part_of_the_function() -> None:
    model = randomise(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    model[0].register_forward_hook(lambda module, args, output: 2 * output)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    check(model, random_input(N, 4))


def test_parts_that_play_no_role_have_no_curvature() -> None:
    model = randomise(two_convolutions())
    model.auxiliary = nn.Linear(3, 2).double()
    images = random_input(N, 1, 8, 8)
    # An nn.Sequential would call it: the auxiliary head belongs to the training loss only.
    model.forward = lambda x: nn.Sequential(*list(model)[:-1])(x)  # type: ignore[method-assign]
    diagonals = check(model, images)
    assert not diagonals["auxiliary.weight"].any()


def test_a_backbone_without_gradient_has_no_curvature() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.backbone(x)
            return self.head(x)

    diagonals = check(randomise(Frozen()), random_input(N, 4))
    assert not diagonals["backbone.weight"].any()
    assert diagonals["head.weight"].any()


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        "tensors": {
            name: x.detach().clone() for name, x in [*model.named_parameters(), *model.named_buffers()]
        },
        "identities": [id(x) for x in model.parameters()],
        "flags": [x.requires_grad for x in model.parameters()],
        "gradients": [x.grad for x in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "attributes": [{key: id(value) for key, value in vars(module).items()} for module in model.modules()],
    }


@pytest.mark.parametrize("method", ["exact", "sketch"])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("case", [*NETWORKS, "weight norm"])
def test_the_model_is_left_as_it_was(case: str, frozen: bool, method: str) -> None:
    make, shape = NETWORKS.get(case, (two_convolutions, (1, 8, 8)))
    model = randomise(make()).requires_grad_(not frozen)
    if case == "weight norm":
        parametrizations.weight_norm(model[0])
        with pytest.warns(FutureWarning):
            torch.nn.utils.weight_norm(model[2])
    before = state_of(model)
    generator = torch.get_rng_state()
    arguments = (random_input(N, *shape), Pairs.from_labels(LABELS), make_loss())
    with torch.no_grad():
        ggn_diagonal(model, *arguments, method=method, probes=2, generator=torch.Generator())
    after = state_of(model)
    torch.testing.assert_close(after.pop("tensors"), before.pop("tensors"), rtol=0, atol=0)
    assert after == before
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_model_is_left_as_it_was_by_an_error() -> None:
    model = randomise(nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3)))
    before = state_of(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ggn_diagonal(model, random_input(N, 4), Pairs.from_labels(LABELS), make_loss())
    before.pop("tensors")
    after = state_of(model)
    after.pop("tensors")
    assert after == before


@pytest.mark.parametrize("approximation", ["full", "clipped"])
def test_the_order_of_the_images_plays_no_role(approximation: str) -> None:
    model, images = randomise(Residual()), random_input(N, 1, 6, 6)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    loss, labels = make_loss(), torch.tensor(LABELS)
    expected = ggn_diagonal(model, images, Pairs.from_labels(labels), loss, approximation)
    diagonal = ggn_diagonal(model, images[order], Pairs.from_labels(labels[order]), loss, approximation)
    reference = brute_force(model, images, Pairs.from_labels(labels), loss, approximation)
    assert_exact(diagonal, {name: Reference(expected[name], reference[name].absolute) for name in expected})


def test_some_parameters_are_a_part_of_all() -> None:
    model, images = randomise(Residual()), random_input(N, 1, 6, 6)
    pairs, loss = Pairs.from_labels(LABELS), make_loss()
    everything = ggn_diagonal(model, images, pairs, loss)
    some = ggn_diagonal(model, images, pairs, loss, parameters=["whiten", "blocks.1.bn2.weight"])
    assert list(some) == ["blocks.1.bn2.weight", "whiten.weight", "whiten.bias"]
    torch.testing.assert_close(some, {name: everything[name] for name in some})


def test_single_precision_has_its_digits() -> None:
    model, images = randomise(VisionTransformer()), random_input(N, 1, 6, 6)
    pairs, loss = Pairs.from_labels(LABELS), make_loss()
    exact = brute_force(model, images, pairs, loss, "full")
    diagonal = ggn_diagonal(model.float(), images.float(), pairs, loss)
    for name, values in diagonal.items():
        assert values.dtype == torch.float32
        error = (values.double() - exact[name].diagonal).abs()
        assert bool((error <= 1e-5 * exact[name].absolute + 1e-9 * exact[name].absolute.max()).all()), name


@pytest.mark.parametrize("labels", [[0], [0, 0]])
@pytest.mark.filterwarnings("ignore::hessians.checks.CurvatureWarning")
def test_very_small_batches(labels: list[int]) -> None:
    check(randomise(VisionTransformer()), random_input(len(labels), 1, 6, 6), labels=labels)
