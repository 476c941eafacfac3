"""pytorch-metric-learning: our metrics in its calculator, a posterior in its tester and after its trainer."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses, miners, samplers, testers, trainers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import LAM, Encoder, Trust, metrics
from laplacian_metric.data import load
from laplacian_metric.integrations.pytorch_metric_learning import (
    LAMTester,
    TrainingLoss,
    UncertaintyCalculator,
    encoder_of,
    fit_trust,
)

CPU = torch.device("cpu")
OURS = ("r_auroc", "ausc", "ece_at_1")


def case(count: int = 60, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit embeddings (N, 3), labels, uncertainties, joint samples (7, N, 3)."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    u = F.one_hot(labels, 4)[:, :3] + 0.7 * torch.randn(count, 3, generator=g)
    samples = F.normalize(u + 0.4 * torch.randn(7, count, 3, generator=g), dim=2)
    return F.normalize(u, dim=1), labels, torch.rand(count, generator=g).double(), samples


def calculator(**options: Any) -> UncertaintyCalculator:
    return UncertaintyCalculator(**{"exclude": ("AMI", "NMI"), "device": CPU, **options})


def expected(z: Tensor, labels: Tensor, uncertainty: Tensor, **gallery: Any) -> dict[str, float]:
    return {
        "r_auroc": metrics.r_auroc(z, labels, uncertainty, **gallery),
        "ausc": metrics.ausc(z, labels, uncertainty, **gallery),
        "ece_at_1": metrics.ece_at_k(z, labels, uncertainty, 1, **gallery),
    }


# --- the calculator ---


@pytest.mark.parametrize("gallery", [False, True])
def test_the_metrics_are_ours(gallery: bool) -> None:
    z, labels, uncertainty, samples = case()
    others, other_labels, _, other_samples = case(90, 3, seed=1)  # the fourth class is not in it
    rows = (z, labels, others, other_labels) if gallery else (z, labels)
    drawn = {"samples": samples, **({"reference_samples": other_samples} if gallery else {})}
    accuracies = calculator().get_accuracy(*rows, uncertainty=uncertainty, **drawn)
    plain = AccuracyCalculator(exclude=("AMI", "NMI"), k="max_bin_count", device=CPU).get_accuracy(*rows)
    assert {name: accuracies[name] for name in plain} == plain  # nothing of the library's own has changed
    assert set(accuracies) - set(plain) == {*OURS, "ece"}
    known = {"database_labels": other_labels} if gallery else {}
    values = expected(z, labels, uncertainty, **({"database": others} if gallery else {}), **known)
    sampled = {"database": other_samples} if gallery else {}
    values["ece"] = metrics.retrieval_ece(samples, labels, **sampled, **known)
    for name, value in values.items():
        assert accuracies[name] == pytest.approx(value, abs=1e-12), name


def test_queries_that_are_the_first_of_a_larger_reference() -> None:
    z, labels, uncertainty, samples = case(90)
    queries = 40
    accuracies = calculator().get_accuracy(
        z[:queries],
        labels[:queries],
        z,
        labels,
        True,
        uncertainty=uncertainty[:queries],
        samples=samples[:, :queries],
        reference_samples=samples,
    )
    similarity = z[:queries] @ z.T - 9 * torch.eye(queries, 90)
    right = labels[similarity.argmax(1)] == labels[:queries]
    above = uncertainty[:queries][~right][:, None] > uncertainty[:queries][right][None]
    assert accuracies["r_auroc"] == pytest.approx(float(above.double().mean()), abs=1e-12)
    # The calibration error of the consensus, as a loop that reads like its definition.
    votes = torch.stack([labels[(s[:queries] @ s.T - 9 * torch.eye(queries, 90)).argmax(1)] for s in samples])
    bins: dict[int, list[tuple[float, bool]]] = {}
    for query in range(queries):
        counts = votes[:, query].bincount(minlength=4)
        share = int(counts.max()) / 7
        outcome = share, bool(counts.argmax() == labels[query])
        bins.setdefault(min(9, 10 * int(counts.max()) // 7), []).append(outcome)
    gaps = [abs(sum(p - hit for p, hit in members)) for members in bins.values()]
    assert accuracies["ece"] == pytest.approx(sum(gaps) / queries, abs=1e-12)


@pytest.mark.parametrize("form", ["return_per_class", "avg_of_avgs"])
def test_class_by_class(form: str) -> None:
    z, labels, uncertainty, samples = case()
    accuracies = calculator(**{form: True}).get_accuracy(z, labels, uncertainty=uncertainty, samples=samples)
    similarity = z @ z.T - 9 * torch.eye(len(z))
    right = labels[similarity.argmax(1)] == labels
    values = []
    for one in range(4):
        rows = labels == one
        above = uncertainty[rows & ~right][:, None] > uncertainty[rows & right][None]
        values.append(float(above.double().mean()))
    if form == "return_per_class":
        assert accuracies["r_auroc"] == pytest.approx(values)
        assert all(len(accuracies[name]) == 4 for name in (*OURS, "ece", "precision_at_1"))
    else:
        assert accuracies["r_auroc"] == pytest.approx(sum(values) / 4)


def test_classes_in_which_a_metric_is_not_defined_are_left_out_of_the_average() -> None:
    z = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [1.0, 0.15]]), dim=1)
    labels, uncertainty = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    accuracies = calculator(avg_of_avgs=True).get_accuracy(z, labels, uncertainty=uncertainty)
    assert accuracies["r_auroc"] == 1.0  # class 0 has no error


def test_a_query_without_a_positive_does_not_count() -> None:
    z, labels, uncertainty, samples = case()
    labels = labels.clone()
    labels[0] = 9
    accuracies = calculator().get_accuracy(z, labels, uncertainty=uncertainty, samples=samples)
    for name, value in expected(z, labels, uncertainty).items():
        assert accuracies[name] == pytest.approx(value, abs=1e-12), name
    nothing = calculator().get_accuracy(
        z, torch.arange(60), uncertainty=uncertainty, samples=samples
    )  # no class has two
    assert all(math.isnan(nothing[name]) for name in (*OURS, "ece", "precision_at_1"))


def test_labels_that_are_compared() -> None:
    z, labels, uncertainty, _ = case()
    pairs = torch.stack([labels, labels % 2], dim=1)

    def same(first: Tensor, second: Tensor) -> Tensor:
        return first[..., 1] == second[..., 1]

    compared = calculator(label_comparison_fn=same, exclude=("AMI", "NMI", "ece"))
    accuracies = compared.get_accuracy(z, pairs, uncertainty=uncertainty)
    assert accuracies["r_auroc"] == pytest.approx(metrics.r_auroc(z, labels % 2, uncertainty), abs=1e-12)


def test_what_is_not_known_is_left_out_unless_it_is_asked_for() -> None:
    z, labels, uncertainty, samples = case()
    assert {*OURS, "ece"}.isdisjoint(calculator().get_accuracy(z, labels))
    assert "ece" not in calculator().get_accuracy(z, labels, uncertainty=uncertainty)
    only = calculator(include=("ece",), exclude=()).get_accuracy(z, labels, samples=samples)
    assert list(only) == ["ece"]


# --- the tester ---


def fitted(seed: int = 0) -> tuple[LAM, TensorDataset, TensorDataset]:
    """A LAM of a small network with dropout, and two sets of images."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(80) % 4
    images = F.one_hot(labels, 6) + 0.6 * torch.randn(80, 6, generator=g)
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5))
    encoder = Encoder(backbone, nn.Linear(16, 3))
    lam = LAM(encoder, ContrastiveLoss()).fit([(images, labels)], check_mode=False)
    first, second = images[:50], images[50:]
    return lam, TensorDataset(first, labels[:50]), TensorDataset(second, labels[50:])


