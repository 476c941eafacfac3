"""The closed form of the last layer against brute force J^T M J, and against curvlinops."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from curvlinops import GGNLinearOperator
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hessians.last_layer
from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from hessians.checks import CurvatureWarning
from hessians.class_moments import moments_pay
from laplacian_metric.data import load
from tests.hessians.networks import LossOfBatch, Normalise
from tests.hessians.reference import (
    Problem,
    absolute_contributions,
    assert_close,
    last_layer_diagonal,
    listed_pairs,
    output_hessian,
    problems,
)

APPROXIMATIONS = ("full", "fixed", "positive", "clipped")
SMALL = 300  # bytes: every loop runs over several blocks


def closed_form(problem: Problem, pairs: Pairs, approximation: str, **options: object) -> Tensor:
    """The result as one matrix over [W | b], (Z, H + 1)."""
    w, b = last_layer_ggn_diagonal(
        problem.features, problem.weight, problem.bias, pairs, problem.loss, approximation, **options
    )
    return torch.cat([w, b[:, None]], dim=1)


def check(problem: Problem, approximation: str, counts: tuple[dict, dict], *sets: Pairs) -> None:
    matrix = output_hessian(problem.u, *counts, problem.loss, approximation)
    expected = last_layer_diagonal(matrix, problem.inputs)
    scale = absolute_contributions(problem.u, problem.inputs, *counts, problem.loss)
    for pairs in sets:
        for budget in (1 << 26, SMALL):
            assert_close(closed_form(problem, pairs, approximation, memory_budget=budget), expected, scale)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@given(problem=problems())
def test_equals_brute_force(approximation: str, problem: Problem) -> None:
    check(problem, approximation, problem.counts(), problem.pairs, problem.listed())


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@given(problem=problems(), data=st.data())
def test_equals_brute_force_for_lists_with_repeats_and_gaps(
    approximation: str, problem: Problem, data: st.DataObject
) -> None:
    drawn = [{pair: data.draw(st.integers(0, 3)) for pair in kind} for kind in problem.counts()]
    counts = tuple({pair: times for pair, times in kind.items() if times} for kind in drawn)
    check(problem, approximation, counts, listed_pairs(*counts, len(problem.labels)))


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@given(problem=problems(max_images=10))
def test_permutation_changes_nothing(approximation: str, problem: Problem) -> None:
    order = torch.randperm(len(problem.labels), generator=torch.Generator().manual_seed(0))
    shuffled = Problem(
        problem.features[order], problem.weight, problem.bias, problem.labels[order], problem.loss
    )
    first = closed_form(problem, problem.pairs, approximation)
    assert_close(closed_form(shuffled, shuffled.pairs, approximation), first, problem.scale())


def clustered(
    num: int, dim: int, width: int, loss: ContrastiveLoss, classes: int = 4, seed: int = 0
) -> Problem:
    """A realistic mixture of active and inactive negatives."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (num,), generator=generator)
    centres = torch.randn(classes, width, dtype=torch.float64, generator=generator)
    features = centres[labels] + torch.randn(num, width, dtype=torch.float64, generator=generator) / 2
    weight = torch.randn(dim, width, dtype=torch.float64, generator=generator)
    bias = torch.randn(dim, dtype=torch.float64, generator=generator) / 4
    return Problem(features, weight, bias, labels, loss)


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("dim", [2, 40])
@pytest.mark.parametrize("approximation", ["full", "positive", "fixed"])
def test_every_way_of_summing_pairs_gives_the_same(
    approximation: str, dim: int, distance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listed edges, dense products, class moments, rows on demand: chosen by cost, equal in result."""
    problem = clustered(60, dim, 7, ContrastiveLoss(margin=0.9, distance=distance))
    results = [
        closed_form(problem, problem.pairs, approximation),
        closed_form(problem, problem.listed(), approximation),
    ]
    for gather_cost in (0, 10**9):  # never and always dense
        for pay in (lambda *_: False, moments_pay):
            monkeypatch.setattr(hessians.last_layer, "GATHER_COST", gather_cost)
            monkeypatch.setattr(hessians.last_layer, "moments_pay", pay)
            results.append(closed_form(problem, problem.pairs, approximation, memory_budget=5000))
    monkeypatch.setattr("hessians.last_layer.DENSE_IMAGES", 10)
    monkeypatch.setattr("hessians.contrastive.DENSE_IMAGES", 10)
    results.append(closed_form(problem, problem.pairs, approximation))
    matrix = problem.loss.output_hessian(problem.u, problem.pairs, approximation).dense()
    expected = last_layer_diagonal(matrix, problem.inputs)
    for result in results:
        assert_close(result, expected, problem.scale(), tolerance=1e-12)


@pytest.mark.parametrize("approximation", ["full", "positive"])
def test_without_a_norm_a_translation_changes_no_distance(approximation: str) -> None:
    problem = clustered(30, 3, 5, ContrastiveLoss(1.0, "euclidean", normalize=False))
    result = closed_form(problem, problem.pairs, approximation)
    assert result[:, -1].abs().max() < 1e-14
    torch.testing.assert_close(result[0], result[2])


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_float32_on_real_images(distance: str, approximation: str) -> None:
    """FashionMNIST's pixels as features: float32 agrees with float64 to 1e-5 of the sum of absolute contributions."""
    images = load("sample-fashion-mnist", "test")
    features = images.floats().flatten(1)[::8].contiguous()
    labels = images.labels[::8]
    weight = torch.randn(3, 784, generator=torch.Generator().manual_seed(0)) / 28
    wide = Problem(
        features.double(), weight.double(), torch.zeros(3).double(), labels, ContrastiveLoss(0.3, distance)
    )
    w, b = last_layer_ggn_diagonal(features, weight, torch.zeros(3), wide.pairs, wide.loss, approximation)
    assert w.dtype == b.dtype == torch.float32
    single = torch.cat([w, b[:, None]], dim=1).double()
    assert_close(single, closed_form(wide, wide.pairs, approximation), wide.scale(), tolerance=1e-5)


def test_pairs_from_positions_are_curved_like_the_same_pairs_listed() -> None:
    problem = clustered(20, 3, 5, ContrastiveLoss(margin=0.9))
    positions = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near = Pairs.from_positions(positions, 0.2, 0.5)
    assert 0 < near.num_positives < 100
    assert 0 < near.num_negatives < 100
    counts = [
        {(int(i), int(j)): 1 for i, j in zip(first, second, strict=True)}
        for first, second, _ in (next(iter(near.listed(kind))) for kind in (True, False))
    ]
    for approximation in APPROXIMATIONS:
        check(problem, approximation, (counts[0], counts[1]), near)


def test_half_precision_is_computed_in_float32() -> None:
    problem = clustered(12, 3, 5, ContrastiveLoss(margin=0.9))
    half = [t.to(torch.bfloat16) for t in (problem.features, problem.weight, problem.bias)]
    w, b = last_layer_ggn_diagonal(*half, problem.pairs, problem.loss, "fixed")
    expected, _ = last_layer_ggn_diagonal(*[t.float() for t in half], problem.pairs, problem.loss, "fixed")
    assert w.dtype == b.dtype == torch.float32
    assert torch.equal(w, expected)


class CountingTensor(Tensor):
    """Counts how often each row is read."""

    reads: Tensor

    @classmethod
    def __torch_function__(
        cls, func: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if func is Tensor.__getitem__ and isinstance(args[1], slice):
            args[0].reads[args[1]] += 1
        if func is Tensor.index_select:
            args[0].reads[args[2]] += 1
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("approximation", ["fixed", "positive"])
def test_a_data_set_is_read_once_from_its_file(
    approximation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapped features, embeddings known: no N x N, each row of the file read once, the same numbers as in memory."""
    problem = clustered(50, 3, 6, ContrastiveLoss(margin=0.9))
    np.save(tmp_path / "features.npy", problem.features.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "features.npy", mmap_mode="c"))
    counting = mapped.as_subclass(CountingTensor)
    counting.reads = torch.zeros(50, dtype=torch.long)
    monkeypatch.setattr(CountingTensor, "detach", lambda self: self)
    for name in ("contrastive", "last_layer"):
        monkeypatch.setattr(f"hessians.{name}.DENSE_IMAGES", 10)
    expected = closed_form(problem, problem.pairs, approximation)
    w, b = last_layer_ggn_diagonal(
        counting,
        problem.weight,
        problem.bias,
        problem.pairs,
        problem.loss,
        approximation,
        embeddings=problem.u,
        memory_budget=SMALL,
    )
    assert counting.reads.tolist() == [1] * 50
    torch.testing.assert_close(torch.cat([w, b[:, None]], dim=1), expected)


@pytest.mark.parametrize(
    ("distance", "normalize"), [("arccos", True), ("euclidean", True), ("euclidean", False)]
)
def test_full_equals_the_diagonal_of_curvlinops_operator(distance: str, normalize: bool) -> None:
    problem = clustered(9, 3, 4, ContrastiveLoss(1.0, distance, 0.7, normalize=normalize))
    layer = nn.Linear(4, 3).double()
    layer.load_state_dict({"weight": problem.weight, "bias": problem.bias})
    in_network = normalize and distance == "euclidean"
    operator = GGNLinearOperator(
        nn.Sequential(layer, Normalise()) if in_network else layer,
        LossOfBatch(problem.loss),
        list(layer.parameters()),
        [(problem.features, problem.labels)],
    )
    diagonal = (operator @ torch.eye(15, dtype=torch.float64)).diagonal()
    expected = torch.cat([diagonal[:12].view(3, 4), diagonal[12:, None]], dim=1)
    assert_close(closed_form(problem, problem.pairs, "full"), expected, problem.scale())


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize("num", [0, 1])
def test_no_pairs_no_curvature(num: int, approximation: str) -> None:
    problem = clustered(num, 3, 4, ContrastiveLoss())
    assert torch.equal(
        closed_form(problem, problem.pairs, approximation), torch.zeros(3, 5, dtype=torch.float64)
    )


def test_clipped_and_euclidean_positive_need_no_clamp() -> None:
    for loss in (ContrastiveLoss(0.9, negative_weight=0.8), ContrastiveLoss(0.9, "euclidean", 0.8)):
        problem = clustered(30, 3, 5, loss)
        assert (closed_form(problem, problem.pairs, "full") < 0).any()
        assert (closed_form(problem, problem.pairs, "clipped") >= 0).all()
    assert (closed_form(problem, problem.pairs, "positive") >= 0).all()


@pytest.mark.parametrize(
    ("labels", "approximation", "margin", "message"),
    [
        ([0, 0, 0, 0], "full", 0.7, "one class only"),
        ([0, 1, 2, 3], "fixed", 0.7, "there is no positive pair: nothing but negative"),
        ([0, 1, 2, 3], "positive", 0.7, 'there is no positive pair: the curvature of "positive" is 0'),
        ([0, 0, 1, 1], "fixed", 3.0, "all negatives are inside the margin"),
    ],
)
def test_legal_but_useless_pairs_are_warned_about(
    labels: list[int], approximation: str, margin: float, message: str
) -> None:
    problem = clustered(4, 3, 5, ContrastiveLoss(margin, "euclidean"))
    with pytest.warns(CurvatureWarning, match=message):
        closed_form(problem, Pairs.from_labels(labels), approximation)


def test_a_good_problem_warns_of_nothing() -> None:
    problem = clustered(20, 3, 5, ContrastiveLoss(0.9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for approximation in APPROXIMATIONS:
            closed_form(problem, problem.pairs, approximation)


FEATURES, WEIGHT, BIAS = torch.randn(4, 3), torch.randn(2, 3), torch.randn(2)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize(
    "loss",
    [
        ContrastiveLoss(),
        ContrastiveLoss(distance="euclidean"),
        ContrastiveLoss(distance="euclidean", normalize=False),
    ],
    ids=["arccos", "euclidean", "raw"],
)
def test_large_features_are_right_or_refused(loss: ContrastiveLoss, approximation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 5, generator=generator)
    weight, pairs = torch.randn(3, 5, generator=generator), Pairs.from_labels(torch.arange(12) % 4)
    for exponent in (0, 10, 15, 17, 18, 18.5, 19, 19.5, 25, 37):
        scaled = features * 10.0**exponent
        with contextlib.ExitStack() as expected:
            if exponent > 19:
                remedy = "(?i)divide the features by their standard deviation, or .*float64"
                expected.enter_context(pytest.raises(ValueError, match=remedy))
            elif exponent > 15:  # either is right
                expected.enter_context(contextlib.suppress(ValueError))
            diagonal, _ = last_layer_ggn_diagonal(scaled, weight, None, pairs, loss, approximation)
            wide = (scaled.double(), weight.double(), None)
            exact, _ = last_layer_ggn_diagonal(*wide, pairs, loss, approximation)
            assert float((diagonal - exact).abs().max()) < 1e-4 * float(exact.abs().max()), exponent
