"""What holds of every registered method: it learns, resumes exactly, reads a loader once, and names what is wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from laplacian_metric import NetworkLAM, methods, metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Embedder, FitData, Learner, Setup, Start
from tests.generators import seeded
from tests.methods.learning import (
    LOSS,
    encoder_of,
    epoch,
    learn_two_clusters,
    learner_of,
    two_clusters,
)

CASES: list[tuple[str, dict[str, Any]]] = [
    ("deterministic", {}),
    ("ensemble", {"references": 8}),
    ("ensemble", {"combine": "aligned", "disagreement": "neighbours"}),
    ("mc-dropout", {"samples": 30}),
    ("mc-dropout", {"samples": 30, "where": "head"}),
    ("pfe", {"hidden": 16}),
    ("soft-contrastive", {}),
    ("soft-contrastive", {"normalize": False}),
    ("hib", {"hidden": 16}),
    ("hib", {"hidden": 16, "normalize": False}),
    ("hib", {"head": "linear"}),
    ("hib", {"hidden": 16, "components": 2}),
    ("swag", {"samples": 30, "rank": 4}),
    ("swag", {"samples": 30, "weights": "head", "collect_every": 3}),
    ("vmf", {}),
    ("vmf", {"loss": "mc-infonce"}),
    ("vmf", {"loss": "elk"}),
    ("vmf", {"loss": "hib", "samples": 8}),
    ("vmf", {"negatives": "all", "stop_gradient": True}),
    ("proxies", {}),
    ("proxies", {"metric": "nivmf"}),
    ("laplace", {}),
    ("online-laplace", {"warmup": 1, "prior_precision": 100.0}),
    ("triplet", {"mining": "batch"}),
    ("triplet-regression", {"mining": "batch"}),
    ("btl", {"mining": "batch", "hidden": 32}),
    ("btl", {"mining": "batch", "hidden": 32, "prior": "sphere"}),
    ("loss-prediction", {"hidden": 16, "learning_rate": 3e-3}),
    ("joint-loss-prediction", {"hidden": 16}),
    ("unlabelled", {"method": "vmf", "options": {"loss": "elk"}}),
    ("nt-xent", {}),
    ("isif", {}),
    ("umm", {"samples": ((0, 4),)}),
]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{o}" for n, o in CASES])
# Those whose uncertainty is learned from labels that contradict each other between two clusters.
KNOW_AMBIGUITY = ("pfe", "hib", "vmf", "triplet-regression", "btl", "mc-dropout")
# Their kappa is a decreasing map of a score, and no width: their samples say little of where the mean is.
SCORES = ("loss-prediction", "joint-loss-prediction")
SAMPLES = 60


def trained(name: str, options: dict[str, Any], steps: int = 100) -> Learner:
    learner: Learner = learner_of(name, **options)
    if methods.find(name).trains:
        learn_two_clusters(learner, steps)
    return learner


def data() -> FitData:
    return FitData(Dataset(*two_clusters(120, 3)), Dataset(*two_clusters(120, 4)))


def test_every_method_of_the_package_is_tried() -> None:
    assert {name for name, _ in CASES} == set(methods._METHODS._places)
    for name in methods.names():
        assert methods.find(name).name == name


@pytest.mark.filterwarnings("ignore")
@every_case
def test_two_clusters_are_found_and_what_lies_between_is_unsure(name: str, options: dict[str, Any]) -> None:
    embedder = trained(name, options).embedder(data())
    images, labels = two_clusters(200, 1)
    e = embedder.embed(images)
    clear = slice(50, 200)
    assert metrics.recall_at_k(e.point[clear], labels[clear]) > 0.97
    similar = embedder.similarity(e[clear], e[clear])
    if similar is not None:
        nearest = similar.fill_diagonal_(-math.inf).argmax(1)
        assert float((labels[clear][nearest] == labels[clear]).double().mean()) > 0.97
    assert torch.equal(embedder.scores(images)["own"], e.uncertainty)
    assert methods.find(name).has_uncertainty == bool(e.uncertainty.any())
    if name in KNOW_AMBIGUITY and options.get("loss") != "elk":
        assert metrics.ood_auroc(e.uncertainty[50:], e.uncertainty[:50]) > 0.75


@pytest.mark.filterwarnings("ignore")
@every_case
def test_training_goes_on_exactly_where_it_was_saved(name: str, options: dict[str, Any]) -> None:
    if not methods.find(name).trains:
        pytest.skip("is not trained")
    inputs, labels = two_clusters(24, 1)
    learner = learner_of(name, **options)
    epoch(learner, inputs, labels, 3)
    saved = copy.deepcopy((learner.module.state_dict(), learner.optimizer.state_dict(), learner.state()))
    generator = learner.generator.get_state()
    assert all(isinstance(value, Tensor) for value in (*saved[0].values(), *saved[2].values()))
    values = epoch(learner, inputs, labels, 3)
    again = learner_of(name, seed=9, **options)
    again.module.load_state_dict(saved[0])
    again.optimizer.load_state_dict(saved[1])
    again.restore(saved[2])
    again.generator.set_state(generator)
    assert epoch(again, inputs, labels, 3) == values
    one, other = (each.embedder(data()).embed(inputs) for each in (learner, again))
    if name not in ("hib", "unlabelled"):  # whose embedders have draws of their seed
        assert torch.equal(one.uncertainty, other.uncertainty)
    assert torch.equal(one.point, other.point)
    with pytest.raises((ValueError, KeyError)):
        again.restore({"of another method": torch.zeros(1)})


@pytest.mark.filterwarnings("ignore")
@every_case
def test_the_seed_decides_and_the_global_generator_is_left_alone(name: str, options: dict[str, Any]) -> None:
    inputs, labels = two_clusters(24, 1)
    before = torch.get_rng_state()
    runs = []
    for _ in range(2):
        learner = learner_of(name, **options)
        values = epoch(learner, inputs, labels, 4) if methods.find(name).trains else []
        runs.append((values, learner.embedder(data()).embed(inputs)))
    assert torch.equal(torch.get_rng_state(), before)
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1].uncertainty, runs[1][1].uncertainty)


@pytest.mark.filterwarnings("ignore")
@every_case
def test_dtypes_follow_the_encoder(name: str, options: dict[str, Any]) -> None:
    images, labels = two_clusters(20, 0)
    learner = learner_of(name, dtype=torch.float64, **options)
    if methods.find(name).trains:
        assert learner.loss(images.double(), labels).dtype == torch.float64
        learner = learner_of(name, **options)
        with torch.autocast("cpu", torch.bfloat16):
            loss = learner.loss(images, labels)
        assert loss.dtype == torch.float32
        loss.backward()
        gradients = [parameter.grad for parameter in learner.parameters() if parameter.grad is not None]
        assert gradients
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0, 1]])
@every_case
def test_a_batch_of_few_pairs_has_a_finite_loss(
    name: str, options: dict[str, Any], labels: list[int]
) -> None:
    if not methods.find(name).trains:
        pytest.skip("is not trained")
    learner = learner_of(name, setup={"num_classes": 3}, **options)
    inputs, _ = two_clusters(len(labels), 1)
    assert all(map(math.isfinite, epoch(learner, inputs, torch.tensor(labels), 2)))


@every_case
def test_another_number_of_encoders_is_refused(name: str, options: dict[str, Any]) -> None:
    method = methods.make(name, **options)
    for count in (0, 1) if method.start is Start.NETWORKS else (0, 2):
        with pytest.raises(ValueError, match="encoder"):
            method.learner([encoder_of()] * count, Setup(LOSS, 1, num_classes=2))


# --- what is embedded ---


def images() -> Tensor:
    """Images far from each other, so that no two are mistaken for one another."""
    return 2 * torch.randn(24, 6, generator=seeded(0))


def embedder_of(name: str, options: dict[str, Any]) -> Embedder:
    encoders = [encoder_of(8, inputs=6, seed=seed) for seed in range(3)]
    count = 3 if methods.find(name).start is Start.NETWORKS else 1
    x, labels = images(), torch.arange(24) % 4
    learner = learner_of(
        name, *encoders[:count], adam=1e-4, setup={"num_classes": 4, "num_images": 24}, **options
    )
    if methods.find(name).trains:
        epoch(learner, x, labels, 3)
        learner.end_epoch()
    embedder: Embedder = learner.embedder(FitData([(x, labels)], [(x, labels)]))
    return embedder


@pytest.mark.filterwarnings("ignore")
@every_case
def test_a_loader_is_read_once_and_its_batches_do_not_matter(name: str, options: dict[str, Any]) -> None:
    embedder, x = embedder_of(name, options), images()

    def once() -> Iterator[Tensor]:
        yield from x.split(7)

    for seed in (None, 5):
        generators = [None if seed is None else seeded(seed) for _ in range(3)]
        torch.manual_seed(4)
        whole = embedder.embed(x, samples=6, generator=generators[0])
        torch.manual_seed(4)
        e = embedder.embed(once(), samples=6, generator=generators[1])
        torch.manual_seed(4)
        streamed = torch.stack(list(embedder.sample_embeddings(once(), 6, generator=generators[2])))
        assert e.samples.shape == (6, 24, e.dim)
        torch.testing.assert_close(e.samples.norm(dim=2), torch.ones(6, 24))
        for attribute, tolerance in (("point", 1e-5), ("samples", 1e-4), ("uncertainty", 1e-3)):
            one, other = getattr(e, attribute), getattr(whole, attribute)
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(streamed, e.samples, atol=1e-4, rtol=1e-4)
    assert embedder.embed(x).samples is None
    assert len(embedder.embed(x[:1])) == 1
    for call in (embedder.embed, lambda empty: list(embedder.sample_embeddings(empty, 2))):
        with pytest.raises(ValueError, match="loader"):
            call(iter([]))
    with pytest.raises(ValueError, match=r"direction|NaN|finite"):
        embedder.embed(torch.full((2, 6), torch.nan))


def same_images(mean: Tensor, samples: Tensor) -> Tensor:
    """Whether the mean of an image's samples lies nearest to its own mean direction, (N,)."""
    average = F.normalize(samples.mean(0), dim=1)
    return (average @ mean.T).argmax(1) == torch.arange(len(mean))