def lam_tester(lam: Any, **options: Any) -> LAMTester:
    sets_given = {
        "dataloader_num_workers": 0,
        "batch_size": 16,
        "data_device": CPU,
        "accuracy_calculator": calculator(),
    }
    return LAMTester(lam, **{**sets_given, **options})


def test_the_tester_finds_what_the_library_finds_and_adds_the_uncertainty() -> None:
    lam, first, second = fitted()
    sets, splits = {"first": first, "second": second}, [("second", ["first"]), ("first", ["first", "second"])]
    seen: dict[str, int] = {}
    tester = lam_tester(
        lam, samples=5, end_of_testing_hook=lambda t: seen.update({k: len(e) for k, e in t.embedded.items()})
    )
    accuracies = tester.test(sets, 1, splits_to_eval=[(query, [*others]) for query, others in splits])
    plain = testers.GlobalEmbeddingSpaceTester(
        dataloader_num_workers=0,
        batch_size=16,
        data_device=CPU,
        accuracy_calculator=AccuracyCalculator(exclude=("AMI", "NMI"), k="max_bin_count", device=CPU),
    ).test(sets, 1, lam.encoder, splits_to_eval=splits)
    for split, values in plain.items():
        for name, value in values.items():
            assert accuracies[split][name] == pytest.approx(value, abs=1e-9), name
    assert seen == {"first": 50, "second": 30}

    lam.encoder.eval()
    (images, labels), (gallery, gallery_labels) = second.tensors, first.tensors
    e = lam.embed(images, samples=5, generator=torch.Generator().manual_seed(0))
    others = lam.embed(gallery, samples=5, generator=torch.Generator().manual_seed(0))
    values = expected(e.point, labels, e.uncertainty, database=others.point, database_labels=gallery_labels)
    values["ece"] = metrics.retrieval_ece(
        e.samples, labels, database=others.samples, database_labels=gallery_labels
    )
    for name, value in values.items():
        assert accuracies["second"][f"{name}_level0"] == pytest.approx(value, abs=1e-6), name
    torch.testing.assert_close(tester.embedded["second"].kappa, e.kappa)


