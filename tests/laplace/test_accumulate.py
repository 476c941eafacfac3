"""The curvature over a data set, in every structure, against a dense matrix from autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.laplace import accumulate as module
from laplacian_metric.laplace.accumulate import accumulate
from laplacian_metric.laplace.layer import (
    FullCurvature,
    LayerCurvature,
)
from laplacian_metric.laplace.options import FitSettings, LamOptions
from tests.hessians.reference import listed_pairs
from tests.laplace.fit_reference import LOSSES, Layer, clamped, nearest_kronecker_distance

pytestmark = pytest.mark.filterwarnings("ignore::hessians.checks.CurvatureWarning")
LAYER = Layer.random(12, 3, 2)
BATCHES = [torch.tensor([0, 3, 6, 1, 4]), torch.tensor([2, 5, 8, 11, 7, 10]), torch.tensor([9])]

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
every_approximation = pytest.mark.parametrize("approximation", ["full", "fixed", "positive", "clipped"])
in_batches_or_not = pytest.mark.parametrize("batches", [None, BATCHES], ids=["default", "batches"])


def settings(structure: str, approximation: str, rank: int = 50, **options: object) -> FitSettings:
    posterior = LamOptions(structure=structure, approximation=approximation, rank=rank)
    options_given = {"generator": torch.Generator().manual_seed(0), "progress": False, **options}
    return FitSettings(posterior, search=False, **options_given)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-9) -> None:
    scale = float(other.abs().max()) + 1e-12
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)


def dense(curvature: LayerCurvature) -> Tensor:
    if isinstance(curvature, FullCurvature):
        return (curvature.vectors * curvature.values) @ curvature.vectors.T
    return torch.diag(curvature.rest.flatten()) + curvature.factor.flatten(1).T @ curvature.factor.flatten(1)


def expected(loss: ContrastiveLoss, approximation: str, batches: Sequence[Tensor] | None) -> Tensor:
    return LAYER.ggn(loss, approximation, LAYER.counts(batches))


@every_loss
@every_approximation
@in_batches_or_not
def test_every_structure(loss: ContrastiveLoss, approximation: str, batches: list[Tensor] | None) -> None:
    """12 images are one batch of the default size, so that the default is over all pairs for each approximation."""
    matrix = expected(loss, approximation, batches)
    data = LAYER.data(loss)

    def curvature_of(structure: str) -> LayerCurvature:
        return accumulate(data, settings(structure, approximation), batches)[0]

    diagonal, _, population, _ = accumulate(data, settings("diag", approximation), batches)
    assert list(population) == [len(c) for c in LAYER.counts(batches)]
    close(diagonal.diagonal(), matrix.diagonal().clamp(min=0).view(2, 4))
    close(dense(curvature_of("full")), clamped(matrix))
    close(dense(curvature_of("lowrank")), clamped(matrix), 1e-8)
    if approximation == "full":
        with pytest.raises(ValueError, match='take approximation="clipped"'):
            curvature_of("kron")
        return
    kron = curvature_of("kron")
    output = (kron.output_vectors * kron.output_values) @ kron.output_vectors.T
    inputs = (kron.input_vectors * kron.input_values) @ kron.input_vectors.T
    best = nearest_kronecker_distance(matrix, 2)
    assert (torch.kron(output, inputs) - matrix).norm() <= 1.02 * best + 0.02 * matrix.norm()


@every_loss
def test_default_batches_are_their_share(loss: ContrastiveLoss) -> None:
    """ "full" and "clipped" go batch by batch, with the counts of all batches; "fixed" sees all pairs."""
    for approximation, structure in (("full", "diag"), ("clipped", "full"), ("positive", "kron")):
        curvature, parts, _, _ = accumulate(
            LAYER.data(loss), settings(structure, approximation, batch_size=4)
        )
        rows = [part.rows for part in parts]
        assert [len(each) for each in rows] == [4, 4, 4]
        matrix = expected(loss, approximation, rows)
        if structure == "diag":
            close(curvature.diagonal(), matrix.diagonal().clamp(min=0).view(2, 4))
        elif structure == "full":
            close(dense(curvature), clamped(matrix))
    _, parts, _, _ = accumulate(LAYER.data(loss), settings("diag", "fixed", batch_size=4))
    assert [part.rows for part in parts] == [None]


@every_approximation
def test_low_rank(approximation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest eigenpairs, and of the rest the diagonal."""
    monkeypatch.setattr(module, "POWER_ITERATIONS", 30)
    layer = Layer.random(16, 5, 2, seed=3)
    loss = LOSSES["euclidean"]
    matrix = layer.ggn(loss, approximation)
    values, vectors = torch.linalg.eigh(matrix)
    rank = 4
    data = layer.data(loss)
    curvature = accumulate(data, settings("lowrank", approximation, rank=rank))[0]
    keep = values[-rank:] > 1e-12 * values.abs().max()
    top = (vectors[:, -rank:] * values[-rank:].clamp(min=0))[:, keep] @ vectors[:, -rank:][:, keep].T
    close(curvature.factor.flatten(1).T @ curvature.factor.flatten(1), top, 1e-6)
    rest = (matrix - top).diagonal()
    close(curvature.rest.flatten(), rest.clamp(min=0), 1e-6)
    close(curvature.diagonal().flatten()[rest > 0], matrix.diagonal()[rest > 0], 1e-6)


