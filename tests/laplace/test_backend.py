"""laplace-torch with our curvature, through its public interface, against closed forms and autograd."""

from __future__ import annotations

import copy
import io
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import laplace
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from hessians import ContrastiveLoss
from hessians.checks import CurvatureWarning
from laplacian_metric.laplace.backend import (
    batch_population,
    import_laplace,
    laplace_arguments,
    metric_laplace,
    pair_loss_curvature,
)
from tests.laplace.backend_reference import Batch, counts, ggn, value
from tests.pages import run_page

LOSSES = {
    "arccos": ContrastiveLoss(1.3, "arccos", negative_weight=0.4),
    "euclidean": ContrastiveLoss(1.3, "euclidean", negative_weight=0.4),
    "no norm": ContrastiveLoss(1.5, "euclidean", negative_weight=0.4, normalize=False),
    "un-squared": ContrastiveLoss(1.3, "euclidean", negative_weight=0.4, power=1),
}
APPROXIMATIONS = ["clipped", "positive", "fixed"]
HEAD = ["2.weight", "2.bias"]
N_EFFECTIVE = 30.0

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def make_model(bias: bool = True, seed: int = 0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=bias)).double()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def make_batches(sizes: tuple[int, ...] = (7, 5), seed: int = 1) -> list[Batch]:
    """Batches of unequal size and balance."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 5, generator=generator, dtype=torch.float64),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in sizes
    ]


def fitted(structure: str, name: str = "arccos", approximation: str = "clipped", **options: Any) -> Any:
    return metric_laplace(
        make_model(),
        make_batches(),
        LOSSES[name],
        approximation,
        structure,
        n_effective=N_EFFECTIVE,
        **options,
    )


def expected(name: str = "arccos", approximation: str = "clipped", model: nn.Module | None = None) -> Tensor:
    chosen = make_model() if model is None else model
    parameters = [one for one, _ in chosen.named_parameters() if one in HEAD]
    return N_EFFECTIVE * ggn(chosen, parameters, make_batches(), LOSSES[name], approximation)


def matrix(la: Any) -> Tensor:
    """The curvature of a fitted object as a matrix (P, P)."""
    if isinstance(la, laplace.KronLaplace):
        return la.H_facs.to_matrix()
    return torch.diag(la.H) if la.H.ndim == 1 else la.H


# --- the curvature ---


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_full_and_diagonal_are_those_of_autograd(name: str, approximation: str) -> None:
    wanted = expected(name, approximation)
    full = fitted("full", name, approximation)
    diagonal = fitted("diag", name, approximation)
    assert type(full) is laplace.FullLLLaplace
    assert type(diagonal) is laplace.DiagLLLaplace
    scale = wanted.diagonal().max()
    torch.testing.assert_close(full.H, wanted, rtol=0, atol=1e-11 * scale)
    torch.testing.assert_close(diagonal.H, wanted.diagonal(), rtol=0, atol=1e-11 * scale)
    assert (diagonal.H >= 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_layer_without_a_bias(name: str) -> None:
    model = make_model(bias=False)
    wanted = expected(name, model=model)
    for structure, compared in (("full", wanted), ("diag", wanted.diagonal())):
        la = metric_laplace(model, make_batches(), LOSSES[name], structure=structure, n_effective=N_EFFECTIVE)
        torch.testing.assert_close(la.H, compared)
    la = metric_laplace(model, make_batches(), LOSSES[name], structure="kron")
    assert [len(group) for group in la.H_facs.kfacs] == [2]


def test_kronecker_factors_are_exact_without_a_norm() -> None:
    wanted = expected("no norm")
    la = fitted("kron", "no norm")
    assert type(la) is laplace.KronLLLaplace
    torch.testing.assert_close(la.H_facs.to_matrix()[:12, :12], wanted[:12, :12])
    # A translation changes no distance: nothing is known of the bias.
    assert la.H_facs.to_matrix()[12:].abs().max() < 1e-12
    fixed = fitted("kron", "no norm", "fixed").H_facs.to_matrix()
    wanted = expected("no norm", "fixed")
    torch.testing.assert_close(fixed[:12, :12], wanted[:12, :12])
    torch.testing.assert_close(fixed[12:, 12:], wanted[12:, 12:])


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize("name", ["arccos", "euclidean"])
def test_kronecker_factors_are_the_nearest_of_a_batch(name: str, approximation: str) -> None:
    model, batches = make_model(), make_batches((9,))
    la = metric_laplace(model, batches, LOSSES[name], approximation, "kron", n_effective=N_EFFECTIVE)
    wanted = N_EFFECTIVE * ggn(model, HEAD, batches, LOSSES[name], approximation)
    actual = la.H_facs.to_matrix()
    rearranged = wanted[:12, :12].reshape(3, 4, 3, 4).permute(0, 2, 1, 3).reshape(9, 16)
    best = torch.linalg.svdvals(rearranged)[1:].norm()
    assert (actual - wanted)[:12, :12].norm() <= best * (1 + 1e-6)
    torch.testing.assert_close(actual[12:, 12:], wanted[12:, 12:])
    assert torch.linalg.eigvalsh(actual).min() >= -1e-10 * actual.abs().max()


@pytest.mark.parametrize("name", ["arccos", "euclidean"])
def test_kronecker_factors_of_several_batches_are_averaged_and_summed(name: str) -> None:
    model, batches = make_model(), make_batches()
    population = counts(batches)
    parts = []
    for images, labels in batches:
        arguments = laplace_arguments(LOSSES[name], population, N_EFFECTIVE)
        one = laplace.KronLLLaplace(model, last_layer_name="2", **arguments)
        one.fit(DataLoader(TensorDataset(images, labels), batch_size=len(images)))
        parts.append(one.H_facs.kfacs)
    la = fitted("kron", name)
    (output, inputs), (bias,) = la.H_facs.kfacs
    torch.testing.assert_close(output, (7 * parts[0][0][0] + 5 * parts[1][0][0]) / 12)
    torch.testing.assert_close(inputs, parts[0][0][1] + parts[1][0][1])
    torch.testing.assert_close(bias, expected(name)[12:, 12:])
    total = sum(torch.kron(*part[0]).trace() for part in parts)
    torch.testing.assert_close(torch.kron(output, inputs).trace(), total)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_diagonal_of_a_whole_network(name: str, approximation: str) -> None:
    model = make_model()
    model[0].bias.requires_grad_(False)
    chosen = ["0.weight", "2.weight", "2.bias"]
    la = metric_laplace(
        model, make_batches(), LOSSES[name], approximation, subset_of_weights="all", n_effective=N_EFFECTIVE
    )
    assert type(la) is laplace.DiagLaplace
    wanted = N_EFFECTIVE * ggn(model, chosen, make_batches(), LOSSES[name], approximation).diagonal()
    torch.testing.assert_close(la.H, wanted, rtol=1e-9, atol=1e-11 * float(wanted.max()))
    mean, covariance = la(make_batches()[0][0])
    torch.testing.assert_close(mean, model(make_batches()[0][0]).detach())
    assert torch.linalg.eigvalsh(covariance).min() > 0


# --- what laplace-torch makes of it ---


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("structure", ["diag", "full", "kron"])
def test_the_marginal_likelihood_is_the_formula(structure: str, temperature: float) -> None:
    la = fitted(structure, prior_precision=0.7, temperature=temperature)
    model, batches = make_model(), make_batches()
    loss = sum(
        value(F.normalize(model(x)).detach(), y, LOSSES["arccos"], counts(batches)) for x, y in batches
    )
    theta = parameters_to_vector(model[2].parameters()).detach()
    curvature = matrix(la)
    precision = curvature / temperature + 0.7 * torch.eye(15, dtype=torch.float64)
    wanted = -N_EFFECTIVE * loss / temperature - 0.5 * (
        0.7 * theta @ theta + precision.logdet() - 15 * math.log(0.7)
    )
    torch.testing.assert_close(la.log_likelihood, -N_EFFECTIVE * torch.as_tensor(loss) / temperature)
    torch.testing.assert_close(la.log_marginal_likelihood(), torch.as_tensor(wanted))


def test_the_likelihood_is_that_of_the_population_whatever_is_trained() -> None:
    trained = ContrastiveLoss(1.3, "arccos", negative_weight=0.4, negatives="active")
    la = metric_laplace(make_model(), make_batches(), trained, n_effective=N_EFFECTIVE)
    torch.testing.assert_close(la.log_likelihood, fitted("diag").log_likelihood)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_the_prior_is_found_by_the_marginal_likelihood(structure: str) -> None:
    """The fixed point prior = gamma/|theta|^2, gamma the number of parameters that the data determine."""
    la = fitted(structure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about link functions, which there are none of
        la.optimize_prior_precision(method="marglik", n_steps=300)
    best = la.prior_precision.detach()
    determined = torch.linalg.eigvalsh(matrix(la))
    gamma = (determined / (determined + best)).sum()
    assert float(best) == pytest.approx(float(gamma / la.mean.square().sum()), rel=1e-2)


@pytest.mark.statistical
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_samples_have_the_covariance(structure: str) -> None:
    la = fitted(structure, prior_precision=0.5)
    curvature = matrix(la)
    covariance = torch.linalg.inv(curvature + 0.5 * torch.eye(15, dtype=torch.float64))
    count = 40_000
    samples = la.sample(count, generator=torch.Generator().manual_seed(0))
    variance = covariance.diagonal()
    error = ((covariance.square() + variance[:, None] * variance) / count).sqrt()
    # 120 entries, 5 standard errors each: less than once in 10,000 seeds.
    assert ((samples.T.cov() - covariance).abs() < 5 * error).all()
    assert ((samples.mean(0) - la.mean).abs() < 5 * (variance / count).sqrt()).all()


def test_predictive_variances() -> None:
    la = fitted("diag", prior_precision=0.5)
    images = make_batches((4,), seed=5)[0][0]
    model = make_model()
    features = model[:2](images)
    variance = 1 / (la.H + 0.5)
    wanted = features.square() @ variance[:12].view(3, 4).T + variance[12:]  # sum_h h^2 S_kh + S_bk
    mean, covariance = la(images)
    torch.testing.assert_close(mean, model(images).detach())
    torch.testing.assert_close(covariance, torch.diag_embed(wanted.detach()))
    torch.testing.assert_close(la.functional_variance_fast(images)[1].detach(), wanted.detach())


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_saved_and_loaded(structure: str) -> None:
    la = fitted(structure, prior_precision=2.0)
    file = io.BytesIO()
    state = la.state_dict()
    assert state["data"] is None  # no training image is written
    torch.save(state, file)
    file.seek(0)
    loss, batches = LOSSES["arccos"], make_batches()
    empty = type(la)(
        make_model(), last_layer_name="2", **laplace_arguments(loss, counts(batches), N_EFFECTIVE)
    )
    empty.load_state_dict(torch.load(file, weights_only=True))
    images = make_batches((4,), seed=5)[0][0]
    for one, other in zip(empty(images), la(images), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(empty.log_marginal_likelihood(), la.log_marginal_likelihood())


def test_the_factory_of_laplace_torch_takes_it_and_is_not_hijacked() -> None:
    batches = make_batches()
    dataset = TensorDataset(*(torch.cat(both) for both in zip(*batches, strict=True)))
    loader = DataLoader(dataset, batch_sampler=[list(range(7)), list(range(7, 12))])
    for structure in ("diag", "kron", "full"):
        arguments = laplace_arguments(LOSSES["arccos"], batch_population(loader), N_EFFECTIVE)
        la = laplace.Laplace(
            make_model(), subset_of_weights="last_layer", hessian_structure=structure, **arguments
        )
        la.fit(loader)
        ours = fitted(structure)
        assert type(la) is type(ours)
        torch.testing.assert_close(la.log_marginal_likelihood(), ours.log_marginal_likelihood())
    assert issubclass(pair_loss_curvature(), laplace.curvature.CurvatureInterface)
    assert pair_loss_curvature() is pair_loss_curvature()


# --- models ---


class Normalising(nn.Module):
    """A model that puts its embeddings on the sphere."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.raw_model = make_model()
        self.in_place = in_place

    def forward(self, images: Tensor) -> Tensor:
        u = self.raw_model(images)
        return u.div_(u.norm(dim=1, keepdim=True)) if self.in_place else F.normalize(u)


