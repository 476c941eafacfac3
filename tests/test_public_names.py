"""Names that users and other code rely on: they are where they were, and take the arguments that they took."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import laplacian_metric
from hessians import ContrastiveLoss, Pairs, ggn_diagonal, last_layer_ggn_diagonal
from laplacian_metric import LAM, Encoder, NetworkLAM, OnlineLAM, StochasticEmbedding, combine, metrics, vmf
from tests.generators import seeded

LOSS = ContrastiveLoss(margin=0.9, distance="euclidean", negative_weight=0.25)
# Module -> name -> parameters that can be passed by keyword. An empty text stands for a name without parameters.
SIGNATURES = {
    "hessians": {
        "Pairs.from_labels": "labels",
        "Pairs.from_indices": "indices num_images",
        "ContrastiveLoss": "margin distance negative_weight normalize",
        "InfoNCELoss": "temperature",
        "last_layer_ggn_diagonal": "features weight bias pairs loss approximation",
        "ggn_diagonal": "model inputs pairs loss approximation method probes generator",
    },
    "laplacian_metric": {
        "LAM": "encoder loss approximation structure rank n_effective temperature prior_precision weight_decay",
        "LAM.fit": "loader cache",
        "LAM.fit_features": "features labels batch_size generator",
        "LAM.optimize_prior_precision": "",
        "LAM.embed": "inputs samples generator",
        "LAM.embed_features": "features samples generator",
        "LAM.save": "path",
        "LAM.load": "path encoder loss",
        "NetworkLAM": "encoder loss approximation layers predictive",
        "OnlineLAM": "encoder optimizer loss num_images memory generator",
        "OnlineLAM.step": "images labels",
        "OnlineLAM.posterior": "",
        "Encoder": "backbone head normalize",
        "Encoder.from_module": "module",
        "Encoder.from_checkpoint": "path name",
        "Encoder.from_name": "name dim pretrained seed",
        "Encoder.with_head": "dim",
        "StochasticEmbedding.sample": "k generator",
        "StochasticEmbedding.variance": "",
        "combine": "aleatoric epistemic",
        "data": "",
        "methods": "",
        "train": "learner train validation options folder seed identity progress",
        "metrics": "",
        "vmf": "",
        "__version__": "",
    },
    "laplacian_metric.vmf": {
        "fit": "samples",
        "log_normalizer": "kappa dim",
        "sample": "mean kappa k generator",
        "log_positivity": "cosine kappa1 kappa2 kappa_pos dim",
        "log_positivity_matched": "cosine kappa1 kappa2 kappa_pos dim",
    },
    "experiments.harness.suites": {
        "names": "",
        "load": "name",
        "images": "suite track name data_dir",
        "Benchmark": "suite out data_dir tracks entries",
    },
    "laplacian_metric.vmf.nivmf": {
        "log_density": "x mean log_scale",
        "sample": "mean log_scale k generator",
    },
    "laplacian_metric.metrics": {
        "recall_at_k": "embeddings labels k database database_labels",
        "map_at_k": "embeddings labels k database database_labels",
        "map_at_r": "embeddings labels database database_labels",
        "r_auroc": "embeddings labels uncertainty database database_labels",
        "ausc": "embeddings labels uncertainty database database_labels",
        "retrieval_ece": "samples labels database database_labels",
        "ood_auroc": "uncertainty_in uncertainty_out",
        "ood_average_precision": "uncertainty_in uncertainty_out",
        "evaluate": "embeddings labels uncertainty database database_labels neighbours clusters",
        "knn_accuracy": "embeddings labels database database_labels k temperature",
        "linear_probe": "features labels database database_labels",
        "clustering_nmi": "embeddings labels clusters seed",
    },
    "laplacian_metric.trust": {
        "Trust.fit": "gallery queries features encoder relevant expected_ood alpha target answer scores signs",
        "Trust.fit_responses": "neighbours right feature_neighbours features view scores signs",
        "Trust.with_gallery": "h labels features",
        "Trust.update": "add remove",
        "Trust.guarantee": "queries error confidence",
        "Trust.accepting": "threshold",
        "Trust.expecting": "ood",
        "Trust.save": "folder overwrite",
        "Trust.load": "folder",
    },
    "laplacian_metric.galleries": {"open_gallery": "address dim name id label vector metric where"},
    "laplacian_metric.core.gallery": {
        "Gallery.search": "vectors k where native",
        "Gallery.add": "ids vectors labels columns",
        "Gallery.remove": "ids",
        "Gallery.sample": "n",
        "Gallery.__len__": "",
    },
    "laplacian_metric.core.neighbours": {"Neighbours": "ids distances labels vectors"},
    "laplacian_metric.serve": {
        "Index": "trust encoder guarantee",
        "Index.replies": "h k",
        "Index.load": "folder address",
        "Service": "folder inputs limits address",
        "create_app": "service watch hosts",
    },
    "laplacian_metric.core.method": {
        "Setup": "loss num_images weight_decay seed pairs num_classes",
        "FitData": "train validation folder",
    },
    "laplacian_metric.methods": {
        "make": "name",
        "names": "",
        "find": "name",
        "unlabelled": "method augmentation",
    },
    "laplacian_metric.data.views": {
        "ImageViews": "area ratio flip brightness contrast saturation hue jitter grey blur deviation",
        "views_of": "inputs augmentation count generator",
    },
    "laplacian_metric.data": {
        "load": "name split",
        "arrays": "name split",
        "folder": "path image_size",
        "Dataset.floats": "",
        "Dataset.__len__": "",
        "Dataset.__getitem__": "",
    },
    "laplacian_metric.encoder": {"train_head": "features labels loss dim steps generator"},
    "laplacian_metric.training": {
        "train": "learner train validation options folder seed",
        "load_best": "learner folder",
        "TrainingOptions": "epochs batch_size learning_rate weight_decay",
    },
    "laplacian_metric.laplace.model_folder": {
        "ModelFolder": "lam preparation options class_names about seen",
        "ModelFolder.save": "folder overwrite",
        "ModelFolder.load": "folder architecture loss device",
    },
    "laplacian_metric.integrations.hub": {
        "save_folder": "lam folder encoder_reference metrics licence title overwrite",
        "load_folder": "folder encoder loss",
        "check_folder": "folder",
        "push": "folder repo_id token private message",
    },
    "laplacian_metric.integrations.haystack": {
        "TrustFilter": "",
        "fit_trust": "found relevant scores",
    },
    "laplacian_metric.integrations.langchain": {
        "TrustRetriever.fit": "search queries relevant scores top",
        "TrustFilter.fit": "embeddings retriever queries relevant",
    },
    "laplacian_metric.integrations.lightning": {"OnlineLAMCallback": ""},
    "laplacian_metric.integrations.llama_index": {
        "TrustPostprocessor.fit": "retriever queries relevant scores"
    },
    "laplacian_metric.integrations.mteb": {
        "TrustSearch": "model trust scores",
        "fit_trust": "results relevant scores",
    },
    "laplacian_metric.integrations.pytorch_metric_learning": {
        "LAMTester": "",
        "TrainingLoss": "",
        "UncertaintyCalculator": "",
        "encoder_of": "",
        "fit_trust": "models gallery queries",
    },
    "laplacian_metric.integrations.routing": {"route": "trust h"},
    "laplacian_metric.integrations.scikit_learn": {"LaplaceEmbedding": "", "TrustClassifier": ""},
    "laplacian_metric.integrations.sentence_transformers": {
        "UncertainSentenceTransformer.fit": "model sentences labels dim loss steps batch_size seed",
        "UncertainSentenceTransformer.encode": "sentences batch_size normalize_embeddings return_uncertainty",
        "UncertainSentenceTransformer.embed": "sentences batch_size",
    },
}


def encoder() -> Encoder:
    """An encoder of inputs (N, 6) with buffers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh())
        return Encoder(backbone, nn.Linear(5, 3)).eval()