def test_a_tester_that_fits_anew_at_every_test() -> None:
    lam, first, second = fitted()
    trunk, embedder = lam.encoder.backbone, lam.encoder.head
    calls = []

    def make(trunk: nn.Module, embedder: nn.Module) -> LAM:
        calls.append((trunk.training, embedder))
        images, labels = first.tensors
        encoder = encoder_of({"trunk": trunk, "embedder": embedder})
        return LAM(encoder, ContrastiveLoss()).fit([(images, labels)], check_mode=False)

    tester = lam_tester(make)
    before = tester.test({"second": second}, 1, trunk, embedder)
    with torch.no_grad():
        embedder.weight.add_(torch.randn(embedder.weight.shape, generator=torch.Generator().manual_seed(0)))
    after = tester.test({"second": second}, 2, trunk, embedder)
    assert calls == [(False, embedder)] * 2
    assert before["second"]["ausc_level0"] != after["second"]["ausc_level0"]


Z, LABELS, UNCERTAINTY, SAMPLES = case()


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: calculator().get_accuracy(Z, LABELS, uncertainty=UNCERTAINTY[1:]), "uncertainty"),
        (lambda: calculator().get_accuracy(Z, LABELS, uncertainty=UNCERTAINTY.log().sqrt()), "uncertainty"),
        (lambda: calculator().get_accuracy(Z, LABELS, samples=SAMPLES[:, 1:]), "samples"),
        (lambda: calculator().get_accuracy(Z, LABELS, Z, LABELS, samples=SAMPLES), "reference_samples"),
        (lambda: calculator(include=("ausc",), exclude=()).get_accuracy(Z, LABELS), "uncertainty"),
        (lambda: calculator().get_accuracy(Z, LABELS, include=("ece",)), "samples"),
        (lambda: calculator(label_comparison_fn=operator.eq).get_accuracy(Z, LABELS, samples=SAMPLES), "ece"),
        (lambda: lam_tester(fitted()[0]).test({"first": fitted()[1]}, 1, nn.Linear(6, 3)), "trunk_model"),
        (lambda: lam_tester(lambda *_: None).test({"first": fitted()[1]}, 1), "trunk_model"),
        (lambda: lam_tester(fitted()[0], pca=2), "pca"),
        (lambda: lam_tester(fitted()[0], use_trunk_output=True), "use_trunk_output"),
        (lambda: TrainingLoss(ContrastiveLoss())(Z, LABELS, ref_emb=Z), "ref_emb"),
        (lambda: TrainingLoss(ContrastiveLoss())(Z), "labels"),
        (lambda: encoder_of({"embedder": nn.Linear(2, 2)}), "models"),
        (lambda: encoder_of({"trunk": nn.Linear(2, 2), "head": nn.Linear(2, 2)}), "models"),
    ],
)
def test_bad_inputs(call: Callable[[], Any], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        call()


# --- the trainer ---


def test_the_loss_of_a_batch_and_of_mined_pairs() -> None:
    z, labels, *_ = case()
    loss = ContrastiveLoss(margin=0.6)
    wrapped = TrainingLoss(loss)
    torch.testing.assert_close(wrapped(z, labels), loss(z, Pairs.from_labels(labels)))
    mined = miners.TripletMarginMiner(margin=0.2)(z, labels)
    torch.testing.assert_close(wrapped(z, labels, mined), loss(z, Pairs.from_indices(mined, len(z))))
    nothing = torch.empty(0, dtype=torch.long)
    assert wrapped(z.requires_grad_(), labels, (nothing,) * 3).item() == 0.0


def small_models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "trunk": nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU()),
        "embedder": nn.Linear(32, 3),
    }