def test_a_norm_inside_the_network_is_welcome_where_the_loss_has_none() -> None:
    """With "all" weights and without a norm in the loss this is the Euclidean loss with its norm in the network."""
    bare = ContrastiveLoss(1.3, "euclidean", negative_weight=0.4, normalize=False)
    inside = metric_laplace(Normalising(), make_batches(), bare, subset_of_weights="all")
    outside = metric_laplace(make_model(), make_batches(), LOSSES["euclidean"], subset_of_weights="all")
    torch.testing.assert_close(inside.H, outside.H)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 5).double()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.tanh(self.head(images)))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3).double()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, self.head(images)


def parametrized() -> nn.Module:
    model = make_model()
    nn.utils.parametrizations.weight_norm(model[2])
    return model


def refused(model: Any = None, loader: Any = None, **options: Any) -> Any:
    data = make_batches() if loader is None else loader
    return metric_laplace(model or make_model(), data, LOSSES["arccos"], **options)


def whole_network(structure: Any) -> None:
    batches = make_batches()
    la = structure(make_model(), **laplace_arguments(LOSSES["arccos"], counts(batches), 1.0))
    la.fit(DataLoader(TensorDataset(*batches[0]), batch_size=7))


IMAGES, CLASSES = make_batches()[0]


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: refused(Normalising()), ValueError, "norm 1"),
        (lambda: refused(Normalising(in_place=True)), ValueError, "norm 1"),
        (lambda: refused(Normalising(), subset_of_weights="all"), ValueError, "norm 1"),
        (lambda: refused(Twice()), ValueError, "'head'"),
        (lambda: refused(Pair()), ValueError, "tuple"),
        (lambda: refused(parametrized()), ValueError, "remove_parametrizations"),
        (lambda: refused(nn.Sequential(make_model(), nn.ReLU())), ValueError, "linear layers"),
        (lambda: refused(last_layer="0"), ValueError, "'0'"),
        (lambda: refused(last_layer="head"), ValueError, "'head'"),
        (lambda: refused(nn.Sequential(nn.Flatten()), last_layer="x"), ValueError, "linear layers"),
        (lambda: refused(make_model().requires_grad_(False), subset_of_weights="all"), ValueError, "parameter"),
        (lambda: refused(approximation="full"), ValueError, "clipped"),
        (lambda: refused(approximation="half"), ValueError, "approximation"),
        (lambda: refused(structure="lowrank"), ValueError, "structure"),
        (lambda: refused(subset_of_weights="first_layer"), ValueError, "last_layer"),
        (lambda: refused(subset_of_weights="all", structure="kron"), ValueError, "subset_of_weights"),
        (lambda: refused(n_effective=0.0), ValueError, "n_effective"),
        (lambda: whole_network(laplace.FullLaplace), NotImplementedError, "whole network"),
        (lambda: whole_network(laplace.KronLaplace), NotImplementedError, "whole network"),
        (lambda: fitted("diag").backend.gradients(IMAGES, CLASSES), NotImplementedError, "gradients"),
        (lambda: refused(loader=[{"image": IMAGES}]), TypeError, "batch 0"),
        (lambda: refused(loader=[(IMAGES, CLASSES, CLASSES)]), TypeError, "tuple"),
        (lambda: refused(loader=[IMAGES]), TypeError, "batch 0"),
        (lambda: refused(loader=[([0.0, 0.0], [0, 1])]), TypeError, "inputs"),
        (lambda: refused(loader=[(IMAGES, CLASSES[:3])]), ValueError, "labels"),
        (lambda: refused(loader=[(IMAGES, CLASSES.float())]), TypeError, "labels"),
        (lambda: refused(loader=[(IMAGES / 0, CLASSES)]), ValueError, "NaN"),
        (lambda: refused(loader=iter(make_batches())), TypeError, "once"),
        (lambda: refused(loader=[]), ValueError, "loader"),
        (lambda: refused(loader=make_batches((1, 1, 1))), ValueError, "two images"),
    ],
)  # fmt: skip
def test_bad_inputs(call: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(make_model()[:2], nn.Dropout(0.9), make_model()[2])
    model.train()
    model[1].eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    la = metric_laplace(model, make_batches(), LOSSES["arccos"], n_effective=N_EFFECTIVE)
    la.sample(3)
    la(make_batches()[0][0], pred_type="nn", link_approx="mc")
    torch.testing.assert_close(la.H, expected().diagonal())
    assert [module.training for module in (model, model[0], model[1], model[2])] == [True, True, False, True]
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(not module._forward_hooks for module in model.modules())
    torch.testing.assert_close(model.state_dict(), before)
    model[2].bias.requires_grad_(True)
    la = metric_laplace(model, make_batches(), LOSSES["arccos"], subset_of_weights="all")
    assert la.n_params == 3
    assert model.training
    assert la.model is not model


def test_features_and_a_linear_layer_alone() -> None:
    model = make_model()
    features = [(model[:2](images).detach(), labels) for images, labels in make_batches()]
    la = metric_laplace(model[2], features, LOSSES["arccos"], n_effective=N_EFFECTIVE)
    torch.testing.assert_close(la.H, expected().diagonal())


class EncoderLike(nn.Module):
    """Backbone, head and a norm, with a way around the norm."""

    def __init__(self) -> None:
        super().__init__()
        model = make_model()
        self.backbone, self.head = model[:2], model[2]

    def raw(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.raw(images))


@pytest.mark.parametrize("subset", ["last_layer", "all"])
def test_an_encoder_is_used_without_its_norm(subset: str) -> None:
    one, other = (
        metric_laplace(model, make_batches(), LOSSES["arccos"], subset_of_weights=subset)
        for model in (EncoderLike(), make_model())
    )
    torch.testing.assert_close(one.H, other.H)


# --- loaders ---


def test_batch_population() -> None:
    batches = make_batches((7, 5, 1, 9))
    assert batch_population(batches) == counts(batches)


def test_a_shuffling_loader_has_the_same_batches_in_both_passes() -> None:
    images, labels = make_batches((40,))[0]
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CurvatureWarning)
        la = metric_laplace(make_model(), loader, LOSSES["euclidean"], "positive")
    assert la.n_data == 40
    model = make_model()
    torch.manual_seed(3)
    order = list(loader.batch_sampler)
    torch.manual_seed(3)
    shuffled = metric_laplace(model, loader, LOSSES["euclidean"])
    fixed = metric_laplace(model, [(images[at], labels[at]) for at in order], LOSSES["euclidean"])
    torch.testing.assert_close(shuffled.H, fixed.H)