def clusters(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (N, 6) around one centre for each of four classes, and the classes (N,)."""
    labels = torch.arange(count) % 4
    return torch.eye(6)[labels] + 0.3 * torch.randn(count, 6, generator=seeded(seed)), labels


CASES = [(module, name) for module, names in SIGNATURES.items() for name in names]


def parameters_of(value: Callable[..., Any]) -> set[str]:
    return {
        name
        for name, parameter in inspect.signature(value).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


@pytest.mark.parametrize(("module", "name"), CASES, ids=[f"{module}.{name}" for module, name in CASES])
def test_the_name_is_there_with_its_parameters(module: str, name: str) -> None:
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    needed = set(SIGNATURES[module][name].split())
    if needed:
        assert needed <= parameters_of(value), needed - parameters_of(value)


@pytest.mark.parametrize(
    "module",
    [
        "hessians",
        *(
            f"laplacian_metric.{name}"
            for name in ("data", "encoder", "galleries", "metrics", "serve", "training", "trust", "vmf")
        ),
    ],
)
def test_every_name_that_a_package_lists_can_be_imported(module: str) -> None:
    package = importlib.import_module(module)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert {"LAM", "Encoder"} <= set(dir(laplacian_metric))


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("approximation", ["full", "fixed", "positive", "clipped"])
def test_hessians_as_they_are_called(distance: str, approximation: str) -> None:
    network, (x, labels) = encoder(), clusters(8)
    pairs = Pairs.from_labels(labels)
    loss = ContrastiveLoss(margin=0.7, distance=distance, negative_weight=0.5)
    head = network.head
    h = network.features(x).detach()
    assert loss(network.raw(x), pairs).ndim == 0
    w, b = last_layer_ggn_diagonal(h, head.weight, head.bias, pairs, loss, approximation=approximation)
    assert w.shape == head.weight.shape
    assert b is None or b.shape == head.bias.shape
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    for options in ({"method": "exact"}, {"method": "sketch", "probes": 4, "generator": torch.Generator()}):
        diagonal = ggn_diagonal(model, x, pairs, loss, approximation=approximation, **options)
        assert {name: value.shape for name, value in diagonal.items()} == {
            name: parameter.shape for name, parameter in model.named_parameters()
        }


def test_pairs_of_index_tuples() -> None:
    anchor, positive, negative = torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([2, 2])
    triplets = Pairs.from_indices((anchor, positive, negative), num_images=3)
    pairs = Pairs.from_indices((anchor, positive, anchor, negative), 3)
    u = torch.randn(3, 2)
    torch.testing.assert_close(LOSS(u, triplets), LOSS(u, pairs))


def test_a_posterior_as_it_is_called(tmp_path: Path) -> None:
    network, (x, labels) = encoder(), clusters(24)
    lam = LAM(network, LOSS, approximation="fixed", structure="diag")
    assert lam.fit([(x, labels)], check_mode=False) is lam
    lam.optimize_prior_precision()
    e = lam.embed(x, samples=3, generator=torch.Generator())
    assert isinstance(e, StochasticEmbedding)
    assert e.mean.shape == e.point.shape == e.variance.shape == (24, 3)
    assert e.kappa.shape == e.uncertainty.shape == (24,)
    assert e.samples is not None
    assert e.samples.shape == (3, 24, 3)
    assert e.sample(2, generator=torch.Generator()).shape == (2, 24, 3)
    assert lam.embed([(x, labels)]).kappa.shape == (24,)
    lam.save(tmp_path / "lam.safetensors")
    again = LAM.load(tmp_path / "lam.safetensors", network)
    assert torch.equal(again.embed_features(network.features(x).detach()).kappa, e.kappa)
    deeper = NetworkLAM(network, LOSS, layers=1).fit([(x, labels)], check_mode=False)
    assert deeper.embed(x).kappa.shape == (24,)
    assert len(combine(deeper.embed(x), e)) == 24
    figures = {
        "recall": metrics.recall_at_k(e.point, labels, k=1),
        "map": metrics.map_at_k(e.point, labels, k=5),
        "map at r": metrics.map_at_r(e.point, labels, database=e.point, database_labels=labels),
        "r-auroc": metrics.r_auroc(e.point, labels, e.uncertainty),
        "ausc": metrics.ausc(e.point, labels, e.uncertainty),
        "ece": metrics.retrieval_ece(e.samples, labels),
        "auroc": metrics.ood_auroc(e.uncertainty, e.uncertainty + 1),
        "ap": metrics.ood_average_precision(e.uncertainty, e.uncertainty + 1),
    }
    assert all(isinstance(value, float) for value in figures.values()), figures
    assert metrics.evaluate(e.point, labels, e.uncertainty).values["recall@1"] == figures["recall"]


def test_a_training_with_a_posterior_as_it_is_called() -> None:
    network, (x, labels) = encoder().train(), clusters(24)
    online = OnlineLAM(network, torch.optim.SGD(network.parameters(), lr=0.01), LOSS, num_images=24)
    assert isinstance(online.step(x, labels), float)
    network.eval()
    assert isinstance(online.posterior(), LAM)


def test_encoders_as_they_are_called() -> None:
    x = torch.randn(4, 6)
    assert Encoder(nn.Identity(), nn.Linear(6, 3)).raw(x).shape == (4, 3)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    assert Encoder.from_module(module).num_features == 5
    assert Encoder.with_head(nn.Identity(), x, dim=2, init="random", seed=0).dim == 2


def test_von_mises_fisher_as_it_is_called() -> None:
    mean, kappa = torch.eye(3)[:2], torch.tensor([5.0, 50.0])
    drawn = vmf.sample(mean, kappa, 40, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (40, 2, 3)
    fitted_mean, fitted_kappa = vmf.fit(drawn)
    assert fitted_mean.shape == (2, 3)
    assert fitted_kappa.shape == (2,)
    assert vmf.log_normalizer(kappa, 3).shape == (2,)


def test_risk_heads_and_softmax_rivals_as_they_are_called() -> None:
    import experiments.methods  # noqa: F401 (registers the rivals)
    from laplacian_metric import methods
    from laplacian_metric.methods import risk

    for name in ("loss-prediction", "joint-loss-prediction", "softmax", "softmax-ensemble", "het-xl", "sngp"):
        assert methods.make(name).name == name
    assert methods.make("softmax", heads=10, dropout=0.1).score == "entropy"  # type: ignore[attr-defined]
    assert methods.make("loss-prediction", target="retrieval", views=2).views == 2  # type: ignore[attr-defined]
    encoder = Encoder.with_head(nn.Identity(), 1280)
    embedding, uncertainty = risk.with_head(encoder, risk.load("lite0-cifar10"))(torch.rand(3, 1280))
    assert (embedding.shape, uncertainty.shape) == ((3, 1280), (3,))
    assert set(risk.names()) == {"lite0-cifar10", "lite0-quickdraw", "minilm-wordnet"}


def test_an_index_as_it_is_called(tmp_path: Path) -> None:
    from laplacian_metric import Trust
    from laplacian_metric.serve import Index

    (h, labels), queries = clusters(80), clusters(60, seed=1)
    Index(Trust.fit((h, labels), queries)).save(tmp_path / "index")
    reply = Index.load(tmp_path / "index").replies(h[:1], k=2)[0]
    assert (reply.nearest, len(reply.neighbours)) == (0, 2)


def test_the_commands_are_there() -> None:
    from laplacian_metric.cli import app

    listed = CliRunner().invoke(app, ["--help"]).output
    for command in (
        "demo",
        "fit",
        "embed",
        "index",
        "query",
        "evaluate",
        "compare",
        "report",
        "train",
        "pretrain-risk",
    ):
        assert command in listed
    assert "--out" in CliRunner().invoke(app, ["demo", "--help"], env={"COLUMNS": "200"}).output
