"""The posterior over several layers, beside LAM, beside the whole Jacobian, and its prior and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from hessians.checks import CurvatureWarning
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError
from laplacian_metric.laplace.network import NetworkLAM
from laplacian_metric.laplace.posthoc import LAM, NotFittedError
from laplacian_metric.laplace.prior import NoOptimumError
from tests.laplace.network_reference import (
    LOSS,
    PLAIN,
    UNSQUARED,
    convolutional,
    curvature_of,
    mlp,
    random,
    residual,
)
from tests.manifests import rewrite

ACTIVE = ContrastiveLoss(margin=0.9, negatives="active")
LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 2, 2, 1, 0, 0, 1])


def split(inputs: Tensor, sizes: tuple[int, ...] = (5, 4, 3)) -> list[tuple[Any, Tensor]]:
    return list(zip(inputs.split(sizes), LABELS.split(sizes), strict=True))


def fitted(encoder: Encoder, batches: list[tuple[Any, Tensor]], **options: Any) -> NetworkLAM:
    loss = options.pop("loss", LOSS)
    return NetworkLAM(encoder, loss, **options).fit(batches, check_mode=False)


# --- one layer is LAM ---


@pytest.mark.parametrize("approximation", ["fixed", "positive", "full", "clipped"])
@pytest.mark.parametrize(
    "loss", [LOSS, PLAIN, UNSQUARED, ACTIVE], ids=["norm", "plain", "un-squared", "active"]
)
def test_one_layer_is_lam(approximation: str, loss: Any) -> None:
    encoder, x = mlp(), random(12, 4)
    network = fitted(encoder, split(x), loss=loss, approximation=approximation, layers=1, weight_decay=0.01)
    lam = LAM(encoder, loss, approximation, weight_decay=0.01)
    h = encoder.features(x).detach()
    lam.fit_features(h, LABELS, batches=list(torch.arange(12).split((5, 4, 3))), check_mode=False)
    flat = torch.cat(
        [network.posterior.variance()[name].view(3, -1) for name in network.layers["head"]], dim=1
    )
    torch.testing.assert_close(flat, lam.posterior.marginal_variance(), rtol=1e-10, atol=0)
    assert network.fitted.loss_value == pytest.approx(lam.fitted.loss_value, rel=1e-12)
    assert network.fitted.clamped == lam.fitted.curvature.clamped
    assert (network.fitted.num_positives, network.fitted.num_negatives) == (
        lam.fitted.num_positives,
        lam.fitted.num_negatives,
    )
    assert network.log_marginal_likelihood() == pytest.approx(lam.log_marginal_likelihood(), rel=1e-11)
    assert network.log_marginal_likelihood(3.0) == pytest.approx(lam.log_marginal_likelihood(3.0), rel=1e-11)
    for one, other in zip(
        network.diagnostics().to_dict().values(), lam.diagnostics().to_dict().values(), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    e, expected = network.embed(x), lam.embed(x)
    for name in ("point", "mean", "kappa", "uncertainty", "variance"):
        torch.testing.assert_close(getattr(e, name), getattr(expected, name), rtol=1e-9, atol=1e-11)
    if lam.fitted.curvature.trace() > 0:
        assert network.optimize_prior_precision() == pytest.approx(lam.optimize_prior_precision(), rel=1e-6)
        assert network.optimize_prior_precision(per_layer=True) == {
            "head": pytest.approx(lam.prior_precision, rel=1e-6)
        }


# --- all layers are what the whole Jacobian says ---


@pytest.mark.parametrize("approximation", ["fixed", "positive", "full", "clipped"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(mlp, (4,)), (convolutional, (1, 8, 8)), (residual, (1, 6, 6))],
    ids=["mlp", "conv", "residual"],
)
def test_curvature_of_all_layers(approximation: str, make: Any, shape: tuple[int, ...]) -> None:
    encoder, batches = make(), split(random(12, *shape))
    lam = fitted(encoder, batches, approximation=approximation, layers="all")
    expected = curvature_of(lam, batches, approximation)
    assert set(expected) == {name for name, _ in encoder.named_parameters()}
    for layer, names in lam.layers.items():
        values = torch.cat([expected[name] for name in names]).clamp(min=0)
        diagonal = lam.fitted.curvature[layer].diagonal()[0]
        torch.testing.assert_close(diagonal, values, rtol=1e-9, atol=1e-10 * float(values.max()))


# --- which layers ---


class Frozen(nn.Module):
    """A layer that is registered last and runs first, a parameter without effect, one module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.unused = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(4))
        self.first = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.tanh(self.first(x))) * self.scale
        x = x + self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]
        return torch.tanh(self.twice(x))