def test_a_loader_that_changes_is_told_on() -> None:
    class Changing:
        passes = 0

        def __iter__(self) -> Iterator[Batch]:
            self.passes += 1
            return iter(make_batches((7, 5) if self.passes == 1 else (6, 5)))

    with pytest.warns(CurvatureWarning, match="give the loader a fixed order"):
        metric_laplace(make_model(), Changing(), LOSSES["euclidean"], "positive")


def test_degenerate_batches() -> None:
    """A batch of one image has no pair, and adds nothing; one class has no negative, and is said so."""
    whole = fitted("diag").H
    alone = metric_laplace(
        make_model(), [*make_batches(), *make_batches((1,))], LOSSES["arccos"], n_effective=N_EFFECTIVE
    )
    torch.testing.assert_close(alone.H, whole)
    images = make_batches()[0][0]
    with pytest.warns(CurvatureWarning, match="no negative pair"):
        metric_laplace(make_model(), [(images, torch.zeros(7).long())], LOSSES["arccos"])


# --- settings ---


@pytest.mark.parametrize("error", [ModuleNotFoundError("laplace"), RuntimeError("torchvision::nms")])
def test_a_broken_installation_is_explained(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(name: str) -> None:
        raise error

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(ImportError, match=rf"laplace-torch.*{error}") as caught:
        import_laplace()
    assert caught.value.__cause__ is error


# --- the page ---


def test_the_code_of_the_page_runs(root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        names: dict[str, Any] = run_page(root / "docs" / "laplace_torch.md")
    assert names["covariance"].shape == (200, 3, 3)
    assert torch.linalg.eigvalsh(names["covariance"]).min() > 0
    assert names["samples"].shape == (20, 99)