def shuffled(x: Tensor) -> DataLoader[Any]:
    labelled = TensorDataset(x, torch.zeros(len(x)))
    return DataLoader(labelled, batch_size=5, shuffle=True, generator=seeded(3))


WITH_DISTRIBUTIONS = [(name, options) for name, options in CASES if name not in SCORES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize(
    ("name", "options"), WITH_DISTRIBUTIONS, ids=[f"{n}-{o}" for n, o in WITH_DISTRIBUTIONS]
)
def test_a_shuffling_loader_gives_mean_and_samples_of_the_same_images(
    name: str, options: dict[str, Any], generator: bool
) -> None:
    embedder = embedder_of(name, options)
    torch.manual_seed(2)
    drawn = seeded(1) if generator else None
    e = embedder.embed(shuffled(images()), samples=SAMPLES, generator=drawn)
    own = same_images(e.mean, e.samples)
    assert own.double().mean() > 0.85
    # The very mistake is seen: the samples of a pass in another order are of other images.
    other = embedder.embed(shuffled(images().roll(5, 0)), samples=SAMPLES).samples
    assert same_images(e.mean, other).double().mean() < 0.5


@pytest.mark.parametrize("predictive", ["linearised", "sampled"])
def test_a_posterior_over_several_layers_reads_a_loader_once_too(predictive: str) -> None:
    x, y = images(), torch.arange(24) % 4
    lam = NetworkLAM(encoder_of(8, inputs=6), LOSS, layers=2, predictive=predictive, prior_precision=1e3)
    lam.fit([(x, y)], check_mode=False)
    e = lam.embed(iter(shuffled(x)), samples=SAMPLES, generator=seeded(0))
    assert same_images(e.mean, e.samples).double().mean() > 0.85


# --- options ---


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("mc-dropout", "rate", (-0.1, 1.0, math.nan)),
        ("mc-dropout", "samples", (1,)),
        ("swag", "rank", (1, -1)),
        ("swag", "collect_every", (0,)),
        ("swag", "burn_in", (-1,)),
        ("swag", "scale", (-1.0, math.nan)),
        ("swag", "samples", (1,)),
        ("ensemble", "references", (1,)),
        ("ensemble", "sharpness", (0.0,)),
        ("pfe", "hidden", (0,)),
        ("hib", "components", (0, 3)),
        ("hib", "variance", (0.0, 1e-6, math.nan, math.inf)),
        ("hib", "kl_weight", (-1.0, math.nan, math.inf)),
        ("hib", "offset", (math.nan, math.inf)),
        ("soft-contrastive", "scale", (0.0, math.inf)),
        ("soft-contrastive", "offset", (math.nan,)),
        ("vmf", "kappa_pos", (0.0,)),
        ("vmf", "samples", (0,)),
        ("vmf", "hidden", (0,)),
        ("vmf", "initial_kappa", (1.0, math.nan)),
        ("proxies", "temperature", (0.0,)),
        ("proxies", "proxy_rate", (-1.0,)),
        ("proxies", "initial_kappa", (math.nan,)),
        ("proxies", "samples", (0,)),
        ("proxies", "anchor_weight", (-1.0,)),
        ("triplet", "margin", (-0.1, math.nan, math.inf)),
        ("triplet", "negatives", (0,)),
        ("triplet-regression", "variance", (0.0,)),
        ("btl", "kl_weight", (-1.0, math.inf)),
        ("btl", "hidden", (0,)),
        ("btl", "cache", (0,)),
        ("btl", "refresh", (0,)),
        ("btl", "variance", (0.0,)),
        ("btl", "scale", (-1.0,)),
        ("loss-prediction", "neighbours", (0,)),
        ("loss-prediction", "epochs", (0,)),
        ("loss-prediction", "learning_rate", (0.0,)),
        ("joint-loss-prediction", "weight", (0.0,)),
        ("nt-xent", "temperature", (0.0,)),
        ("umm", "consistency", (-1.0,)),
        ("umm", "ranking", (math.inf,)),
        ("umm", "trace", (0.0,)),
        ("umm", "bins", (0,)),
        ("umm", "samples", ((), ((1, 5),))),
        ("laplace", "prior", ("margnal", -1.0)),
        ("laplace", "temperature", (0.0,)),
        ("laplace", "rank", (0,)),
        ("online-laplace", "memory", (2.0, "papre")),
        ("online-laplace", "warmup", (-1,)),
        ("online-laplace", "temperature", (0.0,)),
        ("online-laplace", "prior_precision", (math.nan,)),
        ("online-laplace", "samples", (0,)),
    ],
)
def test_numbers_out_of_range_are_named(name: str, option: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=option):
            methods.make(name, **{option: value})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mc-dropout", ("where", "masks", "point")),
        ("swag", ("weights", "batch_norm")),
        ("ensemble", ("combine", "disagreement")),
        ("pfe", ("last_norm",)),
        ("hib", ("head", "balance", "average")),
        ("soft-contrastive", ("balance",)),
        ("vmf", ("loss", "negatives")),
        ("proxies", ("metric",)),
        ("triplet", ("mining",)),
        ("btl", ("prior", "likelihood", "distance")),
        ("loss-prediction", ("target", "loss")),
        ("laplace", ("structure", "approximation")),
        ("online-laplace", ("approximation",)),
    ],
)
def test_unknown_words_are_named(name: str, options: tuple[str, ...]) -> None:
    for option in options:
        with pytest.raises(ValueError, match=option):
            methods.make(name, **{option: "everywhere"})
    with pytest.raises(ValueError, match="no option 'widht'"):
        methods.make(name, widht=3)