def test_low_rank_of_nothing() -> None:
    """One class without a norm and one image a class: "positive" is 0."""
    layer = replace(LAYER, labels=torch.arange(12))
    curvature = accumulate(layer.data(LOSSES["arccos"]), settings("lowrank", "positive"))[0]
    assert curvature.trace() == 0
    assert curvature.posterior(1.0, 2.0).marginal_variance().unique().tolist() == [0.5]


@pytest.mark.parametrize("structure", ["diag", "kron", "lowrank", "full"])
@pytest.mark.parametrize("approximation", ["fixed", "clipped"])
def test_features_mapped_from_a_file(structure: str, approximation: str, tmp_path: Path) -> None:
    layer = Layer.random(40, 6, 3)
    path = tmp_path / "features"
    path.write_bytes(layer.features.numpy().tobytes())
    mapped = torch.from_file(str(path), size=layer.features.numel(), dtype=torch.float64).view(40, 6)
    data = layer.data(LOSSES["arccos"])
    one, other = (
        accumulate(replace(data, features=features), settings(structure, approximation, batch_size=9))[0]
        for features in (layer.features, mapped)
    )
    assert all(
        torch.equal(a, b) for a, b in zip(one.tensors().values(), other.tensors().values(), strict=True)
    )


def test_listed_pairs_and_positions() -> None:
    """Pairs are taken as they are: all of them at once, repeats counted."""
    loss, positive, negative = LOSSES["euclidean"], {(0, 3): 2, (1, 4): 1}, {(0, 1): 1, (3, 5): 3}
    matrix = LAYER.ggn(loss, "full", (positive, negative))
    data = replace(LAYER.data(loss), labels=listed_pairs(positive, negative, 12))
    curvature, parts, population, _ = accumulate(data, settings("full", "full"))
    close(dense(curvature), clamped(matrix))
    assert (*population, len(parts)) == (3, 4, 1)
    # Places: images of a class lie within a metre, other classes ten metres away.
    places = Pairs.from_positions(10.0 * LAYER.labels[:, None].double(), 1.0, 5.0)
    one, other = (
        accumulate(replace(data, labels=labels), settings("diag", "full"))[0].diagonal()
        for labels in (places, LAYER.labels)
    )
    close(one, other)
    with pytest.raises(ValueError, match="batches are given with pairs"):
        accumulate(replace(data, labels=places), settings("diag", "full"), BATCHES)


@pytest.mark.parametrize("approximation", ["positive", "full", "clipped"])
def test_without_a_norm_the_bias_is_unknown(approximation: str) -> None:
    """No translation changes a distance: the bias row and column of G are 0, and so they are left out."""
    loss = LOSSES["no norm"]
    with_bias = LAYER.ggn(loss, approximation).view(2, 4, 2, 4)
    assert with_bias[:, 3].abs().max() <= 1e-12 * with_bias.abs().max()
    accumulated = accumulate(LAYER.data(loss, bias=False), settings("full", approximation))[0]
    assert accumulated.shape == (2, 3)
    close(dense(accumulated), clamped(LAYER.ggn(loss, approximation, bias=False)))


@pytest.mark.parametrize("structure", ["diag", "kron", "lowrank", "full"])
def test_float32_sums_of_many_batches(structure: str) -> None:
    layer = Layer.random(600, 4, 2)
    data = layer.data(LOSSES["arccos"])
    single = replace(
        data,
        features=data.features.float(),
        embeddings=data.embeddings.float(),
        weight=data.weight.float(),
        bias=layer.bias.float(),
    )
    exact, rounded = (
        accumulate(each, settings(structure, "clipped", batch_size=6, rank=3))[0] for each in (data, single)
    )
    assert rounded.dtype is torch.float32
    close(rounded.diagonal().double(), exact.diagonal(), 2e-4)


def test_dense_hessians_are_kept_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "clipped" of the Arccos distance takes the eigenvectors of every batch: once, if memory allows."""
    computed, original = [], ContrastiveLoss.output_hessian
    monkeypatch.setattr(
        ContrastiveLoss, "output_hessian", lambda *args: computed.append(1) or original(*args)
    )
    data = LAYER.data(LOSSES["arccos"])
    kept = accumulate(data, settings("kron", "clipped"), BATCHES)[0]
    assert len(computed) == len(BATCHES)
    monkeypatch.setattr("laplacian_metric.laplace.accumulate.DENSE_MEMORY", 0)
    again = accumulate(data, settings("kron", "clipped"), BATCHES)[0]
    assert len(computed) > 3 * len(BATCHES)
    assert torch.equal(kept.diagonal(), again.diagonal())