def test_trust_of_a_trainer_s_models() -> None:
    train, test = (load("sample-fashion-mnist", split) for split in ("train+validation", "test"))
    models = small_models()
    trust = fit_trust(models, *(TensorDataset(part.floats(), part.labels) for part in (train, test)))
    encoder = encoder_of(models)
    h, query_h, digits = (
        encoder.features(part.floats()).detach() for part in (train, test, load("sample-mnist", "test"))
    )
    direct = Trust.fit((h, train.labels), (query_h, test.labels), encoder=encoder)
    np.testing.assert_allclose(trust(digits).probability, direct(digits).probability, rtol=1e-6)
    assert (trust(digits).verdict == "unlike anything seen").mean() > 0.5


@pytest.mark.parametrize("own_loss", [False, True])
def test_from_its_trainer_to_a_posterior(own_loss: bool) -> None:
    train, test = (load("sample-fashion-mnist", split) for split in ("train+validation", "test"))
    dataset = TensorDataset(train.floats()[:600], train.labels[:600])
    models = small_models()
    ours = ContrastiveLoss(margin=0.7, negatives="active")
    loss = losses.ContrastiveLoss() if own_loss else TrainingLoss(ours)
    trainers.MetricLossOnly(
        models,
        {f"{name}_optimizer": torch.optim.Adam(models[name].parameters(), lr=2e-3) for name in models},
        batch_size=100,
        loss_funcs={"metric_loss": loss},
        dataset=dataset,
        mining_funcs={}
        if own_loss
        else {"tuple_miner": miners.BatchEasyHardMiner(pos_strategy="all", neg_strategy="all")},
        sampler=samplers.MPerClassSampler(dataset.tensors[1], 10, 100, 600),
        dataloader_num_workers=0,
        data_device=CPU,
    ).train(num_epochs=6)

    lam = LAM(encoder_of(models), ours).fit(DataLoader(dataset, batch_size=200), check_mode=False)
    images, labels = test.floats()[:500], test.labels[:500]
    with torch.no_grad():
        features, seen = models["trunk"](images), models["trunk"](dataset.tensors[0])
    by_hand = LAM(Encoder(nn.Identity(), models["embedder"]), ours)
    by_hand.fit_features(seen, dataset.tensors[1], check_mode=False)
    e, other = lam.embed(images), by_hand.embed_features(features)
    torch.testing.assert_close(e.point, F.normalize(models["embedder"](features), dim=1).detach())
    torch.testing.assert_close(e.kappa, other.kappa, rtol=1e-4, atol=0)
    assert metrics.recall_at_k(e.point, labels) > 0.5  # a tenth by chance