def frozen() -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(Frozen().double(), nn.Linear(4, 3).double())
    return encoder.requires_grad_(False)


def test_layers_in_the_order_in_which_they_run() -> None:
    encoder, batches = frozen(), split(random(12, 4))
    lam = fitted(encoder, batches, layers="all")
    assert list(lam.layers) == ["backbone", "backbone.first", "backbone.attention", "backbone.twice", "head"]
    assert lam.layers["backbone"] == ["backbone.scale"]
    assert "backbone.attention.out_proj.weight" in lam.layers["backbone.attention"]
    assert list(fitted(encoder, batches, layers=2).layers) == ["backbone.twice", "head"]
    named = fitted(encoder, batches, layers=["head.bias", "backbone.twice"]).layers
    assert named == {
        "backbone.twice": ["backbone.twice.weight", "backbone.twice.bias"],
        "head": ["head.bias"],
    }
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


# --- prior ---


def test_the_prior_of_each_layer_is_the_best_one() -> None:
    lam = fitted(mlp(), split(random(12, 4)), layers="all", n_effective=500.0)
    one = lam.optimize_prior_precision()
    assert isinstance(one, float)
    value = lam.log_marginal_likelihood()
    for factor in (0.99, 1.01):
        assert lam.log_marginal_likelihood(one * factor) < value
    expected = sum(
        (500 * c.diagonal() / (500 * c.diagonal() + one)).sum() for c in lam.fitted.curvature.values()
    )
    square = sum(float(parameter.detach().square().sum()) for parameter in lam.encoder.parameters())
    assert one == pytest.approx(float(expected / square), rel=1e-6)
    each = lam.optimize_prior_precision(per_layer=True)
    assert isinstance(each, dict)
    assert lam.prior_precision == each
    best = lam.log_marginal_likelihood()
    assert best > value
    for layer in each:
        for factor in (0.99, 1.01):
            assert lam.log_marginal_likelihood({**each, layer: each[layer] * factor}) < best


def test_the_marginal_likelihood_is_that_of_the_dense_gaussian() -> None:
    lam = fitted(mlp(), split(random(12, 4)), layers=2, temperature=2.0)
    prior = {"backbone.2": 0.7, "head": 3.0}
    lam.prior_precision = prior
    total = -6.0 * lam.fitted.loss_value
    for layer, names in lam.layers.items():
        theta = torch.cat([dict(lam.encoder.named_parameters())[name].detach().flatten() for name in names])
        P = torch.diag(6.0 * lam.fitted.curvature[layer].diagonal()[0] + prior[layer])
        total -= (
            float(prior[layer] * theta.square().sum() + P.logdet() - len(theta) * math.log(prior[layer])) / 2
        )
    assert lam.log_marginal_likelihood() == pytest.approx(total, rel=1e-12)
    gradient = {name: -6.0 * g for name, g in lam.fitted.gradient.items()}
    steps = sum(
        float(
            (
                ((gradient[name] - prior[layer] * lam.posterior.theta[name]) ** 2)
                * lam.posterior.variance()[name]
            ).sum()
        )
        for layer, names in lam.layers.items()
        for name in names
    )
    assert lam.diagnostics().steps_to_mode == pytest.approx(math.sqrt(steps), rel=1e-10)


def test_the_gradient_is_that_of_the_loss() -> None:
    encoder, x = mlp(), random(12, 4)
    lam = fitted(encoder, [(x, LABELS)], layers="all")
    LOSS(encoder.raw(x), Pairs.from_labels(LABELS)).backward()
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(lam.fitted.gradient[name], parameter.grad, rtol=1e-10, atol=1e-14)


# --- degenerate data ---


def with_prior(prior: Any) -> None:
    lam = fitted(mlp(), BATCHES, layers=2)
    lam.prior_precision = prior


def without_optimum() -> object:
    lam = NetworkLAM(mlp(), LOSS, layers=2)
    with torch.no_grad():
        lam.encoder.head.weight.zero_()
        lam.encoder.head.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return lam.fit(BATCHES, check_mode=False).optimize_prior_precision(per_layer=True)


def fit(*batches: Any) -> object:
    return NetworkLAM(mlp(), LOSS, layers=2).fit(list(batches))


X = random(12, 4)
BATCHES = split(X)
NAN = X.clone()
NAN[3] = math.nan
MIXING = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)).double()


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: NetworkLAM(frozen(), LOSS, layers=["tail"]), ValueError, "tail"),
        (lambda: NetworkLAM(frozen(), LOSS, layers=0), ValueError, "layers is 0"),
        (lambda: NetworkLAM(frozen(), LOSS, layers=1.5), TypeError, "layers is a float"),
        (lambda: NetworkLAM(frozen(), LOSS, samples=1), ValueError, "samples"),
        (lambda: NetworkLAM(frozen(), LOSS, memory_budget=0), ValueError, "memory_budget"),
        (lambda: NetworkLAM(frozen(), LOSS, temperature=-1.0), ValueError, "temperature"),
        (lambda: NetworkLAM(frozen(), LOSS, predictive="exact"), ValueError, "predictive"),
        (lambda: fitted(frozen(), BATCHES, layers=6), ValueError, "5 layers"),
        (lambda: fitted(frozen(), BATCHES, layers=["head", "backbone.unused"]), ValueError, "unused"),
        (
            lambda: fitted(frozen(), BATCHES, loss=PLAIN, layers=["head.bias"], approximation="positive"),
            ValueError,
            r"head\.bias",
        ),
        (lambda: with_prior({"head": 1.0}), ValueError, r"prior_precision lacks backbone\.2"),
        (lambda: with_prior({"head": 1.0, "backbone.2": 1.0, "tail": 1.0}), ValueError, "prior_precision has tail"),
        (lambda: with_prior({"head": -1.0, "backbone.2": 1.0}), ValueError, "prior_precision"),
        (without_optimum, NoOptimumError, r"backbone\.2"),
        (lambda: NetworkLAM(mlp(), LOSS).embed(X), NotFittedError, "fit"),
        (lambda: fit((X[:1], LABELS[:1])), ValueError, "1 image"),
        (lambda: fit(), ValueError, "loader"),
        (lambda: fit((X[:0], LABELS[:0])), ValueError, "loader"),
        (lambda: fit((X[:1], LABELS[:1]), (X[1:2], LABELS[1:2])), ValueError, "two images"),
        (lambda: fit(X), TypeError, "labels"),
        (lambda: fit((X[:5], LABELS)), ValueError, "batch 0 of the loader has 12 labels"),
        (lambda: fitted(mlp(), iter([(X, LABELS)])), TypeError, "once"),
        (lambda: fit((NAN, LABELS)), ValueError, "row 3"),
        (lambda: fitted(Encoder(MIXING, mlp().head), [(X, LABELS)]), ValueError, "running statistics"),
        (lambda: fitted(mlp(), BATCHES).embed([]), ValueError, "loader"),
        (lambda: fitted(mlp(), BATCHES).embed(X, samples=-1), ValueError, "samples"),
        (lambda: fitted(mlp(), BATCHES).recall_lost(X, LABELS, samples=0), ValueError, "samples"),
        (lambda: fitted(mlp(), BATCHES).embed(NAN), ValueError, "row 3"),
        (lambda: fitted(mlp(), BATCHES, memory_budget=2000).embed(NAN), ValueError, "row 3"),
        (lambda: fitted(mlp(), BATCHES, predictive="sampled").embed(NAN), ValueError, "row 3"),
        (lambda: fitted(mlp(), BATCHES).embed((255 * X).long()), TypeError, "floats"),
    ],
)  # fmt: skip
def test_bad_inputs(call: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()


def test_data_that_say_little() -> None:
    encoder, x = mlp(), random(12, 4)
    lam = NetworkLAM(encoder, LOSS, layers=2)
    with pytest.warns(CurvatureWarning, match="every batch is of one class"):
        lam.fit([(x, torch.zeros(12, dtype=torch.long))], check_mode=False)
    with (
        pytest.warns(CurvatureWarning, match="no two images of a batch share a class"),
        pytest.warns(CurvatureWarning, match="the posterior is the prior"),
    ):
        NetworkLAM(encoder, LOSS, "positive", layers=2).fit([(x, torch.arange(12))], check_mode=False)
    with pytest.warns(CurvatureWarning, match="theta\\* is no mode"):
        NetworkLAM(encoder, LOSS, layers=2, n_effective=1e6).fit([(x, LABELS)])
    with_empty = fitted(encoder, [(x[:0], LABELS[:0]), *split(x)], layers=2)
    without = fitted(encoder, split(x), layers=2)
    for name, variance in without.posterior.variance().items():
        torch.testing.assert_close(with_empty.posterior.variance()[name], variance, rtol=0, atol=0)


def test_the_training_mode_does_not_matter_and_stays() -> None:
    encoder = residual()
    encoder.train()
    before = encoder.fingerprint()
    batches = split(random(12, 1, 6, 6))
    lam = fitted(encoder, batches, layers="all")
    e = lam.embed(batches[0][0])
    assert all(module.training for module in encoder.modules())
    assert encoder.fingerprint() == before
    encoder.eval()
    torch.testing.assert_close(lam.embed(batches[0][0]).kappa, e.kappa, rtol=0, atol=0)
    assert e.kappa.isfinite().all()


def test_a_shuffling_loader_keeps_its_batches() -> None:
    data = torch.utils.data.TensorDataset(random(12, 4), LABELS)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    lam = fitted(mlp(), loader, layers=1)  # type: ignore[arg-type]
    assert (lam.fitted.num_images, lam.fitted.num_batches) == (12, 3)

    class Changing:
        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            return iter(split(random(12, 4), (6, 6) if self.passes == 1 else (4, 8)))

    with pytest.warns(CurvatureWarning, match="pass over the loader"):
        fitted(mlp(), Changing(), layers=1)  # type: ignore[arg-type]


def test_a_sketch_is_near_the_exact_diagonal() -> None:
    encoder, batches = mlp(), [(random(12, 4), LABELS)]
    exact = fitted(encoder, batches, layers="all")
    sketch = NetworkLAM(encoder, LOSS, layers="all")
    sketch.fit(
        batches, method="sketch", probes=3000, generator=torch.Generator().manual_seed(0), check_mode=False
    )
    assert sketch.fitted.trace == pytest.approx(exact.fitted.trace, rel=0.05)


# --- interruption ---


class StoppedError(RuntimeError):
    pass


def interrupting(batches: list[tuple[Any, Tensor]], at: int) -> Any:
    """Fails before batch ``at`` of its second pass."""

    class Loader:
        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            for number, batch in enumerate(batches):
                if self.passes == 2 and number == at:
                    raise StoppedError
                yield batch

    return Loader()


def test_an_interrupted_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from laplacian_metric.laplace.network import accumulate as module

    encoder, batches = mlp(), split(random(12, 4))
    expected = fitted(encoder, batches, layers="all")
    lam = NetworkLAM(encoder, LOSS, layers="all")
    with pytest.raises(StoppedError):
        lam.fit(interrupting(batches, 2), cache=tmp_path, check_mode=False)
    assert lam.fitted is None
    seen: list[int] = []
    add = module._add_batch

    def counting(task: Any, tracer: Any, names: Any, inputs: Any, *rest: Any) -> None:
        seen.append(len(inputs))
        add(task, tracer, names, inputs, *rest)

    monkeypatch.setattr(module, "_add_batch", counting)
    lam.fit(batches, cache=tmp_path, check_mode=False)
    assert seen == [3]
    for name, variance in expected.posterior.variance().items():
        torch.testing.assert_close(lam.posterior.variance()[name], variance, rtol=0, atol=0)
    assert lam.diagnostics() == expected.diagnostics()
    seen.clear()
    lam.fit(batches, cache=tmp_path, check_mode=False)
    assert seen == []
    assert lam.diagnostics() == expected.diagnostics()
    assert [path.name for path in tmp_path.iterdir()] == ["curvature.safetensors"]


def test_another_order_encoder_or_loss_starts_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder, batches = mlp(), split(random(12, 4))
    NetworkLAM(encoder, LOSS, layers="all").fit(batches, cache=tmp_path, check_mode=False)
    (file,) = tmp_path.iterdir()
    kept = file.read_bytes()
    other_images = [(batches[0][0].flip(0), batches[0][1]), *batches[1:]]
    other_encoder = mlp(2)
    for changed, data, options in (
        (encoder, other_images, {}),
        (encoder, batches[:2], {}),
        (other_encoder, batches, {}),
        (encoder, batches, {"approximation": "positive"}),
        (encoder, batches, {"layers": 2}),
    ):
        file.write_bytes(kept)
        caplog.clear()
        lam = NetworkLAM(changed, LOSS, **{"layers": "all", **options})  # type: ignore[arg-type]
        lam.fit(data, cache=tmp_path, check_mode=False)
        assert "starts again" in caplog.text
        expected = fitted(changed, data, **{"layers": "all", **options})
        assert lam.diagnostics() == expected.diagnostics()
    file.write_bytes(kept[:100])
    caplog.clear()
    NetworkLAM(encoder, LOSS, layers="all").fit(batches, cache=tmp_path, check_mode=False)
    assert "cannot be read" in caplog.text
    assert file.read_bytes() == kept


def test_two_processes_with_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over processes, here of two that see the same: those of one process that sees everything twice."""
    from laplacian_metric.laplace.network import accumulate as module

    encoder, batches = mlp(), split(random(12, 4))
    expected = fitted(encoder, [*batches, *batches], layers="all")
    monkeypatch.setattr(module, "reducer", lambda: lambda tensor: 2 * tensor)
    posterior = fitted(encoder, batches, layers="all")
    for name in ("num_images", "num_positives", "num_negatives", "num_batches"):
        assert getattr(posterior.fitted, name) == getattr(expected.fitted, name)
    for name, value in expected.diagnostics().to_dict().items():
        assert posterior.diagnostics().to_dict()[name] == pytest.approx(value, rel=1e-10)


# --- files ---


@pytest.mark.parametrize("prior", [None, 2.5, {"backbone.2": 0.5, "head": 4.0}])
def test_saved_and_loaded(prior: Any, tmp_path: Path) -> None:
    encoder, x = mlp(), random(12, 4)
    lam = fitted(
        encoder, split(x), layers=2, prior_precision=prior, temperature=3.0, predictive="sampled", samples=7
    )
    lam.save(tmp_path / "posterior.safetensors")
    again = NetworkLAM.load(tmp_path / "posterior.safetensors", encoder, LOSS)
    assert again.prior_precision == lam.prior_precision
    assert list(again.layers.items()) == list(lam.layers.items())
    assert again.diagnostics() == lam.diagnostics()
    assert again.log_marginal_likelihood() == lam.log_marginal_likelihood()
    one, other = (each.embed(x, generator=torch.Generator().manual_seed(3)).kappa for each in (lam, again))
    assert torch.equal(one, other)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    encoder, x = mlp(), random(12, 4)
    lam = fitted(encoder, split(x), layers=2)
    path = tmp_path / "posterior.safetensors"
    with pytest.raises(NotFittedError):
        NetworkLAM(encoder, LOSS).save(path)
    lam.save(path)
    with pytest.raises(ValueError, match="loss"):
        NetworkLAM.load(path, encoder, PLAIN)
    with torch.no_grad():
        encoder.backbone[0].weight[0, 0] += 1e-6  # type: ignore[index]
    with pytest.raises(ValueError, match="encoder"):
        NetworkLAM.load(path, encoder, LOSS)
    for use in (
        lambda: lam.embed(x),
        lam.optimize_prior_precision,
        lam.diagnostics,
        lam.log_marginal_likelihood,
    ):
        with pytest.raises(EncoderChangedError):
            use()
    rewrite(path, clamped={})
    with pytest.raises(ArtifactError, match="posterior"):
        NetworkLAM.load(path, mlp(), LOSS)
